/// Blocks of mooncake_conversation that caches of several sizes hit, counted by others.

#include <filesystem>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/replay/block_curve.hpp"
#include "sim/replay/block_replay.hpp"
#include "tests/sim/engine/support.hpp"
#include "traces/trace_source.hpp"

namespace kvtier::test {
namespace {

constexpr Tokens kBlock{512};

class Mooncake : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ =
        std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/data/mooncake_conversation.jsonl.gz";
  }
  void SetUp() override {
    if (!std::filesystem::exists(path_)) {
      GTEST_SKIP() << "there is no ../shared/data";
    }
  }

  static std::unique_ptr<SessionSource> open() { return open_trace(path_, {}); }
  /// Metrics of a system of one or two tiers.
  static Json replay(const std::vector<std::int64_t>& blocks, const std::string& eviction,
                     bool inclusive = false) {
    RunConfig config = tiny_config();
    config.system.blocks =
        BlocksConfig{.longest_hit = HitCap::none, .partial_blocks = true, .responses = false};
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

  static inline std::filesystem::path path_;
};

struct Counted {
  std::int64_t capacity;
  std::int64_t lru;
  std::int64_t lru_tokens;
  std::int64_t fifo;
};
constexpr std::array kCounted{
    Counted{1'000, 12'847, 6'575'459, 12'840},    Counted{5'000, 32'260, 16'505'817, 30'698},
    Counted{10'000, 61'046, 31'238'981, 52'514},  Counted{30'000, 93'978, 48'093'740, 85'101},
    Counted{50'000, 102'290, 52'347'371, 96'231}, Counted{1'000'000, 105'710, 54'098'411, 105'710}};

TEST_F(Mooncake, UntimedReplaysHitWhatWasCounted) {
  for (const Counted& counted : kCounted) {
    const Json lru = replay({counted.capacity}, "lru");
    EXPECT_EQ(lru["hit_blocks"]["total"], counted.lru) << counted.capacity;
    EXPECT_EQ(lru["hit_tokens"]["total"], counted.lru_tokens) << counted.capacity;
    EXPECT_EQ(replay({counted.capacity}, "fifo")["hit_blocks"]["dram"], counted.fifo)
        << counted.capacity;
    EXPECT_EQ(lru["prompt_blocks"], 288'500);
    EXPECT_EQ(lru["prompt_tokens"], 144'793'823);
  }
}

TEST_F(Mooncake, TwoTiersHitWhatWasCounted) {
  const Json both = replay({6'000, 12'000}, "lru", true);
  EXPECT_EQ(both["hit_blocks"]["dram"], 40'183);
  EXPECT_EQ(both["hit_blocks"]["total"], 66'428);
  const Json apart = replay({6'000, 12'000}, "lru");
  EXPECT_EQ(apart["hit_blocks"]["dram"], 40'183);
  EXPECT_EQ(apart["hit_blocks"]["total"], 79'628);
  EXPECT_EQ(replay({6'000, 3'000}, "lru")["hit_blocks"]["total"], 56'158);
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
    EXPECT_EQ(row["blocks"], 288'500);
    EXPECT_EQ(row["tokens"], 144'793'823);
    EXPECT_GE(row["belady"]["hit_blocks"].get<std::int64_t>(),
              std::max(kCounted[i].lru, kCounted[i].fifo));
  }
  EXPECT_EQ(curve["rows"].back()["belady"]["hit_blocks"], 105'710);
  EXPECT_EQ(curve["ideal"]["hit_blocks"], 105'710);
  EXPECT_EQ(curve["ideal"]["hit_tokens"], 54'098'411);
}

}  // namespace
}  // namespace kvtier::test
