#include "traces/timestamp.hpp"

#include <charconv>
#include <chrono>
#include <cmath>

#include "traces/trace_source.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kNsPerSecond = 1000000000;
constexpr int kNsDigits = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Reads a text from left to right.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  [[nodiscard]] bool at_end() const { return text_.empty(); }
  bool take(char wanted) {
    if (text_.empty() || text_.front() != wanted) {
      return false;
    }
    text_.remove_prefix(1);
    return true;
  }
  /// A number of exactly `digits` digits.
  std::optional<int> number(std::size_t digits) {
    if (text_.size() < digits) {
      return std::nullopt;
    }
    int value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      if (!is_digit(text_[i])) {
        return std::nullopt;
      }
      value = value * 10 + (text_[i] - '0');
    }
    text_.remove_prefix(digits);
    return value;
  }
  /// A number of any length; nullopt if there is none, or if it is too large.
  std::optional<std::int64_t> number() {
    std::int64_t value = 0;
    if (text_.empty() || !is_digit(text_.front())) {
      return std::nullopt;
    }
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return error == std::errc() ? std::optional(value) : std::nullopt;
  }
  /// Digits after a point, as nanoseconds; zero if there is no point.
  std::optional<std::int64_t> fraction() {
    if (!take('.')) {
      return 0;
    }
    std::int64_t ns = 0;
    int digits = 0;
    for (; !text_.empty() && is_digit(text_.front()); ++digits) {
      const int digit = text_.front() - '0';
      ns = digits < kNsDigits ? ns * 10 + digit : ns + (digits == kNsDigits && digit >= 5 ? 1 : 0);
      text_.remove_prefix(1);
    }
    for (int missing = digits; missing < kNsDigits; ++missing) {
      ns *= 10;
    }
    return digits > 0 ? std::optional(ns) : std::nullopt;
  }

 private:
  std::string_view text_;
};

std::optional<Timestamp> within_range(TimestampForm form, std::int64_t seconds, std::int64_t ns) {
  if (seconds < 0 || seconds >= kTraceTimeNsMax / kNsPerSecond) {
    return std::nullopt;
  }
  return Timestamp{form, seconds * kNsPerSecond + ns};
}

std::optional<Timestamp> read_seconds(Scanner text) {
  const auto seconds = text.number();
  const auto ns = seconds ? text.fraction() : std::nullopt;
  if (!ns || !text.at_end()) {
    return std::nullopt;
  }
  return within_range(TimestampForm::seconds, *seconds, *ns);
}

/// Reads a zone as the seconds ahead of UTC: "Z", "+02:00", "-0530", "+02" or nothing.
std::optional<std::int64_t> read_zone_seconds(Scanner& text) {
  if (text.at_end() || text.take('Z')) {
    return 0;
  }
  const bool ahead = text.take('+');
  if (!ahead && !text.take('-')) {
    return std::nullopt;
  }
  const auto hours = text.number(2);
  std::optional<int> minutes = 0;
  if (!text.at_end()) {
    (void)text.take(':');
    minutes = text.number(2);
  }
  if (!hours || !minutes || *hours > 23 || *minutes > 59) {
    return std::nullopt;
  }
  return (ahead ? 1 : -1) * (std::int64_t{*hours} * 3600 + std::int64_t{*minutes} * 60);
}

std::optional<Timestamp> read_calendar(Scanner text) {
  const auto year = text.number(4);
  const bool has_month = text.take('-');
  const auto month = text.number(2);
  const bool has_day = text.take('-');
  const auto day = text.number(2);
  const bool has_time = text.take('T') || text.take(' ');
  const auto hour = text.number(2);
  const bool has_minute = text.take(':');
  const auto minute = text.number(2);
  const bool has_second = text.take(':');
  const auto second = text.number(2);
  if (!year || !has_month || !month || !has_day || !day || !has_time || !hour || !has_minute ||
      !minute || !has_second || !second || *hour > 23 || *minute > 59 || *second > 59) {
    return std::nullopt;
  }
  const auto ns = text.fraction();
  const auto zone = ns ? read_zone_seconds(text) : std::nullopt;
  const std::chrono::year_month_day date(std::chrono::year(*year),
                                         std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day)));
  if (!zone || !text.at_end() || !date.ok()) {
    return std::nullopt;
  }
  constexpr std::int64_t kSecondsPerDay = 86400;
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return within_range(TimestampForm::calendar,
                      days * kSecondsPerDay + *hour * 3600 + *minute * 60 + *second - *zone, *ns);
}

/// Reads a time with an exponent or without digits before its point.
std::optional<std::int64_t> read_real_ns(std::string_view text, std::int64_t unit_ns) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const double ns = value * static_cast<double>(unit_ns);
  if (error != std::errc() || end != last || !(ns >= 0) ||
      ns >= static_cast<double>(kTraceTimeNsMax)) {
    return std::nullopt;
  }
  return std::llround(ns);
}

}  // namespace

std::optional<std::int64_t> parse_decimal_ns(std::string_view text, std::size_t places) {
  std::int64_t unit_ns = kNsPerSecond;
  for (std::size_t i = 0; i < places; ++i) {
    unit_ns /= 10;
  }
  std::int64_t ns = 0;
  std::size_t at = 0;
  bool overflows = false;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    overflows |= __builtin_mul_overflow(ns, 10, &ns) ||
                 __builtin_add_overflow(ns, (text[at] - '0') * unit_ns, &ns);
  }
  const bool has_digits = at > 0;
  if (at < text.size() && text[at] == '.') {
    std::int64_t digit_ns = unit_ns;
    for (++at; at < text.size() && is_digit(text[at]); ++at) {
      const int digit = text[at] - '0';
      const bool rounds_up = digit_ns == 1 && digit >= 5;
      digit_ns /= 10;
      overflows |= __builtin_add_overflow(ns, rounds_up ? 1 : digit * digit_ns, &ns);
    }
  }
  if (!has_digits || at < text.size()) {
    return read_real_ns(text, unit_ns);
  }
  return overflows || ns > kTraceTimeNsMax ? std::nullopt : std::optional(ns);
}

std::optional<Timestamp> parse_timestamp(std::string_view text) {
  const auto seconds = read_seconds(Scanner(text));
  return seconds ? seconds : read_calendar(Scanner(text));
}

}  // namespace kvtier
