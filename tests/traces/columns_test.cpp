#include "traces/columns.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/column_trace.hpp"
#include "traces/trace_source.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using testing::config_error_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;

TraceColumns columns(const std::string& text) {
  std::vector<std::string> problems;
  const auto parsed = parse_columns(text, "--columns", problems);
  EXPECT_EQ(problems, std::vector<std::string>());
  return parsed.value_or(TraceColumns{});
}

std::unique_ptr<TraceSource> open(const std::filesystem::path& path, const std::string& text,
                                  Loop loop = Loop::open) {
  return open_trace(path, {.loop = loop, .think_times = false, .columns = columns(text)});
}

std::string problems_of(const std::string& text) {
  std::vector<std::string> problems;
  const auto parsed = parse_columns(text, "--columns", problems);
  EXPECT_EQ(parsed.has_value(), problems.empty());
  return fmt::format("{}", fmt::join(problems, "\n"));
}

TEST(Columns, SaysWhatIsWrongWithTheirText) {
  const std::string good = "time=t:ms,input=i,output=o";
  EXPECT_EQ(problems_of(good), "");
  EXPECT_EQ(problems_of(good + ",hashes=h,block=64,session=s"), "");
  EXPECT_EQ(problems_of("session=s"),
            "expected time=COLUMN\nexpected input=COLUMN\nexpected output=COLUMN");
  EXPECT_EQ(problems_of(""), "expected KEY=COLUMN, got \"\"");
  EXPECT_EQ(problems_of(good + ",session"), "expected KEY=COLUMN, got \"session\"");
  EXPECT_EQ(problems_of(good + ",session="), "expected KEY=COLUMN, got \"session=\"");
  EXPECT_EQ(problems_of(good + ",hashs=h"),
            "unknown key \"hashs\", expected one of time, input, output, hashes, session, block "
            "(did you mean \"hashes\"?)");
  EXPECT_EQ(problems_of(good + ",input=j"), "input comes twice");
  EXPECT_EQ(problems_of(good + ",session=i"), "column i is named twice, as input and as session");
  EXPECT_EQ(problems_of("time=t:min,input=i,output=o"),
            "time: expected a unit s, ms, us or ns, got \"min\"");
  EXPECT_EQ(problems_of(good + ",hashes=h"), "hashes: expected block=TOKENS beside it");
  EXPECT_EQ(problems_of(good + ",block=64"), "block: the tokens of a block need hashes=COLUMN");
  EXPECT_EQ(problems_of("time=t,input=i:total,output=o,hashes=h,block=64"), "");
  EXPECT_EQ(problems_of("time=t,input=i:new,output=o,hashes=h,block=64"),
            "input: hashes name the blocks of whole prompts, expected total, got new");
  for (const char* block : {"0", "-1", "1.5", "x", "2147483648"}) {
    EXPECT_EQ(problems_of(good + ",hashes=h,block=" + block),
              fmt::format("block: expected a whole number in 1 .. 2147483647, got \"{}\"", block));
  }
}

TEST(Columns, TimesHaveUnits) {
  const TempDir dir;
  const auto times = [&](const std::string& unit, const std::string& first,
                         const std::string& second) {
    const auto path = dir.file("t.csv", "ts,in,out\n" + first + ",1,2\n" + second + ",3,4\n");
    return text_of(read_all(*open(path, "time=ts" + unit + ",input=in,output=out")));
  };
  EXPECT_EQ(times(":s", "1700000000", "1700000001.25"), "0@0: 1/2\n1@1250000000: 3/4\n");
  EXPECT_EQ(times(":ms", "0", "12.5"), "0@0: 1/2\n1@12500000: 3/4\n");
  EXPECT_EQ(times(":us", "0", "1e3"), "0@0: 1/2\n1@1000000: 3/4\n");
  // Exact: a double has steps of 256 there.
  EXPECT_EQ(times(":ns", "1700000000000000000", "1700000000000000001"), "0@0: 1/2\n1@1: 3/4\n");
  EXPECT_EQ(times("", "2023-11-16 18:15:46", "2023-11-16 18:15:47.5"),
            "0@0: 1/2\n1@1500000000: 3/4\n");
  EXPECT_EQ(times("", "2", "3.5"), "0@0: 1/2\n1@1500000000: 3/4\n");
}

