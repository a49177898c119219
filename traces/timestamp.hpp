#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvtier {

enum class TimestampForm { seconds, calendar };

struct Timestamp {
  TimestampForm form = TimestampForm::seconds;
  /// Time since zero (seconds), or since 1970-01-01 00:00:00 UTC (calendar).
  std::int64_t ns = 0;
};

/// Reads seconds ("12.5", "1700158546.68") or an ISO 8601 time ("2023-11-16 18:15:46.6805900",
/// "2023-11-16T18:15:46Z", "2024-05-10 00:00:00.009930+02:00"; UTC without a zone). The fraction
/// may have any number of digits and is rounded to nanoseconds. nullopt for anything else, a date
/// or time that does not exist, negative times and those beyond kTraceTimeNsMax.
[[nodiscard]] std::optional<Timestamp> parse_timestamp(std::string_view text);

/// Reads a number of units of 10^-places seconds (0: seconds, 3: milliseconds, 9: nanoseconds) as
/// nanoseconds. The result is rounded to the nearest nanosecond, without a double unless the number
/// has an exponent or begins with its point. nullopt for negative times, times beyond
/// kTraceTimeNsMax and other text. Allocates nothing.
[[nodiscard]] std::optional<std::int64_t> parse_decimal_ns(std::string_view text,
                                                           std::size_t places);

}  // namespace kvtier
