#include "traces/block_trace.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/block_statistics.hpp"

namespace kvtier {
namespace {

using testing::config_error_of;
using testing::TempDir;

/// A request: its time in nanoseconds, prompt and output tokens, and where each of its blocks of so
/// many tokens lies.
std::string text_of(TraceSource& source, std::int64_t block) {
  std::string text;
  SessionSpec session;
  std::vector<Stretch> path;
  while (source.next(session)) {
    const Context& prompt = session.contents.at(0).prompt;
    text += fmt::format("{}: {}/{}", session.arrival.ns, prompt.tokens.value,
                        session.turns.at(0).assistant.value);
    EXPECT_EQ(session.turns[0].user, prompt.tokens);
    source.streams()->path(prompt.stream, (prompt.tokens.value + block - 1) / block, block, path);
    for (const Stretch& stretch : path) {
      text += fmt::format(" {}[{},{})", stretch.stream.value, stretch.begin, stretch.end);
    }
    text += "\n";
  }
  return text;
}

std::string row(const std::string& time, std::int64_t input, const std::string& ids,
                std::int64_t output = 7) {
  return fmt::format(
      R"({{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [{}]}})", time,
      input, output, ids);
}

TEST(BlockTrace, RequestsThatBeginAlikeShareStreams) {
  const TempDir dir;
  const std::string text = row("1000", 1024, "4,5") + "\n" +           // a new stream
                           row("1000", 1500, "4,5,6") + "\r\n"         // lengthens it
                           + row("1500", 1537, "4,5,6,9", 0) + "\n" +  // and again
                           row("2000.5", 600, "4,8") + "\n" +          // forks behind one block
                           row("3000", 511, "") + "\n" +               // less than a block
                           row("3000", 1024, "4,5") + "\n";            // nothing new
  for (const char* name : {"t.jsonl", "t.jsonl.gz", "t.jsonl.zst"}) {
    const auto path = dir.compressed(name, text);
    EXPECT_EQ(detect_format(path), TraceFormat::mooncake);
    const auto source = open_trace(path, {});
    EXPECT_EQ(text_of(*source, 512),
              "0: 1024/7 0[0,2)\n"
              "0: 1500/7 0[0,3)\n"
              "500000000: 1537/1 0[0,4)\n"
              "1000500000: 600/7 0[0,1) 1[1,2)\n"
              "2000000000: 511/7 2[0,1)\n"
              "2000000000: 1024/7 0[0,2)\n");
    EXPECT_TRUE(source->has_arrivals());
    EXPECT_TRUE(source->has_turn_arrivals());
    EXPECT_EQ(source->named_blocks()->block, Tokens(512));
    EXPECT_TRUE(source->named_blocks()->partial);
    EXPECT_EQ(source->report().sessions, 6);
  }
}

TEST(BlockTrace, QwenBailianCountsInSecondsAndBlocksOf16) {
  const TempDir dir;
  const auto path = dir.file(
      "q.jsonl",
      R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 2.5, "input_length": 20, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [1, 2]})"
      "\n"
      R"({"chat_id": 2, "parent_chat_id": 1, "timestamp": 3, "input_length": 40, "output_length": 3, "type": "a \"b\" [", "turn": 2, "hash_ids": [1, 3, 4]})");
  EXPECT_EQ(detect_format(path), TraceFormat::qwen_bailian);
  const auto source = open_trace(path, {});
  EXPECT_EQ(text_of(*source, 16),
            "0: 20/3 0[0,2)\n"
            "500000000: 40/3 0[0,1) 1[1,3)\n");
  EXPECT_EQ(source->named_blocks()->block, Tokens(16));
}

// Doubles of nanoseconds since 1970 are 256 ns apart.
TEST(BlockTrace, TimesAreExactToTheNanosecond) {
  const TempDir dir;
  const auto source = open_trace(dir.file("t.jsonl", row("1751234567890", 512, "1") + "\n" +
                                                         row("1751234567890.1234567", 512, "1") +
                                                         "\n" + row("1751234567891", 512, "1")),
                                 {});
  EXPECT_EQ(text_of(*source, 512),
            "0: 512/7 0[0,1)\n123457: 512/7 0[0,1)\n1000000: 512/7 0[0,1)\n");
}

