/// The commands that read traces of other servers: events of a KV cache, and tables whose columns
/// the command line names.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/traces/archives.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;

const std::string kEvents = R"([1, [["BlockStored", [1, 2], null, [], 16, null, "GPU"]]]
[2, [["BlockStored", [3], 2, [], 16, null, "GPU"], ["BlockRemoved", [3], "GPU"]]]
[3, [["BlockStored", [3], 2, [], 16, null, "GPU"]]]
)";
const std::string kTable =
    "ts,prompt,response,blocks,user\n"
    "1000,32,5,1 2,a\n2000,40,5,\"1, 2, 3\",b\n3000,48,5,1;2;3,a\n";
const std::string kLog = "time=ts:ms,input=prompt:total,output=response,session=user";
const std::string kBlocks = kLog + ",hashes=blocks,block=16";

class TraceFormats : public ProgramTest {
 protected:
  json stats(const std::vector<std::string>& options) {
    std::vector<std::string> command{"trace", "stats", "--json", "-"};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome outcome = kvtier(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? json::parse(outcome.out) : json();
  }
};

TEST_F(TraceFormats, EventsOfAKvCacheAreRead) {
  write("events.jsonl", kEvents);
  const json all = stats({"events.jsonl"});
  EXPECT_EQ(all["blocks"]["requests"], 3);
  EXPECT_EQ(all["blocks"]["blocks"], 4);
  EXPECT_EQ(all["blocks"]["ideal_hits"]["blocks"], 1);
  EXPECT_EQ(all["import"]["kv_events"]["removed"], 1);

  const Outcome curve =
      kvtier({"trace", "mrc", "events.jsonl", "--capacities", "2blocks,3blocks", "--json", "-"});
  ASSERT_EQ(curve.code, 0) << curve.err;
  const json rows = json::parse(curve.out)["rows"];
  EXPECT_EQ(rows[0]["hit_blocks"], 0);
  EXPECT_EQ(rows[1]["hit_blocks"], 1);
  EXPECT_EQ(rows[1]["blocks"], 4);

  ASSERT_EQ(kvtier({"trace", "import", "events.jsonl", "--out", "t.jsonl"}).code, 0);
  EXPECT_EQ(stats({"t.jsonl"})["blocks"], all["blocks"]);

  const json tier{{"block_size", "16tokens"}, {"blocks", {{"capacity", "100blocks"}}}};
  write_run(
      {{"/workload",
        {{"trace", "events.jsonl"}, {"arrivals", "trace"}, {"think_time", {{"model", "logged"}}}}},
       {"/system",
        {{"name", "one tier"}, {"blocks", json::object()}, {"tiers", {{"dram", tier}}}}}});
  const Outcome run = kvtier({"simulate", "run.json", "--untimed", "--json", "run.out.json"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(read_json("run.out.json")["workload"]["sessions"], 3);
}

TEST_F(TraceFormats, AnyTableIsReadByItsColumns) {
  write("table.csv", kTable);
  EXPECT_EQ(stats({"table.csv", "--columns", kBlocks})["blocks"]["ideal_hits"]["blocks"], 5);
  // The three requests of an open loop are of two users.
  EXPECT_EQ(stats({"table.csv", "--columns", kBlocks, "--format", "columns"})["sessions"], 2);
  EXPECT_EQ(stats({"table.csv", "--columns", kBlocks, "--logged"})["sessions"], 2);
  const json log = stats({"table.csv", "--columns", kLog});
  EXPECT_EQ(log["sessions"], 2);
  EXPECT_EQ(log["turns"], 3);
  const Outcome curve = kvtier({"trace", "mrc", "table.csv", "--columns", kBlocks, "--json", "-"});
  ASSERT_EQ(curve.code, 0) << curve.err;
  EXPECT_EQ(json::parse(curve.out)["ideal"]["hit_blocks"], 5);
  ASSERT_EQ(kvtier({"trace", "import", "table.csv", "--columns", kLog, "--out", "t.jsonl"}).code,
            0);
  EXPECT_EQ(stats({"t.jsonl"})["turns"], 3);
}

TEST_F(TraceFormats, WholePromptsAndNewTokensAreTheSameTrace) {
  // Whole prompts of 10 + 20 + 15, and that + 5 + 10.
  write("whole.csv", "arrival,session,input_tokens,output_tokens\n0,a,10,20\n1,a,45,5\n2,a,60,1\n");
  write("new.csv", "arrival,session,input_tokens,output_tokens\n0,a,10,20\n1,a,15,5\n2,a,10,1\n");
  const auto sessions = [&](const std::vector<std::string>& options) {
    std::vector<std::string> command{"trace", "import", "--out", "t.jsonl"};
    command.insert(command.end(), options.begin(), options.end());
    const Outcome outcome = kvtier(command);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::string text = read("t.jsonl");
    return text.substr(text.find('\n'));
  };
  const std::string expected = sessions({"new.csv"});
  EXPECT_EQ(sessions({"whole.csv", "--input-tokens", "total"}), expected);
  const std::string columns =
      "time=arrival,session=session,output=output_tokens,input=input_tokens";
  EXPECT_EQ(sessions({"whole.csv", "--columns", columns + ":total"}), expected);
  EXPECT_EQ(stats({"whole.csv", "--input-tokens", "total"})["import"]["cut_histories"], 0);
  std::filesystem::remove(path("t.jsonl"));
  expect_bad_input(
      {"trace", "import", "whole.csv", "--out", "t.jsonl"},
      {"whole.csv: the input tokens look like whole prompts: 2 of 2 later turns have more of them "
       "than the turn before and its response together; expected the meaning at --input-tokens: "
       "\"total\" (whole prompts) or \"new\" (new tokens of the turn)"});
  expect_bad_input({"trace", "stats", "new.csv", "--input-tokens", "totl"},
                   {"--input-tokens: expected one of auto, new, total, got \"totl\" (did you mean "
                    "\"total\"?)"});
  write_run();
  expect_bad_input({"trace", "mrc", "run.json", "--input-tokens", "total"},
                   {"--input-tokens: run.json is a config, expected its key "
                    "/workload/input_tokens"});
}

/// A curve is computed with each online policy, or refused if the replay lacks a fact.
TEST_F(TraceFormats, EveryEvictionPolicyHasACurveOrIsRefused) {
  write("table.csv", kTable);
  write_run();
  const auto has_curve = [&](const std::vector<std::string>& options, const std::string& policy,
                             const std::string& refused) {
    std::vector<std::string> command{"trace", "mrc", "--policy", policy};
    command.insert(command.end(), options.begin(), options.end());
    if (!refused.empty()) {
      expect_bad_input(command, {refused});
      return;
    }
    const Outcome outcome = kvtier(command);
    EXPECT_EQ(outcome.code, 0) << policy << ": " << outcome.err;
    EXPECT_NE(outcome.out.find(policy + ", "), std::string::npos) << outcome.out;
  };
  const std::string no_machine =
      "a trace alone has no model and no hardware, expected a config with this /workload/trace";
  for (const auto& kind : builtin_policies().eviction) {
    const std::string& policy = kind.name;
    const std::string oracle =
        kind.knowledge == Knowledge::oracle
            ? fmt::format(
                  "--policy: expected an eviction policy that does not know the future "
                  "(kvtier list policies), got \"{}\"",
                  policy)
            : "";
    const std::string no_medium =
        policy == "seconds_saved"
            ? "--policy: seconds_saved needs the time to load tokens from its tier: the tier of a "
              "curve has no medium, expected another policy"
            : oracle;
    has_curve({"run.json", "--block", "16", "--capacities", "2000blocks"}, policy, no_medium);
    has_curve({"table.csv", "--columns", kBlocks, "--capacities", "2blocks"}, policy,
              policy == "gdsf" ? "--policy: gdsf needs the time to recompute tokens: " + no_machine
                               : no_medium);
    if (policy != "lru") {
      has_curve({"run.json", "--capacities", "16GiB"}, policy,
                !oracle.empty() ? oracle
                                : "--policy: expected lru without --block: other policies are of "
                                  "blocks");
    }
  }
  EXPECT_EQ(kvtier({"trace", "mrc", "run.json", "--capacities", "16GiB"}).code, 0);
}

TEST_F(TraceFormats, ColumnsThatAreWrongAreNamed) {
  write("table.csv", kTable);
  expect_bad_input({"trace", "stats", "table.csv", "--columns", "time=ts:h,input=prompt,outptu=x"},
                   {"--columns: time: expected a unit s, ms, us or ns, got \"h\"",
                    "--columns: unknown key \"outptu\", expected one of time, input, output, "
                    "hashes, session, block (did you mean \"output\"?)"});
  expect_bad_input({"trace", "mrc", "table.csv", "--columns", "time=ts,input=ts,output=response"},
                   {"--columns: column ts is named twice, as time and as input"});
  expect_bad_input(
      {"trace", "stats", "table.csv", "--columns", "time=t,input=prompt,output=response"},
      {"table.csv:1: --columns: missing column t (time) (found ts, prompt, response, blocks, "
       "user)"});
  expect_bad_input({"trace", "stats", "table.csv", "--columns", kLog, "--format", "mooncake"},
                   {"--columns: names of columns need the format columns, or auto"});
  expect_bad_input({"trace", "stats", "table.csv", "--format", "columns"},
                   {"--format: the format columns needs --columns"});
  write_run();
  expect_bad_input({"trace", "mrc", "run.json", "--columns", kLog},
                   {"--columns: run.json is a config, expected its key /workload/columns"});
}

class AgentSessions : public TraceFormats {
 protected:
  AgentSessions() {
    std::filesystem::create_directories(path("s/deep"));
    for (const auto& [name, text] : files_) {
      write(name, text);
    }
    write("s.tar", testing::tar_of(files_));
  }
  void write_start(const json& start, const std::string& arrivals = "trace") const {
    write("w.json", json{{"workload",
                          {{"trace", "s"},
                           {"arrivals", arrivals},
                           {"think_time", {{"model", "logged"}}},
                           {"session_start", start}}}}
                        .dump());
  }

  const testing::Files files_{
      {"s/b.json", R"({"block_size": 4, "requests": [{"t": 0, "in": 4, "out": 2, "hash_ids": [1]},
                       {"t": 9.25, "in": 8, "out": 2, "hash_ids": [1, 2]}]})"},
      {"s/a.json",
       R"({"block_size": 4, "requests": [{"t": 1, "in": 5, "out": 2, "hash_ids": [1]}]})"},
      {"s/deep/a.json",
       R"({"block_size": 4, "requests": [{"t": 1, "in": 6, "out": 2, "hash_ids": [1]}]})"},
      {"s/.a.json", "not read"},
      {"s/notes.txt", "not read"}};
};

TEST_F(AgentSessions, AFolderAndItsArchiveHaveTheSameStatistics) {
  const Outcome folder = kvtier({"trace", "stats", "s", "--json", "-"});
  EXPECT_EQ(folder.code, 0) << folder.err;
  EXPECT_EQ(json::parse(folder.out)["sessions"], 3);
  EXPECT_EQ(folder.out, kvtier({"trace", "stats", "s.tar", "--json", "-"}).out);
}

TEST_F(AgentSessions, ASessionAndItsSubAgentsCountAsOne) {
  std::filesystem::create_directories(path("team"));
  write("team/a.json", R"({"block_size": 4, "requests": [
      {"t": 0, "in": 4, "out": 2, "hash_ids": [1]},
      {"t": 1, "requests": [{"t": 0, "in": 8, "out": 2, "hash_ids": [1, 2]},
                            {"t": 1, "in": 9, "out": 2, "hash_ids": [1, 2]}]},
      {"t": 2, "in": 6, "out": 2, "hash_ids": [1]}]})");
  write("team/b.json", files_.front().second);
  for (const char* loop : {"", "--logged", "--closed"}) {
    std::vector<std::string> options{"team"};
    if (*loop != '\0') {
      options.emplace_back(loop);
    }
    const json all = stats(options);
    EXPECT_EQ(all["sessions"], 2) << loop;
    EXPECT_EQ(all["turns"], 6) << loop;
    EXPECT_EQ(all["turns_per_session"]["max"], 4) << loop;
    EXPECT_EQ(all["multi_turn_sessions_fraction"], 1.0) << loop;
    std::vector<std::string> command{"trace", "import", "--out", "t.jsonl"};
    command.insert(command.end(), options.begin(), options.end());
    ASSERT_EQ(kvtier(command).code, 0);
    EXPECT_EQ(stats({"t.jsonl"})["turns_per_session"], all["turns_per_session"]) << loop;
  }
}

