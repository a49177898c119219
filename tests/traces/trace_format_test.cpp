#include "traces/trace_format.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"

namespace kvtier {
namespace {

using testing::bytes_of;
using testing::config_error_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;
using testing::turn;

const std::string kHeader = R"({"format":"kvtier.trace/1","arrivals":true,"think_times":true})";

TEST(TraceFormat, RoundTripsEverySuffixExactly) {
  const TempDir dir;
  std::vector<SessionSpec> sessions(3);
  sessions[0] = {.id = 0, .arrival = SimTime(0), .turns = {turn(1, 2)}};
  sessions[1] = {.id = 1,
                 .arrival = SimTime(1234567890123456789),
                 .turns = {turn(3, 4), turn(5, 6, 61000000001)}};
  sessions[2] = {.id = 2,
                 .arrival = SimTime(1234567890123456789),
                 .turns = {turn(kMessageTokensMax, 1), turn(1, 1, kTraceTimeNsMax)}};
  for (const char* name : {"trace.jsonl", "trace.jsonl.gz", "trace.jsonl.zst"}) {
    TraceWriter writer(dir.path() / name,
                       {.arrivals = true, .think_times = true, .source = "by hand"});
    for (const SessionSpec& session : sessions) {
      writer.write(session);
    }
    writer.commit();
    TraceReader reader(dir.path() / name);
    EXPECT_TRUE(reader.has_arrivals());
    EXPECT_TRUE(reader.has_think_times());
    EXPECT_EQ(reader.header().source, "by hand");
    EXPECT_EQ(text_of(read_all(reader)), text_of(sessions));
  }
}

TEST(TraceFormat, WritesWhatItsDocumentationShows) {
  const TempDir dir;
  TraceWriter writer(dir.path() / "trace.jsonl",
                     {.arrivals = true, .think_times = true, .source = "s"});
  writer.write({.id = 0,
                .arrival = SimTime(1500000000),
                .turns = {turn(42, 310), turn(17, 205, 61000000000)}});
  writer.commit();
  EXPECT_EQ(
      bytes_of(dir.path() / "trace.jsonl"),
      "{\"format\":\"kvtier.trace/1\",\"arrivals\":true,\"think_times\":true,\"source\":\"s\"}\n"
      "{\"id\":0,\"arrival_ns\":1500000000,\"turns\":[[42,310,0],[17,205,61000000000]]}\n");
}

TEST(TraceFormat, RoundTripsSharedPromptsAndWritesThemOnlyWhereTheyAre) {
  const TempDir dir;
  const std::vector<SessionSpec> sessions{
      {.id = 0,
       .arrival = SimTime(0),
       .shared_prompt = {.id = 0, .tokens = Tokens(kMessageTokensMax)},
       .turns = {turn(1, 2)}},
      {.id = 1, .arrival = SimTime(0), .turns = {turn(3, 4), turn(5, 6)}},
      {.id = 2,
       .arrival = SimTime(0),
       .shared_prompt = {.id = INT64_MAX, .tokens = Tokens(1)},
       .turns = {turn(7, 8)}},
      {.id = 3,
       .arrival = SimTime(0),
       .shared_prompt = {.id = 0, .tokens = Tokens(kMessageTokensMax)},
       .turns = {turn(1, 2)}}};
  TraceWriter writer(dir.path() / "t", {.source = "s"});
  for (const SessionSpec& session : sessions) {
    writer.write(session);
  }
  writer.commit();
  EXPECT_EQ(bytes_of(dir.path() / "t"),
            "{\"format\":\"kvtier.trace/1\",\"arrivals\":false,\"think_times\":false,\"source\":"
            "\"s\"}\n"
            "{\"id\":0,\"shared_prompt\":[0,2147483647],\"turns\":[[1,2]]}\n"
            "{\"id\":1,\"turns\":[[3,4],[5,6]]}\n"
            "{\"id\":2,\"shared_prompt\":[9223372036854775807,1],\"turns\":[[7,8]]}\n"
            "{\"id\":3,\"shared_prompt\":[0,2147483647],\"turns\":[[1,2]]}\n");
  TraceReader reader(dir.path() / "t");
  EXPECT_EQ(text_of(read_all(reader)), text_of(sessions));
  // The overhead taken off messages is not taken off the prompt.
  TraceReader net(dir.path() / "t", Tokens(1));
  SessionSpec session;
  ASSERT_TRUE(net.next(session));
  EXPECT_EQ(session.shared_prompt.tokens, Tokens(kMessageTokensMax));
}

TEST(TraceFormat, RefusesASharedPromptOfAnotherLengthThanBefore) {
  const TempDir dir;
  const auto path = dir.file("bad.jsonl",
                             "{\"format\":\"kvtier.trace/1\"}\n"
                             "{\"id\":0,\"shared_prompt\":[4,100],\"turns\":[[1,2]]}\n"
                             "{\"id\":1,\"shared_prompt\":[5,200],\"turns\":[[1,2]]}\n"
                             "{\"id\":2,\"turns\":[[1,2]],\"shared_prompt\":[4,101]}\n");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              TraceReader reader(path);
                              static_cast<void>(read_all(reader));
                            }),
            "bad.jsonl:4: shared prompt 4 has 101 tokens, 100 in an earlier session");
}

