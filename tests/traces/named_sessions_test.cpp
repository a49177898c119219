#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/block_statistics.hpp"
#include "traces/block_trace.hpp"
#include "traces/request_table.hpp"
#include "traces/trace_format.hpp"

/// Sessions whose turns name their tokens: requests gathered into conversations, and
/// kvtier.trace/2.
namespace kvtier {
namespace {

using testing::config_error_of;
using testing::TempDir;

/// A line a session: when it comes, and for each turn its think time, the new tokens of its prompt,
/// those of the response, and the prompt; a star if the response's tokens are named.
std::string text_of(TraceSource& source) {
  std::string text;
  SessionSpec session;
  while (source.next(session)) {
    text += fmt::format("{}@{}:", session.id, session.arrival.ns);
    for (std::size_t i = 0; i < session.turns.size(); ++i) {
      const Turn& turn = session.turns[i];
      const TurnContent& content = session.contents.at(i);
      text +=
          fmt::format(" +{} {}/{} of {}{}", turn.think.ns, turn.user.value, turn.assistant.value,
                      content.prompt.tokens.value, content.whole.stream.valid() ? "*" : "");
      if (content.whole.stream.valid()) {
        EXPECT_EQ(content.whole.tokens, content.prompt.tokens + turn.assistant - Tokens(1));
        EXPECT_EQ(common_tokens(*source.streams(), content.prompt, content.whole),
                  content.prompt.tokens);
      }
    }
    text += "\n";
  }
  return text;
}

ImportOptions closed(bool think_times) {
  return {.loop = Loop::closed, .think_times = think_times};
}

TEST(CommonTokens, EndAtTheFork) {
  Streams streams;
  const StreamId root = streams.open();
  const StreamId left = streams.open(root, Tokens(10));
  const StreamId right = streams.open(root, Tokens(6));
  const StreamId leaf = streams.open(left, Tokens(15));
  const StreamId other = streams.open();
  const auto common = [&](StreamId a, int tokens, StreamId b, int more) {
    const Context first{a, Tokens(tokens)};
    const Context second{b, Tokens(more)};
    EXPECT_EQ(common_tokens(streams, first, second), common_tokens(streams, second, first));
    return common_tokens(streams, first, second).value;
  };
  EXPECT_EQ(common(root, 20, root, 8), 8);
  EXPECT_EQ(common(root, 20, left, 12), 10);
  EXPECT_EQ(common(root, 4, left, 12), 4);
  EXPECT_EQ(common(leaf, 20, left, 30), 15);
  EXPECT_EQ(common(leaf, 12, left, 30), 12);
  EXPECT_EQ(common(leaf, 20, right, 30), 6);
  EXPECT_EQ(common(leaf, 20, other, 30), 0);
}

/// AIPerf's form: blocks of 512; the second session has no time stamps after its first request.
constexpr const char* kConversations =
    R"({"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 500, "hash_ids": [1, 2]}
{"session_id": 7, "timestamp": 1500, "input_length": 512, "output_length": 3, "hash_ids": [8]}
{"session_id": "a", "timestamp": 9000, "delay": 250.5, "input_length": 1200, "output_length": 9, "hash_ids": [1, 3, 4]}
{"session_id": 7, "delay": 10, "input_length": 400, "output_length": 2, "hash_ids": [9]}
{"session_id": "a", "delay": 20, "timestamp": 9000, "input_length": 1100, "output_length": 1, "hash_ids": [1, 3, 5]}
)";

TEST(ClosedLoop, RequestsOfASessionFollowEachOther) {
  const TempDir dir;
  const auto path = dir.file("t.jsonl", kConversations);
  const auto source = open_trace(path, closed(true));
  // The first request's 512 full tokens are the second's, which has room for its response: 600 +
  // 500 of 1,200. The third is a shorter history: two blocks are as before.
  EXPECT_EQ(text_of(*source),
            "0@0: +0 600/500 of 600* +250500000 100/9 of 1200 +20000000 76/1 of 1100\n"
            "1@500000000: +0 512/3 of 512 +10000000 400/2 of 400\n");
  EXPECT_TRUE(source->has_think_times());
  EXPECT_FALSE(source->has_turn_arrivals());
}

