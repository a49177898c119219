#include "traces/workload.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "tests/traces/workload_config.hpp"
#include "traces/trace_format.hpp"

namespace kvtier {
namespace {

using testing::bytes_of;
using testing::config_error_of;
using testing::config_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;

const std::string kTable =
    "conv,turn,user_tokens,assistant_tokens\na,0,11,21\na,1,12,22\nb,0,13,23\n";
const std::string kBareTrace =
    "{\"format\":\"kvtier.trace/1\"}\n{\"id\":0,\"turns\":[[1,2],[3,4]]}\n";
const std::string kTimedTrace =
    "{\"format\":\"kvtier.trace/1\",\"arrivals\":true,\"think_times\":true}\n"
    "{\"id\":0,\"arrival_ns\":5,\"turns\":[[1,2,0],[3,4,6]]}\n{\"id\":1,\"arrival_ns\":7,\"turns\":"
    "[[8,9,0]]}\n";

std::string problems_of(const std::string& json) {
  const TempDir dir;
  return config_error_of(dir, [&] { static_cast<void>(config_of(json)); });
}

std::string sessions_of(const std::string& json, std::uint64_t seed, const TempDir& dir) {
  return text_of(read_all(*make_source(config_of(json), seed, dir.path())));
}

TEST(Workload, HasTheDocumentedDefaults) {
  const WorkloadConfig config =
      config_of(R"({"generator":"sharegpt","sessions":1,"arrival_rate":"1/s"})");
  const Json json = write_value(config);
  EXPECT_EQ(json["think_time"]["model"], "exponential");
  EXPECT_EQ(json["think_time"]["mean"], "1min");
  EXPECT_EQ(json["sharegpt"]["single_turn_fraction"], 0.27);
  EXPECT_EQ(json["sharegpt"]["message_cap"], "2000tokens");
  EXPECT_EQ(json["warmup_turns"], 0);
}

TEST(Workload, PrintedConfigReadsBackAsItself) {
  for (
      const char* text :
      {R"({"generator":"sharegpt","sessions":9,"arrival_rate":"1/s","warmup_turns":3})",
       R"({"trace":"t.csv","arrival_rate":"0.3/min","tokens_per_message_overhead":"1token","format":"turns_table"})",
       R"({"trace":"t.zst","arrivals":"trace","think_time":{"model":"trace"}})"}) {
    const Json printed = write_value(config_of(text));
    EXPECT_EQ(write_value(config_of(printed.dump())), printed) << printed.dump();
  }
}

TEST(Workload, HasASchemaThatNamesEveryKey) {
  WorkloadConfig config;
  const Json schema = value_schema(config);
  const Json written = write_value(config);
  for (const auto& [key, value] : written.items()) {
    EXPECT_TRUE(schema["properties"].contains(key)) << key;
    EXPECT_FALSE(schema["properties"][key]["description"].get<std::string>().empty()) << key;
  }
}

TEST(WorkloadCheck, NeedsExactlyOneOfGeneratorAndTrace) {
  EXPECT_EQ(problems_of(R"({"arrival_rate":"1/s"})"),
            "/workload/generator: missing key: a workload needs a generator or a trace");
  EXPECT_EQ(
      problems_of(R"({"generator":"sharegpt","trace":"t.csv","sessions":1,"arrival_rate":"1/s"})"),
      "/workload/trace: a workload has a generator or a trace, not both");
}

TEST(WorkloadCheck, ReportsAllProblemsOfAGeneratorAtOnce) {
  EXPECT_EQ(
      problems_of(
          R"({"generator":"sharegpt","format":"kvtier","arrivals":"trace","arrival_rate":"1/s",
                            "replay":"bootstrap","tokens_per_message_overhead":"1token","tokenizer":"chars:4",
                            "think_time":{"model":"trace"},"sharegpt":{"turns_min":9,"turns_max":8}})"),
      "/workload/sessions: a generator needs a number of sessions, or \"auto\"\n"
      "/workload/format: a trace format needs a trace, not a generator\n"
      "/workload/arrivals: \"trace\" needs a trace, not a generator\n"
      "/workload/replay: \"bootstrap\" needs a trace, not a generator\n"
      "/workload/tokens_per_message_overhead: an overhead needs a trace, not a generator\n"
      "/workload/tokenizer: a tokenizer needs a trace, not a generator\n"
      "/workload/think_time/model: \"trace\" needs a trace, not a generator\n"
      "/workload/arrival_rate: not used: \"arrivals\" is \"trace\"\n"
      "/workload/sharegpt/turns_min: 9 is more than turns_max, which is 8");
}

TEST(WorkloadCheck, ReportsAllProblemsOfATraceAtOnce) {
  EXPECT_EQ(problems_of(R"({"trace":"t","replay":"bootstrap","arrivals":"trace"})"),
            "/workload/sessions: \"bootstrap\" needs a number of sessions, or \"auto\"\n"
            "/workload/arrivals: \"trace\" needs \"replay\": \"in_order\"");
  EXPECT_EQ(
      problems_of(R"({"trace":"t","format":"turns_table","arrivals":"trace","tokenizer":"chars:4",
                            "think_time":{"model":"trace"}})"),
      "/workload/arrivals: \"trace\" needs a trace in the format kvtier, or a log of requests\n"
      "/workload/think_time/model: \"trace\" needs a trace in the format kvtier\n"
      "/workload/tokenizer: only the format sharegpt_json has texts to count the tokens of");
  EXPECT_EQ(problems_of(R"({"trace":"t","format":"sharegpt_json"})"),
            "/workload/tokenizer: the format sharegpt_json needs a tokenizer\n"
            "/workload/arrival_rate: missing key: Poisson arrivals need a rate; arrivals "
            "\"trace\" are those of the trace");
}