TEST(TraceFormat, LeavesOutTimesThatTheTraceDoesNotHave) {
  const TempDir dir;
  TraceWriter writer(dir.path() / "trace.jsonl", {});
  writer.write({.id = 0, .arrival = SimTime(5), .turns = {turn(42, 310, 7)}});
  writer.commit();
  TraceReader reader(dir.path() / "trace.jsonl");
  EXPECT_FALSE(reader.has_arrivals());
  EXPECT_FALSE(reader.has_think_times());
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 42/310\n");
}

TEST(TraceFormat, AcceptsKeysInAnyOrderAndSpaces) {
  const TempDir dir;
  const auto path = dir.file(
      "t", kHeader + "\n{ \"turns\" : [ [1 , 2,0] ,\t[3,4,5]] , \"arrival_ns\":9, \"id\": 0 }");
  TraceReader reader(path);
  EXPECT_EQ(text_of(read_all(reader)), "0@9: 1/2 3/4+5\n");
}

TEST(TraceFormat, NumbersSessionsByPosition) {
  const TempDir dir;
  TraceReader reader(dir.file("t", R"({"format":"kvtier.trace/1"}
{"id":7,"turns":[[1,2]]}
{"id":9,"turns":[[3,4]]}
)"));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 1/2\n1@0: 3/4\n");
}

