#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "traces/compressed_stream.hpp"

namespace kvtier {

/// Reads the JSON of one line from left to right. nlohmann's parser would read the same lines
/// several times slower; the shapes are fixed and small. Every error is a ConfigError that names
/// file, line and column.
class LineScanner {
 public:
  /// Both outlive this.
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
  /// A number >= 0 in units of so many nanoseconds, in nanoseconds, rounded.
  std::int64_t time_ns(const char* name, double unit_ns, std::int64_t maximum_ns);
  /// Any value, which is not looked at.
  void skip_value();
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