TEST(WorkloadCheck, SessionStartsNeedRecordedArrivals) {
  EXPECT_EQ(problems_of(
                R"({"trace":"t","format":"agent_sessions","session_start":{"every":"1s"},
                    "arrival_rate":"1/s"})"),
            "/workload/session_start: not used: it sets recorded times, but \"arrivals\" is "
            "\"poisson\" and draws new ones, expected trace");
  EXPECT_EQ(problems_of(
                R"({"trace":"t","format":"agent_sessions","session_start":{"rate":"1/s"},
                    "arrivals":"trace"})"),
            "no ConfigError");
}

TEST(WorkloadCheck, ReportsValuesOutOfRange) {
  EXPECT_EQ(problems_of(
                R"({"generator":"sharegpt","sessions":0,"arrival_rate":"0/s","warmup_turns":-1})"),
            "/workload/sessions: expected a whole number > 0, \"all\" or \"auto\", got 0\n"
            "/workload/arrival_rate: expected a rate > 0 such as \"1/s\", got \"0/s\"\n"
            "/workload/warmup_turns: expected a whole number >= 0, got -1\n"
            "/workload/sessions: a generator needs a number of sessions, or \"auto\"\n"
            "/workload/arrival_rate: missing key: Poisson arrivals need a rate");
}

TEST(WorkloadCheck, IsAlsoDoneByMakeSource) {
  const TempDir dir;
  EXPECT_EQ(config_error_of(dir, [&] { static_cast<void>(make_source({}, 1, dir.path())); }),
            "/workload/generator: missing key: a workload needs a generator or a trace\n"
            "/workload/arrival_rate: missing key: Poisson arrivals need a rate");
}

TEST(MakeSource, SameSeedSameBytes) {
  const TempDir dir;
  for (const std::string generator : {"sharegpt", "shared_prompts", "long_contexts"}) {
    const std::string config =
        R"({"generator":")" + generator + R"(","sessions":300,"arrival_rate":"1/s"})";
    EXPECT_EQ(sessions_of(config, 7, dir), sessions_of(config, 7, dir));
    EXPECT_NE(sessions_of(config, 7, dir), sessions_of(config, 8, dir));
  }
}