TEST_F(AgentSessions, ARouterWithSessionsKeepsARecordedSessionOnOneInstance) {
  std::filesystem::create_directories(path("one"));
  json requests = json::array();
  for (int i = 0; i < 8; ++i) {
    requests.push_back(
        {{"t", i}, {"in", 16}, {"out", 2}, {"hash_ids", {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}}});
  }
  write("one/a.json", json{{"block_size", 4}, {"requests", requests}}.dump());
  write_run({{"/workload",
              {{"trace", "one"},
               {"arrivals", "trace"},
               {"think_time", {{"model", "logged"}}},
               {"measure", "all"}}},
             {"/system", "vllm"},
             {"/cluster", {{"instances", 8}, {"router", {{"policy", "session"}}}}}});
  for (const auto& [mode, count] :
       {std::pair("--untimed", "turns"), std::pair("--seed=1", "requests")}) {
    const Outcome outcome = kvtier({"simulate", "run.json", mode, "--json", "out.json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json result = read_json("out.json");
    EXPECT_EQ(result["workload"]["sessions"], 1) << mode;
    int used = 0;
    for (const json& instance : result["metrics"]["instances"]) {
      used += instance[count] != 0 ? 1 : 0;
    }
    EXPECT_EQ(used, 1) << mode;
  }
}

TEST_F(AgentSessions, NoOutputGoesIntoTheFolderThatIsRead) {
  const std::vector<std::string> before = files();
  const std::string read = " lies in the folder s, which is read";
  expect_bad_input({"trace", "import", "s", "--out", "s/t.jsonl"}, {"--out: s/t.jsonl" + read});
  expect_bad_input({"trace", "import", "s", "--out", "s/deep/../t.jsonl", "--json", "./s/j.json"},
                   {"--json: ./s/j.json" + read, "--out: s/deep/../t.jsonl" + read});
  expect_bad_input({"trace", "stats", "s", "--json", "s/j.json"}, {"--json: s/j.json" + read});
  expect_bad_input({"trace", "import", "s.tar", "--out", "./s.tar"},
                   {"--out: ./s.tar is also an input"});
  expect_bad_input({"trace", "import", ".", "--out", "t.jsonl"},
                   {"--out: t.jsonl lies in the folder ., which is read"});
  write_start(json::object());
  expect_bad_input({"trace", "generate", "w.json", "--out", "s/t.jsonl"},
                   {"--out: s/t.jsonl" + read});
  EXPECT_EQ(kvtier({"trace", "import", "s", "--out", "s2.jsonl"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path("s/t.jsonl")));
  EXPECT_FALSE(std::filesystem::exists(path("s/j.json")));
}

TEST_F(AgentSessions, AGeneratedTraceReplacesNoInput) {
  write_table_run("turns.csv", "conv,turn,user_tokens,assistant_tokens\na,0,1,2\n");
  expect_bad_input({"trace", "generate", "run.json", "--out", "./turns.csv"},
                   {"--out: ./turns.csv is also an input"});
  expect_bad_input({"trace", "generate", "run.json", "--out", "run.json"},
                   {"--out: run.json is also an input"});
  write("mix.json", R"({"workload": {"sessions": 1, "arrival_rate": "1/s", "mix": [
      {"name": "a", "workload": {"trace": "turns.csv", "replay": "bootstrap"}}]}})");
  expect_bad_input({"trace", "generate", "mix.json", "--out", "turns.csv"},
                   {"--out: turns.csv is also an input"});
  EXPECT_EQ(read("turns.csv"), "conv,turn,user_tokens,assistant_tokens\na,0,1,2\n");
}