TEST(BlockTrace, BlankLinesAreNoRequests) {
  const TempDir dir;
  const auto path = dir.file("t.jsonl", "\n \t\r\n" + row("1", 512, "1") + "\n\n");
  EXPECT_EQ(text_of(*open_trace(path, {}), 512), "0: 512/7 0[0,1)\n");
}

TEST(BlockTrace, SmallerBlocksOfAContextAreThoseOfTheLargerOnes) {
  const TempDir dir;
  const auto source =
      open_trace(dir.file("t.jsonl", row("0", 1024, "1,2") + "\n" + row("0", 1024, "1,3")), {});
  EXPECT_EQ(text_of(*source, 16), "0: 1024/7 0[0,64)\n0: 1024/7 0[0,32) 1[32,64)\n");
}

TEST(BlockTrace, NamesTheLineOfWhatIsWrong) {
  const TempDir dir;
  const std::string good = row("5", 1024, "1,2") + "\n";
  const auto error = [&](const std::string& text) {
    const auto path = dir.file("t.jsonl", good + text + "\n");
    const std::string what = config_error_of(dir, [&] {
      BlockTraceReader reader(path, block_trace_style(TraceFormat::mooncake));
      SessionSpec session;
      while (reader.next(session)) {
      }
    });
    const std::string begin = "t.jsonl:2: ";
    EXPECT_EQ(what.substr(0, begin.size()), begin);
    return what.substr(std::min(what.size(), begin.size()));
  };
  EXPECT_EQ(error(row("4", 512, "1")), "time stamp 0.004 s after 0.005 s: times must not decrease");
  EXPECT_EQ(error(row("5", 1024, "1")),
            "expected 2 blocks of 512 tokens for 1024 input tokens, got 1");
  EXPECT_EQ(error(row("5", 1025, "1,2,3,4")),
            "expected 2 or 3 blocks of 512 tokens for 1025 input tokens, got 4");
  EXPECT_EQ(error(row("5", 1024, "2,1")), "block 2 is at the start, and was behind 1");
  EXPECT_EQ(error(row("5", 1024, "3,2")), "block 2 is behind 3, and was behind 1");
  EXPECT_EQ(error(row("5", 1024, "1,1")), "block 1 is behind 1, and was at the start");
  EXPECT_EQ(error(row("5", 512, "-1")),
            "column 72: expected a block's number as a whole number in 0 .. 9223372036854775807, "
            "got '-1]}'");
  EXPECT_EQ(error(row("5", 512, "1.5")),
            "column 72: expected a block's number as a whole number in 0 .. 9223372036854775807, "
            "got '1.5]}'");
  EXPECT_EQ(error(row("5", 0, "")),
            "column 34: expected input tokens as a whole number in 1 .. 2147483647, got '0, "
            "\"output_length\": ...'");
  EXPECT_EQ(error(row("-5", 512, "1")),
            "column 15: expected a time stamp as a number in 0 .. 4611686018427, got '-5, "
            "\"input_length\": ...'");
  EXPECT_EQ(error(row("5", 512, "1").substr(0, 30)),
            "column 18: expected a key, got '\"input_length'");
  EXPECT_EQ(error(row("5", 512, "1") + "x"), "column 75: expected the end of the line, got 'x'");
  EXPECT_EQ(error(R"({"timestamp": 5, "input_length": 4, "hash_ids": []})"),
            "missing key \"output_length\"");
  EXPECT_EQ(error(R"({"timestamp": 5, "timestamp": 5})"), "duplicate key \"timestamp\"");
  EXPECT_EQ(error(R"({"other": {"a": [1, "]"})"),
            "column 25: expected a value, got the end of the line");
  EXPECT_EQ(error(R"({"other": "a)"),
            "column 13: expected the end of a text, got the end of the line");
  const auto empty = dir.file("empty.jsonl", "");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              BlockTraceReader reader(empty,
                                                      block_trace_style(TraceFormat::mooncake));
                              SessionSpec session;
                              reader.next(session);
                            }),
            "empty.jsonl: the trace has no requests");
}