TEST(ClosedLoop, KeepsLoggedTimes) {
  const TempDir dir;
  std::string text = kConversations;
  text.erase(
      text.find(R"({"session_id": 7, "delay")"),
      text.find(R"({"session_id": "a", "delay")") - text.find(R"({"session_id": 7, "delay")"));
  const auto path = dir.file("t.jsonl", text);
  const auto source = open_trace(path, closed(false));
  EXPECT_EQ(text_of(*source),
            "0@0: +0 600/500 of 600* +8000000000 100/9 of 1200 +0 76/1 of 1100\n"
            "1@500000000: +0 512/3 of 512\n");
  EXPECT_TRUE(source->has_turn_arrivals());
  EXPECT_EQ(
      config_error_of(
          dir,
          [&] { const auto all = open_trace(dir.file("u.jsonl", kConversations), closed(false)); }),
      "u.jsonl:4: missing key \"timestamp\"");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              const auto all = open_trace(dir.file("u.jsonl", kConversations), {});
                              text_of(*all);
                            }),
            "u.jsonl:4: missing key \"timestamp\"");
}

TEST(ClosedLoop, ChatsFollowTheirParents) {
  const TempDir dir;
  const auto chat = [](int number, int parent, int time, int input, const std::string& ids) {
    return fmt::format(
        R"({{"chat_id": {}, "parent_chat_id": {}, "timestamp": {}, "input_length": {}, "output_length": 4, "type": "text", "turn": 1, "hash_ids": [{}]}})"
        "\n",
        number, parent, time, input, ids);
  };
  const std::string text = chat(1, -1, 0, 20, "1, 2") + chat(2, -1, 1, 16, "7") +
                           chat(3, 1, 5, 40, "1, 3, 4") + chat(4, 1, 6, 33, "1, 3, 5") +
                           chat(5, 3, 9, 60, "1, 3, 6, 8");
  const auto path = dir.file("q.jsonl", text);
  const auto source = open_trace(path, closed(false));
  // Chat 4 goes on from chat 1 as well, so it is a session of its own.
  EXPECT_EQ(text_of(*source),
            "0@0: +0 20/4 of 20* +5000000000 16/4 of 40* +4000000000 16/4 of 60\n"
            "1@1000000000: +0 16/4 of 16\n"
            "2@6000000000: +0 33/4 of 33\n");
  const auto error = [&](const std::string& bad, bool think_times = false) {
    return config_error_of(dir, [&] {
      const auto refused = open_trace(dir.file("bad.jsonl", bad), closed(think_times));
    });
  };
  EXPECT_EQ(error(chat(1, 2, 0, 16, "1") + chat(2, -1, 0, 16, "2")),
            "bad.jsonl:1: the parent 2 of chat 1 does not stand above");
  EXPECT_EQ(error(chat(1, 1, 0, 16, "1")),
            "bad.jsonl:1: the parent 1 of chat 1 does not stand above");
  EXPECT_EQ(error(chat(1, -1, 0, 16, "1") + chat(1, -1, 0, 16, "2")),
            "bad.jsonl:2: chat 1 is there already");
  EXPECT_EQ(error(chat(1, -1, 0, 16, "1"), true),
            "bad.jsonl: the trace has no think times; in a closed loop its requests come at their "
            "times, or after the response before (the think time model \"logged\")");
}

TEST(ClosedLoop, AgentsKeepTheirTools) {
  const TempDir dir;
  const auto path = dir.file("a.json", R"({"block_size": 4, "requests": [
      {"t": 0, "in": 9, "out": 2, "hash_ids": [1, 2], "api_time": 0.5},
      {"t": 1.5, "type": "subagent", "requests": [
          {"t": 0.5, "in": 12, "out": 2, "hash_ids": [1, 2, 3], "think_time": null, "api_time": 2},
          {"t": 4, "in": 16, "out": 1, "hash_ids": [1, 2, 3, 5]}]},
      {"t": 2, "in": 8, "out": 2, "hash_ids": [1, 4], "think_time": 1.25}]})");
  EXPECT_EQ(text_of(*open_trace(path, closed(true))),
            "0@0: +0 9/2 of 9 +1250000000 4/2 of 8\n"
            "1@2000000000: +0 12/2 of 12* +1500000000 2/1 of 16\n");
  EXPECT_EQ(text_of(*open_trace(path, closed(false))),
            "0@0: +0 9/2 of 9 +2000000000 4/2 of 8\n"
            "1@2000000000: +0 12/2 of 12* +3500000000 2/1 of 16\n");
}