TEST(MakeSource, MoreSessionsDoNotChangeEarlierOnes) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kTable));
  for (const std::string start :
       {R"({"generator":"sharegpt","arrival_rate":"1/s","sessions":)",
        R"({"generator":"shared_prompts","arrival_rate":"1/s","sessions":)",
        R"({"generator":"long_contexts","arrival_rate":"1/s","sessions":)",
        R"({"trace":"t.csv","replay":"bootstrap","arrival_rate":"1/s","sessions":)"}) {
    const std::string few = sessions_of(start + "50}", 7, dir);
    const std::string many = sessions_of(start + "100}", 7, dir);
    EXPECT_EQ(many.substr(0, few.size()), few);
    EXPECT_GT(many.size(), few.size());
  }
}

TEST(MakeSource, ArrivalRateAndThinkTimesDoNotChangeLengths) {
  const TempDir dir;
  const auto lengths = [&](const std::string& rest) {
    const auto source =
        make_source(config_of(R"({"generator":"sharegpt","sessions":50,)" + rest), 7, dir.path());
    std::vector<SessionSpec> sessions = read_all(*source);
    for (SessionSpec& session : sessions) {
      session.arrival = SimTime();
      for (Turn& one : session.turns) {
        one.think = SimDuration();
      }
    }
    return text_of(sessions);
  };
  EXPECT_EQ(lengths(R"("arrival_rate":"1/s"})"),
            lengths(R"("arrival_rate":"9/h","think_time":{"model":"constant","mean":"3s"}})"));
}

TEST(WorkloadCheck, TakesOneOfTwoRates) {
  EXPECT_EQ(
      problems_of(
          R"({"generator":"sharegpt","sessions":1,"arrival_rate":"1/s","request_rate":"5/s"})"),
      "/workload/request_rate: a workload has an arrival_rate or this, not both");
  EXPECT_EQ(problems_of(R"({"trace":"t","arrivals":"trace","request_rate":"5/s"})"),
            "/workload/request_rate: not used: \"arrivals\" is \"trace\"");
  EXPECT_EQ(problems_of(R"({"generator":"sharegpt","sessions":1,"request_rate":"0/s",
                            "filter":{"turns_min":0,"context_max":"0tokens"}})"),
            "/workload/request_rate: expected a rate > 0 such as \"1/s\", got \"0/s\"\n"
            "/workload/filter/turns_min: expected a whole number >= 1 and <= 1000000, got 0\n"
            "/workload/filter/context_max: expected a number of tokens > 0 such as "
            "\"4096tokens\", got \"0tokens\"\n"
            "/workload/arrival_rate: missing key: Poisson arrivals need a rate");
}

TEST(WorkloadCheck, KnowsWhatArrivalModelsNeed) {
  EXPECT_EQ(problems_of(R"({"generator":"sharegpt","sessions":1,"arrivals":"gamma"})"),
            "/workload/arrival_rate: missing key: gamma and Weibull arrivals need a rate");
  EXPECT_EQ(problems_of(R"({"generator":"sharegpt","sessions":1,"arrivals":"diurnal"})"),
            "/workload/arrival_rate: missing key: diurnal arrivals need a mean rate");
  EXPECT_EQ(
      problems_of(
          R"({"generator":"sharegpt","sessions":1,"arrival_rate":"1/s","diurnal":{"amplitude":1}})"),
      "/workload/diurnal: not used: \"arrivals\" is \"poisson\", expected diurnal");
  EXPECT_EQ(
      problems_of(R"({"generator":"sharegpt","sessions":1,"arrival_rate":"1/s","arrival_cv":2})"),
      "/workload/arrival_cv: not used: \"arrivals\" is \"poisson\", expected gamma or "
      "weibull");
  EXPECT_EQ(problems_of(R"({"trace":"t","arrivals":"trace","arrival_cv":2})"),
            "/workload/arrival_cv: not used: \"arrivals\" is \"trace\", expected gamma or weibull");
  EXPECT_EQ(problems_of(R"({"trace":"t","arrivals":"weibull","arrival_rate":"1/s",
                            "arrival_cv":0.01})"),
            "/workload/arrival_cv: expected a number >= 0.05 and <= 50, got 0.01");
}

