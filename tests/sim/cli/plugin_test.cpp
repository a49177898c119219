/// Policies in shared libraries: `--plugin`, `list`, `check policy`.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

std::string library(const std::string& name) {
  return (fs::path(KVTIER_PLUGINS) / (name + ".so")).string();
}

class Plugin : public ProgramTest {
 protected:
  void expect_refused(const std::string& name, const std::vector<std::string>& problems) const {
    std::vector<std::string> lines;
    for (const std::string& problem : problems) {
      lines.push_back("--plugin: " + library(name) + ": " + problem);
    }
    expect_bad_input({"list", "policies", "--plugin", library(name)}, lines);
  }
};

const std::string kNewest = library("plugin_newest_first");

TEST_F(Plugin, ItsPolicyIsListed) {
  const Outcome outcome = kvtier({"list", "policies", "--plugin", kNewest});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("newest_first"), std::string::npos);
  EXPECT_NE(outcome.out.find("the entry that came into the tier last leaves first"),
            std::string::npos);
  EXPECT_EQ(kvtier({"list", "policies"}).out.find("newest_first"), std::string::npos);
}

TEST_F(Plugin, ConfigsUseItsPolicy) {
  // 128GiB hold 40 entries of 3.125GiB: with more sessions than that the policies differ.
  write_run({{"/workload/sessions", 200}});
  const std::string eviction = "--set=/system/tiers/dram/eviction=";
  std::vector<std::string> results;
  for (const char* name : {"newest_first", "lru"}) {
    const Outcome outcome =
        kvtier({"simulate", "run.json", "--set=/system=attentionstore_lru", eviction + name,
                "--set=/hardware/dram/capacity=32GiB", "--json", "-", "--plugin", kNewest});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    results.push_back(nlohmann::json::parse(outcome.out)["metrics"].dump());
  }
  EXPECT_NE(results[0], results[1]);
}

TEST_F(Plugin, SystemsOfBlocksAndNodesUseItsPolicy) {
  write_run({{"/workload/sessions", 60}, {"/model", "llama2-13b"}});
  const std::string eviction = "--set=/system/tiers/dram/eviction=";
  for (const std::string system : {"vllm_cpu_offload", "vllm_lmcache", "sglang_hicache"}) {
    std::vector<std::string> results;
    for (const char* name : {"newest_first", "lru"}) {
      const Outcome outcome =
          kvtier({"simulate", "run.json", "--set=/system=" + system, eviction + name,
                  "--set=/serving/kv_memory=12GiB", "--set=/hardware/dram/capacity=8GiB",
                  "--set=/workload/arrival_rate=1/s", "--json", "-", "--plugin", kNewest});
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      results.push_back(nlohmann::json::parse(outcome.out)["metrics"].dump());
    }
    EXPECT_NE(results[0], results[1]) << system;
  }
}

TEST_F(Plugin, CurvesOfBlocksUseItsPolicy) {
  // Two blocks hold 1 and 2. LRU evicts 1 for 3 and then misses it; newest_first evicts 2.
  write("trace.jsonl",
        "{\"timestamp\": 0, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [1]}\n"
        "{\"timestamp\": 1, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [2]}\n"
        "{\"timestamp\": 2, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [3]}\n"
        "{\"timestamp\": 3, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [1]}\n");
  std::vector<nlohmann::json> points;
  for (const char* name : {"lru", "newest_first"}) {
    const Outcome outcome =
        kvtier({"trace", "mrc", "trace.jsonl", "--format", "mooncake", "--capacities", "2blocks",
                "--policy", name, "--json", "-", "--plugin", kNewest});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    points.push_back(nlohmann::json::parse(outcome.out)["rows"]);
  }
  EXPECT_NE(points[0], points[1]);
}

TEST_F(Plugin, WithoutItThePolicyIsUnknown) {
  write_run();
  const Outcome outcome =
      kvtier({"simulate", "run.json", "--set=/system/tiers/dram/eviction=newest_first"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("got \"newest_first\""), std::string::npos) << outcome.err;
}

TEST_F(Plugin, MayFollowTheCommandAndBeRepeated) {
  const Outcome outcome = kvtier({"--plugin", kNewest, "list", "policies", "--plugin", kNewest});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "kvtier: --plugin: " + kNewest +
                             ": eviction policy \"newest_first\": this name is already used\n");
}

