#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/csv_reader.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Reads a table of turns: CSV (RFC 4180 without line breaks in fields), plain, gzip or zstd. Its
/// first line names the columns in any order. `conv`, `turn`, `user_tokens` and `assistant_tokens`
/// are required; other columns are ignored. The rows of one conversation follow each other with
/// turns 0, 1, 2, ...; `conv` may be any text. A message without tokens becomes one token, and the
/// report counts it. Blank lines are skipped. The table has no times.
///
/// `user_tokens` are the new tokens of a turn. If they are whole prompts (InputTokens::total), they
/// are treated as RequestLogReader does. PromptGrowth checks the meaning with the first turns.
///
/// Every error is a ConfigError that names file and line: a missing column, a row of another
/// length, a count that is negative or not whole, rows out of order, no rows, damaged compression.
class TurnsTableReader final : public TraceSource {
 public:
  explicit TurnsTableReader(const std::filesystem::path& path, Tokens message_overhead = {},
                            const InputTokensSetting& input_tokens = {});

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  /// Reads the next row into the members below; false at the end.
  bool read_row();
  static void check_growth(const std::filesystem::path& path,
                           const InputTokensSetting& input_tokens);

  CsvReader rows_;
  std::vector<std::size_t> position_;
  bool total_;

  bool has_row_ = false;
  std::string conversation_;
  std::string previous_conversation_;
  std::int64_t turn_ = 0;
  Turn tokens_{};
  bool started_ = false;
};

}  // namespace kvtier
