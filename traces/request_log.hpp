#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "traces/columns.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// The names of a log's columns.
enum class RequestLogColumns { generic, azure_llm };

/// Reads a log of requests, one row each, with their arrival times: CSV (RFC 4180 without line
/// breaks in fields), plain, gzip or zstd. Its first line names the columns, in any order; other
/// columns are ignored.
///
/// * generic: `arrival`, `input_tokens` and `output_tokens` are required. `session` (any text)
/// names
///   the session of a request; without it each row is a session of one turn. `turn` (with
///   `session`) numbers the turns. `input_tokens` are the new tokens of the turn, without the
///   history, unless the setting says `total`.
/// * azure_llm: `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`, as in the Azure LLM inference
///   traces (github.com/Azure/AzurePublicDataset). They have no sessions: each row is a session of
///   one turn, and its context is all new.
/// * any other table, also JSON lines, with the columns of a TraceColumns: as generic, without
///   `turn`.
///
/// If the input tokens are whole prompts (InputTokens::total), those of the turn before and its
/// response are subtracted. A request with fewer tokens than these begins a new session, and the
/// report counts it.
///
/// parse_timestamp reads the times, which must have one form; the earliest becomes zero. Rows may
/// come in any order: they are sorted by time, equal times by their place, and the report counts
/// rows out of order. The sort holds the rows in memory, 32 bytes each and the names of the
/// sessions; `kvtier trace import` converts them to a trace that streams.
///
/// Every error is a ConfigError that names file and line: a missing column, a row of another
/// length, an invalid time or a time of another form than the first, a count that is negative or
/// not whole, a missing session, turns that do not increase with time, no rows, input tokens whose
/// meaning PromptGrowth refuses.
/// DeviceError if the rows do not fit into memory.
class RequestLogReader final : public TraceSource {
 public:
  RequestLogReader(const std::filesystem::path& path, RequestLogColumns columns,
                   Tokens message_overhead = {}, const InputTokensSetting& input_tokens = {});
  RequestLogReader(const std::filesystem::path& path, const TraceColumns& columns,
                   Tokens message_overhead = {});

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_turn_arrivals() const override { return true; }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  struct Row {
    std::int64_t arrival_ns = 0;
    /// Number of the session: while reading by first appearance in the file, after the sort in
    /// time.
    std::uint32_t session = 0;
    std::uint32_t input = 0;
    std::uint32_t output = 0;
    std::uint32_t turn = 0;
    std::int64_t line = 0;
  };

  /// `columns`: RequestLogColumns or TraceColumns.
  template <class Columns>
  void read_into_memory(const std::filesystem::path& path, const Columns& columns);
  void read(const std::filesystem::path& path, RequestLogColumns columns);
  void read(const std::filesystem::path& path, const TraceColumns& columns);
  void add(const Row& row);
  /// The number of the session `name`; a new number for an empty name.
  [[nodiscard]] std::uint32_t session_of(std::string_view name);
  void sort(const std::filesystem::path& path);
  /// Numbers the sessions by their first rows in time, and turns whole prompts into new tokens.
  /// Needs rows in order of time.
  void number_sessions(const std::filesystem::path& path);

  InputTokensSetting input_tokens_;
  std::vector<Row> rows_;
  std::unordered_map<std::string, std::uint32_t> sessions_;
  std::size_t next_ = 0;
};

}  // namespace kvtier