TEST(Columns, WithoutHashesAreALogOfRequests) {
  const TempDir dir;
  const std::string csv =
      "model,conv_id,completion_tokens,ts_ms,prompt_tokens\n"
      "m,b,20,1000,10\n\nm,a,40,3000,30\nm,b,0,2500,11\n";
  const std::string json =
      R"({"ts_ms": 1000, "prompt_tokens": 10, "completion_tokens": 20, "conv_id": "b", "x": {}})"
      "\n\n"
      R"({"conv_id": "a", "ts_ms": 3000.0, "prompt_tokens": 30, "completion_tokens": 40 })"
      "\n"
      R"({"ts_ms": 2500, "prompt_tokens": 11, "completion_tokens": 0, "conv_id": "b"})";
  for (const auto& [name, text] : {std::pair("t.csv", csv), std::pair("t.csv.gz", csv),
                                   std::pair("t.jsonl", json), std::pair("t.jsonl.zst", json)}) {
    const auto source =
        open(dir.compressed(name, text),
             "time=ts_ms:ms,input=prompt_tokens,output=completion_tokens,session=conv_id");
    EXPECT_EQ(text_of(read_all(*source)),
              "0@0: 10/20 11/1+1500000000\n"
              "1@2000000000: 30/40\n");
    EXPECT_EQ(source->report().reordered_rows, 1);
    EXPECT_EQ(source->report().clamped_messages, 1);
    EXPECT_FALSE(source->named_blocks());
  }
}

TEST(Columns, TheInputIsWholePromptsOrNewTokens) {
  const TempDir dir;
  const auto path = dir.file("t.csv", "t,in,out,s\n0,10,20,a\n1,45,5,a\n2,60,1,a\n");
  const auto read = [&](const std::string& input) {
    return text_of(read_all(*open(path, "time=t,output=out,session=s,input=" + input)));
  };
  EXPECT_EQ(read("in:total"), "0@0: 10/20 15/5+1000000000 10/1+1000000000\n");
  EXPECT_EQ(read("in:new"), "0@0: 10/20 45/5+1000000000 60/1+1000000000\n");
  EXPECT_EQ(config_error_of(dir, [&] { read("in"); }),
            "t.csv: the input tokens look like whole prompts: 2 of 2 later turns have more of them "
            "than the turn before and its response together; expected the meaning at --columns "
            "(input=in:MEANING): \"total\" (whole prompts) or \"new\" (new tokens of the turn)");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              static_cast<void>(open_trace(
                                  path, {.input_tokens = {.value = InputTokens::total},
                                         .columns = columns("time=t,input=in,output=out")}));
                            }),
            "t.csv: --input-tokens: only the formats turns_table and request_log have input tokens "
            "of either meaning; columns name theirs as input=COLUMN:total or input=COLUMN:new");
  // Without sessions there is no history.
  EXPECT_EQ(text_of(read_all(*open(path, "time=t,output=out,input=in"))),
            "0@0: 10/20\n1@1000000000: 45/5\n2@2000000000: 60/1\n");
}

const std::string kBlocks = "time=t,input=in,output=out,hashes=ids,block=4";

/// A line a request: its time, tokens and where its blocks lie.
std::string blocks_of(TraceSource& source) {
  std::string text;
  SessionSpec session;
  std::vector<Stretch> path;
  while (source.next(session)) {
    for (std::size_t i = 0; i < session.turns.size(); ++i) {
      const Context& prompt = session.contents.at(i).prompt;
      text += fmt::format("{}+{}: {}/{}", session.arrival.ns, session.turns[i].think.ns,
                          prompt.tokens.value, session.turns[i].assistant.value);
      source.streams()->path(prompt.stream, (prompt.tokens.value + 3) / 4, 4, path);
      for (const Stretch& stretch : path) {
        text += fmt::format(" {}[{},{})", stretch.stream.value, stretch.begin, stretch.end);
      }
      text += "\n";
    }
  }
  return text;
}