class AgentTrace : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return dir_.file(name, text);
  }
  TempDir dir_;
};

TEST_F(AgentTrace, SessionsBeginTogetherAndSubAgentsWhereTheyDo) {
  write("b.json", R"({"block_size": 4, "requests": [
      {"t": 0, "in": 9, "out": 2, "hash_ids": [1, 2]},
      {"t": 1.5, "type": "subagent", "requests": [
          {"t": 0.5, "in": 12, "out": 0, "hash_ids": [1, 2, 3]}]},
      {"t": 2, "in": 8, "out": 2, "hash_ids": [1, 4]}]})");
  write("a.json",
        R"({"block_size": 4, "requests": [{"t": 2, "in": 5, "out": 1, "hash_ids": [1]}]})");
  write("notes.txt", "not read");
  EXPECT_EQ(detect_format(dir_.path()), TraceFormat::agent_sessions);
  const auto source = open_trace(dir_.path(), {});
  // Numbers are those of a file: a.json's 1 is another block. At 2 s its request is before
  // b.json's.
  EXPECT_EQ(text_of(*source, 4),
            "0: 9/2 1[0,3)\n"
            "2000000000: 5/1 0[0,2)\n"
            "2000000000: 12/1 1[0,3)\n"
            "2000000000: 8/2 1[0,1) 2[1,2)\n");
  EXPECT_FALSE(source->named_blocks()->partial);
  const auto one = open_trace(dir_.path() / "a.json", {});
  EXPECT_EQ(text_of(*one, 4), "2000000000: 5/1 0[0,2)\n");
}

