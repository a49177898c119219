#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/compressed_stream.hpp"

namespace kvtier {

/// Reads the next line that is not blank. False at the end.
[[nodiscard]] bool next_filled_line(LineReader& lines, std::string_view& line);

/// Reads the JSON of one line from left to right. It is several times faster than nlohmann's
/// parser, because the shapes are fixed and small. Every error is a ConfigError that names file,
/// line and column.
class LineScanner {
 public:
  /// Keeps references to both.
  LineScanner(std::string_view line, const LineReader& reader) : line_(line), reader_(reader) {}

  /// Takes `wanted` if it comes next.
  bool take(char wanted) {
    skip_space();
    if (at_ < line_.size() && line_[at_] == wanted) {
      ++at_;
      return true;
    }
    return false;
  }
  void expect(char wanted);
  void expect_end();
  std::string_view key();
  /// A whole number in minimum .. maximum.
  std::int64_t integer(const char* name, std::int64_t minimum, std::int64_t maximum);
  /// A time in units of 10^-places seconds, at most kTraceTimeNsMax (see parse_decimal_ns).
  std::int64_t time_ns(const char* name, std::size_t places);
  /// A string, whose escapes stay as they are, or a whole number, as text.
  std::string text_or_number(const char* name);
  /// A block's hash: a string, whose escapes stay as they are, or a whole number of any size.
  struct Hash {
    std::string_view text;
    bool is_string = false;
  };
  Hash hash(const char* name);
  /// A string with its escapes as they are. Takes nothing if another value comes next.
  std::optional<std::string_view> string();
  /// `null`, if it comes next.
  bool null();
  /// Skips any value.
  void skip_value();
  /// The number of values of a list; null counts as empty.
  std::int64_t skip_list();
  /// The text of any value, without the quotes of a string; lists and objects as a whole.
  std::string_view value();
  [[noreturn]] void fail(std::string_view expected) const;

 private:
  void skip_space() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t')) {
      ++at_;
    }
  }
  void skip_string();

  std::string_view line_;
  const LineReader& reader_;
  std::size_t at_ = 0;
};

}  // namespace kvtier
