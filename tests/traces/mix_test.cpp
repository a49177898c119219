#include "traces/mix.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "tests/traces/workload_config.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using testing::config_error_of;
using testing::config_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;

std::string problems_of(const std::string& json) {
  const TempDir dir;
  return config_error_of(dir, [&] { static_cast<void>(config_of(json)); });
}

constexpr const char* kTwo = R"([
    {"name": "chat", "weight": 3, "workload": {"generator": "sharegpt"}},
    {"name": "documents", "workload": {"generator": "long_documents",
                                       "think_time": {"model": "constant", "mean": "7s"}}}])";

std::string with_mix(const std::string& mix, int sessions = 400) {
  return fmt::format(R"({{"sessions": {}, "arrival_rate": "1/s", "mix": {}}})", sessions, mix);
}

TEST(Mix, DrawsSessionsByWeightFromOneProcessOfArrivals) {
  const TempDir dir;
  const auto source = make_source(config_of(with_mix(kTwo, 4000)), 7, dir.path());
  EXPECT_EQ(source->streams(), nullptr);
  Arrivals arrivals(ArrivalModel::poisson, PerSecond(1), 1, 7);
  std::array<int, 2> counts{};
  std::int64_t id = 0;
  for (const SessionSpec& session : read_all(*source)) {
    EXPECT_EQ(session.id, id++);
    EXPECT_EQ(session.arrival, arrivals.next());
    ++counts.at(static_cast<std::size_t>(session.workload_class));
    if (session.workload_class == 1) {
      EXPECT_EQ(session.turns.at(1).think, SimDuration(7'000'000'000));
    }
  }
  // A standard deviation of 27.
  EXPECT_NEAR(counts[0], 3000, 120);
  EXPECT_EQ(counts[0] + counts[1], 4000);
}

TEST(Mix, HasTheSessionsOfItsWorkloads) {
  const TempDir dir;
  const auto source = make_source(config_of(with_mix(kTwo)), 7, dir.path());
  ShareGptGenerator chats({}, stream_seed(7, "workload/mix/chat"));
  SessionSpec chat;
  for (SessionSpec& session : read_all(*source)) {
    if (session.workload_class == 0) {
      ASSERT_TRUE(chats.next(chat));
      chat.id = session.id;
      session.arrival = SimTime();
      for (Turn& turn : session.turns) {
        turn.think = SimDuration();
      }
      ASSERT_EQ(text_of({session}), text_of({chat}));
    }
  }
}

TEST(Mix, MoreSessionsDoNotChangeEarlierOnes) {
  const TempDir dir;
  const auto drawn = [&](int sessions, std::uint64_t seed) {
    return text_of(read_all(*make_source(config_of(with_mix(kTwo, sessions)), seed, dir.path())));
  };
  const std::string few = drawn(50, 7);
  EXPECT_EQ(drawn(50, 7), few);
  EXPECT_EQ(drawn(100, 7).substr(0, few.size()), few);
  EXPECT_NE(drawn(50, 8), few);
}

TEST(Mix, WorkloadsOfOneKindDiffer) {
  const TempDir dir;
  const auto source =
      make_source(config_of(with_mix(R"([{"name": "a", "workload": {"generator": "sharegpt"}},
                             {"name": "b", "workload": {"generator": "sharegpt"}}])")),
                  7, dir.path());
  std::array<std::string, 2> texts;
  for (SessionSpec& session : read_all(*source)) {
    session.id = 0;
    session.arrival = SimTime();
    texts.at(static_cast<std::size_t>(session.workload_class)) += text_of({session});
  }
  EXPECT_NE(texts[0].substr(0, 200), texts[1].substr(0, 200));
}

TEST(Mix, NamesTokensInOneForestOfStreams) {
  const TempDir dir;
  const auto source = make_source(config_of(with_mix(R"([
          {"name": "agents", "priority": 4,
           "workload": {"generator": "agents", "agents": {"subagents": {"share": 0.02}}}},
          {"name": "rag", "weight": 5, "workload": {"generator": "rag"}}])")),
                                  7, dir.path());
  ASSERT_NE(source->streams(), nullptr);
  std::map<std::uint32_t, std::int32_t> class_of_root;
  std::array<int, 2> counts{};
  SimTime last;
  for (const SessionSpec& session : read_all(*source)) {
    EXPECT_GE(session.arrival, last);
    EXPECT_EQ(session.priority, session.workload_class == 0 ? 4 : 0);
    last = session.arrival;
    ++counts.at(static_cast<std::size_t>(session.workload_class));
    for (const TurnContent& content : session.contents) {
      StreamId root = content.prompt.stream;
      while (source->streams()->parent(root).valid()) {
        root = source->streams()->parent(root);
      }
      const auto [known, is_new] = class_of_root.try_emplace(root.value, session.workload_class);
      ASSERT_EQ(known->second, session.workload_class);
    }
    if (session.workload_class == 1) {
      ASSERT_EQ(session.turns.size(), 1U);
    }
  }
  EXPECT_GT(counts[0], 50);
  EXPECT_GT(counts[1], 100);
}

TEST(Mix, DrawsFromTraces) {
  const TempDir dir;
  static_cast<void>(
      dir.file("t.csv", "conv,turn,user_tokens,assistant_tokens\na,0,11,21\nb,0,13,23\n"));
  const std::string json = with_mix(R"([
      {"name": "table", "workload": {"trace": "t.csv", "replay": "bootstrap"}},
      {"name": "chat", "workload": {"generator": "sharegpt"}}])");
  for (const SessionSpec& session : read_all(*make_source(config_of(json), 7, dir.path()))) {
    if (session.workload_class == 0) {
      EXPECT_TRUE(session.turns[0].user == Tokens(11) || session.turns[0].user == Tokens(13));
    }
  }
  // In order there are too few.
  const std::string in_order = with_mix(R"([{"name": "table", "workload": {"trace": "t.csv"}}])");
  EXPECT_EQ(
      config_error_of(dir, [&] { read_all(*make_source(config_of(in_order), 7, dir.path())); }),
      "/workload/mix/0 (\"table\"): t.csv: the trace ends after 2 sessions, but the mix draws more "
      "(\"replay\": \"bootstrap\" draws any number)");
  // The second one ends, while the first one goes on.
  const std::string second = with_mix(R"([
      {"name": "chat", "workload": {"generator": "sharegpt"}},
      {"name": "table", "workload": {"trace": "t.csv"}}])");
  EXPECT_EQ(
      config_error_of(dir, [&] { read_all(*make_source(config_of(second), 7, dir.path())); }),
      "/workload/mix/1 (\"table\"): t.csv: the trace ends after 2 sessions, but the mix draws more "
      "(\"replay\": \"bootstrap\" draws any number)");
}

