#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/compressed_stream.hpp"

namespace kvtier {

/// The rows of a CSV file (RFC 4180 without line breaks in fields), plain, gzip or zstd, whose
/// first line names the columns. Every error is a ConfigError that names file and line: an empty
/// file, a quote that does not end, a row of another length than the first line.
class CsvReader {
 public:
  explicit CsvReader(const std::filesystem::path& path);

  /// Index of the column; nullopt if there is none. Ignores the case of ASCII letters, because
  /// exports differ in it. Throws if the name occurs twice.
  [[nodiscard]] std::optional<std::size_t> column(std::string_view name) const;
  /// The names of all columns, in their order.
  [[nodiscard]] std::span<const std::string> names() const { return names_; }
  /// Indexes of the columns; throws with all missing names.
  [[nodiscard]] std::vector<std::size_t> columns(std::span<const std::string_view> names) const;

  /// Reads the next row; blank lines are skipped. False at the end. After an error, the next call
  /// skips that row.
  bool next();
  /// Text of a field of the current row; `column` is an index from `column` or `columns`.
  [[nodiscard]] const std::string& text(std::size_t column) const { return fields_[column]; }
  /// A whole number in 0 .. maximum.
  [[nodiscard]] std::int64_t whole_number(std::size_t column, std::int64_t maximum) const;
  /// `file:line: column: expected ..., got "..."`, to be thrown.
  [[nodiscard]] ConfigError unexpected(std::size_t column, std::string_view expected) const;

  [[nodiscard]] const std::filesystem::path& path() const { return lines_.path(); }
  [[nodiscard]] std::int64_t line_number() const { return lines_.line_number(); }
  [[nodiscard]] ConfigError error(std::string_view message) const { return lines_.error(message); }

 private:
  /// Splits a line into `fields_`.
  void split(std::string_view line);

  LineReader lines_;
  std::vector<std::string> names_;
  std::vector<std::string> fields_;
  std::size_t field_count_ = 0;
};

}  // namespace kvtier
