#include "traces/trace_source.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/compressed_stream.hpp"
#include "sim/core/csv_reader.hpp"
#include "sim/core/file.hpp"
#include "traces/archive_reader.hpp"
#include "traces/block_trace.hpp"
#include "traces/column_trace.hpp"
#include "traces/kv_events.hpp"
#include "traces/request_log.hpp"
#include "traces/sharegpt_json.hpp"
#include "traces/tokenizer.hpp"
#include "traces/trace_format.hpp"
#include "traces/turns_table.hpp"

namespace kvtier {

Json to_json(const ImportReport& report) {
  Json json{{"sessions", report.sessions},
            {"turns", report.turns},
            {"clamped_messages", report.clamped_messages},
            {"reordered_rows", report.reordered_rows},
            {"merged_messages", report.merged_messages},
            {"system_messages", report.system_messages},
            {"leading_assistant_messages", report.leading_assistant_messages},
            {"trailing_user_messages", report.trailing_user_messages},
            {"sessions_without_turns", report.sessions_without_turns},
            {"replaced_surrogates", report.replaced_surrogates},
            {"unknown_role_messages", report.unknown_role_messages},
            {"unknown_roles", report.unknown_roles}};
  if (report.cut_histories) {
    json["cut_histories"] = *report.cut_histories;
  }
  if (report.kv_events) {
    const KvEventCounts& events = *report.kv_events;
    json["kv_events"] = Json{{"stored", events.stored},
                             {"without_parent", events.without_parent},
                             {"moved_blocks", events.moved_blocks},
                             {"stored_in_other_media", events.stored_in_other_media},
                             {"stored_for_other_groups", events.stored_for_other_groups},
                             {"removed", events.removed},
                             {"all_cleared", events.all_cleared},
                             {"unknown", events.unknown}};
  }
  return json;
}

Tokens TraceSource::net_of_overhead(Tokens message) {
  const Tokens net = message - message_overhead_;
  if (net < Tokens(1)) {
    ++report_.clamped_messages;
    return Tokens(1);
  }
  return net;
}

bool TraceSource::next(SessionSpec& session) {
  session.group = SessionSpec::kNoGroup;
  session.shared_prompt = SharedPrompt();
  session.contents.clear();
  if (!read_session(session)) {
    return false;
  }
  KVTIER_ASSERT(!session.turns.empty(), "a session has turns");
  for (Turn& turn : session.turns) {
    turn.user = net_of_overhead(turn.user);
    turn.assistant = net_of_overhead(turn.assistant);
  }
  session.id = report_.sessions++;
  report_.turns += static_cast<std::int64_t>(session.turns.size());
  return true;
}

TraceFormat detect_format(const std::filesystem::path& path) {
  if (is_folder(path) || is_archive(path)) {
    return TraceFormat::agent_sessions;
  }
  // Skips white space at the start. A file of white space only is a table without columns.
  ByteReader reader(path);
  std::vector<char> buffer(4096);
  std::string head;
  while (head.empty()) {
    const std::size_t count = reader.read(buffer);
    if (count == 0) {
      return TraceFormat::turns_table;
    }
    head.assign(buffer.data(), count);
    head.erase(0, head.find_first_not_of(" \t\r\n\xef\xbb\xbf"));
  }
  if (head.front() == '[') {
    const std::size_t second = std::min(head.find_first_not_of(" \t", 1), head.size() - 1);
    return head[second] >= '0' && head[second] <= '9' ? TraceFormat::kv_events
                                                      : TraceFormat::sharegpt_json;
  }
  if (head.front() == '{') {
    const auto has = [&](const char* key) { return head.find(key) != head.npos; };
    if (has("\"events\"") && (has("\"ts\"") || has("\"block_hashes\""))) {
      return TraceFormat::kv_events;
    }
    if (has("\"hash_id_scope\"") || has("\"block_size\"")) {
      return TraceFormat::agent_sessions;
    }
    if (has("\"input_length\"") || has("\"hash_ids\"")) {
      return has("\"chat_id\"") ? TraceFormat::qwen_bailian : TraceFormat::mooncake;
    }
    if (const std::size_t second = head.find_first_not_of(" \t\r", 1);
        second != head.npos && head[second] == '\n') {
      throw ConfigError(path.string() +
                        ": expected a trace, got one JSON object over several lines; kvtier trace "
                        "generate CONFIG --out TRACE writes the sessions of a config");
    }
    return TraceFormat::kvtier;
  }
  const CsvReader rows(path);
  expect_column_names(rows);
  return rows.column("arrival")     ? TraceFormat::request_log
         : rows.column("timestamp") ? TraceFormat::azure_llm
                                    : TraceFormat::turns_table;
}

namespace {

std::unique_ptr<TraceSource> open_format(TraceFormat format, const std::filesystem::path& path,
                                         const ImportOptions& options) {
  if (format == TraceFormat::columns) {
    return open_columns(path, options);
  }
  if (format == TraceFormat::kv_events) {
    return std::make_unique<KvEventReader>(path, options);
  }
  if (format == TraceFormat::kvtier) {
    return std::make_unique<TraceReader>(path, options.message_overhead);
  }
  if (format == TraceFormat::turns_table) {
    return std::make_unique<TurnsTableReader>(path, options.message_overhead, options.input_tokens);
  }
  if (format == TraceFormat::request_log || format == TraceFormat::azure_llm) {
    return std::make_unique<RequestLogReader>(path,
                                              format == TraceFormat::azure_llm
                                                  ? RequestLogColumns::azure_llm
                                                  : RequestLogColumns::generic,
                                              options.message_overhead, options.input_tokens);
  }
  if (format == TraceFormat::mooncake || format == TraceFormat::qwen_bailian) {
    return std::make_unique<BlockTraceReader>(path, block_trace_style(format), options);
  }
  if (format == TraceFormat::agent_sessions) {
    return std::make_unique<AgentTraceReader>(path, options);
  }
  if (options.tokenizer.empty()) {
    throw ConfigError(
        fmt::format("{}: a trace of texts needs a tokenizer (\"chars:4\" or a SentencePiece model)",
                    path.string()));
  }
  return std::make_unique<ShareGptJsonReader>(
      path, make_tokenizer(options.tokenizer, options.base_dir), options.message_overhead);
}

}  // namespace

bool can_be_closed(TraceFormat format) {
  return format == TraceFormat::mooncake || format == TraceFormat::qwen_bailian ||
         format == TraceFormat::agent_sessions || format == TraceFormat::columns;
}

ConfigError without_think_times(const std::filesystem::path& path) {
  return ConfigError(fmt::format(
      "{}: the trace has no think times; in a closed loop its requests come at their times, or "
      "after the response before (the think time model \"logged\")",
      path.string()));
}

std::string moved_block(const std::string& block, const std::optional<std::string>& behind,
                        const std::optional<std::string>& before) {
  const auto place = [](const std::optional<std::string>& parent) {
    return parent ? "behind " + *parent : "at the start";
  };
  return fmt::format("block {} is {}, and was {}", block, place(behind), place(before));
}

std::unique_ptr<TraceSource> open_trace(const std::filesystem::path& path,
                                        const ImportOptions& options) {
  const TraceFormat format = options.columns                            ? TraceFormat::columns
                             : options.format == TraceFormat::automatic ? detect_format(path)
                                                                        : options.format;
  if (options.loop == Loop::closed && !can_be_closed(format) && format != TraceFormat::kv_events) {
    throw ConfigError(
        fmt::format("{}: a closed loop needs a trace whose requests name their blocks and sessions",
                    path.string()));
  }
  if (options.input_tokens.value != InputTokens::automatic && format != TraceFormat::turns_table &&
      format != TraceFormat::request_log) {
    throw ConfigError(fmt::format(
        "{}: {}: only the formats turns_table and request_log have input tokens of either meaning; "
        "columns name theirs as input=COLUMN:total or input=COLUMN:new",
        path.string(), options.input_tokens.option));
  }
  std::unique_ptr<TraceSource> source = open_format(format, path, options);
  if (options.message_overhead.value > 0 && source->streams() != nullptr) {
    throw ConfigError(fmt::format(
        "{}: its turns name their tokens, so none are taken off a message", path.string()));
  }
  return source;
}

}  // namespace kvtier