TEST(SessionStarts, ShiftEachFile) {
  const TempDir dir;
  for (const char* name : {"a.json", "b.json", "c.json"}) {
    const auto path = dir.file(name, R"({"block_size": 4, "requests": [
        {"t": 1, "in": 5, "out": 1, "hash_ids": [1]}, {"t": 7, "in": 4, "out": 1, "hash_ids": [1]}]})");
  }
  ImportOptions options;
  options.session_start.every = SimDuration(3'000'000'000);
  EXPECT_EQ(text_of(*open_trace(dir.path(), options)),
            "0@1000000000: +0 5/1 of 5\n1@4000000000: +0 5/1 of 5\n2@7000000000: +0 4/1 of 4\n"
            "3@7000000000: +0 5/1 of 5\n4@10000000000: +0 4/1 of 4\n5@13000000000: +0 4/1 of 4\n");
  options.session_start = {.rate = PerSecond(0.001)};
  options.loop = Loop::closed;
  options.seed = 3;
  const auto source = open_trace(dir.path(), options);
  const std::vector<SessionSpec> some = testing::take(*source, 3);
  EXPECT_GT(some[0].arrival, SimTime(1'000'000'000));
  EXPECT_LT(some[0].arrival, some[1].arrival);
  EXPECT_LT(some[1].arrival, some[2].arrival);
  options.seed = 4;
  EXPECT_NE(testing::take(*open_trace(dir.path(), options), 1)[0].arrival, some[0].arrival);
}

// ---- kvtier.trace/2 ----

std::filesystem::path written(const TempDir& dir, const std::string& name, TraceSource& source) {
  const std::filesystem::path path = dir.path() / name;
  const NamedBlocks named = source.named_blocks().value();
  TraceWriter writer(path,
                     {.arrivals = source.has_arrivals(),
                      .think_times = source.has_think_times(),
                      .turn_arrivals = source.has_turn_arrivals(),
                      .block = named.block.value,
                      .partial = named.partial},
                     source.streams());
  SessionSpec session;
  while (source.next(session)) {
    writer.write(session);
  }
  writer.commit();
  return path;
}

TEST(TraceVersion2, IsWrittenAsDocumented) {
  const TempDir dir;
  const auto source = open_trace(dir.file("t.jsonl", kConversations), closed(true));
  const auto path = written(dir, "t.trace", *source);
  EXPECT_EQ(
      testing::bytes_of(path),
      R"({"format":"kvtier.trace/2","arrivals":true,"think_times":true,"source":"","block":512,"partial":true}
{"stream":0,"tokens":512}
{"stream":1,"parent":0,"at":512}
{"stream":1,"tokens":1024}
{"stream":2,"parent":1,"at":1024}
{"id":0,"arrival_ns":0,"turns":[[1,600,600,500,0,1],[1,1200,100,9,250500000],[2,1100,76,1,20000000]]}
{"stream":3}
{"stream":4}
{"id":1,"arrival_ns":500000000,"turns":[[3,512,512,3,0],[4,400,400,2,10000000]]}
)");
  const auto again = open_trace(path, {});
  EXPECT_EQ(text_of(*again), text_of(*open_trace(dir.path() / "t.jsonl", closed(true))));
  EXPECT_EQ(again->named_blocks()->block, Tokens(512));
}

/// A block trace of random conversations: they fork, share blocks, and end inside of a block.
std::string random_trace(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
  std::vector<std::vector<int>> known{{}};
  int fresh = 0;
  std::string text;
  for (int i = 0; i < 60; ++i) {
    std::vector<int> blocks =
        known[static_cast<std::size_t>(below(static_cast<int>(known.size())))];
    blocks.resize(static_cast<std::size_t>(below(static_cast<int>(blocks.size()) + 1)));
    for (int more = below(4) + (blocks.empty() ? 1 : 0); more > 0; --more) {
      blocks.push_back(fresh++);
    }
    known.push_back(blocks);
    const int input = static_cast<int>(blocks.size()) * 512 - below(512);
    text += fmt::format(
        "{{\"session_id\": {}, \"timestamp\": {}, \"delay\": {}, \"input_length\": {}, "
        "\"output_length\": {}, \"hash_ids\": [{}]}}\n",
        below(12), i * 10, below(5), input, 1 + below(700), fmt::join(blocks, ","));
  }
  return text;
}

/// The tokens that each pair of contexts shares.
std::vector<std::int64_t> shared(TraceSource& source) {
  std::vector<Context> contexts;
  SessionSpec session;
  while (source.next(session)) {
    for (const TurnContent& content : session.contents) {
      contexts.push_back(content.prompt);
      if (content.whole.stream.valid()) {
        contexts.push_back(content.whole);
      }
    }
  }
  std::vector<std::int64_t> tokens;
  for (const Context& a : contexts) {
    for (const Context& b : contexts) {
      tokens.push_back(common_tokens(*source.streams(), a, b).value);
    }
  }
  return tokens;
}

TEST(TraceVersion2, GivesBackRandomTraces) {
  const TempDir dir;
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    const auto path = dir.file("t.jsonl", random_trace(seed));
    for (const ImportOptions& options : {ImportOptions{}, closed(true), closed(false)}) {
      const auto copy = written(dir, "t.trace.zst", *open_trace(path, options));
      EXPECT_EQ(text_of(*open_trace(copy, {})), text_of(*open_trace(path, options)));
      const auto original = open_trace(path, options);
      const auto again = open_trace(copy, {});
      EXPECT_EQ(shared(*again), shared(*original));
      EXPECT_EQ(testing::bytes_of(written(dir, "again.zst", *open_trace(copy, {}))),
                testing::bytes_of(copy));
    }
  }
}

TEST(TraceVersion2, NamesTheLineThatIsWrong) {
  const TempDir dir;
  const auto error = [&](const std::string& lines) {
    const auto path =
        dir.file("t", R"({"format":"kvtier.trace/2","arrivals":true,"think_times":true})"
                      "\n" +
                          lines);
    return config_error_of(dir, [&] {
      const auto source = open_trace(path, {.format = TraceFormat::kvtier});
      text_of(*source);
    });
  };
  const std::string stream = "{\"stream\":0}\n";
  const std::string session = R"({"id":0,"arrival_ns":0,"turns":[[0,10,10,5,0]]})"
                              "\n";
  EXPECT_EQ(error(stream + session), "no ConfigError");
  EXPECT_EQ(error(""), "t: the trace has no sessions");
  EXPECT_EQ(error(session), "t:2: stream 0 has no line above");
  EXPECT_EQ(error("{\"stream\":1}\n"), "t:2: expected stream 0 next, got 1");
  EXPECT_EQ(error(stream + stream),
            "t:3: stream 0 has a line above; another can only lengthen it beyond its 0 tokens");
  EXPECT_EQ(error(stream + "{\"stream\":0,\"tokens\":8}\n{\"stream\":0,\"tokens\":8}\n"),
            "t:4: stream 0 has a line above; another can only lengthen it beyond its 8 tokens");
  EXPECT_EQ(error(stream + session + "{\"stream\":1,\"parent\":0,\"at\":11}\n"),
            "t:4: stream 1 leaves stream 0 at token 11, which ends at 10");
  EXPECT_EQ(error(stream + "{\"stream\":1,\"parent\":1,\"at\":1}\n"),
            "t:3: stream 1 has no line above");
  EXPECT_EQ(error(stream + "{\"stream\":1,\"parent\":0}\n"),
            "t:3: expected \"parent\" and \"at\", or none of them");
  EXPECT_EQ(
      error("{\"stream\":0,\"tokens\":9}\n{\"stream\":1,\"parent\":0,\"at\":9,\"tokens\":5}\n"),
      "t:3: stream 1 has 5 tokens, but leaves its parent at token 9");
  EXPECT_EQ(error(stream + "{\"stream\":1}\n" +
                  R"({"id":0,"arrival_ns":0,"turns":[[0,10,10,5,0],[1,500,1,5,0]]})"),
            "t:4: turn 1 has 1 new tokens, but only 0 of its 500 are those of the turn before");
  EXPECT_EQ(error("{\"stream\":0,\"stream\":0}\n"), "t:2: duplicate key \"stream\"");
  EXPECT_EQ(error("{\"stream\":0,\"token\":3}\n"),
            "t:2: unknown key \"token\" (did you mean \"tokens\"?)");
  EXPECT_EQ(error(stream + R"({"id":0,"arrival_ns":0,"shared_prompt":[0,1],"turns":[]})"),
            "t:3: \"shared_prompt\" in a trace of streams, which share by forks");
  EXPECT_EQ(error(stream + R"({"id":0,"arrival_ns":0,"turns":[[0,10,11,5,0]]})").substr(0, 4),
            "t:3:");
  EXPECT_EQ(
      error(stream + "{\"stream\":1}\n" + R"({"id":0,"arrival_ns":0,"turns":[[0,10,10,5,0,1]]})"),
      "t:4: the response's stream does not begin with the prompt");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              const auto source = open_trace(
                                  dir.path() / "t",
                                  {.format = TraceFormat::kvtier, .message_overhead = Tokens(1)});
                            }),
            "t: its turns name their tokens, so none are taken off a message");
}

}  // namespace
}  // namespace kvtier
