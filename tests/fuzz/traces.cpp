// Every importer of traces, plain and compressed, with damaged compression too. What can be read is
// written in kvtier's own format, and reads back as the same sessions.
//
// An input is a line "FORMAT PACKING OVERHEAD DAMAGE BYTE" and the file's text. FORMAT is a word of
// /workload/format (the columns of "columns" are t, in, out, and ids or s), PACKING is plain, gz or
// zst, OVERHEAD the tokens taken off each message, and BYTE replaces the byte at DAMAGE of the
// packed file, or cuts the file off there if it is "cut".
#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include "sim/core/compressed_stream.hpp"
#include "sim/core/file.hpp"
#include "sim/study/config/resolve.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "traces/block_statistics.hpp"
#include "traces/statistics.hpp"
#include "traces/trace_format.hpp"
#include "traces/trace_source.hpp"

namespace kvtier::fuzz {
namespace {

/// A text as a file, packed and damaged as the input's first line says.
std::filesystem::path write_packed(const std::string& packing, std::size_t damage,
                                   const std::string& byte, std::string_view text) {
  const std::filesystem::path path =
      scratch_folder() / (packing == "plain" ? "trace" : "trace." + packing);
  CompressedWriter writer(path);
  writer.write(text);
  writer.commit();
  std::string packed = read_text_file(path);
  if (damage < packed.size() && byte == "cut") {
    packed.resize(damage);
  } else if (damage < packed.size() && !byte.empty()) {
    packed[damage] = byte.front();
  }
  return write_scratch("packed", packed);
}

std::vector<SessionSpec> read_all(TraceSource& source) {
  std::vector<SessionSpec> sessions;
  WorkloadStatistics statistics;
  std::optional<BlockStatistics> blocks;
  if (source.streams() != nullptr && source.named_blocks()) {
    blocks.emplace(*source.streams(), *source.named_blocks());
  }
  SimTime last{};
  for (SessionSpec session; source.next(session);) {
    expect(session.id == std::ssize(sessions), "sessions are not numbered by position");
    expect(!source.has_arrivals() || session.arrival >= last, "sessions arrive out of order");
    last = session.arrival;
    expect(!session.turns.empty(), "a session without a turn");
    for (const Turn& turn : session.turns) {
      expect(turn.user >= Tokens(1) && turn.assistant >= Tokens(1), "a message without tokens");
      expect(turn.think >= SimDuration(0), "a turn before the one before");
    }
    expect(session.contents.empty() == !blocks, "contents without named blocks, or the reverse");
    if (blocks) {
      blocks->add(session);
    }
    statistics.add(session);
    sessions.push_back(session);
  }
  expect(source.report().sessions == std::ssize(sessions), "the report counts other sessions");
  expect(source.report().turns == statistics.turns(), "the report counts other turns");
  (void)to_json(statistics);
  if (blocks) {
    const Json report = blocks->report();
    expect(report["ideal_hits"]["blocks"] <= report["blocks"], "more hits than blocks");
    expect(report["distinct_blocks"].get<std::int64_t>() >=
               report["blocks"].get<std::int64_t>() -
                   report["ideal_hits"]["blocks"].get<std::int64_t>(),
           "blocks that are neither hit nor new");
  }
  (void)to_json(source.report());
  return sessions;
}

bool same(const SessionSpec& a, const SessionSpec& b) {
  return a.id == b.id && a.arrival == b.arrival && a.shared_prompt.id == b.shared_prompt.id &&
         a.shared_prompt.tokens == b.shared_prompt.tokens &&
         std::ranges::equal(a.turns, b.turns, [](const Turn& one, const Turn& other) {
           return one.user == other.user && one.assistant == other.assistant &&
                  one.think == other.think;
         });
}

}  // namespace

Words words() {
  Words all;
  TraceHeader header;
  add_schema(value_schema(header), all);
  all.keys.insert({"id",
                   "arrival_ns",
                   "turns",
                   "shared_prompt",
                   "conversations",
                   "from",
                   "value",
                   "timestamp",
                   "input_length",
                   "output_length",
                   "hash_ids",
                   "requests",
                   "t",
                   "in",
                   "out",
                   "block_size",
                   "ts",
                   "events",
                   "type",
                   "block_hashes",
                   "parent_block_hash",
                   "token_ids",
                   "medium",
                   "group_idx",
                   "ids",
                   "s"});
  all.values = {"kvtier.trace/1",
                "human",
                "user",
                "gpt",
                "assistant",
                "system",
                "\xed\xa0\xbd",
                "BlockStored",
                "BlockRemoved",
                "AllBlocksCleared",
                "GPU"};
  return all;
}

void run_input(std::string_view input) {
  const std::size_t line = std::min(input.find('\n'), input.size());
  std::istringstream first{std::string(input.substr(0, line))};
  std::string format;
  std::string packing;
  std::int64_t overhead = 0;
  std::size_t damage = 0;
  std::string byte;
  first >> format >> packing >> overhead >> damage >> byte;
  ImportOptions options;
  for (const auto& [name, value] : enum_names(TraceFormat{})) {
    options.format = format == name ? value : options.format;
  }
  options.tokenizer = "chars:4";
  if (options.format == TraceFormat::columns) {
    // Sessions of a log, or blocks if the first line has a place for them.
    const std::string_view rows = input.substr(std::min(line + 1, input.size()));
    const bool has_blocks = rows.substr(0, rows.find('\n')).find("ids") != rows.npos;
    std::vector<std::string> problems;
    options.columns = parse_columns(has_blocks ? "time=t:ms,input=in,output=out,hashes=ids,block=4"
                                               : "time=t:ms,input=in,output=out,session=s",
                                    "--columns", problems);
  }
  options.message_overhead = Tokens(std::clamp<std::int64_t>(overhead, 0, 100));
  packing = packing == "gz" || packing == "zst" ? packing : "plain";
  const std::filesystem::path path =
      write_packed(packing, damage, byte, input.substr(std::min(line + 1, input.size())));

  const auto source = open_trace(path, options);
  const std::vector<SessionSpec> sessions = read_all(*source);
  const std::filesystem::path written = scratch_folder() / "written";
  TraceHeader header{.arrivals = source->has_arrivals(),
                     .think_times = source->has_think_times(),
                     .turn_arrivals = source->has_turn_arrivals(),
                     .source = "fuzz"};
  if (const auto named = source->named_blocks()) {
    header.block = named->block.value;
    header.partial = named->partial;
  }
  TraceWriter writer(written, header, source->streams());
  for (const SessionSpec& session : sessions) {
    writer.write(session);
  }
  writer.commit();
  try {
    const std::vector<SessionSpec> again = read_all(*open_trace(written, {}));
    expect(std::ranges::equal(again, sessions, same), "a written trace reads back as another");
  } catch (const ConfigError& error) {
    fail(std::string("a written trace is refused: ") + error.what());
  }
}

}  // namespace kvtier::fuzz
