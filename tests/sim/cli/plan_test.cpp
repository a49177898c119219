/// `kvtier plan`: exit codes and outputs.

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;

class PlanCommand : public ProgramTest {
 protected:
  /// Sessions of one turn soon end, so that few of them are a run that is long enough.
  PlanCommand() {
    write_run({{"/workload/sessions", 3000}, {"/workload/sharegpt/single_turn_fraction", 1}});
  }

  void write_plan(const std::string& slo) const {
    write("plan.json", json({{"config", "run.json"},
                             {"axes",
                              {{{"name", "DRAM"},
                                {"key", "/hardware/dram/capacity"},
                                {"values", {"64GiB", "128GiB"}}}}},
                             {"capacities", {"DRAM"}},
                             {"slo", {slo}},
                             {"replications", 2}})
                           .dump());
  }
};

TEST_F(PlanCommand, PrintsTheCheapest) {
  write_plan("ttft_seconds.mean<=1000");
  const Outcome outcome = kvtier({"plan", "plan.json", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("cheapest that meets the SLO\n"), std::string::npos) << outcome.out;
  const json result = read_json("out.json");
  EXPECT_EQ(result["format"], "kvtier.plan/1");
  EXPECT_EQ(result["trials"][result["cheapest"].get<std::size_t>()]["axes"]["DRAM"], "64GiB");
}

TEST_F(PlanCommand, ChecksExpectationsOfItsTrials) {
  write_plan("ttft_seconds.mean<=1000");
  write("expect.json", R"({"/feasible": true, "/cheapest/axes/DRAM": "64GiB",
                           "/systems/attentionstore/dollars_per_hour": {"min": 0.1}})");
  const Outcome holds = kvtier({"plan", "plan.json", "--expect", "expect.json"});
  EXPECT_EQ(holds.code, 0) << holds.err;
  write("expect.json", R"({"/cheapest/axes/DRAM": "128GiB"})");
  const Outcome fails = kvtier({"plan", "plan.json", "--expect", "expect.json"});
  EXPECT_EQ(fails.code, 1);
  EXPECT_NE(fails.err.find("/cheapest/axes/DRAM: expected \"128GiB\", got \"64GiB\""),
            std::string::npos)
      << fails.err;
}

TEST_F(PlanCommand, ExitsWithOneIfNothingMeetsTheSlo) {
  write_plan("turns<=1");
  const Outcome outcome = kvtier({"plan", "plan.json", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find(
                "No configuration meets the SLO. The nearest configuration misses turns <= 1"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(read_json("out.json")["feasible"], false);
}

TEST_F(PlanCommand, FillsAFolderThatAReportReads) {
  write_plan("ttft_seconds.mean<=1000");
  EXPECT_EQ(kvtier({"plan", "plan.json", "--out", "folder"}).code, 0);
  EXPECT_EQ(json::parse(read("folder/plan.json"))["format"], "kvtier.plan_folder/1");
  EXPECT_EQ(json::parse(read("folder/plan-result.json"))["format"], "kvtier.plan/1");
  const Outcome report = kvtier({"report", "folder", "--out", "page.html"});
  EXPECT_TRUE(report.code == 0 || report.err.find("libjs-chart.js") != std::string::npos)
      << report.err;
}

TEST_F(PlanCommand, KeepsTheFileThatItReads) {
  write_plan("ttft_seconds.mean<=1000");
  expect_bad_input({"plan", "plan.json", "--json", "./plan.json"},
                   {"--json: ./plan.json is also an input"});
}

TEST_F(PlanCommand, PrintsOnlyJsonWhenItGoesToStandardOutput) {
  write_plan("ttft_seconds.mean<=1000");
  EXPECT_EQ(json::parse(kvtier({"plan", "plan.json", "--json", "-"}).out)["format"],
            "kvtier.plan/1");
}

TEST_F(PlanCommand, NamesProblemsAndWritesNothing) {
  write("plan.json", R"({"config": "run.json", "axes": [], "slo": ["ttft"]})");
  expect_bad_input({"plan", "plan.json", "--json", "out.json"},
                   {"plan.json: /axes: expected one axis at least, got []",
                    "plan.json: /slo/0: expected METRIC<=NUMBER or METRIC>=NUMBER, such as "
                    "ttft_seconds.p90<=2, got \"ttft\""});
  expect_bad_input({"plan", "nowhere.json"}, {"nowhere.json: no such file"});
  EXPECT_EQ(files(), (std::vector<std::string>{"plan.json", "run.json"}));
}

// A run of hours; its output is open when it begins.
TEST_F(PlanCommand, WritesNothingWhenItIsInterrupted) {
  write_run({{"/workload/sessions", 100000000}, {"/workload/arrival_rate", "0.2/s"}});
  write_plan("ttft_seconds.mean<=1000");
  Started program = start({"plan", "plan.json", "--json", "out.json"});
  ASSERT_TRUE(program.runs_until([&] { return files().size() >= 3; }));
  program.signal(SIGINT);
  const Outcome outcome = program.outcome();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.err, "kvtier: interrupted; nothing was written\n");
  EXPECT_EQ(files(), (std::vector<std::string>{"plan.json", "run.json"}));
}

// A link to the device: should it be replaced by mistake, only the link is lost.
TEST_F(PlanCommand, FailsOnAFullDisk) {
  std::filesystem::create_symlink("/dev/full", path("full.json"));
  write_plan("ttft_seconds.mean<=1000");
  const Outcome outcome = kvtier({"plan", "plan.json", "--json", "full.json"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: full.json: cannot write: No space left on device\n");
}

}  // namespace
}  // namespace kvtier::test
