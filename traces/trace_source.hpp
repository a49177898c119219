#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"

/// What all importers of traces have in common.
namespace kvtier {

/// The most tokens that one message of a trace may have; it bounds every sum made of them.
inline constexpr std::int64_t kMessageTokensMax = INT32_MAX;
/// The latest time that a trace may name (about 146 years), far enough from overflow to add a think
/// time.
inline constexpr std::int64_t kTraceTimeNsMax = INT64_MAX / 2;

/// What an import met; nothing is dropped or changed without being counted here. Complete once the
/// source has been read to its end.
struct ImportReport {
  std::int64_t sessions = 0;
  std::int64_t turns = 0;
  /// Messages of no tokens, or of none left after the overhead was taken off; counted as one token.
  std::int64_t clamped_messages = 0;
  /// Rows of a log that come after a row of a later time.
  std::int64_t reordered_rows = 0;
  /// The rest is met in conversations with texts only.
  std::int64_t merged_messages = 0;
  std::int64_t system_messages = 0;
  std::int64_t leading_assistant_messages = 0;
  std::int64_t trailing_user_messages = 0;
  std::int64_t sessions_without_turns = 0;
  std::int64_t replaced_surrogates = 0;
  std::int64_t unknown_role_messages = 0;
  /// How often each unknown role was met, for the first kUnknownRolesMax of them.
  std::map<std::string, std::int64_t> unknown_roles;

  static constexpr std::size_t kUnknownRolesMax = 16;
};

[[nodiscard]] Json to_json(const ImportReport& report);

/// A stream of sessions read from a file. Sessions are numbered by position, from 0; messages have
/// at least one token. Arrival and think times are those of the trace where it has them, else zero.
class TraceSource : public SessionSource {
 public:
  /// `message_overhead` >= 0 is taken off the tokens of each message.
  explicit TraceSource(Tokens message_overhead) : message_overhead_(message_overhead) {}

  bool next(SessionSpec& session) final;

  [[nodiscard]] const ImportReport& report() const { return report_; }
  [[nodiscard]] virtual bool has_arrivals() const { return false; }
  [[nodiscard]] virtual bool has_think_times() const { return false; }
  /// `Turn::think` is the time since the arrival of the turn before, not since its last token.
  [[nodiscard]] virtual bool has_turn_arrivals() const { return false; }

 protected:
  /// Overwrites `session`, which has no shared prompt, with the next one that has a turn; messages
  /// may have 0 .. kMessageTokensMax tokens.
  virtual bool read_session(SessionSpec& session) = 0;

  ImportReport& counts() { return report_; }

 private:
  [[nodiscard]] Tokens net_of_overhead(Tokens message);

  Tokens message_overhead_;
  ImportReport report_;
};

enum class TraceFormat {
  automatic,
  kvtier,
  turns_table,
  sharegpt_json,
  request_log,
  azure_llm,
  mooncake,
  qwen_bailian,
  agent_sessions,
};

constexpr auto enum_names(TraceFormat) {
  return std::array{
      std::pair<std::string_view, TraceFormat>{"auto", TraceFormat::automatic},
      std::pair<std::string_view, TraceFormat>{"kvtier", TraceFormat::kvtier},
      std::pair<std::string_view, TraceFormat>{"turns_table", TraceFormat::turns_table},
      std::pair<std::string_view, TraceFormat>{"sharegpt_json", TraceFormat::sharegpt_json},
      std::pair<std::string_view, TraceFormat>{"request_log", TraceFormat::request_log},
      std::pair<std::string_view, TraceFormat>{"azure_llm", TraceFormat::azure_llm},
      std::pair<std::string_view, TraceFormat>{"mooncake", TraceFormat::mooncake},
      std::pair<std::string_view, TraceFormat>{"qwen_bailian", TraceFormat::qwen_bailian},
      std::pair<std::string_view, TraceFormat>{"agent_sessions", TraceFormat::agent_sessions}};
}

/// The format that the beginning of a file's (uncompressed) text shows: a list is ShareGPT's JSON,
/// an object kvtier's own format or, by its keys, one of requests that name their blocks; a folder
/// is one of agent sessions; anything else a table: a log of requests or of the Azure LLM
/// traces if its first line has their column of times, of turns if not. Throws like ByteReader, and
/// ConfigError for a first line that is not CSV.
[[nodiscard]] TraceFormat detect_format(const std::filesystem::path& path);

struct ImportOptions {
  TraceFormat format = TraceFormat::automatic;
  /// Taken off each message, such as one BOS token that a table counts in.
  Tokens message_overhead{};
  /// See make_tokenizer; needed for texts only.
  std::string tokenizer{};
  /// Where a relative path of a tokenizer model starts.
  std::filesystem::path base_dir{};
};

/// Opens a trace of any format; throws ConfigError or DeviceError.
[[nodiscard]] std::unique_ptr<TraceSource> open_trace(const std::filesystem::path& path,
                                                      const ImportOptions& options);

}  // namespace kvtier
