#include "sim/serving/read_buffer.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "hw/timing/layer_pipeline.hpp"
#include "hw/timing/roofline.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// A layer of a new token computes for 0.35 ms, a layer of a stored one loads in 0.2 ms.
RunConfig automatic() {
  RunConfig config = tiny_config();
  config.system.tiers.dram = TierConfig();
  config.system.load.buffers.reset();
  return config;
}

constexpr PrefillPart turn_of(std::int64_t added, std::int64_t past) {
  return {.added = Tokens(added), .past = Tokens(past)};
}

constexpr std::int64_t kWindow = 1000;
/// Turns of all shapes that fit into the window.
template <class Visit>
void for_turns(const Visit& visit) {
  for (std::int64_t past = 1; past < kWindow; past += 31) {
    for (std::int64_t added = 1; past + added < kWindow; added += 1 + added / 2) {
      visit(turn_of(added, past));
    }
  }
}

void expect_same_layers(const RunConfig& a, const RunConfig& b) {
  const ReadBuffer first(a);
  const ReadBuffer second(b);
  EXPECT_EQ(first.most_layers(), second.most_layers());
  for_turns([&](const PrefillPart& turn) {
    ASSERT_EQ(first.layers(turn), second.layers(turn))
        << turn.added.value << " after " << turn.past.value;
  });
}

TEST(ReadBuffer, HoldsAFixedNumberOfLayersOfEachTurn) {
  RunConfig config = automatic();
  config.system.load.buffers = 3;
  const ReadBuffer buffer(config);
  EXPECT_EQ(buffer.most_layers(), 3);
  EXPECT_EQ(buffer.layers(turn_of(1, 998)), 3);
  EXPECT_EQ(buffer.layers(turn_of(998, 1)), 3);
  EXPECT_EQ(buffer.capacity(), Bytes(3 * 200 * kWindow));
  config.system.load.buffers = 1000;
  EXPECT_EQ(ReadBuffer(config).most_layers(), kLayers);
}

TEST(ReadBuffer, HoldsTheLayersThatATurnNeedsNotToWait) {
  const RunConfig config = automatic();
  const RooflineTiming timing(config.model, config.hardware, 1);
  const ReadBuffer buffer(config);
  std::int64_t fewest = kLayers;
  for_turns([&](const PrefillPart& turn) {
    const LayerPipeline pipeline{.layers = kLayers,
                                 .load = SimDuration(200000) * turn.past.value,
                                 .compute = timing.prefill({&turn, 1}).layer,
                                 .loaded_ahead = {}};
    ASSERT_EQ(buffer.layers(turn), layers_to_hide_loading(pipeline))
        << turn.added.value << " after " << turn.past.value;
    fewest = std::min(fewest, buffer.layers(turn));
  });
  EXPECT_EQ(fewest, 1);
}

// 998 tokens load in 199.6 ms a layer. One new token computes for 0.35 ms a layer, and its
// attention to 999 tokens for 2 ms: all five layers, of which four hide 9.4 ms.
TEST(ReadBuffer, TakesHbmForTheLongestHistoryAndOneNewToken) {
  RunConfig config = automatic();
  EXPECT_EQ(ReadBuffer(config).most_layers(), 5);
  EXPECT_EQ(ReadBuffer(config).capacity(), kv(kWindow));
  // A link of 0.1 ms a layer of the whole history: the first layer is all that nothing hides.
  set_rates(config.hardware.links.pcie, limits(2e9, 2e9, 4e9));
  EXPECT_EQ(ReadBuffer(config).most_layers(), 1);
  EXPECT_EQ(ReadBuffer(config).capacity(), Bytes(200 * kWindow));
}

TEST(ReadBuffer, CountsOnTheRateThatLoadsKeepBesideSaves) {
  RunConfig shared = automatic();
  set_rates(shared.hardware.links.pcie, limits(1e6, 1e6, 1.2e6));
  RunConfig slow = automatic();
  set_rates(slow.hardware.links.pcie, limits(6e5, 6e5, 1.2e6));
  expect_same_layers(shared, slow);
  // The GPUs wait while KV is saved, so that nothing is loaded beside it.
  shared.system.save.mode = SaveMode::blocking;
  expect_same_layers(shared, automatic());
}

TEST(ReadBuffer, CountsOnTheRateThatLoadsKeepBesideCompute) {
  RunConfig beside = automatic();
  beside.hardware.contention = {
      {.on = ContendedWay::pcie_to_device, .while_work = ContendingWork::compute, .left = 0.5}};
  RunConfig slow = automatic();
  set_rates(slow.hardware.links.pcie, limits(5e5, 1e6, 2e6));
  expect_same_layers(beside, slow);
}

TEST(ReadBuffer, LoadsFromTheFastestTierOutsideOfHbm) {
  RunConfig cxl = automatic();
  cxl.system.tiers.dram.reset();
  cxl.system.tiers.cxl = TierConfig();
  cxl.hardware.cxl = CxlConfig{.capacity = Bytes(1000000), .price = {}, .bandwidth = {}};
  set_rates(cxl.hardware.cxl->bandwidth, limits(5e5, 5e5, 1e6));
  RunConfig slow = automatic();
  set_rates(slow.hardware.links.pcie, limits(5e5, 5e5, 1e6));
  expect_same_layers(cxl, slow);
  cxl.system.tiers.dram = TierConfig();
  expect_same_layers(cxl, automatic());
}

TEST(ReadBuffer, HoldsAllLayersIfTheyArriveTogether) {
  RunConfig config = automatic();
  config.system.tiers.dram.reset();
  config.system.tiers.ssd = TierConfig();
  // A block of the drive holds a token's KV of several layers, of 200 bytes each.
  config.hardware.ssd->block = Bytes(4096);
  EXPECT_EQ(ReadBuffer(config).layers(turn_of(900, 10)), kLayers);
  config.hardware.ssd->block = Bytes(200);
  EXPECT_EQ(ReadBuffer(config).layers(turn_of(900, 10)), 1);
}

TEST(ReadBuffer, TakesNothingIfNothingIsLoadedAhead) {
  RunConfig blocking = automatic();
  blocking.system.load.discipline = LoadDiscipline::blocking;
  RunConfig hbm_alone = automatic();
  hbm_alone.system.tiers.dram.reset();
  hbm_alone.system.tiers.hbm.emplace();
  RunConfig nothing_stored = automatic();
  nothing_stored.system.tiers = {};
  for (const RunConfig& config : {blocking, hbm_alone, nothing_stored}) {
    EXPECT_EQ(ReadBuffer(config).most_layers(), 0);
    EXPECT_EQ(ReadBuffer(config).capacity(), Bytes(0));
  }
}

// A new token after 400 computes for 1.15 ms a layer, so that four layers hide 4.6 ms. Of 80 ms a
// layer all five are needed. Compressed, the layers load in 32, 25.2, 18, 11.2 and 4 ms: 90.4 - 4.6
// are in the first four.
TEST(ReadBuffer, NeedsFewerLayersOfCompressedKv) {
  RunConfig config = automatic();
  EXPECT_EQ(ReadBuffer(config).layers(turn_of(1, 400)), 5);
  config.system.compression = CompressionConfig{.strength = 1, .sparsity = {0.6, 0.95}};
  EXPECT_EQ(ReadBuffer(config).layers(turn_of(1, 400)), 4);
}

}  // namespace
}  // namespace kvtier::test
