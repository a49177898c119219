#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/errors.hpp"
#include "sim/core/units.hpp"
#include "traces/input_tokens.hpp"
#include "traces/timestamp.hpp"

namespace kvtier {

class CsvReader;

/// The meaning of the columns of a table of requests, written as a text:
///
///     time=ts_ms:ms,input=prompt_tokens:total,output=completion_tokens,session=conv
///     time=ts_ms:ms,input=prompt_tokens,output=completion_tokens,hashes=blocks,session=conv,block=64
///
/// `time`, `input` and `output` are required. The time's unit is s, ms, us or ns; without a unit
/// parse_timestamp reads the times. The input is `total` (whole prompts) or `new` (see
/// InputTokens); with hashes it is always total. `hashes` names the column of a prompt's block
/// hashes, and needs `block`, the tokens of a block. `session` names the column of sessions.
struct TraceColumns {
  enum Meaning : std::size_t { time, input, output, hashes, session };
  static constexpr std::array<std::string_view, 5> kMeanings{"time", "input", "output", "hashes",
                                                             "session"};
  /// Names of the columns by meaning; empty without such a column.
  std::array<std::string, kMeanings.size()> names{};
  /// Unit of the time: 10^-time_places seconds.
  std::optional<std::size_t> time_places{};
  InputTokens input_tokens = InputTokens::automatic;
  std::optional<Tokens> block{};
  /// Name of the option with the text, for errors.
  std::string option{};

  [[nodiscard]] bool has(Meaning meaning) const { return !names[meaning].empty(); }
};

/// Throws ConfigError if the first line of a table is empty.
void expect_column_names(const CsvReader& rows);

/// Parses such a text. Adds its errors to `problems`, and then returns nullopt.
[[nodiscard]] std::optional<TraceColumns> parse_columns(std::string_view text,
                                                        const std::string& option,
                                                        std::vector<std::string>& problems);

class HashNames;

/// The requests of a table: CSV whose first line names the columns, or JSON lines with these keys;
/// plain, gzip or zstd. The first character tells CSV from JSON.
///
/// Hashes are whole numbers or strings: a list in JSON; in CSV a field, in which spaces, commas or
/// semicolons separate them, with or without brackets.
///
/// Every error is a ConfigError that names file and line: a missing column (with the existing
/// ones), a duplicate column, a malformed line, an invalid time or number.
class ColumnRows {
 public:
  struct Row {
    Timestamp time;
    /// At least 1 with hashes, else at least 0.
    Tokens input;
    Tokens output;
    /// Empty without a column of sessions.
    std::string_view session;
    /// Dense numbers of the hashes.
    std::vector<std::int64_t> hashes;
  };

  /// Keeps a pointer to `hashes`, which is null if `columns` has no hashes.
  ColumnRows(const std::filesystem::path& path, TraceColumns columns, HashNames* hashes);
  ColumnRows(const ColumnRows&) = delete;
  ColumnRows& operator=(const ColumnRows&) = delete;
  ~ColumnRows();

  /// Reads the next row; false at the end.
  [[nodiscard]] bool next(Row& row);

  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] std::int64_t line_number() const;
  /// `file:line: message`, to be thrown.
  [[nodiscard]] ConfigError error(std::string_view message) const;

 private:
  class Table;
  class Csv;
  class JsonLines;

  [[nodiscard]] ConfigError unexpected(TraceColumns::Meaning column,
                                       std::string_view expected) const;
  [[nodiscard]] Timestamp read_time() const;
  [[nodiscard]] Tokens read_tokens(TraceColumns::Meaning column, std::int64_t minimum) const;

  TraceColumns columns_;
  std::unique_ptr<Table> table_;
  std::optional<TimestampForm> form_;
};

}  // namespace kvtier