TEST(WorkloadCheck, KnowsWhatLoggedWorkloadsNeed) {
  EXPECT_EQ(problems_of(R"({"generator":"sharegpt","sessions":1,"arrival_rate":"1/s","speed_up":2,
                            "think_time":{"model":"logged"}})"),
            "/workload/think_time/model: \"logged\" needs a trace, not a generator");
  EXPECT_EQ(problems_of(R"({"trace":"t","arrival_rate":"1/s","speed_up":2})"),
            "/workload/speed_up: not used: neither are \"arrivals\" \"trace\", nor is the think "
            "time \"logged\"");
  EXPECT_EQ(problems_of(R"({"trace":"t","format":"turns_table","arrival_rate":"1/s",
                            "think_time":{"model":"logged"}})"),
            "/workload/think_time/model: \"logged\" needs a trace in the format kvtier, or a log "
            "of requests");
  EXPECT_EQ(problems_of(R"({"trace":"t","format":"azure_llm","arrivals":"trace",
                            "tokenizer":"chars:4","think_time":{"model":"trace"}})"),
            "/workload/think_time/model: \"trace\" needs a trace in the format kvtier\n"
            "/workload/tokenizer: only the format sharegpt_json has texts to count the tokens of");
  const TempDir dir;
  static_cast<void>(dir.file("t.jsonl", kTimedTrace));
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              sessions_of(R"({"trace":"t.jsonl","arrivals":"trace",
                                              "think_time":{"model":"logged"}})",
                                          7, dir);
                            }),
            "t.jsonl: the trace has no arrival times of turns, which the think time model "
            "\"logged\" needs");
}

TEST(MakeSource, ReplaysALogFaster) {
  const TempDir dir;
  static_cast<void>(dir.file(
      "log.csv", "arrival,session,input_tokens,output_tokens\n0,a,4,2\n3,b,3,4\n8,a,5,6\n"));
  const std::string start = R"({"trace":"log.csv","arrivals":"trace","think_time":)";
  EXPECT_EQ(sessions_of(start + R"({"model":"logged"}})", 7, dir),
            "0@0: 4/2 5/6+8000000000\n1@3000000000: 3/4\n");
  EXPECT_EQ(sessions_of(start + R"({"model":"logged"},"speed_up":4})", 7, dir),
            "0@0: 4/2 5/6+2000000000\n1@750000000: 3/4\n");
  // Times that users take are not recorded, so they are not sped up.
  EXPECT_EQ(sessions_of(start + R"({"model":"constant","mean":"1s"},"speed_up":4})", 7, dir),
            "0@0: 4/2 5/6+1000000000\n1@750000000: 3/4\n");
  // Drawn sessions keep the gaps of their turns.
  const std::string drawn = sessions_of(
      R"({"trace":"log.csv","replay":"bootstrap","sessions":20,"arrival_rate":"1/s","speed_up":2,
          "think_time":{"model":"logged"}})",
      4, dir);
  EXPECT_NE(drawn.find(" 4/2 5/6+4000000000\n"), std::string::npos) << drawn;
}

TEST(MakeSource, RefusesASpeedUpBeyondTheSimulation) {
  const TempDir dir;
  static_cast<void>(dir.file("log.csv",
                             "arrival,input_tokens,output_tokens\n0,1,2\n"
                             "4000000000,3,4\n"));
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              sessions_of(R"({"trace":"log.csv","arrivals":"trace",
                                              "speed_up":0.5})",
                                          7, dir);
                            }),
            "log.csv: at a speed_up of 0.5 sessions or turns arrive beyond the time that can be "
            "simulated");
}

// Turns 2,500 s apart: a millionth as fast, each gap of 2.5e9 s can be simulated, but not the sum
// of two (kTraceTimeNsMax is 4.6e9 s).
TEST(MakeSource, RefusesTurnsBeyondTheSimulation) {
  const TempDir dir;
  static_cast<void>(dir.file("log.csv",
                             "arrival,session,input_tokens,output_tokens\n0,a,1,2\n"
                             "2500,a,3,4\n5000,a,5,6\n"));
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              sessions_of(R"({"trace":"log.csv","arrivals":"trace","speed_up":1e-6,
                                              "think_time":{"model":"logged"}})",
                                          7, dir);
                            }),
            "log.csv: at a speed_up of 1e-06 sessions or turns arrive beyond the time that can be "
            "simulated");
}