TEST(Columns, HashesMakeATraceOfBlocks) {
  const TempDir dir;
  const std::string expected =
      "0+0: 8/1 0[0,2)\n"
      "500000000+0: 9/5 0[0,3)\n"  // a number for the rest
      "500000000+0: 9/5 0[0,3)\n"  // or none
      "1000000000+0: 8/5 0[0,1) 1[1,2)\n"
      "1000000000+0: 3/5 2[0,1)\n";
  const std::string json =
      R"({"t": 1, "in": 8, "out": 0, "ids": [70, "a"], "s": 1})"
      "\n"
      R"({"t": 1.5, "in": 9, "out": 5, "ids": [70, "a", 18446744073709551615]})"
      "\n"
      R"({"t": 1.5, "in": 9, "out": 5, "ids": [70, "a"]})"
      "\n"
      R"({"t": 2, "in": 8, "out": 5, "ids": [70, 100000000000000000000000]})"
      "\n"
      R"({"t": 2, "in": 3, "out": 5, "ids": []})";
  const auto source = open(dir.file("t.jsonl", json), kBlocks);
  EXPECT_EQ(blocks_of(*source), expected);
  EXPECT_EQ(source->named_blocks()->block, Tokens(4));
  EXPECT_TRUE(source->named_blocks()->partial);
  EXPECT_EQ(source->report().sessions, 5);
  EXPECT_EQ(source->report().clamped_messages, 1);
  for (const char* list : {"{},{}{}{}", "{} {}{}{}", "{}; {}{}{}", "[{}, '{}'{}{}]"}) {
    const auto ids = [&](const std::string& second, const std::string& third = "") {
      const std::string text =
          fmt::format(fmt::runtime(list), 70, second, third.empty() ? "" : ", ", third);
      return "\"" + text + "\"\n";
    };
    const auto path =
        dir.file("t.csv", "t,in,out,ids\n1,8,0," + ids("a") + "1.5,9,5," + ids("a", "-1") +
                              "1.5,9,5," + ids("a") + "2,8,5," + ids("0012") + "2,3,5,\n");
    EXPECT_EQ(blocks_of(*open(path, kBlocks)), expected) << list;
  }
}

TEST(Columns, AClosedLoopGathersSessions) {
  const TempDir dir;
  const auto path =
      dir.file("t.csv", "t,in,out,ids,who\n1,8,2,1 2,x\n2,4,2,9,y\n4,16,2,1 2 3 4,x\n");
  EXPECT_EQ(blocks_of(*open(path, kBlocks + ",session=who", Loop::closed)),
            "0+0: 8/2 0[0,2)\n0+3000000000: 16/2 0[0,4)\n1000000000+0: 4/2 1[0,1)\n");
  const auto error = [&](const ImportOptions& options) {
    return config_error_of(dir, [&] { static_cast<void>(open_trace(path, options)); });
  };
  EXPECT_EQ(error({.loop = Loop::closed, .think_times = false, .columns = columns(kBlocks)}),
            "t.csv: --columns: a closed loop needs session=COLUMN");
  EXPECT_EQ(error({.loop = Loop::closed,
                   .think_times = false,
                   .columns = columns("time=t,input=in,output=out")}),
            "t.csv: --columns: a closed loop needs hashes=COLUMN");
  EXPECT_EQ(error({.loop = Loop::closed, .columns = columns(kBlocks + ",session=who")}),
            "t.csv: the trace has no think times; in a closed loop its requests come at their "
            "times, or after the response before (the think time model \"logged\")");
  EXPECT_EQ(error({.format = TraceFormat::columns}),
            "t.csv: the format columns needs the names of the columns "
            "(time=COLUMN,input=COLUMN,...)");
}

TEST(Columns, RequestsOfASessionAreAGroupInAnOpenLoop) {
  const TempDir dir;
  const auto path =
      dir.file("t.csv", "t,in,out,ids,who\n1,8,2,1 2,x\n2,4,2,9,y\n4,16,2,1 2 3 4,x\n");
  const auto groups = [&](const std::string& text, Loop loop) {
    std::string all;
    for (const SessionSpec& session : read_all(*open(path, text, loop))) {
      all += fmt::format("{}:{} ", session.group, session.identity());
    }
    return all;
  };
  EXPECT_EQ(groups(kBlocks + ",session=who", Loop::open), "0:0 1:1 0:0 ");
  EXPECT_EQ(groups(kBlocks, Loop::open), "-1:0 -1:1 -1:2 ");
  EXPECT_EQ(groups(kBlocks + ",session=who", Loop::closed), "-1:0 -1:1 ");
}

