#include <string>

#include <gtest/gtest.h>

#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

// Relations between runs of one workload, in time.
namespace kvtier::test {
namespace {

Json metrics(const RunConfig& config) { return simulate(config, builtin_policies())["metrics"]; }

/// Sessions that come back often enough to hit, on tiers that are far too small or large enough.
RunConfig busy(std::int64_t dram_tokens, std::int64_t ssd_tokens, std::uint64_t seed = 1) {
  RunConfig config = tiny_config(Tokens(300));
  config.seed = static_cast<std::int64_t>(seed);
  config.serving.slots = 4;
  config.hardware.gpu.peak = FlopsPerSecond(1e9);
  config.hardware.dram->capacity = kv(dram_tokens);
  config.hardware.ssd->capacity = kv(ssd_tokens);
  set_rates(config.hardware.links.pcie, limits(2e7, 2e7, 3e7));
  set_rates(config.hardware.ssd->bandwidth, limits(5e6, 5e6, 5e6));
  config.system.tiers.dram = tier();
  config.system.tiers.ssd = tier("lru", true);
  config.workload.sessions = 60;
  config.workload.arrival_rate = PerSecond(10);
  config.workload.think_time.mean = SimDuration(500000000);
  config.workload.sharegpt.user_tokens_median = 10;
  config.workload.sharegpt.assistant_tokens_median = 15;
  config.workload.sharegpt.message_cap = Tokens(80);
  return config;
}

TEST(Relations, WithoutAnyLookAheadTheSchedulerAwareSystemIsLru) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const RunConfig lru = busy(800, 2000, seed);
    RunConfig blind = lru;
    const PolicyChoice none_seen{.name = "scheduler_aware", .parameters = {{"window", 0}}};
    blind.system.tiers.dram->eviction = none_seen;
    blind.system.tiers.ssd->eviction = none_seen;
    blind.system.prefetch = {.name = "look_ahead", .parameters = {{"window", 0}}};
    const std::string expected = metrics(lru).dump(1);
    EXPECT_EQ(metrics(blind).dump(1), expected) << "seed " << seed;
    // With look-ahead, the policies change the result.
    blind.system.tiers.dram->eviction.parameters.clear();
    blind.system.prefetch.parameters.clear();
    EXPECT_NE(metrics(blind).dump(1), expected) << "seed " << seed;
  }
}

TEST(Relations, KnowledgeThatOnlinePoliciesLackChangesNothing) {
  RunConfig config = busy(800, 2000);
  const std::string expected = metrics(config).dump();
  config.serving.knowledge = OfferedKnowledge::online;
  EXPECT_EQ(metrics(config).dump(), expected);
}

TEST(Relations, HitsSavePrefillTime) {
  RunConfig config = busy(100000, 1000000);
  const Json large = metrics(config);
  config.system.tiers = {};
  const Json none = metrics(config);
  const Json tiny = metrics(busy(300, 300));
  // Nothing is evicted: only histories truncated to nothing are lost.
  EXPECT_DOUBLE_EQ(large["hit_rate"]["resumed_turns"]["total"], 1);
  EXPECT_EQ(large["tiers"]["dram"]["evictions"], 0);
  EXPECT_DOUBLE_EQ(none["hit_rate"]["all_turns"]["total"], 0);
  const auto hits = [](const Json& m) { return m["hit_rate"]["tokens"]["total"].get<double>(); };
  EXPECT_LT(hits(tiny), 0.8);
  EXPECT_GT(hits(tiny), 0);
  const auto prefill = [](const Json& m) { return m["gpu_seconds"]["prefill"].get<double>(); };
  EXPECT_LT(prefill(large), prefill(tiny));
  EXPECT_LT(prefill(tiny), prefill(none));
  const auto ttft = [](const Json& m) { return m["ttft_seconds"]["mean"].get<double>(); };
  EXPECT_LT(ttft(large), ttft(none));
}

TEST(Relations, NoLoadDisciplineIsSlowerThanBlocking) {
  // One slot and no writes in the way: the same hits, and only the overlap differs.
  RunConfig config = busy(100000, 1000000);
  config.serving.slots = 1;
  config.system.load.discipline = LoadDiscipline::blocking;
  const auto exposed = [](const RunConfig& c) {
    return metrics(c)["gpu_seconds"]["exposed_load"].get<double>();
  };
  const double blocking = exposed(config);
  config.system.load.discipline = LoadDiscipline::layer_overlapped;
  const double overlapped = exposed(config);
  config.system.load.buffers = 3;
  const double ahead = exposed(config);
  EXPECT_LT(overlapped, blocking);
  EXPECT_LT(ahead, overlapped);
  EXPECT_GT(ahead, 0);
}

TEST(Relations, TheWholeResultIsTheSameForOneSeedAndDiffersForAnother) {
  const auto result = [](std::uint64_t seed) {
    return simulate(busy(800, 2000, seed), builtin_policies()).dump();
  };
  EXPECT_EQ(result(3), result(3));
  EXPECT_NE(result(3), result(4));
}

TEST(Simulate, RefusesAConfigWithProblemsAndAWarmupThatTakesEverything) {
  RunConfig config = busy(800, 2000);
  config.system.order.name = "none such";
  EXPECT_THROW(metrics(config), ConfigError);
  config = busy(800, 2000);
  config.workload.warmup_turns = 100000;
  try {
    metrics(config);
    FAIL() << "nothing is measured";
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), 1U);
    EXPECT_EQ(
        error.problems()[0].find("/workload/warmup_turns: expected less than the workload's "), 0U)
        << error.problems()[0];
  }
}

TEST(Simulate, MovesAndCountsOnlyTiersThatTheSystemUses) {
  RunConfig config = busy(800, 2000);
  config.system.tiers.ssd.reset();
  const Json m = metrics(config);
  EXPECT_TRUE(m["tiers"].contains("dram"));
  EXPECT_FALSE(m["tiers"].contains("ssd"));
  EXPECT_EQ(m["links"]["ssd"]["towards_gpu_bytes"], 0);
  EXPECT_EQ(m["links"]["ssd"]["from_gpu_bytes"], 0);
  EXPECT_DOUBLE_EQ(m["cost_dollars"]["ssd"], 0);
  EXPECT_GT(m["cost_dollars"]["dram"], 0);
}

}  // namespace
}  // namespace kvtier::test
