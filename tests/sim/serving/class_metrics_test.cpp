#include "sim/serving/class_metrics.hpp"

#include <string>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

MixMember mixed(const char* name, double weight, Generator generator) {
  MixMember member{.name = name, .weight = weight};
  (*member.workload).generator = generator;
  return member;
}

/// Conversations and documents, whose KV is in host memory.
RunConfig sessions_config() {
  RunConfig config = tiny_config(Tokens(4000));
  config.system.tiers.dram = tier();
  config.serving.slots = 4;
  config.workload.generator.reset();
  config.workload.sessions = 60;
  config.workload.arrival_rate = PerSecond(0.01);
  config.workload.warmup_turns = 20;
  config.workload.mix = {mixed("chat", 2, Generator::sharegpt),
                         mixed("documents", 1, Generator::long_documents)};
  (*config.workload.mix[1].workload).long_documents = {.document_tokens_min = Tokens(50),
                                                       .document_tokens_max = Tokens(60)};
  return config;
}

RunConfig blocks_config() {
  RunConfig config = sessions_config();
  config.system.tiers.dram.reset();
  config.system.batching = Batching::unified;
  config.system.blocks = BlocksConfig{};
  HbmTierConfig hbm;
  hbm.block_size = Tokens(16);
  hbm.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, 600}};
  config.system.tiers.hbm = hbm;
  config.serving.token_budget = Tokens(4000);
  config.workload.mix = {mixed("groups", 2, Generator::shared_prefixes),
                         mixed("clients", 1, Generator::multi_turn)};
  return config;
}

void expect_sums(const Json& metrics) {
  std::int64_t turns = 0;
  double ttft = 0;
  for (const auto& [name, one] : metrics["classes"].items()) {
    turns += one["turns"].get<std::int64_t>();
    ttft += one["turns"].get<double>() * one["ttft_seconds"]["mean"].get<double>();
    EXPECT_GT(one["turns"].get<std::int64_t>(), 0) << name;
  }
  EXPECT_EQ(turns, metrics["turns"].get<std::int64_t>());
  EXPECT_NEAR(ttft / static_cast<double>(turns), metrics["ttft_seconds"]["mean"].get<double>(),
              1e-6);
}

TEST(ClassMetrics, SplitARunOfSessionsByClass) {
  const Json metrics = simulate(sessions_config(), builtin_policies())["metrics"];
  ASSERT_EQ(metrics["classes"].size(), 2U);
  expect_sums(metrics);
  double hits = 0;
  for (const auto& [name, one] : metrics["classes"].items()) {
    EXPECT_FALSE(one.contains("blocks"));
    hits += one["turns"].get<double>() * one["hit_rate"]["all_turns"]["total"].get<double>();
  }
  EXPECT_NEAR(
      hits,
      metrics["turns"].get<double>() * metrics["hit_rate"]["all_turns"]["total"].get<double>(),
      1e-6);
  EXPECT_GT(hits, 0);
}

TEST(ClassMetrics, SplitARunOfBlocksByClass) {
  const Json metrics = simulate(blocks_config(), builtin_policies())["metrics"];
  expect_sums(metrics);
  std::int64_t prompts = 0;
  std::int64_t found = 0;
  for (const auto& [name, one] : metrics["classes"].items()) {
    prompts += one["prompt_tokens"].get<std::int64_t>();
    found += one["hit_tokens"]["total"].get<std::int64_t>();
  }
  EXPECT_EQ(prompts, metrics["prompt_tokens"].get<std::int64_t>());
  EXPECT_EQ(found, metrics["hit_tokens"]["total"].get<std::int64_t>());
  EXPECT_GT(found, 0);
}

TEST(ClassMetrics, CoverAllInstancesOfACluster) {
  RunConfig config = sessions_config();
  config.cluster.instances = 2;
  expect_sums(simulate(config, builtin_policies())["metrics"]);
}

TEST(ClassMetrics, ExistOnlyForAMix) {
  RunConfig config = tiny_config();
  EXPECT_FALSE(simulate(config, builtin_policies())["metrics"].contains("classes"));
}

TEST(ClassMetrics, WatchedRunsHaveTheSame) {
  class Watcher final : public RunObserver {
   public:
    void on_request(const RequestRecord&) override { ++requests; }
    int requests = 0;
  };
  Watcher watcher;
  const RunConfig config = blocks_config();
  EXPECT_EQ(simulate(config, builtin_policies(), {.observer = &watcher})["metrics"].dump(),
            simulate(config, builtin_policies())["metrics"].dump());
  EXPECT_GE(watcher.requests, 60);
}

/// With sub-agents, which arrive beside the arrivals, the nominal rate counts their turns.
TEST(ClassMetrics, CountAllTurnsOfAgentsInTheNominalRate) {
  RunConfig config = blocks_config();
  config.workload.sessions = 100;
  MixMember agents = mixed("agents", 1, Generator::agents);
  AgentParameters& parameters = (*agents.workload).agents;
  parameters.prompt_tokens_min = Tokens(300);
  parameters.prompt_tokens_max = Tokens(400);
  parameters.message_tokens_max = Tokens(300);
  parameters.response_tokens_max = Tokens(100);
  parameters.requests_max = 5;
  parameters.summary_tokens = Tokens(100);
  parameters.context_max = Tokens(3000);
  parameters.subagents.share = 0.3;
  parameters.subagents.prompt_tokens = Tokens(200);
  config.workload.mix = {agents};
  const Json result = simulate(config, builtin_policies());
  expect_sums(result["metrics"]);
  // 100 sessions, some of which other ones start: fewer than 100 arrivals at 0.01/s.
  const double turns = result["workload"]["turns"].get<double>();
  EXPECT_GT(result["load"]["requests_per_second"]["nominal"].get<double>(),
            1.2 * 0.01 * turns / 100);
}

}  // namespace
}  // namespace kvtier::test
