#include "traces/kv_events.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/block_statistics.hpp"
#include "traces/trace_format.hpp"

namespace kvtier {
namespace {

using testing::config_error_of;
using testing::TempDir;

/// A line a request: its time in nanoseconds, new tokens of how many, and where its blocks lie.
std::string text_of(TraceSource& source) {
  const std::int64_t block = source.named_blocks().value().block.value;
  std::string text;
  SessionSpec session;
  std::vector<Stretch> path;
  while (source.next(session)) {
    EXPECT_EQ(session.turns.size(), 1U);
    const Context& prompt = session.contents.at(0).prompt;
    text += fmt::format("{}: {} of {}", session.arrival.ns, session.turns[0].user.value,
                        prompt.tokens.value);
    source.streams()->path(prompt.stream, prompt.tokens.value / block, block, path);
    for (const Stretch& stretch : path) {
      text += fmt::format(" {}[{},{})", stretch.stream.value, stretch.begin, stretch.end);
    }
    text += "\n";
  }
  return text;
}

/// An event as an object, of blocks of 4 tokens.
std::string stored(const std::string& hashes, const std::string& parent,
                   const std::string& rest = "") {
  return fmt::format(
      R"({{"type": "BlockStored", "block_hashes": [{}], "parent_block_hash": {}, "block_size": 4{}}})",
      hashes, parent, rest);
}

std::string batch(const std::string& ts, const std::string& events) {
  return fmt::format(R"({{"ts": {}, "events": [{}]}})", ts, events) + "\n";
}

TEST(KvEvents, StoredBlocksAreRequestsForThem) {
  const TempDir dir;
  const std::string text = batch("100.5", stored("11, 12", "null")) +    // a new stream
                           batch("100.5", stored("13", "12") + ", " +    // lengthens it
                                              stored("14, 15", "12")) +  // forks behind two blocks
                           batch("102", R"({"type": "BlockRemoved", "block_hashes": [13, 12]})") +
                           batch("103", R"({"type": "AllBlocksCleared"})") +
                           batch("103.25", stored("12, 13", "11"));  // the same blocks as before
  for (const char* name : {"t.jsonl", "t.jsonl.gz", "t.jsonl.zst"}) {
    const auto path = dir.compressed(name, text);
    EXPECT_EQ(detect_format(path), TraceFormat::kv_events);
    const auto source = open_trace(path, {});
    EXPECT_EQ(text_of(*source),
              "0: 8 of 8 0[0,2)\n"
              "0: 4 of 12 0[0,3)\n"
              "0: 8 of 16 0[0,2) 1[2,4)\n"
              "2750000000: 8 of 12 0[0,3)\n");
    EXPECT_TRUE(source->has_arrivals());
    EXPECT_TRUE(source->has_turn_arrivals());
    EXPECT_FALSE(source->has_think_times());
    EXPECT_FALSE(source->named_blocks()->partial);
    EXPECT_EQ(to_json(source->report())["kv_events"], (Json{{"stored", 4},
                                                            {"without_parent", 0},
                                                            {"moved_blocks", 0},
                                                            {"stored_in_other_media", 0},
                                                            {"stored_for_other_groups", 0},
                                                            {"removed", 1},
                                                            {"all_cleared", 1},
                                                            {"unknown", 0}}));
  }
}

TEST(KvEvents, ListsAreReadAsObjectsAre) {
  const TempDir dir;
  const auto path = dir.file(
      "t.jsonl",
      R"([1.5, [["BlockStored", [18446744073709551615, 7], null, [1,2,3,4,5,6,7,8], 4, null, "GPU"], ["BlockRemoved", [7], "GPU"]], 0])"
      "\n"
      R"([2, [["AllBlocksCleared"]]])"
      "\n"
      R"([3.0, [["BlockStored", [9], -1, [], 4, 2, null, "lora", [null], 0, "full"]], null])");
  EXPECT_EQ(detect_format(path), TraceFormat::kv_events);
  const auto source = open_trace(path, {});
  // -1 has the bits of 2^64 - 1.
  EXPECT_EQ(text_of(*source), "0: 8 of 8 0[0,2)\n1500000000: 4 of 8 0[0,1) 1[1,2)\n");
  EXPECT_EQ(source->report().kv_events->removed, 1);
  EXPECT_EQ(source->report().kv_events->all_cleared, 1);
}

TEST(KvEvents, HashesMayBeStrings) {
  const TempDir dir;
  const auto path = dir.file("t.jsonl", batch("1", stored(R"("00ff", "a+/=")", "null")) +
                                            batch("2", stored(R"("x")", R"("00ff")")) +
                                            batch("3", stored(R"("7", 7)", "null")));
  EXPECT_EQ(text_of(*open_trace(path, {})),
            "0: 8 of 8 0[0,2)\n1000000000: 4 of 8 0[0,1) 1[1,2)\n2000000000: 8 of 8 2[0,2)\n");
}

TEST(KvEvents, OtherMediaGroupsAndKindsAreCounted) {
  const TempDir dir;
  const auto path = dir.file(
      "t.jsonl",
      batch("1", stored("1", "null", R"(, "medium": "CPU", "token_ids": [1])") + "," +
                     stored("1", "null", R"(, "medium": "GPU", "group_idx": 1)") + "," +
                     R"({"type": "BlockTouched", "block_hashes": "all"}, )" +
                     stored("1", "null", R"(, "medium": "gpu", "token_ids": [1, 2, 3, 4])")) +
          batch("1", R"({"type": "BlockStored", "block_hashes": [5], "parent_block_hash": null,)"
                     R"( "block_size": 0, "medium": "CPU"})"));
  const auto source = open_trace(path, {});
  EXPECT_EQ(text_of(*source), "0: 4 of 4 0[0,1)\n");
  const KvEventCounts& events = *source->report().kv_events;
  EXPECT_EQ(events.stored, 1);
  EXPECT_EQ(events.stored_in_other_media, 2);
  EXPECT_EQ(events.stored_for_other_groups, 1);
  EXPECT_EQ(events.unknown, 1);
}

TEST(KvEvents, AChainWhoseParentIsUnknownBeginsAStreamOfItsOwn) {
  const TempDir dir;
  const auto path =
      dir.file("t.jsonl", batch("1", stored("12, 13", "11")) +  // 11 is not there
                              batch("2", stored("12, 13", "11")) +
                              batch("3", stored("11", "null")) + batch("4", stored("13", "12")) +
                              batch("5", stored("12", "11")) + batch("6", stored("13", "12")));
  const auto source = open_trace(path, {});
  EXPECT_EQ(text_of(*source),
            "0: 8 of 8 0[0,2)\n"
            "1000000000: 8 of 8 0[0,2)\n"
            "2000000000: 4 of 4 1[0,1)\n"
            "3000000000: 4 of 8 0[0,2)\n"
            "4000000000: 4 of 8 1[0,2)\n"  // 12 moves behind 11, and then 13 behind it
            "5000000000: 4 of 12 1[0,3)\n");
  EXPECT_EQ(source->report().kv_events->without_parent, 2);
  EXPECT_EQ(source->report().kv_events->moved_blocks, 2);
}

// The parent's blocks are in the prompt, but the requests do not ask for them.
TEST(KvEvents, StatisticsCountTheStoredBlocksAlone) {
  const TempDir dir;
  const auto path = dir.file("t.jsonl", batch("1", stored("1, 2", "null")) +      // new: 2
                                            batch("2", stored("3", "2")) +        // new: 1
                                            batch("3", stored("2, 3, 4", "1")));  // hits 2, new: 1
  const auto source = open_trace(path, {});
  BlockStatistics statistics(*source->streams(), *source->named_blocks());
  SessionSpec session;
  while (source->next(session)) {
    statistics.add(session);
  }
  const Json report = statistics.report();
  EXPECT_EQ(report["requests"], 3);
  EXPECT_EQ(report["blocks"], 6);
  EXPECT_EQ(report["distinct_blocks"], 4);
  EXPECT_EQ(report["prompt_tokens"], 24);
  EXPECT_EQ(report["ideal_hits"], (Json{{"blocks", 2}, {"tokens", 8}, {"requests", 1}}));
}

TEST(KvEvents, AreWrittenAndReadBack) {
  const TempDir dir;
  const auto path =
      dir.file("t.jsonl", batch("1", stored("1, 2", "null")) + batch("2", stored("3", "1")) +
                              batch("3", stored("4", "3")));
  const auto source = open_trace(path, {});
  TraceWriter writer(dir.path() / "out",
                     {.arrivals = true, .turn_arrivals = true, .block = 4, .partial = false},
                     source->streams());
  SessionSpec session;
  while (source->next(session)) {
    writer.write(session);
  }
  writer.commit();
  EXPECT_EQ(text_of(*open_trace(dir.path() / "out", {})), text_of(*open_trace(path, {})));
}

std::string error_of(const std::string& text, const ImportOptions& options = {}) {
  const TempDir dir;
  const auto path = dir.file("t.jsonl", text);
  return config_error_of(dir, [&] {
    KvEventReader reader(path, options);
    SessionSpec session;
    while (reader.next(session)) {
    }
  });
}

TEST(KvEvents, NamesTheLineOfWhatIsWrong) {
  const auto error = [&](const std::string& line) {
    return error_of(batch("5", stored("1, 2", "null")) + line);
  };
  const auto of_event = [&](const std::string& event) { return error(batch("6", event)); };
  EXPECT_EQ(of_event(stored("2", "1")), "no ConfigError");
  EXPECT_EQ(of_event(stored("2", "null")), "t.jsonl:2: block 2 is at the start, and was behind 1");
  EXPECT_EQ(of_event(stored("1", "3")), "t.jsonl:2: block 1 is behind 3, and was at the start");
  EXPECT_EQ(of_event(stored("3, 2", "-1")), "t.jsonl:2: block 2 is behind 3, and was behind 1");
  EXPECT_EQ(of_event(stored(R"("a", "b", "a")", "null")),
            "t.jsonl:2: block a is behind b, and was at the start");
  EXPECT_EQ(error(batch("4.5", "")), "t.jsonl:2: ts 4.5 s after 5 s: times must not decrease");
  EXPECT_EQ(error("{\"ts\": 6}"), "t.jsonl:2: missing key \"events\"");
  EXPECT_EQ(error("{\"events\": []}"), "t.jsonl:2: missing key \"ts\"");
  EXPECT_EQ(error("{\"ts\": 6, \"ts\": 6, \"events\": []}"), "t.jsonl:2: duplicate key \"ts\"");
  EXPECT_EQ(error("{\"ts\": -1, \"events\": []}"),
            "t.jsonl:2: column 8: expected a batch's time as a number in 0 .. 4611686018, got '-1, "
            "\"events\": []}'");
  EXPECT_EQ(error("[6]"), "t.jsonl:2: column 3: expected ',', got ']'");
  EXPECT_EQ(error("[6, []] x"), "t.jsonl:2: column 9: expected the end of the line, got 'x'");
  EXPECT_EQ(error("[6, [[7]]]"),
            "t.jsonl:2: column 7: expected an event's type, such as \"BlockStored\", got '7]]]'");
  EXPECT_EQ(of_event("{\"type\": 3}"),
            "t.jsonl:2: column 31: expected an event's type, such as \"BlockStored\", got '3}]}'");
  EXPECT_EQ(of_event("{\"block_size\": 4}"), "t.jsonl:2: missing key \"type\" of an event");
  EXPECT_EQ(of_event(stored("3", "null", ", \"block_size\": 4")),
            "t.jsonl:2: duplicate key \"block_size\"");
  EXPECT_EQ(of_event(R"({"type": "BlockStored"})"),
            "t.jsonl:2: missing key \"block_hashes\" of a BlockStored event");
  EXPECT_EQ(of_event(R"({"type": "BlockStored", "block_hashes": [1]})"),
            "t.jsonl:2: missing key \"parent_block_hash\" of a BlockStored event");
  EXPECT_EQ(error("[6, [[\"BlockStored\", [1], null]]]"),
            "t.jsonl:2: missing key \"block_size\" of a BlockStored event");
  EXPECT_EQ(of_event(stored("", "null")), "t.jsonl:2: a BlockStored event without blocks");
  EXPECT_EQ(of_event(stored("1", "null", ", \"token_ids\": [1, 2, 3]")),
            "t.jsonl:2: expected 4 token ids for 1 blocks of 4 tokens, got 3");
  EXPECT_EQ(of_event(stored("3, 4", "null", ", \"token_ids\": [1, 2, 3, 4]")),
            "t.jsonl:2: expected 8 token ids for 2 blocks of 4 tokens, got 4");
  EXPECT_EQ(error("[6, [[\"BlockStored\", [1], null, [], 8]]]"),
            "t.jsonl:2: expected blocks of 4 tokens as in the events before, got 8");
  EXPECT_EQ(error("[6, [[\"BlockStored\", [1.5], null, [], 4]]]"),
            "t.jsonl:2: column 23: expected a block's hash as a whole number or a string, got "
            "'1.5], null, [], 4]]]'");
  EXPECT_EQ(error("[6, [[\"BlockStored\", [\"\"], null, [], 4]]]"),
            "t.jsonl:2: column 25: expected a block's hash that is not empty, got "
            "'], null, [], 4]]]'");
  EXPECT_EQ(error("[6, [[\"BlockStored\", [3], true, [], 4]]]"),
            "t.jsonl:2: column 27: expected a parent's hash or null as a whole number or a string, "
            "got 'true, [], 4]]]'");
  EXPECT_EQ(of_event(stored("3", "null", ", \"medium\": 1")),
            "t.jsonl:2: column 121: expected a medium, such as \"GPU\", or null, got '1}]}'");
  EXPECT_EQ(of_event(stored("3", "null", ", \"group_idx\": -1")),
            "t.jsonl:2: column 124: expected a group's number as a whole number in 0 .. "
            "2147483647, got '-1}]}'");
  EXPECT_EQ(error("[6, [[\"BlockStored\", [3], null, [], -4]]]"),
            "t.jsonl:2: column 37: expected a block's tokens as a whole number in 0 .. 2147483647, "
            "got '-4]]]'");
}

TEST(KvEvents, NeedBlocksOnTheGpu) {
  EXPECT_EQ(error_of(""), "t.jsonl: no event stores blocks on the GPU");
  EXPECT_EQ(error_of(batch("1", stored("1", "null", ", \"medium\": \"CPU\""))),
            "t.jsonl: no event stores blocks on the GPU");
  EXPECT_EQ(error_of("[6, [[\"BlockStored\", [1], null, [], 0]]]"),
            "t.jsonl:1: expected a block_size of at least 1 of a BlockStored event, got 0");
  EXPECT_EQ(error_of("[6, [[\"BlockStored\", [1, 2], null, [], 2000000000]]]"),
            "t.jsonl:1: a chain of 2 blocks has more than 2147483647 tokens");
  EXPECT_EQ(error_of(batch("1", stored("1", "null")), {.loop = Loop::closed}),
            "t.jsonl: events of a KV cache name no sessions, which a closed loop needs");
}

}  // namespace
}  // namespace kvtier