TEST(MakeSource, ArrivalModelsDoNotChangeOtherDraws) {
  const TempDir dir;
  const auto without_arrivals = [&](const std::string& arrivals) {
    const auto source = make_source(config_of(R"({"generator":"sharegpt","sessions":50,
                                                  "arrival_rate":"1/s",)" +
                                              arrivals),
                                    7, dir.path());
    std::vector<SessionSpec> sessions = read_all(*source);
    for (SessionSpec& session : sessions) {
      session.arrival = SimTime();
    }
    return text_of(sessions);
  };
  const std::string poisson = without_arrivals(R"("arrivals":"poisson"})");
  EXPECT_EQ(without_arrivals(R"("arrivals":"gamma","arrival_cv":3})"), poisson);
  EXPECT_EQ(without_arrivals(R"("arrivals":"weibull","arrival_cv":3})"), poisson);
}

// Sessions of 2, 1 and 3 turns with 66, 36 and 36 tokens.
const std::string kMixedTable =
    "conv,turn,user_tokens,assistant_tokens\na,0,11,21\na,1,12,22\nb,0,13,23\n"
    "c,0,5,7\nc,1,5,7\nc,2,5,7\n";

TEST(SessionFilter, KeepsTheSessionsThatPass) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kMixedTable));
  const auto turns_kept = [&](const std::string& filter) {
    const auto source =
        make_source(config_of(R"({"trace":"t.csv","arrival_rate":"1/s","filter":)" + filter + "}"),
                    1, dir.path());
    std::vector<std::size_t> turns;
    for (const SessionSpec& session : read_all(*source)) {
      EXPECT_EQ(session.id, static_cast<std::int64_t>(turns.size()));
      turns.push_back(session.turns.size());
    }
    EXPECT_EQ(source->import_report()->sessions, 3);
    return turns;
  };
  using Turns = std::vector<std::size_t>;
  EXPECT_EQ(turns_kept("{}"), (Turns{2, 1, 3}));
  EXPECT_EQ(turns_kept(R"({"turns_min":2})"), (Turns{2, 3}));
  EXPECT_EQ(turns_kept(R"({"context_max":"66tokens"})"), (Turns{2, 1, 3}));
  EXPECT_EQ(turns_kept(R"({"context_max":"65tokens"})"), (Turns{1, 3}));
  EXPECT_EQ(turns_kept(R"({"turns_min":2,"context_max":"65tokens"})"), (Turns{3}));
}

TEST(SessionFilter, CountsASharedPrompt) {
  const SessionSpec session{.id = 0,
                            .arrival = SimTime(),
                            .shared_prompt = {.id = 3, .tokens = Tokens(50)},
                            .turns = {testing::turn(10, 20)}};
  EXPECT_TRUE((SessionFilter{.context_max = Tokens(80)}).passes(session));
  EXPECT_FALSE((SessionFilter{.context_max = Tokens(79)}).passes(session));
}

TEST(SessionFilter, DrawsUntilEnoughSessionsPass) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kMixedTable));
  for (const std::string start :
       {R"({"generator":"sharegpt",)", R"({"trace":"t.csv","replay":"bootstrap",)"}) {
    const auto sessions = read_all(*make_source(
        config_of(start + R"("arrival_rate":"1/s","sessions":200,"filter":{"turns_min":3}})"), 7,
        dir.path()));
    EXPECT_EQ(sessions.size(), 200U);
    for (const SessionSpec& session : sessions) {
      EXPECT_GE(session.turns.size(), 3U);
    }
  }
}

TEST(SessionFilter, EndsWhenNothingPasses) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kMixedTable));
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              static_cast<void>(sessions_of(
                                  R"({"trace":"t.csv","replay":"bootstrap","arrival_rate":"1/s",
                                      "sessions":1,"filter":{"turns_min":4}})",
                                  1, dir));
                            }),
            "/workload/filter: t.csv: none of 1000000 sessions in a row passes");
}

