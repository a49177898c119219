#include "traces/line_scanner.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "traces/timestamp.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

bool next_filled_line(LineReader& lines, std::string_view& line) {
  bool found = false;
  do {
    found = lines.next(line);
  } while (found && line.find_first_not_of(" \t") == line.npos);
  return found;
}

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

std::int64_t LineScanner::time_ns(const char* name, std::size_t places) {
  skip_space();
  const std::size_t end = std::min(line_.find_first_not_of("0123456789+-.eE", at_), line_.size());
  const auto ns = parse_decimal_ns(line_.substr(at_, end - at_), places);
  if (!ns) {
    const double unit_ns = std::pow(10.0, 9.0 - static_cast<double>(places));
    fail(fmt::format("{} as a number in 0 .. {:.0f}", name,
                     static_cast<double>(kTraceTimeNsMax) / unit_ns));
  }
  at_ = end;
  return *ns;
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

std::string LineScanner::text_or_number(const char* name) {
  skip_space();
  const std::size_t begin = at_;
  if (at_ < line_.size() && line_[at_] == '"') {
    skip_string();
  } else {
    integer(name, INT64_MIN, INT64_MAX);
  }
  return std::string(line_.substr(begin, at_ - begin));
}

LineScanner::Hash LineScanner::hash(const char* name) {
  if (const auto text = string()) {
    if (text->empty()) {
      fail(fmt::format("{} that is not empty", name));
    }
    return {*text, true};
  }
  std::size_t end = at_ + (at_ < line_.size() && line_[at_] == '-' ? 1 : 0);
  const std::size_t digits = end;
  while (end < line_.size() && line_[end] >= '0' && line_[end] <= '9') {
    ++end;
  }
  const bool leading_zero = end > digits + 1 && line_[digits] == '0';
  const bool fraction =
      end < line_.size() && (line_[end] == '.' || line_[end] == 'e' || line_[end] == 'E');
  if (end == digits || leading_zero || fraction) {
    fail(fmt::format("{} as a whole number or a string", name));
  }
  const std::string_view text = line_.substr(at_, end - at_);
  at_ = end;
  return {text, false};
}

std::optional<std::string_view> LineScanner::string() {
  skip_space();
  if (at_ >= line_.size() || line_[at_] != '"') {
    return std::nullopt;
  }
  const std::size_t begin = at_ + 1;
  skip_string();
  return line_.substr(begin, at_ - 1 - begin);
}

bool LineScanner::null() {
  skip_space();
  constexpr std::string_view kNull = "null";
  if (!line_.substr(at_).starts_with(kNull)) {
    return false;
  }
  at_ += kNull.size();
  return true;
}

std::int64_t LineScanner::skip_list() {
  if (null()) {
    return 0;
  }
  std::int64_t count = 0;
  expect('[');
  if (!take(']')) {
    do {
      skip_value();
      ++count;
    } while (take(','));
    expect(']');
  }
  return count;
}

std::string_view LineScanner::value() {
  if (const auto text = string()) {
    return *text;
  }
  const std::size_t begin = at_;
  skip_value();
  std::string_view text = line_.substr(begin, at_ - begin);
  while (text.ends_with(' ') || text.ends_with('\t')) {
    text.remove_suffix(1);
  }
  return text;
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
