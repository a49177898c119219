/// Hits of caches of several sizes on the sample of mooncake_conversation, compared with the counts
/// of tests/data/count_hits.py.

#include <filesystem>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/replay/block_curve.hpp"
#include "sim/replay/block_replay.hpp"
#include "tests/sim/serving/support.hpp"
#include "traces/trace_source.hpp"

namespace kvtier::test {
namespace {

constexpr Tokens kBlock{512};

class Mooncake : public testing::Test {
 protected:
  static std::unique_ptr<SessionSource> open() {
    return open_trace(
        std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/data/mooncake_conversation.jsonl.gz", {});
  }
  /// Metrics of a system of one or two tiers.
  static Json replay(const std::vector<std::int64_t>& blocks, const std::string& eviction,
                     bool inclusive = false) {
    RunConfig config = tiny_config();
    config.system.blocks = BlocksConfig{};
    config.system.blocks->hit_cap = HitCap::none;
    config.system.blocks->partial_blocks = true;
    config.system.blocks->responses = false;
    std::vector<TierConfig> tiers;
    for (const std::int64_t count : blocks) {
      TierConfig& added = tiers.emplace_back(tier(eviction, inclusive));
      added.block_size = kBlock;
      added.write = inclusive ? WriteMoment::on_create : WriteMoment::on_evict;
      added.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, count}};
    }
    config.system.tiers.dram = tiers[0];
    if (tiers.size() > 1) {
      config.system.tiers.ssd = tiers[1];
    }
    const auto source = open();
    return replay_blocks(config, *source, builtin_policies(), {})["metrics"];
  }
};

struct Counted {
  std::int64_t capacity;
  std::int64_t lru;
  std::int64_t lru_tokens;
  std::int64_t fifo;
};
constexpr std::array kCounted{
    Counted{1'000, 499, 255'488, 499},          Counted{2'000, 575, 293'833, 575},
    Counted{3'000, 782, 399'817, 781},          Counted{4'000, 970, 496'073, 967},
    Counted{6'000, 1'583, 809'391, 1'600},      Counted{9'000, 2'202, 1'126'117, 2'231},
    Counted{1'000'000, 2'283, 1'167'589, 2'283}};

TEST_F(Mooncake, UntimedReplaysGiveTheCountedHits) {
  for (const Counted& counted : kCounted) {
    const Json lru = replay({counted.capacity}, "lru");
    EXPECT_EQ(lru["hit_blocks"]["total"], counted.lru) << counted.capacity;
    EXPECT_EQ(lru["hit_tokens"]["total"], counted.lru_tokens) << counted.capacity;
    EXPECT_EQ(replay({counted.capacity}, "fifo")["hit_blocks"]["dram"], counted.fifo)
        << counted.capacity;
    EXPECT_EQ(lru["prompt_blocks"], 14'162);
    EXPECT_EQ(lru["prompt_tokens"], 7'124'855);
  }
}

// The hits of an LRU tier of 3,000 blocks do not depend on a second tier. With a second tier that
// holds the same blocks, the larger tier's 6,000 count; with one that holds others, the sum counts.
TEST_F(Mooncake, TwoTiersGiveTheCountedHits) {
  const Json both = replay({3'000, 6'000}, "lru", true);
  EXPECT_EQ(both["hit_blocks"]["dram"], 782);
  EXPECT_EQ(both["hit_blocks"]["total"], 1'583);
  const Json apart = replay({3'000, 6'000}, "lru");
  EXPECT_EQ(apart["hit_blocks"]["dram"], 782);
  EXPECT_EQ(apart["hit_blocks"]["total"], 2'202);
  EXPECT_EQ(replay({3'000, 1'000}, "lru")["hit_blocks"]["total"], 970);
}

TEST_F(Mooncake, OnePassGivesTheCurve) {
  BlockCurveOptions options{.block = kBlock, .partial_blocks = true, .belady = true};
  for (const Counted& counted : kCounted) {
    options.capacities.push_back({KvSize::Unit::blocks, counted.capacity});
  }
  const Json curve = block_curve(open, nullptr, options);
  options.policy = "fifo";
  options.belady = false;
  const Json fifo = block_curve(open, nullptr, options);
  ASSERT_EQ(curve["rows"].size(), kCounted.size());
  for (std::size_t i = 0; i < kCounted.size(); ++i) {
    const Json& row = curve["rows"][i];
    EXPECT_EQ(row["hit_blocks"], kCounted[i].lru);
    EXPECT_EQ(row["hit_tokens"], kCounted[i].lru_tokens);
    EXPECT_EQ(fifo["rows"][i]["hit_blocks"], kCounted[i].fifo);
    EXPECT_EQ(row["blocks"], 14'162);
    EXPECT_EQ(row["tokens"], 7'124'855);
    EXPECT_GE(row["belady"]["hit_blocks"].get<std::int64_t>(),
              std::max(kCounted[i].lru, kCounted[i].fifo));
  }
  EXPECT_EQ(curve["rows"].back()["belady"]["hit_blocks"], 2'283);
  EXPECT_EQ(curve["ideal"]["hit_blocks"], 2'283);
  EXPECT_EQ(curve["ideal"]["hit_tokens"], 1'167'589);
}

}  // namespace
}  // namespace kvtier::test