// 2 turns a session on average: 3 requests a second are 1.5 sessions a second.
TEST(RequestRate, IsTheArrivalRateTimesTheMeanTurns) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kMixedTable));
  const std::string start = R"({"trace":"t.csv",)";
  EXPECT_EQ(sessions_of(start + R"("request_rate":"3/s"})", 7, dir),
            sessions_of(start + R"("arrival_rate":"1.5/s"})", 7, dir));
  // Only the sessions that are run count: those of 2 and 3 turns.
  const std::string filter = R"(,"filter":{"turns_min":2}})";
  EXPECT_EQ(sessions_of(start + R"("request_rate":"5/s")" + filter, 7, dir),
            sessions_of(start + R"("arrival_rate":"2/s")" + filter, 7, dir));
  EXPECT_EQ(sessions_of(start + R"("sessions":1,"request_rate":"3/s"})", 7, dir),
            sessions_of(start + R"("sessions":1,"arrival_rate":"1.5/s"})", 7, dir));
}

TEST(MakeSource, SessionsArriveInOrderWithIdsFromZero) {
  const TempDir dir;
  const auto source = make_source(
      config_of(R"({"generator":"sharegpt","sessions":1000,"arrival_rate":"1/s"})"), 1, dir.path());
  EXPECT_EQ(source->import_report(), nullptr);
  SimTime last;
  std::int64_t count = 0;
  SessionSpec session;
  while (source->next(session)) {
    EXPECT_EQ(session.id, count++);
    EXPECT_GE(session.arrival, last);
    EXPECT_EQ(session.turns[0].think, SimDuration());
    last = session.arrival;
  }
  EXPECT_EQ(count, 1000);
  EXPECT_FALSE(source->next(session));
  EXPECT_NEAR(last.seconds(), 1000, 150);
}

TEST(MakeSource, ReplaysATableInOrderAndReportsTheImport) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kTable));
  const auto source =
      make_source(config_of(R"({"trace":"t.csv","arrival_rate":"1/s","sessions":"all",
      "tokens_per_message_overhead":"1token","think_time":{"model":"constant","mean":"1us"}})"),
                  1, dir.path());
  std::vector<SessionSpec> sessions = read_all(*source);
  ASSERT_EQ(sessions.size(), 2U);
  EXPECT_LT(sessions[0].arrival, sessions[1].arrival);
  sessions[0].arrival = sessions[1].arrival = SimTime();
  EXPECT_EQ(text_of(sessions), "0@0: 10/20 11/21+1000\n1@0: 12/22\n");
  ASSERT_NE(source->import_report(), nullptr);
  EXPECT_EQ(source->import_report()->turns, 3);
}

TEST(MakeSource, StopsAtTheSessionsAskedFor) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kTable));
  EXPECT_EQ(
      read_all(*make_source(config_of(R"({"trace":"t.csv","arrival_rate":"1/s","sessions":1})"), 1,
                            dir.path()))
          .size(),
      1U);
}

TEST(MakeSource, RefusesATraceThatIsTooShort) {
  const TempDir dir;
  static_cast<void>(dir.file("t.csv", kTable));
  EXPECT_EQ(
      config_error_of(dir,
                      [&] {
                        static_cast<void>(sessions_of(
                            R"({"trace":"t.csv","arrival_rate":"1/s","sessions":3})", 1, dir));
                      }),
      "t.csv: the trace ends after 2 sessions, 3 were asked for (\"sessions\": \"all\" takes all "
      "of them, "
      "\"replay\": \"bootstrap\" draws any number)");
}

TEST(MakeSource, ReplaysRecordedTimes) {
  const TempDir dir;
  static_cast<void>(dir.file("t.jsonl", kTimedTrace));
  EXPECT_EQ(sessions_of(R"({"trace":"t.jsonl","arrivals":"trace","think_time":{"model":"trace"}})",
                        1, dir),
            "0@5: 1/2 3/4+6\n1@7: 8/9\n");
}

