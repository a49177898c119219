#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/core/units.hpp"

/// Quantities as text, the way configs write them: "128GiB", "26GB/s", "360ms", "4096tokens".
namespace kvtier {

/// How one quantity type is written. `example` goes into error messages, `pattern` into the JSON
/// Schema.
struct QuantityFormat {
  const char* noun;
  const char* example;
  const char* pattern;
};

template <class Q>
[[nodiscard]] const QuantityFormat& quantity_format();

/// The quantity that `text` writes, or nullopt for a missing, unknown or wrong-dimension unit, a
/// number that is not finite, or one that is not whole in the quantity's own unit (bytes, tokens,
/// nanoseconds).
template <class Q>
[[nodiscard]] std::optional<Q> parse_quantity(std::string_view text);

/// Text that parse_quantity turns back into exactly `quantity`: whole numbers in the largest unit
/// that divides them, real ones in the unit that makes the text shortest.
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