TEST_F(AgentTrace, RefusesSessionsThatStartBeyondTheSimulation) {
  const std::string one = R"({"block_size": 4, "requests": [
      {"t": 2, "in": 4, "out": 2, "hash_ids": [1]}]})";
  write("a.json", one);
  write("b.json", one);
  const auto error = [&](const SessionStart& start) {
    return config_error_of(dir_,
                           [&] { AgentTraceReader reader(dir_.path(), {.session_start = start}); });
  };
  const std::string beyond = "lies beyond the 146 years that can be simulated";
  EXPECT_EQ(error({.every = SimDuration(INT64_MAX)}),
            "/workload/session_start/every: the start of b.json " + beyond);
  EXPECT_EQ(error({.every = SimDuration(kTraceTimeNsMax - 1)}), "b.json: /requests/0: t " + beyond);
  EXPECT_EQ(error({.every = SimDuration(kTraceTimeNsMax - 2'000'000'000)}), "no ConfigError");
  EXPECT_EQ(error({.rate = PerSecond(1e-200)}),
            "/workload/session_start/rate: at one session every 1e+200 s on average, sessions "
            "arrive beyond the 146 years that can be simulated");
}

TEST_F(AgentTrace, NamesTheFileAndTheRequestThatIsWrong) {
  const auto error = [&](const std::string& text) {
    const auto path = write("a.json", text);
    const std::string what = config_error_of(dir_, [&] { AgentTraceReader reader(path); });
    const std::string begin = "a.json: ";
    EXPECT_EQ(what.substr(0, begin.size()), begin);
    return what.substr(std::min(what.size(), begin.size()));
  };
  const auto request = [&](const std::string& text) {
    return error(R"({"block_size": 4, "requests": [{"t": 1, "requests": [)" + text + "]}]}");
  };
  EXPECT_EQ(error("[]"), "/requests: expected a list of requests");
  EXPECT_EQ(error(R"({"requests": []})"), "/block_size: expected a whole number of tokens > 0");
  EXPECT_EQ(error(R"({"block_size": 4, "requests": []})"), "the trace has no requests");
  EXPECT_EQ(request(R"({"in": 4, "out": 1, "hash_ids": [1]})"),
            "/requests/0/requests/0: expected a number in 0 .. 2305843009 at t");
  EXPECT_EQ(request(R"({"t": -1, "in": 4, "out": 1, "hash_ids": [1]})"),
            "/requests/0/requests/0: expected a number in 0 .. 2305843009 at t");
  EXPECT_EQ(request(R"({"t": 1, "in": 0, "out": 1, "hash_ids": []})"),
            "/requests/0/requests/0: expected a whole number in 1 .. 2147483647 at in");
  EXPECT_EQ(request(R"({"t": 1, "in": 4, "out": 0.5, "hash_ids": [1]})"),
            "/requests/0/requests/0: expected a whole number in 0 .. 2147483647 at out");
  EXPECT_EQ(request(R"({"t": 1, "in": 4, "out": 1})"),
            "/requests/0/requests/0: expected a list of blocks at hash_ids");
  EXPECT_EQ(request(R"({"t": 1, "in": 4, "out": 1, "hash_ids": ["1"]})"),
            "/requests/0/requests/0: expected whole numbers >= 0 at hash_ids, got \"1\"");
  EXPECT_EQ(request(R"({"t": 1, "in": 9, "out": 1, "hash_ids": [1]})"),
            "/requests/0/requests/0: expected 2 blocks of 4 tokens for 9 input tokens, got 1");
  EXPECT_EQ(request(R"({"t": 1, "requests": 5})"),
            "/requests/0/requests/0: expected a list at requests");
  EXPECT_EQ(request(R"({"t": 1, "in": 8, "out": 1, "hash_ids": [1, 1]})"),
            "/requests/0/requests/0: block 1 is behind 1, and was at the start");
  write("b.json", R"({"block_size": 8, "requests": []})");
  write("a.json", R"({"block_size": 4, "requests": []})");
  EXPECT_EQ(config_error_of(dir_, [&] { AgentTraceReader reader(dir_.path()); }),
            "b.json: /block_size: expected 4 as in the files before, got 8");
}

TEST(BlockStatistics, AreThoseOfACacheWithoutLimits) {
  const TempDir dir;
  const auto source =
      open_trace(dir.file("t.jsonl", row("0", 1500, "1,2,3") + "\n" + row("0", 1024, "1,2") + "\n" +
                                         row("0", 1600, "1,2,4,5") + "\n" + row("0", 600, "6,7")),
                 {});
  BlockStatistics statistics(*source->streams(), *source->named_blocks());
  SessionSpec session;
  while (source->next(session)) {
    statistics.add(session);
  }
  const Json report = statistics.report();
  EXPECT_EQ(report["requests"], 4);
  EXPECT_EQ(report["blocks"], 11);
  EXPECT_EQ(report["distinct_blocks"], 7);
  EXPECT_EQ(report["reused_blocks_fraction"], 2.0 / 7);
  EXPECT_EQ(report["prompt_tokens"], 4724);
  EXPECT_EQ(report["ideal_hits"], (Json{{"blocks", 4}, {"tokens", 2048}, {"requests", 2}}));
  EXPECT_EQ(report["ideal_hit_rate"]["requests"], 0.5);
  EXPECT_EQ(report["ideal_hit_rate_second_half"],
            (Json{{"blocks", 2.0 / 6}, {"tokens", 1024.0 / 2200}, {"requests", 0.5}}));
  EXPECT_EQ(report["prefixes_per_request"]["max"], 2);
}

// As tests/data/count_hits.py counts them.
TEST(BlockStatistics, MooncakesConversationsGiveTheCountedHits) {
  const std::filesystem::path path =
      std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/data/mooncake_conversation.jsonl.gz";
  const auto source = open_trace(path, {});
  BlockStatistics statistics(*source->streams(), *source->named_blocks());
  SessionSpec session;
  while (source->next(session)) {
    statistics.add(session);
  }
  const Json report = statistics.report();
  EXPECT_EQ(report["requests"], 500);
  EXPECT_EQ(report["blocks"], 14'162);
  EXPECT_EQ(report["distinct_blocks"], 11'879);
  EXPECT_EQ(report["prompt_tokens"], 7'124'855);
  EXPECT_EQ(report["ideal_hits"]["blocks"], 2'283);
  EXPECT_EQ(report["ideal_hits"]["tokens"], 1'167'589);
}

}  // namespace
}  // namespace kvtier