TEST(MakeSource, RefusesRecordedTimesThatTheTraceDoesNotHave) {
  const TempDir dir;
  static_cast<void>(dir.file("t.jsonl", kBareTrace));
  EXPECT_EQ(
      config_error_of(dir,
                      [&] {
                        static_cast<void>(make_source(
                            config_of(R"({"trace":"t.jsonl","arrivals":"trace"})"), 1, dir.path()));
                      }),
      "t.jsonl: the trace has no arrival times, which \"arrivals\": \"trace\" needs");
  EXPECT_EQ(
      config_error_of(
          dir,
          [&] {
            static_cast<void>(make_source(
                config_of(
                    R"({"trace":"t.jsonl","arrival_rate":"1/s","think_time":{"model":"trace"}})"),
                1, dir.path()));
          }),
      "t.jsonl: the trace has no think times, which the think time model \"trace\" needs");
}

TEST(MakeSource, AGeneratedTraceReplaysAsTheSameSessions) {
  const TempDir dir;
  const std::string generated = R"({"generator":"sharegpt","sessions":200,"arrival_rate":"1/s"})";
  {
    const auto source = make_source(config_of(generated), 3, dir.path());
    TraceWriter writer(dir.path() / "t.zst", {.arrivals = true, .think_times = true});
    SessionSpec session;
    while (source->next(session)) {
      writer.write(session);
    }
    writer.commit();
  }
  EXPECT_EQ(sessions_of(R"({"trace":"t.zst","arrivals":"trace","think_time":{"model":"trace"}})",
                        99, dir),
            sessions_of(generated, 3, dir));
}

TEST(MakeSource, TellsTheFormatByContent) {
  const TempDir dir;
  static_cast<void>(dir.compressed("a.gz", kTable));
  static_cast<void>(dir.compressed("b.gz", kBareTrace));
  static_cast<void>(dir.compressed(
      "c.gz",
      R"( [{"conversations":[{"from":"human","value":"12345678"},{"from":"gpt","value":"x"}]}])"));
  EXPECT_EQ(detect_format(dir.path() / "a.gz"), TraceFormat::turns_table);
  EXPECT_EQ(detect_format(dir.path() / "b.gz"), TraceFormat::kvtier);
  EXPECT_EQ(detect_format(dir.path() / "c.gz"), TraceFormat::sharegpt_json);
  const auto source = make_source(
      config_of(R"({"trace":"c.gz","tokenizer":"chars:4","arrival_rate":"1/s"})"), 1, dir.path());
  SessionSpec session;
  ASSERT_TRUE(source->next(session));
  EXPECT_EQ(session.turns[0].user, Tokens(2));
  EXPECT_EQ(
      config_error_of(dir,
                      [&] {
                        static_cast<void>(make_source(
                            config_of(R"({"trace":"c.gz","arrival_rate":"1/s"})"), 1, dir.path()));
                      }),
      "c.gz: a trace of texts needs a tokenizer (\"chars:4\" or a SentencePiece model)");
}

TEST(MakeSource, TakesBlankLinesButNotInPlaceOfColumnNames) {
  const TempDir dir;
  const std::string rest = R"("arrival_rate":"1/s"})";
  static_cast<void>(dir.file("t.jsonl", "\n" + kBareTrace + "\n\n"));
  EXPECT_EQ(
      read_all(*make_source(config_of(R"({"trace":"t.jsonl",)" + rest), 1, dir.path())).size(), 1U);
  static_cast<void>(dir.file("t.csv", "\n" + kTable));
  for (const std::string more : {"", R"("format":"turns_table",)", R"("format":"request_log",)",
                                 R"("columns":"time=conv,input=turn,output=user_tokens",)"}) {
    EXPECT_EQ(
        config_error_of(dir,
                        [&] {
                          static_cast<void>(make_source(
                              config_of(R"({"trace":"t.csv",)" + more + rest), 1, dir.path()));
                        }),
        "t.csv:1: the first line is empty, expected the names of the columns")
        << more;
  }
}

TEST(MakeSource, ReportsAMissingTrace) {
  const TempDir dir;
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              static_cast<void>(make_source(
                                  config_of(R"({"trace":"absent.csv","arrival_rate":"1/s"})"), 1,
                                  dir.path()));
                            }),
            "absent.csv: no such file");
}

}  // namespace
}  // namespace kvtier
