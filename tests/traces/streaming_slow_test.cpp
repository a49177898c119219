/// Long traces: what is held in memory must not grow with them.

#include <cstdint>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/traces/allocations.hpp"
#include "tests/traces/support.hpp"
#include "traces/sharegpt_json.hpp"
#include "traces/trace_format.hpp"
#include "traces/turns_table.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using testing::TempDir;

constexpr std::int64_t kSessions = 100000;

WorkloadConfig generator_config() {
  WorkloadConfig config;
  config.generator = Generator::sharegpt;
  config.sessions = kSessions;
  config.arrival_rate = PerSecond(1);
  return config;
}

/// Reads all sessions; returns how many there were.
std::int64_t drain(SessionSource& source) {
  SessionSpec session;
  session.turns.reserve(64);
  std::int64_t count = 0;
  const testing::Allocations before = testing::allocations_so_far();
  while (source.next(session)) {
    ++count;
  }
  const testing::Allocations after = testing::allocations_so_far();
  EXPECT_LT(after.count - before.count, 100) << "allocations while streaming";
  EXPECT_LT(after.bytes - before.bytes, 4 << 20) << "bytes while streaming";
  return count;
}

TEST(Streaming, GeneratorAndTracesAllocateNothingPerSession) {
  const TempDir dir;
  for (const char* name : {"trace.jsonl", "trace.jsonl.gz", "trace.jsonl.zst"}) {
    const auto source = make_source(generator_config(), 1, dir.path());
    TraceWriter writer(dir.path() / name, {.arrivals = true, .think_times = true});
    SessionSpec session;
    while (source->next(session)) {
      writer.write(session);
    }
    writer.commit();
    TraceReader reader(dir.path() / name);
    EXPECT_EQ(drain(reader), kSessions);
  }
  const auto source = make_source(generator_config(), 1, dir.path());
  EXPECT_EQ(drain(*source), kSessions);
}

TEST(Streaming, GeneratorsThatNameTokensHoldStreamsAlone) {
  for (const Generator generator :
       {Generator::multi_turn, Generator::shared_prefixes, Generator::rag}) {
    WorkloadConfig config = generator_config();
    config.generator = generator;
    const auto source = make_source(config, 1, "");
    SessionSpec session;
    const testing::Allocations before = testing::allocations_so_far();
    std::int64_t count = 0;
    while (source->next(session)) {
      ++count;
    }
    const testing::Allocations after = testing::allocations_so_far();
    EXPECT_EQ(count, kSessions);
    // The streams are in one vector, which doubles: 24 bytes each, and up to four times that in all
    // that was allocated.
    const auto streams = static_cast<std::int64_t>(source->streams()->size());
    EXPECT_LT(streams, 2 * kSessions);
    // rag has a node, and room in a table of them, for nearly every sequence of documents.
    const std::int64_t others = generator == Generator::rag ? 100 * kSessions : 4 << 20;
    EXPECT_LT(after.bytes - before.bytes, 96 * streams + others);
    if (generator == Generator::multi_turn) {
      EXPECT_LT(after.count - before.count, 100);
    }
  }
}

TEST(Streaming, TableOfTurnsAllocatesNothingPerSession) {
  const TempDir dir;
  CompressedWriter writer(dir.path() / "table.csv.gz");
  writer.write("conv,turn,user_tokens,assistant_tokens\n");
  for (std::int64_t i = 0; i < kSessions; ++i) {
    const std::string conversation = std::to_string(i);
    writer.write(conversation + ",0,10,20\n" + conversation + ",1,11,21\n");
  }
  writer.commit();
  TurnsTableReader reader(dir.path() / "table.csv.gz");
  EXPECT_EQ(drain(reader), kSessions);
}

TEST(Streaming, TextsHoldOneConversationAtATime) {
  const TempDir dir;
  CompressedWriter writer(dir.path() / "texts.json.zst");
  const std::string text(1000, 'x');
  for (std::int64_t i = 0; i < kSessions; ++i) {
    writer.write((i == 0 ? "[" : ",") +
                 std::string(R"({"conversations":[{"from":"human","value":")") + text +
                 R"("},{"from":"gpt","value":"ok"}]})");
  }
  writer.write("]");
  writer.commit();
  ShareGptJsonReader reader(dir.path() / "texts.json.zst", std::make_unique<CharsTokenizer>(4));
  SessionSpec session;
  std::int64_t count = 0;
  while (reader.next(session)) {
    ++count;
    ASSERT_EQ(session.turns.at(0).user, Tokens(250));
  }
  EXPECT_EQ(count, kSessions);
}

TEST(Streaming, ANewTraceOfAHundredThousandSessionsIsTheSameEveryTime) {
  const TempDir dir;
  for (const char* name : {"first.gz", "second.gz"}) {
    const auto source = make_source(generator_config(), 42, dir.path());
    TraceWriter writer(dir.path() / name, {.arrivals = true, .think_times = true});
    SessionSpec session;
    while (source->next(session)) {
      writer.write(session);
    }
    writer.commit();
  }
  EXPECT_TRUE(testing::bytes_of(dir.path() / "first.gz") ==
              testing::bytes_of(dir.path() / "second.gz"));
}

}  // namespace
}  // namespace kvtier
