#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/config.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/units.hpp"
#include "traces/columns.hpp"
#include "traces/input_tokens.hpp"
#include "traces/session.hpp"

/// Types and limits that all importers of traces share.
namespace kvtier {

/// The most tokens of one message of a trace; it bounds all sums of tokens.
inline constexpr std::int64_t kMessageTokensMax = INT32_MAX;
/// The latest time of a trace (about 146 years), far enough from overflow to add a think time.
inline constexpr std::int64_t kTraceTimeNsMax = INT64_MAX / 2;

/// Counts of a server's KV cache events in KvEventReader.
struct KvEventCounts {
  /// Events that became requests.
  std::int64_t stored = 0;
  /// Requests whose parent block had not been stored before in the trace.
  std::int64_t without_parent = 0;
  /// Blocks of such a chain that moved, because the parent was stored later.
  std::int64_t moved_blocks = 0;
  /// Ignored events: stored in media other than the GPU, stored for groups of layers other than the
  /// first, and events of other kinds.
  std::int64_t stored_in_other_media = 0;
  std::int64_t stored_for_other_groups = 0;
  std::int64_t removed = 0;
  std::int64_t all_cleared = 0;
  std::int64_t unknown = 0;
};

/// Counts of all drops and changes of an import. They are complete at the end of the source.
struct ImportReport {
  std::int64_t sessions = 0;
  std::int64_t turns = 0;
  /// Messages without tokens, or without tokens after the overhead is subtracted; each counts as
  /// one token.
  std::int64_t clamped_messages = 0;
  /// Rows of a log after a row with a later time.
  std::int64_t reordered_rows = 0;
  /// Only for whole prompts: requests with fewer input tokens than the turn before and its
  /// response. The history was cut or edited, so each begins a new session.
  std::optional<std::int64_t> cut_histories;
  /// The counts below, up to unknown_roles, are for conversations with texts only.
  std::int64_t merged_messages = 0;
  std::int64_t system_messages = 0;
  std::int64_t leading_assistant_messages = 0;
  std::int64_t trailing_user_messages = 0;
  std::int64_t sessions_without_turns = 0;
  std::int64_t replaced_surrogates = 0;
  std::int64_t unknown_role_messages = 0;
  /// Occurrences of each unknown role, for the first kUnknownRolesMax roles.
  std::map<std::string, std::int64_t> unknown_roles;
  /// Only for kv_events.
  std::optional<KvEventCounts> kv_events;

  static constexpr std::size_t kUnknownRolesMax = 16;
};

[[nodiscard]] Json to_json(const ImportReport& report);

/// A stream of sessions read from a file. Sessions are numbered by position, from 0; messages have
/// at least one token. Arrival and think times are those of the trace if it has them, else zero.
class TraceSource : public SessionSource {
 public:
  /// `message_overhead` >= 0 is subtracted from the tokens of each message.
  explicit TraceSource(Tokens message_overhead) : message_overhead_(message_overhead) {}

  bool next(SessionSpec& session) final;

  [[nodiscard]] const ImportReport& report() const { return report_; }
  [[nodiscard]] virtual bool has_arrivals() const { return false; }
  [[nodiscard]] virtual bool has_think_times() const { return false; }
  /// Whether `Turn::think` is the time since the previous turn's arrival instead of its last token.
  [[nodiscard]] virtual bool has_turn_arrivals() const { return false; }

 protected:
  /// Overwrites `session` with the next session that has a turn; false at the end. Its messages may
  /// have 0 .. kMessageTokensMax tokens. `session` comes without group,
  /// shared prompt and contents.
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
  kv_events,
  columns,
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
      std::pair<std::string_view, TraceFormat>{"agent_sessions", TraceFormat::agent_sessions},
      std::pair<std::string_view, TraceFormat>{"kv_events", TraceFormat::kv_events},
      std::pair<std::string_view, TraceFormat>{"columns", TraceFormat::columns}};
}

/// Starts of sessions, for a trace whose times count from the start of each session. Without either
/// key, all sessions start at once.
struct SessionStart {
  /// Constant time between starts, in the trace's order.
  std::optional<SimDuration> every{};
  /// Rate of a Poisson process, in the trace's order.
  std::optional<PerSecond> rate{};
};
template <class V>
void describe(V& v, SessionStart& c) {
  v.field("every", c.every, "Time between the starts of two sessions.", positive());
  v.field("rate", c.rate, "Mean rate at which sessions start, as a Poisson process.", positive());
}

/// The meaning of a session in a trace whose requests name their blocks.
enum class Loop {
  open,    // each request is a session, at its time
  closed,  // the requests of a conversation, each after the previous response
};
constexpr auto enum_names(Loop) {
  return std::array{std::pair<std::string_view, Loop>{"open", Loop::open},
                    std::pair<std::string_view, Loop>{"closed", Loop::closed}};
}

/// The format of a file, by the start of its uncompressed text. A list is ShareGPT's JSON, or KV
/// cache events if a number is first. An object is kvtier's own format, or by its keys KV cache
/// events or requests that name their blocks. A folder or an archive has agent sessions. Other text
/// is a table: a log of requests or an Azure LLM trace if its first line has their time column,
/// otherwise a table of turns. Throws like ByteReader, and ConfigError for a first line that is not
/// CSV, or an object over several lines, such as a config.
[[nodiscard]] TraceFormat detect_format(const std::filesystem::path& path);

struct ImportOptions {
  TraceFormat format = TraceFormat::automatic;
  /// Tokens subtracted from each message, such as one BOS token that a table counts.
  Tokens message_overhead{};
  /// See make_tokenizer; needed for texts only.
  std::string tokenizer{};
  /// Folder of relative paths of tokenizer models.
  std::filesystem::path base_dir{};
  Loop loop = Loop::open;
  /// In a closed loop, Turn::think is the time from a response to the next request. If false, it is
  /// the time between arrivals.
  bool think_times = true;
  SessionStart session_start{};
  std::uint64_t seed = 0;
  /// For turns_table and request_log; `columns` has its own.
  InputTokensSetting input_tokens{};
  /// Columns of a table; the format is then `columns`.
  std::optional<TraceColumns> columns{};
};

/// Whether the requests of such a trace may name their session.
[[nodiscard]] bool can_be_closed(TraceFormat format);

/// The error of a closed loop with think times for a trace without them.
[[nodiscard]] ConfigError without_think_times(const std::filesystem::path& path);
/// Message for a block that follows `behind` now and `before` earlier; nullopt: at the start.
[[nodiscard]] std::string moved_block(const std::string& block,
                                      const std::optional<std::string>& behind,
                                      const std::optional<std::string>& before);

/// Opens a trace of any format; throws ConfigError or DeviceError.
[[nodiscard]] std::unique_ptr<TraceSource> open_trace(const std::filesystem::path& path,
                                                      const ImportOptions& options);

}  // namespace kvtier