TEST(Columns, NamesTheLineAndTheColumnThatIsWrong) {
  const TempDir dir;
  const auto error = [&](const std::string& text, const std::string& names) {
    const auto path = dir.file("t", text);
    return config_error_of(dir, [&] { read_all(*open(path, names)); });
  };
  const auto csv = [&](const std::string& row) {
    return error("t,in,out,ids\n1,8,2,1 2\n" + row, kBlocks);
  };
  EXPECT_EQ(csv("2,8,2,1 2"), "no ConfigError");
  EXPECT_EQ(error("t,in,ids\n", kBlocks + ",session=who"),
            "t:1: --columns: missing columns out (output), who (session) (found t, in, ids)");
  EXPECT_EQ(error("t,in,out,ids,in\n", kBlocks), "t:1: column in comes 2 times");
  EXPECT_EQ(error("", kBlocks), "t: the file is empty");
  EXPECT_EQ(error("t,in,out,ids\n", kBlocks), "t: the trace has no requests");
  EXPECT_EQ(error("t,in,out,ids\n", "time=t,input=in,output=out"), "t: the trace has no requests");
  EXPECT_EQ(csv("2,8,2"), "t:3: expected 4 fields as in line 1, got 3");
  EXPECT_EQ(csv("x,8,2,1 2"),
            "t:3: t: expected seconds >= 0 such as \"12.5\" or a time such as \"2023-11-16 "
            "18:15:46.68\", got \"x\"");
  EXPECT_EQ(csv("2023-11-16 18:15:46,8,2,1 2"),
            "t:3: t: expected seconds as in the rows before, got \"2023-11-16 18:15:46\"");
  EXPECT_EQ(error("t,in,out\n2023-11-16 18:15:46,1,1\n2,1,1\n", "time=t,input=in,output=out"),
            "t:3: t: expected a date and time as in the rows before, got \"2\"");
  for (const char* time : {"-1", "x", "1.2.3", "", "1e40", "99999999999999999999"}) {
    EXPECT_EQ(error(fmt::format("t,in,out\n{},1,1\n", time), "time=t:ms,input=in,output=out"),
              fmt::format("t:2: t: expected a number >= 0, got \"{}\"", time));
  }
  EXPECT_EQ(csv("0.5,8,2,1 2"), "t:3: time 0.5 s after 1 s: times must not decrease");
  for (const char* tokens : {"0", "-8", "8.0", "", "2147483648"}) {
    EXPECT_EQ(
        csv(fmt::format("2,{},2,1 2", tokens)),
        fmt::format("t:3: in: expected a whole number in 1 .. 2147483647, got \"{}\"", tokens));
  }
  EXPECT_EQ(csv("2,8,-1,1 2"), "t:3: out: expected a whole number in 0 .. 2147483647, got \"-1\"");
  EXPECT_EQ(csv("2,8,2,1"), "t:3: expected 2 blocks of 4 tokens for 8 input tokens, got 1");
  EXPECT_EQ(csv("2,9,2,1 2 3 4"),
            "t:3: expected 2 or 3 blocks of 4 tokens for 9 input tokens, got 4");
  EXPECT_EQ(csv("2,8,2,1 1.5"), "t:3: ids: expected whole numbers or names of blocks, got \"1.5\"");
  EXPECT_EQ(csv("2,8,2,2 1"), "t:3: block 2 is at the start, and was behind 1");
  EXPECT_EQ(csv("2,8,2,ab 2"), "t:3: block 2 is behind ab, and was behind 1");
  EXPECT_EQ(error("t,in,out,who\n1,1,1,\n", "time=t,input=in,output=out,session=who"),
            "t:2: who: expected the session's name, got \"\"");

  const auto json = [&](const std::string& line) {
    return error(R"({"t": 1, "in": 8, "out": 2, "ids": [1, 2]})"
                 "\n" +
                     line,
                 kBlocks);
  };
  EXPECT_EQ(json(R"({"t": 1, "inn": 8, "out": 2})"),
            "t:2: --columns: missing columns in (input), ids (hashes) (found t, inn, out)");
  EXPECT_EQ(json("{}"),
            "t:2: --columns: missing columns t (time), in (input), out (output), ids "
            "(hashes) (found none)");
  EXPECT_EQ(json(R"({"t": 1, "t": 1})"), "t:2: duplicate key \"t\"");
  EXPECT_EQ(json(R"({"t": 1, "in": 8.5, "out": 2, "ids": [1, 2]})"),
            "t:2: in: expected a whole number in 1 .. 2147483647, got \"8.5\"");
  EXPECT_EQ(json(R"({"t": 1, "in": 8, "out": 2, "ids": [1, 2.5]})"),
            "t:2: column 40: expected a block's hash as a whole number or a string, got '2.5]}'");
  EXPECT_EQ(json(R"({"t": 1, "in": 8, "out": 2, "ids": null})"),
            "t:2: column 36: expected '[', got 'null}'");
  EXPECT_EQ(json(R"({"t": 1, "in": 8, "out": 2, "ids": [1, 2])"),
            "t:2: column 42: expected '}', got the end of the line");
  EXPECT_EQ(error(R"({"t": 1, "in": 8, "out": 2, "who": null})",
                  "time=t,input=in,output=out,session=who"),
            "t:1: who: expected the session's name, got \"null\"");
}