TEST(TraceFormat, NamesFileAndLineOfEveryError) {
  const TempDir dir;
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"id":0,"arrival_ns":1,"turns":[]})", "a session needs at least one turn"},
      {R"({"id":0,"arrival_ns":1,"turns":[[1,2,0]])",
       "column 41: expected '}', got the end of the line"},
      {R"({"id":0,"arrival_ns":1,"turns":[[1,2,0]]} x)",
       "column 43: expected the end of the line, got 'x'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[-1,2,0]]})",
       "column 34: expected user tokens as a whole number in 1 .. 2147483647, got '-1,2,0]]}'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[1,0,0]]})",
       "column 36: expected response tokens as a whole number in 1 .. 2147483647, got '0,0]]}'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[1,2.5,0]]})",
       "column 36: expected response tokens as a whole number in 1 .. 2147483647, got '2.5,0]]}'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[01,2,0]]})",
       "column 34: expected user tokens as a whole number in 1 .. 2147483647, got '01,2,0]]}'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[99999999999999999999,2,0]]})",
       "column 34: expected user tokens as a whole number in 1 .. 2147483647, got "
       "'99999999999999999999...'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[1,2]]})", "column 37: expected ',', got ']]}'"},
      {R"({"id":0,"arrival_ns":1,"turns":[[1,2,7]]})",
       "column 38: expected a think time as a whole number in 0 .. 0, got '7]]}'"},
      {R"({"id":0,"arrival_ns":-1,"turns":[[1,2,0]]})",
       "column 22: expected an arrival as a whole number in 0 .. 4611686018427387903, got "
       "'-1,\"turns\":[[1,2,0]]...'"},
      {R"({"id":0,"id":0,"arrival_ns":1,"turns":[[1,2,0]]})", "duplicate key \"id\""},
      {R"({"id":0,"arrival_ns":1,"turn":[[1,2,0]]})",
       "unknown key \"turn\" (did you mean \"turns\"?)"},
      {R"({"id":0,"arrival_ns":1,"shared_prompt":[0,0],"turns":[[1,2,0]]})",
       "column 43: expected a shared prompt's tokens as a whole number in 1 .. 2147483647, got "
       "'0],\"turns\":[[1,2,0]]...'"},
      {R"({"id":0,"arrival_ns":1,"shared_prompt":[-1,5],"turns":[[1,2,0]]})",
       "column 41: expected a shared prompt's id as a whole number in 0 .. 9223372036854775807, "
       "got '-1,5],\"turns\":[[1,2,...'"},
      {R"({"id":0,"arrival_ns":1,"shared_prompt":5,"turns":[[1,2,0]]})",
       "column 40: expected '[', got '5,\"turns\":[[1,2,0]]}'"},
      {R"({"id":0,"arrival_ns":1,"shared_prompt":[5],"turns":[[1,2,0]]})",
       "column 42: expected ',', got '],\"turns\":[[1,2,0]]}'"},
      {R"({"id":0,"arrival_ns":1,"shared_prompts":[0,5],"turns":[[1,2,0]]})",
       "unknown key \"shared_prompts\" (did you mean \"shared_prompt\"?)"},
      {R"({"id":0,"turns":[[1,2,0]]})", "missing key \"arrival_ns\""},
      {R"({"id":0,"arrival_ns":1})", "missing key \"turns\""},
      {R"({})", "column 2: expected a key, got '}'"},
      {R"({"id)", "column 2: expected a key, got '\"id'"},
  };
  for (const auto& [line, message] : cases) {
    const auto path = dir.file("bad.jsonl", kHeader + "\n" + line + "\n");
    EXPECT_EQ(config_error_of(dir,
                              [&] {
                                TraceReader reader(path);
                                static_cast<void>(read_all(reader));
                              }),
              "bad.jsonl:2: " + message);
  }
}

TEST(TraceFormat, RefusesSessionsOutOfOrder) {
  const TempDir dir;
  const auto error_of = [&](const std::string& third_line) {
    const auto path =
        dir.file("bad.jsonl", kHeader + "\n{\"id\":4,\"arrival_ns\":10,\"turns\":[[1,2,0]]}\n" +
                                  third_line + "\n");
    return config_error_of(dir, [&] {
      TraceReader reader(path);
      static_cast<void>(read_all(reader));
    });
  };
  EXPECT_EQ(error_of(R"({"id":4,"arrival_ns":10,"turns":[[1,2,0]]})"),
            "bad.jsonl:3: id 4 after id 4: ids must increase");
  EXPECT_EQ(error_of(R"({"id":5,"arrival_ns":9,"turns":[[1,2,0]]})"),
            "bad.jsonl:3: arrival at 9 ns after one at 10 ns: arrivals must not decrease");
  EXPECT_EQ(error_of(R"({"id":5,"group":0,"arrival_ns":10,"turns":[[1,2,0]]})"),
            "bad.jsonl:3: expected \"group\" in all sessions or in none");
}