TEST_F(AgentSessions, AStartBeyondTheClockWritesNothing) {
  const std::string beyond = "lies beyond the 146 years that can be simulated";
  write_start({{"every", "80000h"}});
  EXPECT_EQ(kvtier({"trace", "generate", "w.json", "--out", "t.jsonl"}).code, 0);
  EXPECT_EQ(stats({"t.jsonl"})["sessions"], 3);
  std::filesystem::remove(path("t.jsonl"));
  write_start({{"every", "1000000h"}});
  expect_bad_input({"trace", "generate", "w.json", "--out", "t.jsonl"},
                   {"/workload/session_start/every: the start of s/deep/a.json " + beyond});
  EXPECT_FALSE(std::filesystem::exists(path("t.jsonl")));
  write_start({{"every", "1s"}}, "poisson");
  expect_bad_input(
      {"trace", "generate", "w.json", "--set", "/workload/arrival_rate=1/s", "--out", "t.jsonl"},
      {"w.json: /workload/session_start: not used: it sets recorded times, but "
       "\"arrivals\" is \"poisson\" and draws new ones, expected trace"});
  EXPECT_FALSE(std::filesystem::exists(path("t.jsonl")));
}

TEST_F(TraceFormats, AnImportOfBadInputWritesNothing) {
  write("events.jsonl", kEvents + "[2.5, []]\n");
  expect_bad_input({"trace", "import", "events.jsonl", "--out", "t.jsonl"},
                   {"events.jsonl:4: ts 2.5 s after 3 s: times must not decrease"});
  write("table.csv", kTable + "4000,48,5,1 2 3 4\n");
  expect_bad_input({"trace", "import", "table.csv", "--columns", kBlocks, "--out", "t.jsonl"},
                   {"table.csv:5: expected 5 fields as in line 1, got 4"});
  write("table.csv", kTable + "4000,48,5,1 2 3 4,a\n");
  expect_bad_input({"trace", "import", "table.csv", "--columns", kBlocks, "--out", "t.jsonl"},
                   {"table.csv:5: expected 3 blocks of 16 tokens for 48 input tokens, got 4"});
  EXPECT_EQ(files(), (std::vector<std::string>{"events.jsonl", "table.csv"}));
}

}  // namespace
}  // namespace kvtier::test
