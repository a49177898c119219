#include "sim/store/sessions/lookup.hpp"

#include <algorithm>
#include <array>

namespace kvtier {

const char* to_string(LossCause cause) {
  constexpr std::array<const char*, kLossCauses> names{
      "none", "not_stored", "capacity", "ttl", "overflow", "larger_than_tier", "not_admitted"};
  return names[static_cast<std::size_t>(cause)];
}

Lookup combine(const Lookup& prompt, const Lookup& own) {
  const auto in = [](const Lookup& lookup, std::size_t medium) {
    return static_cast<std::size_t>(lookup.medium) == medium ? lookup.there()
                                                             : lookup.nearer[medium];
  };
  Lookup both{.reused = prompt.reused + own.reused,
              .medium = std::max(prompt.medium, own.medium),
              .late = prompt.late || own.late,
              .fetched_from = prompt.late ? prompt.fetched_from : own.fetched_from,
              .cause = own.cause == LossCause::none ? prompt.cause : own.cause};
  for (std::size_t i = 0; i < static_cast<std::size_t>(both.medium); ++i) {
    both.nearer[i] = in(prompt, i) + in(own, i);
  }
  return both;
}

}  // namespace kvtier
