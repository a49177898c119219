#include "sim/store/decisions.hpp"

#include <array>

namespace kvtier {

const char* to_string(DecisionKind kind) {
  constexpr std::array<const char*, 11> names{"insert",     "evict",    "demote",    "expire",
                                              "invalidate", "prefetch", "drop_save", "promote",
                                              "move_up",    "skip",     "shift"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace kvtier
