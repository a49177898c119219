#include "sim/study/runs/break_even.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

using Ranges = std::vector<std::pair<Tokens, Tokens>>;

/// KV of 1,000 B a token; DRAM moves a token in 1 ms. A prefill of n tokens is bound by 1e8 FLOP/s:
/// in each of 5 layers 2 x 15,000 n for the matrices and 100 n (n + 1) for attention, and 5,000 for
/// the head. It takes 1.5 n + 0.005 n (n + 1) + 0.05 ms, and 1 ms of overhead.
RunConfig tiny_run() {
  RunConfig config;
  config.model = tiny_model();
  config.hardware = tiny_hardware();
  return config;
}

/// Drives that move a token in so many ms.
RunConfig with_drives(double milliseconds) {
  RunConfig config = tiny_run();
  set_rates(config.hardware.ssd->bandwidth, limits(1e6 / milliseconds, 1e6, 2e6));
  return config;
}

const TierBreakEven& tier_of(const BreakEven& found, Medium tier) {
  for (const TierBreakEven& one : found.tiers) {
    if (one.tier == tier) {
      return one;
    }
  }
  throw std::invalid_argument("no such tier");
}

TEST(BreakEven, TakesTimesOfTheRooflineAndTheLinks) {
  const BreakEven found = break_even(with_drives(5));
  EXPECT_EQ(found.times, "roofline");
  EXPECT_EQ(found.kv_bytes_per_token, kTokenBytes);
  EXPECT_EQ(found.tokens, (std::vector{Tokens(512), Tokens(1000)}));
  ASSERT_EQ(found.recompute.size(), 2U);
  EXPECT_NEAR(found.recompute[0].seconds(), 0.768 + 1.31328 + 0.00105, 1e-7);
  EXPECT_NEAR(found.recompute[1].seconds(), 1.5 + 5.005 + 0.00105, 1e-7);
  EXPECT_EQ(tier_of(found, Medium::dram).loads, (std::vector{for_ms(512), for_ms(1000)}));
  const TierBreakEven& drives = tier_of(found, Medium::ssd);
  EXPECT_EQ(drives.loads, (std::vector{for_ms(2560), for_ms(5000)}));
  EXPECT_EQ(drives.slowest_link, "ssd");
}

TEST(BreakEven, FindsTheFirstLengthThatLoadsFaster) {
  // 5 n = 1.5 n + 0.005 n (n + 1) + 1.05 at n = 698.7.
  const BreakEven found = break_even(with_drives(5));
  EXPECT_EQ(tier_of(found, Medium::dram).loading_wins, (Ranges{{Tokens(512), Tokens(1000)}}));
  EXPECT_EQ(tier_of(found, Medium::ssd).loading_wins, (Ranges{{Tokens(699), Tokens(1000)}}));
  const Json tiers = to_json(found)["tiers"];
  EXPECT_EQ(tiers["dram"]["loading_wins"], "always");
  EXPECT_EQ(tiers["ssd"]["loading_wins"], "from 699 tokens");
  EXPECT_EQ(tiers["ssd"]["loading_wins_ranges"],
            Json::parse(R"([{"from_tokens": 699, "to_tokens": 1000}])"));
}

TEST(BreakEven, FindsTheLastLengthThatLoadsFaster) {
  RunConfig config = with_drives(20);
  config.hardware.efficiency.iteration_overhead = for_ms(10000);
  // 20 n = 1.5 n + 0.005 n (n + 1) + 10,000.05 at n = 657.6.
  const BreakEven found = break_even(config);
  EXPECT_EQ(tier_of(found, Medium::ssd).loading_wins, (Ranges{{Tokens(512), Tokens(657)}}));
  EXPECT_EQ(to_json(found)["tiers"]["ssd"]["loading_wins"], "up to 657 tokens");
}

TEST(BreakEven, SaysNeverIfRecomputingIsFasterAtEveryLength) {
  const BreakEven found = break_even(with_drives(10));
  EXPECT_TRUE(tier_of(found, Medium::ssd).loading_wins.empty());
  EXPECT_EQ(to_json(found)["tiers"]["ssd"]["loading_wins"], "never");
  EXPECT_NE(to_table(found).find("from ssd:  never"), std::string::npos) << to_table(found);
}

TEST(BreakEven, AddsLatenciesAndAllLinksOfTheServer) {
  RunConfig config = tiny_run();
  config.hardware.gpus = 2;
  config.hardware.links.pcie.of = HostLinkOf::gpu;
  set_latency(config.hardware.links.pcie, for_ms(7));
  set_latency(config.hardware.ssd->bandwidth, for_ms(30));
  const BreakEven found = break_even(config);
  EXPECT_EQ(tier_of(found, Medium::dram).loads[0], for_ms(7 + 256));
  EXPECT_EQ(tier_of(found, Medium::ssd).loads[0], for_ms(7 + 30 + 512));
}

TEST(BreakEven, LoadsTheCompressedKv) {
  RunConfig config = tiny_run();
  config.system.compression = CompressionConfig{.strength = 1, .sparsity = {0.5, 0.5}};
  const BreakEven found = break_even(config);
  EXPECT_EQ(found.kv_bytes_per_token, Bytes(500));
  EXPECT_EQ(tier_of(found, Medium::dram).loads[1], for_ms(500));
}

TEST(BreakEven, HasOnlyInstalledTiers) {
  RunConfig config = tiny_run();
  config.hardware.ssd.reset();
  EXPECT_EQ(break_even(config).tiers.size(), 1U);
  config.hardware.dram.reset();
  EXPECT_THROW((void)break_even(config), ConfigError);
}

TEST(BreakEven, StopsAtAContextWindowBelow512) {
  RunConfig config = tiny_run();
  config.model.context_window = Tokens(300);
  EXPECT_EQ(break_even(config).tokens, std::vector{Tokens(300)});
}

}  // namespace
}  // namespace kvtier::test