TEST(TraceFormat, RoundTripsGroups) {
  const TempDir dir;
  TraceWriter writer(dir.path() / "t.jsonl", {});
  writer.write({.id = 0, .group = 5, .turns = {turn(1, 2)}});
  writer.write({.id = 1, .group = 0, .turns = {turn(3, 4)}});
  writer.commit();
  TraceReader reader(dir.path() / "t.jsonl");
  const std::vector<SessionSpec> sessions = read_all(reader);
  ASSERT_EQ(sessions.size(), 2U);
  EXPECT_EQ(sessions[0].identity(), 5);
  EXPECT_EQ(sessions[1].identity(), 0);
}

TEST(TraceFormat, RefusesArrivalsThatTheHeaderDenies) {
  const TempDir dir;
  const auto path =
      dir.file("bad.jsonl",
               "{\"format\":\"kvtier.trace/1\"}\n{\"id\":0,\"arrival_ns\":1,\"turns\":[[1,2]]}\n");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              TraceReader reader(path);
                              static_cast<void>(read_all(reader));
                            }),
            "bad.jsonl:2: \"arrival_ns\" in a trace whose header says \"arrivals\": false");
}

TEST(TraceFormat, RefusesOtherHeaders) {
  const TempDir dir;
  const auto error_of = [&](const std::string& text) {
    const auto path = dir.file("bad.jsonl", text);
    return config_error_of(dir, [&] { TraceReader reader(path); });
  };
  EXPECT_EQ(error_of(""), "bad.jsonl: the file is empty");
  EXPECT_EQ(error_of(R"({"format":"kvtier.trace/3","more":1})"),
            "bad.jsonl:1: expected a header with \"format\": \"kvtier.trace/1\" or "
            "\"kvtier.trace/2\", got "
            "\"kvtier.trace/3\"");
  EXPECT_EQ(error_of(R"({"id":0})"),
            "bad.jsonl:1: expected a header with \"format\": \"kvtier.trace/1\" or "
            "\"kvtier.trace/2\", got {\"id\":0}");
  EXPECT_EQ(error_of(R"({"format":"kvtier.trace/1","block":16})"),
            "bad.jsonl:1: /block: \"kvtier.trace/1\" names no tokens");
  EXPECT_EQ(error_of(R"({"format":"kvtier.trace/1","arrival":true,"think_times":1})"),
            "bad.jsonl:1: /think_times: expected true or false, got 1\n"
            "bad.jsonl:1: /arrival: unknown key (did you mean \"arrivals\"?)");
  for (const char* header :
       {R"({"format":"kvtier.trace/1","arrivals":true,"think_times":true,"turn_arrivals":true})",
        R"({"format":"kvtier.trace/1","turn_arrivals":true})"}) {
    EXPECT_EQ(error_of(header),
              "bad.jsonl:1: /turn_arrivals: needs \"arrivals\": true and \"think_times\": false");
  }
  EXPECT_EQ(error_of(R"({"format":"kvtier.trace/1","format":"kvtier.trace/1"})"),
            "bad.jsonl: /format: duplicate key");
  EXPECT_EQ(error_of("{oops"),
            "bad.jsonl:1:2: not valid JSON: expected a value, a key or a separator here");
}

TEST(TraceFormat, RefusesATraceWithoutSessions) {
  const TempDir dir;
  const auto path = dir.file("empty.jsonl", kHeader + "\n");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              TraceReader reader(path);
                              static_cast<void>(read_all(reader));
                            }),
            "empty.jsonl: the trace has no sessions");
}

TEST(TraceFormat, RefusesTruncatedCompression) {
  const TempDir dir;
  for (const std::string suffix : {".gz", ".zst"}) {
    const std::string packed = bytes_of(dir.compressed(
        "whole" + suffix, kHeader + "\n{\"id\":0,\"arrival_ns\":1,\"turns\":[[1,2,0]]}\n"));
    const auto cut = dir.file("cut" + suffix, packed.substr(0, packed.size() - 2));
    const std::string error = config_error_of(dir, [&] {
      TraceReader reader(cut);
      static_cast<void>(read_all(reader));
    });
    EXPECT_NE(error.find("data are truncated"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace kvtier
