#include "sim/study/engines/hash_trace.hpp"

#include "traces/block_trace.hpp"

namespace kvtier {

HashTrace read_hash_trace(const std::filesystem::path& path, std::size_t most) {
  BlockTraceReader reader(path, block_trace_style(TraceFormat::mooncake));
  HashTrace trace;
  SessionSpec session;
  while (trace.requests.size() < most && reader.next(session)) {
    const Context& prompt = session.contents[0].prompt;
    trace.requests.push_back({prompt.stream, prompt.tokens, session.turns[0].assistant,
                              (prompt.tokens.value + kTraceBlock.value - 1) / kTraceBlock.value});
  }
  trace.streams = *reader.streams();
  return trace;
}

}  // namespace kvtier
