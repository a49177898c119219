#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "traces/compressed_stream.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Reads a table of turns: CSV (RFC 4180 without line breaks in fields), plain, gzip or zstd. Its
/// first line names the columns; `conv`, `turn`, `user_tokens` and `assistant_tokens` are needed,
/// in any order, others are ignored. The rows of one conversation follow each other with turns 0,
/// 1, 2, ...; `conv` may be any text. A message of no tokens becomes one token and is counted in
/// the report; blank lines are skipped. The table has no times.
///
/// Every error is a ConfigError that names file and line: a missing column, a row of another
/// length, a count that is negative or not whole, rows out of order, no rows, damaged compression.
class TurnsTableReader final : public TraceSource {
 public:
  explicit TurnsTableReader(const std::filesystem::path& path, Tokens message_overhead = {});

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  static constexpr std::size_t kColumns = 4;

  /// Cuts a line into `fields_`.
  void split(std::string_view line);
  [[nodiscard]] std::int64_t whole_number(std::size_t column, std::int64_t maximum) const;
  /// Reads the next row into the members below; false at the end.
  bool read_row();

  LineReader lines_;
  std::vector<std::string> fields_;
  std::size_t field_count_ = 0;
  std::size_t header_fields_ = 0;
  std::array<std::size_t, kColumns> position_{};

  bool has_row_ = false;
  std::string conversation_;
  std::string previous_conversation_;
  std::int64_t turn_ = 0;
  Turn tokens_{};
  bool started_ = false;
};

}  // namespace kvtier
