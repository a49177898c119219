#include "sim/policy/policy.hpp"

namespace kvtier {

const char* to_string(Knowledge knowledge) {
  switch (knowledge) {
    case Knowledge::online:
      return "online";
    case Knowledge::look_ahead:
      return "look_ahead";
    case Knowledge::oracle:
      return "oracle";
  }
  return "?";
}

}  // namespace kvtier
