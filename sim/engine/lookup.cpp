#include "sim/engine/lookup.hpp"

#include <array>

namespace kvtier {

const char* to_string(LossCause cause) {
  constexpr std::array<const char*, kLossCauses> names{
      "none",     "not_stored",       "capacity",     "ttl",
      "overflow", "larger_than_tier", "not_admitted", "served_elsewhere"};
  return names[static_cast<std::size_t>(cause)];
}

Lookup together(const Lookup& prompt, const Lookup& own) {
  const auto in_hbm = [](const Lookup& lookup) {
    return lookup.medium == Medium::hbm ? lookup.reused : Tokens(0);
  };
  Lookup both{.reused = prompt.reused + own.reused,
              .medium = prompt.medium == Medium::hbm ? own.medium : prompt.medium,
              .late = prompt.late || own.late,
              .fetched_from = prompt.late ? prompt.fetched_from : own.fetched_from,
              .cause = own.cause == LossCause::none ? prompt.cause : own.cause};
  both.nearer = both.medium == Medium::hbm ? Tokens(0) : in_hbm(prompt) + in_hbm(own);
  return both;
}

}  // namespace kvtier
