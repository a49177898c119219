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
#include "traces/timestamp.hpp"

namespace kvtier {

class CsvReader;

/// The meaning of the columns of a table of requests, given as a text:
///
///     time=ts_ms:ms,input=prompt_tokens,output=completion_tokens,hashes=blocks,session=conv,block=64
///
/// `time`, `input` and `output` are needed. The time's unit is s, ms, us or ns; without one the
/// times are as parse_timestamp reads them. `hashes` names the column of a prompt's block hashes,
/// and needs `block`, the tokens of a block. `session` says which requests are of one session.
struct TraceColumns {
  enum Meaning : std::size_t { time, input, output, hashes, session };
  static constexpr std::array<std::string_view, 5> kMeanings{"time", "input", "output", "hashes",
                                                             "session"};
  /// Empty: there is no such column.
  std::array<std::string, kMeanings.size()> names{};
  /// Decimal places of the time's unit below a second.
  std::optional<std::size_t> time_places{};
  std::optional<Tokens> block{};
  /// The option that has the text, for errors.
  std::string option{};

  [[nodiscard]] bool has(Meaning meaning) const { return !names[meaning].empty(); }
};

/// Throws ConfigError if the first line of a table is empty.
void expect_column_names(const CsvReader& rows);

/// Reads such a text; nullopt if something is wrong with it, which is then added to `problems`.
[[nodiscard]] std::optional<TraceColumns> parse_columns(std::string_view text,
                                                        const std::string& option,
                                                        std::vector<std::string>& problems);

class HashNames;

/// The requests of a table: CSV whose first line names the columns, or JSON lines whose keys do,
/// plain, gzip or zstd. Which of them it is shows in the first character.
///
/// Hashes are a list of whole numbers or strings: a list in JSON, in CSV a field in which spaces,
/// commas or semicolons separate them, with or without brackets around them.
///
/// Every error is a ConfigError that names file and line: a missing column (with those that there
/// are), one that comes twice, a malformed line, a time or a number that cannot be read.
class ColumnRows {
 public:
  struct Row {
    Timestamp time;
    /// At least 1 where there are hashes, else 0.
    Tokens input;
    Tokens output;
    /// Empty without such a column.
    std::string_view session;
    /// Dense numbers of the hashes.
    std::vector<std::int64_t> hashes;
  };

  /// `hashes` outlives this; null if `columns` have none.
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
