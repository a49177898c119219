#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "sim/replay/untimed.hpp"
#include "tests/sim/serving/support.hpp"

/// Untimed replays in which the turn at hand takes blocks of the HBM that it shares with stored KV.
namespace kvtier::test {
namespace {

/// Blocks of one token, as many as `blocks`, in which HBM keeps sessions.
RunConfig paged_config(Tokens window, std::int64_t blocks) {
  RunConfig config = tiny_config(window);
  config.system.batching = Batching::unified;
  config.system.paging = PagingConfig{.block_size = Tokens(1)};
  HbmTierConfig hbm;
  static_cast<TierConfig&>(hbm) = tier();
  config.system.tiers.hbm = hbm;
  config.serving.token_budget = window;
  config.serving.kv_memory = kv(blocks);
  config.workload.warmup_turns = 0;
  return config;
}

/// A session of 10 tokens, one of `others`, then a turn of the first one with 4 more.
std::vector<RequestRecord> replay_three_turns(RunConfig config, std::int64_t others = 10) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("kvtier_paging_{}.jsonl", getpid());
  std::ofstream(path)
      << R"({"format":"kvtier.trace/1","arrivals":true,"think_times":true,"source":"made up"})"
      << "\n"
      << R"({"id":0,"arrival_ns":0,"turns":[[8,2,0],[2,2,2000000000]]})"
      << "\n"
      << R"({"id":1,"arrival_ns":1000000000,"turns":[[)" << others - 2 << ",2,0]]}\n";
  config.workload.generator.reset();
  config.workload.sessions = {};
  config.workload.arrival_rate.reset();
  config.workload.trace = path.string();
  config.workload.arrivals = ArrivalModel::trace;
  config.workload.think_time.model = ThinkTimeModel::trace;
  Recorder recorder;
  RunOptions options;
  options.observer = &recorder;
  static_cast<void>(simulate_untimed(config, builtin_policies(), options));
  std::filesystem::remove(path);
  return recorder.requests;
}

TEST(UntimedPaging, ATurnTakesItsWholeLengthFromStoredKv) {
  // 10 + 10 tokens are stored. 14 blocks: 4 are free and 10 hold the session's own history.
  std::vector<RequestRecord> turns = replay_three_turns(paged_config(Tokens(20), 24));
  ASSERT_EQ(turns.size(), 3U);
  EXPECT_EQ(turns[2].found.reused, Tokens(10));
  EXPECT_EQ(turns[2].found.medium, Medium::hbm);
  // With a block less one has to leave: the first session's is the least recently used. All of its
  // blocks leave before one of the second session's makes the room.
  turns = replay_three_turns(paged_config(Tokens(20), 23));
  EXPECT_EQ(turns[2].found.reused, Tokens(0));
  EXPECT_EQ(turns[2].lost_because(), LossCause::capacity);
}

TEST(UntimedPaging, KvThatLeavesHbmIsFoundInTheTierBehindIt) {
  RunConfig config = paged_config(Tokens(20), 24);
  config.system.tiers.dram = tier();
  // The second session's 20 tokens take 14 free blocks and 6 of the first one's.
  std::vector<RequestRecord> turns = replay_three_turns(config, 20);
  ASSERT_EQ(turns.size(), 3U);
  EXPECT_EQ(turns[2].found.reused, Tokens(10));
  EXPECT_EQ(turns[2].found.medium, Medium::dram);
  EXPECT_EQ(turns[2].found.in_hbm(), Tokens(4));
  // A history that was copied to make room is in HBM until others take its blocks.
  config.serving.kv_memory = kv(23);
  turns = replay_three_turns(config);
  EXPECT_EQ(turns[2].found.reused, Tokens(10));
  EXPECT_EQ(turns[2].found.medium, Medium::hbm);
}

TEST(UntimedPaging, WithoutATierNothingIsFound) {
  RunConfig config = paged_config(Tokens(20), 20);
  config.system.tiers = {};
  const std::vector<RequestRecord> turns = replay_three_turns(config);
  ASSERT_EQ(turns.size(), 3U);
  EXPECT_EQ(turns[2].lost_because(), LossCause::not_stored);
}

std::uint64_t wanted_seeds() {
  const char* cases = std::getenv("KVTIER_TEST_CASES");
  return cases == nullptr ? 100 : std::strtoull(cases, nullptr, 10);
}

std::int64_t reused_tokens(const RunConfig& config) {
  Recorder recorder;
  RunOptions options;
  options.observer = &recorder;
  static_cast<void>(simulate_untimed(config, builtin_policies(), options));
  std::int64_t tokens = 0;
  for (const RequestRecord& r : recorder.requests) {
    EXPECT_LE(r.found.reused, r.history);
    tokens += r.found.reused.value;
  }
  return tokens;
}

TEST(UntimedPaging, LargerLruTiersNeverLoseHits) {
  for (std::uint64_t seed = 1; seed <= wanted_seeds(); ++seed) {
    RandomStream random(seed, "untimed paging");
    const Tokens window(40 + random.index(200));
    const std::int64_t block = std::int64_t{1} << random.index(4);
    RunConfig config = paged_config(window, window.value + 2 * block);
    config.seed = static_cast<std::int64_t>(seed);
    config.system.paging->block_size = Tokens(block);
    config.system.tiers.hbm->block_size = Tokens(block);
    config.workload.sessions = 40;
    config.workload.arrival_rate = PerSecond(1);
    config.workload.sharegpt.user_tokens_median = 10;
    config.workload.sharegpt.assistant_tokens_median = 15;
    if (random.index(2) == 0) {
      config.system.tiers.dram = tier();
      config.system.tiers.dram->block_size = Tokens(block);
      config.hardware.dram->capacity = kv(window.value * 2);
    }
    std::int64_t before = -1;
    for (std::int64_t more = 0; more < 6; ++more) {
      RunConfig larger = config;
      *larger.serving.kv_memory += kv(window.value * more / 2);
      const std::int64_t reused = reused_tokens(larger);
      EXPECT_GE(reused, before) << "seed " << seed << ", " << more;
      before = reused;
    }
    if (config.system.tiers.dram) {
      config.hardware.dram->capacity = kv(window.value * 4);
      const std::int64_t small = reused_tokens(config);
      config.hardware.dram->capacity = kv(window.value * 8);
      EXPECT_GE(reused_tokens(config), small) << "seed " << seed;
    }
  }
}

TEST(UntimedPaging, RandomSystemsKeepEveryInvariant) {
  std::int64_t replayed = 0;
  for (std::uint64_t seed = 1; seed <= 4 * wanted_seeds(); ++seed) {
    const RunConfig config = random_config(seed);
    if (config.system.paging) {
      SCOPED_TRACE(fmt::format("random config {}", seed));
      try {
        static_cast<void>(reused_tokens(config));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      ++replayed;
    }
  }
  EXPECT_GT(replayed, 0);
}

}  // namespace
}  // namespace kvtier::test
