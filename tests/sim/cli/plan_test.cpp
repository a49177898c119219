/// `kvtier plan`: exit codes and outputs.

#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;

class PlanCommand : public ProgramTest {
 protected:
  PlanCommand() { write_run(); }

  void write_plan(const std::string& slo, int replications = 2) const {
    write("plan.json", json({{"config", "run.json"},
                             {"axes",
                              {{{"name", "DRAM"},
                                {"key", "/hardware/dram/capacity"},
                                {"values", {"64GiB", "128GiB"}}}}},
                             {"capacities", {"DRAM"}},
                             {"slo", {slo}},
                             {"replications", replications}})
                           .dump());
  }
};

TEST_F(PlanCommand, PrintsTheCheapest) {
  write_plan("turns>=1");
  const Outcome outcome = kvtier({"plan", "plan.json", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("cheapest that meets the SLO\n"), std::string::npos) << outcome.out;
  const json result = read_json("out.json");
  EXPECT_EQ(result["format"], "kvtier.plan/1");
  EXPECT_EQ(result["trials"][result["cheapest"].get<std::size_t>()]["axes"]["DRAM"], "64GiB");
}

TEST_F(PlanCommand, ExitsWithOneIfNothingMeetsTheSlo) {
  write_plan("turns<=1");
  const Outcome outcome = kvtier({"plan", "plan.json", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("No configuration meets the SLO. What binds is turns <= 1"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(read_json("out.json")["feasible"], false);
}

TEST_F(PlanCommand, PrintsOnlyJsonWhenItGoesToStandardOutput) {
  write_plan("turns>=1");
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

TEST_F(PlanCommand, LeavesNothingBehindWhenItIsInterrupted) {
  write_plan("turns>=1", 1000);
  Started started = start({"plan", "plan.json", "--json", "out.json"});
  started.signal(SIGINT);
  EXPECT_NE(started.outcome().code, 0);
  for (const std::string& name : files()) {
    EXPECT_EQ(name.find("out.json"), std::string::npos) << name;
  }
}

TEST_F(PlanCommand, FailsOnAFullDisk) {
  write_plan("turns>=1");
  EXPECT_EQ(kvtier({"plan", "plan.json", "--json", "/dev/full"}).code, 3);
}

}  // namespace
}  // namespace kvtier::test
