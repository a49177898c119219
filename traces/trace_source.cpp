#include "traces/trace_source.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "traces/block_trace.hpp"
#include "traces/compressed_stream.hpp"
#include "traces/csv_reader.hpp"
#include "traces/request_log.hpp"
#include "traces/sharegpt_json.hpp"
#include "traces/tokenizer.hpp"
#include "traces/trace_format.hpp"
#include "traces/turns_table.hpp"

namespace kvtier {

Json to_json(const ImportReport& report) {
  return Json{{"sessions", report.sessions},
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
  if (std::filesystem::is_directory(path)) {
    return TraceFormat::agent_sessions;
  }
  // White space before the first character is rare, a file of nothing else is a table without
  // columns.
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
    return TraceFormat::sharegpt_json;
  }
  if (head.front() == '{') {
    const auto has = [&](const char* key) { return head.find(key) != head.npos; };
    return has("\"hash_id_scope\"") || has("\"block_size\"") ? TraceFormat::agent_sessions
           : !has("\"input_length\"")                        ? TraceFormat::kvtier
           : has("\"chat_id\"")                              ? TraceFormat::qwen_bailian
                                                             : TraceFormat::mooncake;
  }
  const CsvReader rows(path);
  return rows.column("arrival")     ? TraceFormat::request_log
         : rows.column("timestamp") ? TraceFormat::azure_llm
                                    : TraceFormat::turns_table;
}

std::unique_ptr<TraceSource> open_trace(const std::filesystem::path& path,
                                        const ImportOptions& options) {
  const TraceFormat format =
      options.format == TraceFormat::automatic ? detect_format(path) : options.format;
  if (format == TraceFormat::kvtier) {
    return std::make_unique<TraceReader>(path, options.message_overhead);
  }
  if (format == TraceFormat::turns_table) {
    return std::make_unique<TurnsTableReader>(path, options.message_overhead);
  }
  if (format == TraceFormat::request_log || format == TraceFormat::azure_llm) {
    return std::make_unique<RequestLogReader>(path,
                                              format == TraceFormat::azure_llm
                                                  ? RequestLogColumns::azure_llm
                                                  : RequestLogColumns::generic,
                                              options.message_overhead);
  }
  if (format == TraceFormat::mooncake || format == TraceFormat::qwen_bailian) {
    return std::make_unique<BlockTraceReader>(path, block_trace_style(format));
  }
  if (format == TraceFormat::agent_sessions) {
    return std::make_unique<AgentTraceReader>(path);
  }
  if (options.tokenizer.empty()) {
    throw ConfigError(
        fmt::format("{}: a trace of texts needs a tokenizer (\"chars:4\" or a SentencePiece model)",
                    path.string()));
  }
  return std::make_unique<ShareGptJsonReader>(
      path, make_tokenizer(options.tokenizer, options.base_dir), options.message_overhead);
}

}  // namespace kvtier
