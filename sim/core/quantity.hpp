#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/core/units.hpp"

/// Quantities as text, as in configs: "128GiB", "26GB/s", "360ms", "4096tokens".
namespace kvtier {

/// The text format of one quantity type. `example` goes into error messages, `pattern` into the
/// JSON Schema.
struct QuantityFormat {
  const char* noun;
  const char* example;
  const char* pattern;
};

template <class Q>
[[nodiscard]] const QuantityFormat& quantity_format();

/// The quantity that `text` writes. nullopt for a missing, unknown or wrong unit, and for a number
/// that is not finite. Bytes, tokens and nanoseconds must be whole.
template <class Q>
[[nodiscard]] std::optional<Q> parse_quantity(std::string_view text);

/// Text that parse_quantity turns back into exactly `quantity`. Whole quantities take the largest
/// unit that divides them, real ones the unit with the shortest text.
template <class Q>
[[nodiscard]] std::string format_quantity(Q quantity);

#define KVTIER_DECLARE_QUANTITY(Q)                           \
  template <>                                                \
  const QuantityFormat& quantity_format<Q>();                \
  template <>                                                \
  std::optional<Q> parse_quantity<Q>(std::string_view text); \
  template <>                                                \
  std::string format_quantity<Q>(Q quantity);
KVTIER_DECLARE_QUANTITY(Bytes)
KVTIER_DECLARE_QUANTITY(Tokens)
KVTIER_DECLARE_QUANTITY(SimDuration)
KVTIER_DECLARE_QUANTITY(BytesPerSecond)
KVTIER_DECLARE_QUANTITY(FlopsPerSecond)
KVTIER_DECLARE_QUANTITY(PerSecond)
KVTIER_DECLARE_QUANTITY(DollarsPerHour)
KVTIER_DECLARE_QUANTITY(DollarsPerGibHour)
#undef KVTIER_DECLARE_QUANTITY

}  // namespace kvtier
