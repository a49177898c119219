#include "traces/line_scanner.hpp"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {

void LineScanner::expect(char wanted) {
  if (!take(wanted)) {
    fail(fmt::format("'{}'", wanted));
  }
}

void LineScanner::expect_end() {
  skip_space();
  if (at_ != line_.size()) {
    fail("the end of the line");
  }
}

std::string_view LineScanner::key() {
  skip_space();
  const std::size_t begin = at_ + 1;
  const std::size_t end =
      at_ < line_.size() && line_[at_] == '"' ? line_.find('"', begin) : line_.npos;
  if (end == line_.npos) {
    fail("a key");
  }
  at_ = end + 1;
  return line_.substr(begin, end - begin);
}

std::int64_t LineScanner::integer(const char* name, std::int64_t minimum, std::int64_t maximum) {
  skip_space();
  const char* begin = line_.data() + at_;
  const char* limit = line_.data() + line_.size();
  // Most numbers are short. std::from_chars takes several times longer.
  constexpr std::ptrdiff_t kShort = 18;
  std::int64_t value = 0;
  const char* digit = begin;
  while (digit != limit && *digit >= '0' && *digit <= '9' && digit - begin < kShort) {
    value = value * 10 + (*digit++ - '0');
  }
  if (digit != limit && (*digit == ',' || *digit == ']' || *digit == '}') && digit != begin &&
      (digit - begin == 1 || *begin != '0') && value >= minimum && value <= maximum) [[likely]] {
    at_ += static_cast<std::size_t>(digit - begin);
    return value;
  }
  const auto [end, error] = std::from_chars(begin, limit, value);
  const bool leading_zero = end - begin > 1 && *begin == '0';
  const bool fraction = end < limit && (*end == '.' || *end == 'e' || *end == 'E');
  if (error != std::errc() || leading_zero || fraction || value < minimum || value > maximum) {
    fail(fmt::format("{} as a whole number in {} .. {}", name, minimum, maximum));
  }
  at_ += static_cast<std::size_t>(end - begin);
  return value;
}

std::int64_t LineScanner::time_ns(const char* name, double unit_ns, std::int64_t maximum_ns) {
  skip_space();
  const char* begin = line_.data() + at_;
  double value = 0;
  const auto [end, error] = std::from_chars(begin, line_.data() + line_.size(), value);
  if (error != std::errc() || !(value >= 0) || value * unit_ns > static_cast<double>(maximum_ns)) {
    fail(fmt::format("{} as a number in 0 .. {:.0f}", name,
                     static_cast<double>(maximum_ns) / unit_ns));
  }
  at_ += static_cast<std::size_t>(end - begin);
  return std::llround(value * unit_ns);
}

void LineScanner::skip_string() {
  for (++at_; at_ < line_.size() && line_[at_] != '"'; ++at_) {
    at_ += line_[at_] == '\\' ? 1 : 0;
  }
  if (at_ >= line_.size()) {
    at_ = line_.size();
    fail("the end of a text");
  }
  ++at_;
}

void LineScanner::skip_value() {
  skip_space();
  std::size_t depth = 0;
  const std::size_t begin = at_;
  while (at_ < line_.size()) {
    const char next = line_[at_];
    if (next == '"') {
      skip_string();
      continue;
    }
    if (depth == 0 && (next == ',' || next == '}' || next == ']')) {
      break;
    }
    depth += next == '[' || next == '{' ? 1U : 0U;
    depth -= next == ']' || next == '}' ? 1U : 0U;
    ++at_;
  }
  if (at_ == begin || depth > 0) {
    fail("a value");
  }
}

void LineScanner::fail(std::string_view expected) const {
  constexpr std::size_t kShown = 20;
  std::string_view found = line_.substr(at_);
  const bool cut = found.size() > kShown;
  found = found.substr(0, kShown);
  throw reader_.error(fmt::format(
      "column {}: expected {}, got {}", at_ + 1, expected,
      found.empty() ? "the end of the line" : fmt::format("'{}{}'", found, cut ? "..." : "")));
}

}  // namespace kvtier
