#pragma once

#include "sim/policy/views.hpp"

namespace kvtier {

/// The name in decision logs and for policies in other languages.
[[nodiscard]] constexpr const char* to_string(Demand demand) {
  switch (demand) {
    case Demand::save:
      return "save";
    case Demand::prefetch:
      return "prefetch";
    case Demand::demotion:
      return "demotion";
    case Demand::background:
      return "background";
  }
  return "?";
}

}  // namespace kvtier