WorkloadConfig config_of(const std::string& text) {
  WorkloadConfig config;
  Problems problems;
  read_value(config, Json::parse(text), "/workload", problems);
  problems.throw_if_any();
  return config;
}

TEST(Columns, AreAKeyOfAWorkload) {
  const TempDir dir;
  static_cast<void>(dir.file("log.csv", "t,in,out,who\n1000,8,2,x\n2000,4,2,x\n"));
  static_cast<void>(dir.file("t.csv", "t,in,out,ids,who\n1,8,2,1 2,x\n2,8,2,1 2,x\n"));
  const auto read = [&](const std::string& text) {
    return text_of(read_all(*make_source(config_of(text), 1, dir.path())));
  };
  EXPECT_EQ(read(R"({"trace": "log.csv", "arrivals": "trace", "think_time": {"model": "logged"},
                     "columns": "time=t:ms,input=in,output=out,session=who"})"),
            "0@0: 8/2 4/2+1000000000\n");
  const std::string blocks = R"({"trace": "t.csv", "arrivals": "trace",
      "columns": "time=t,input=in,output=out,hashes=ids,block=4,session=who",
      "think_time": {"model": "logged"})";
  EXPECT_EQ(read(blocks + "}"), "0@0: 8/2\n1@1000000000: 8/2\n");
  EXPECT_EQ(read(blocks + R"(, "format": "columns", "loop": "closed"})"),
            "0@0: 8/2 1/2+1000000000\n");
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              read(R"({"trace": "log.csv", "arrivals": "trace",
      "think_time": {"model": "logged"}, "columns": "time=ts,input=in,output=out"})");
                            }),
            "log.csv:1: /workload/columns: missing column ts (time) (found t, in, out, who)");
}

TEST(Columns, ColumnsOfAWorkloadAreChecked) {
  const auto problems = [](const std::string& text) {
    Problems found;
    check(config_of(R"({"trace": "t", "arrivals": "trace", )" + text + "}"), "/workload", found);
    std::string all;
    try {
      found.throw_if_any();
    } catch (const ConfigError& error) {
      all = error.what();
    }
    return all;
  };
  const std::string logged = R"(, "think_time": {"model": "logged"})";
  const std::string good = R"("columns": "time=t,input=i,output=o")";
  EXPECT_EQ(problems(good + logged), "");
  EXPECT_EQ(problems(good + logged + R"(, "format": "columns")"), "");
  EXPECT_EQ(problems(good + logged + R"(, "format": "mooncake")"),
            "/workload/columns: names of columns need the format columns, or auto");
  EXPECT_EQ(problems(R"("format": "columns")" + logged),
            "/workload/columns: the format columns needs the names of the columns");
  EXPECT_EQ(problems(R"("columns": "time=t,input=t,output=o")" + logged),
            "/workload/columns: column t is named twice, as time and as input");
  const std::string meaning = R"("input_tokens": "total")" + logged;
  for (const std::string& other : {good, std::string(R"("format": "mooncake")")}) {
    EXPECT_EQ(problems(other + ", " + meaning),
              "/workload/input_tokens: only for the formats request_log and turns_table; columns "
              "name the meaning as input=COLUMN:total or input=COLUMN:new");
  }
  EXPECT_EQ(problems(good + R"(, "think_time": {"model": "trace"})"),
            "/workload/think_time/model: a table of requests has no think times");
  Problems found;
  check(config_of(R"({"generator": "sharegpt", "sessions": 1, "arrival_rate": "1/s",
                      "columns": "time=t,input=i,output=o"})"),
        "/workload", found);
  EXPECT_EQ(config_error_of(TempDir(), [&] { found.throw_if_any(); }),
            "/workload/columns: \"columns\" needs a trace, not a generator");
}

}  // namespace
}  // namespace kvtier