TEST(Mix, RefusesTracesThatNameTheirBlocks) {
  const TempDir dir;
  static_cast<void>(dir.file(
      "t.jsonl", R"({"timestamp": 1, "input_length": 5, "output_length": 2, "hash_ids": [1]})"
                 "\n"));
  const std::string json = with_mix(R"([{"name": "trace", "workload": {"trace": "t.jsonl"}}])");
  EXPECT_EQ(
      config_error_of(dir, [&] { static_cast<void>(make_source(config_of(json), 7, dir.path())); }),
      "/workload/mix/0 (\"trace\"): t.jsonl: the trace names its blocks; in a mix only generators "
      "name tokens");
}

TEST(Mix, IsPrintedAndReadBack) {
  const Json printed = write_value(config_of(with_mix(kTwo)));
  EXPECT_EQ(printed["mix"][0]["name"], "chat");
  EXPECT_EQ(printed["mix"][1]["workload"]["generator"], "long_documents");
  EXPECT_FALSE(printed["mix"][1]["workload"].contains("arrival_rate"));
  EXPECT_FALSE(printed["mix"][1]["workload"].contains("mix"));
  EXPECT_EQ(write_value(config_of(printed.dump())), printed);
}

TEST(Mix, IsSyntheticIfAWorkloadOfItIs) {
  EXPECT_FALSE(is_synthetic(config_of(with_mix(kTwo))));
  EXPECT_TRUE(is_synthetic(
      config_of(with_mix(R"([{"name": "a", "workload": {"generator": "long_contexts"}}])"))));
}

TEST(Mix, SaysAllThatIsWrong) {
  EXPECT_EQ(problems_of(R"({"generator": "sharegpt", "arrivals": "trace",
                            "think_time": {"model": "constant"}, "mix": [
      {"name": "a", "workload": {"generator": "rag"}},
      {"name": "a", "workload": {"generator": "sharegpt", "trace": "t"}},
      {"name": "", "workload": {}},
      {"name": "b", "workload": {"trace": "t", "think_time": {"model": "logged"}}}]})"),
            "/workload/generator: not used: the workloads of the mix have their own\n"
            "/workload/think_time: not used: the workloads of the mix have their own\n"
            "/workload/sessions: a mix needs a number of sessions, or \"auto\"\n"
            "/workload/arrivals: \"trace\" needs a trace, not a mix\n"
            "/workload/mix/1/name: expected a name that no other workload has, got \"a\"\n"
            "/workload/mix/1/workload/trace: a workload has a generator or a trace, not both\n"
            "/workload/mix/2/name: expected a name that no other workload has, got \"\"\n"
            "/workload/mix/2/workload/generator: missing key: a workload needs a generator or a "
            "trace\n"
            "/workload/mix/3/workload/think_time/model: \"logged\" times are those of a whole "
            "trace, not of a mix\n"
            "/workload/mix: some of its workloads name their tokens and others do not; expected "
            "all or none");
  EXPECT_EQ(problems_of(with_mix(
                R"([{"name": "a", "weight": 0, "workload": {"generator": "rag", "sessions": 5,
                     "mix": [], "gnerator": "rag"}}, {"name": "b", "workload": 3}])")),
            "/workload/mix/0/weight: expected a number > 0, got 0\n"
            "/workload/mix/0/workload/sessions: a workload of a mix has no such key: it is for "
            "all\n"
            "/workload/mix/0/workload/mix: a workload of a mix has no such key: it is for all\n"
            "/workload/mix/0/workload/gnerator: unknown key (did you mean \"generator\"?)\n"
            "/workload/mix/1/workload: expected an object, got 3\n"
            "/workload/mix/1/workload/generator: missing key: a workload needs a generator or a "
            "trace\n"
            "/workload/mix: some of its workloads name their tokens and others do not; expected "
            "all or none");
  EXPECT_EQ(problems_of(R"({"sessions": 1, "request_rate": "1/s",
                            "mix": [{"name": "a", "workload": {"generator": "agents"}}]})"),
            "/workload/request_rate: agents start further sessions, whose turns it would count; "
            "expected an arrival_rate");
}

}  // namespace
}  // namespace kvtier
