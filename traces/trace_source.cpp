#include "traces/trace_source.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "traces/compressed_stream.hpp"
#include "traces/sharegpt_json.hpp"
#include "traces/tokenizer.hpp"
#include "traces/trace_format.hpp"
#include "traces/turns_table.hpp"

namespace kvtier {

Json to_json(const ImportReport& report) {
  return Json{{"sessions", report.sessions},
              {"turns", report.turns},
              {"clamped_messages", report.clamped_messages},
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
  // White space before the first character is rare, a file of nothing else is a table without
  // columns.
  ByteReader reader(path);
  std::vector<char> buffer(4096);
  while (true) {
    const std::size_t count = reader.read(buffer);
    if (count == 0) {
      return TraceFormat::turns_table;
    }
    const auto end = buffer.begin() + static_cast<std::ptrdiff_t>(count);
    const auto first = std::find_if(buffer.begin(), end, [](char c) {
      constexpr std::string_view kSkipped = " \t\r\n\xef\xbb\xbf";
      return kSkipped.find(c) == std::string_view::npos;
    });
    if (first != end) {
      return *first == '[' ? TraceFormat::sharegpt_json
                           : (*first == '{' ? TraceFormat::kvtier : TraceFormat::turns_table);
    }
  }
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
  if (options.tokenizer.empty()) {
    throw ConfigError(
        fmt::format("{}: a trace of texts needs a tokenizer (\"chars:4\" or a SentencePiece model)",
                    path.string()));
  }
  return std::make_unique<ShareGptJsonReader>(
      path, make_tokenizer(options.tokenizer, options.base_dir), options.message_overhead);
}

}  // namespace kvtier