TEST_F(Plugin, PassesTheChecksOfEveryEvictionPolicy) {
  const Outcome outcome = kvtier({"check", "policy", "newest_first", "--plugin", kNewest});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "eviction policy newest_first: 13 checks in 1 cases, passed\n");
}

TEST_F(Plugin, APolicyOfNoLibraryCannotBeChecked) {
  expect_bad_input({"check", "policy", "newest_first"},
                   {"NAME: there is no policy \"newest_first\"; kvtier list policies has them"});
}

TEST_F(Plugin, ChecksAPolicyOfAnotherKindByItsDeclaration) {
  EXPECT_EQ(kvtier({"check", "policy", "second_hit"}).out,
            "admission policy second_hit: declaration, passed\n");
}

TEST_F(Plugin, IsRefusedIfItIsMissing) {
  const std::string missing = path("nowhere.so").string();
  expect_bad_input({"list", "policies", "--plugin", "nowhere.so"},
                   {"--plugin: nowhere.so: cannot be loaded: " + missing +
                    ": cannot open shared object file: No such file or directory"});
}

TEST_F(Plugin, IsRefusedWithoutAName) {
  expect_bad_input({"list", "policies", "--plugin", ""},
                   {"--plugin: : expected the name of a shared library"});
}

TEST_F(Plugin, IsRefusedIfItIsNoLibrary) {
  write("text.so", "not a library");
  const std::string text = path("text.so").string();
  expect_bad_input({"list", "policies", "--plugin", "./text.so"},
                   {"--plugin: ./text.so: cannot be loaded: " + path(".").string() +
                    "/text.so: file too short"});
}

TEST_F(Plugin, IsRefusedWithoutTheSymbol) {
  expect_refused("plugin_symbol", {"has no kvtier_policy_plugin: expected a library with "
                                   "KVTIER_POLICY_PLUGIN"});
}

TEST_F(Plugin, IsRefusedWithAnotherVersion) {
  expect_refused("plugin_version", {"has version 99 of the policy interface, this kvtier has 6; "
                                    "build it with this kvtier's headers"});
}

TEST_F(Plugin, IsRefusedWithAnotherLayout) {
  expect_refused("plugin_layout",
                 {"was built by a compiler or standard library that differs from this kvtier's"});
}

TEST_F(Plugin, IsRefusedWithoutAPolicy) { expect_refused("plugin_empty", {"has no policy"}); }

TEST_F(Plugin, IsRefusedWithoutAFunctionThatAddsPolicies) {
  expect_refused("plugin_null", {"add_policies is null: expected a function"});
}

TEST_F(Plugin, ItsPoliciesAreNamedInTheirErrors) {
  // 16GiB hold 5 entries of 3.125GiB: the policies must choose.
  write_run({{"/workload/sessions", 100}, {"/hardware/dram/capacity", "16GiB"}});
  const auto expect_named = [&](const std::string& set, const std::string& policy,
                                const std::string& problem) {
    expect_bad_input({"simulate", "run.json", "--plugin", library("plugin_bugs"), "--set", set},
                     {"--plugin: " + library("plugin_bugs") + ": " + policy + ": " + problem});
  };
  const std::string tier = "/system/tiers/dram/";
  expect_named(tier + "eviction=throwing", "eviction policy \"throwing\"", "choose: no idea");
  expect_named(tier + "eviction=inventing", "eviction policy \"inventing\"",
               "choose: a policy chose a victim that was not offered");
  expect_named("/system/prefetch=guessing", "prefetch policy \"guessing\"",
               "next_fetch: there is no entry 4000000");
  expect_named("/system/order=late", "order policy \"late\"",
               "next: expected a position at which a request waits");
  expect_bad_input({"simulate", "run.json", "--plugin", library("plugin_bugs"), "--set",
                    "/system=vllm", "--set", "/cluster={\"instances\": 2, \"router\": \"lost\"}"},
                   {"--plugin: " + library("plugin_bugs") +
                    ": routing policy \"lost\": choose: expected one of the candidates"});
}

TEST_F(Plugin, IsRefusedIfItThrows) {
  expect_refused("plugin_throws", {"add_policies failed: no licence"});
}

TEST_F(Plugin, IsRefusedForATakenNameAndAllOtherProblems) {
  expect_refused("plugin_taken", {"admission policy \"second_hit\": this name is already used",
                                  "admission policy \"nameless\": summary: is empty"});
}

}  // namespace
}  // namespace kvtier::test
