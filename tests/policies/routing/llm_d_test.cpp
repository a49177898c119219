#include "policies/routing/llm_d.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/routing/naive.hpp"

namespace kvtier {
namespace {

// queue_test.go: queues of 10, 5 and 0; of 5 and 5; of 0 and 0.
TEST(LlmDScores, QueueIsLlmDs) {
  EXPECT_DOUBLE_EQ(llm_d_queue_score(10, 0, 10), 0);
  EXPECT_DOUBLE_EQ(llm_d_queue_score(5, 0, 10), 0.5);
  EXPECT_DOUBLE_EQ(llm_d_queue_score(0, 0, 10), 1);
  EXPECT_DOUBLE_EQ(llm_d_queue_score(5, 5, 5), 1);
  EXPECT_DOUBLE_EQ(llm_d_queue_score(0, 0, 0), 1);
  EXPECT_DOUBLE_EQ(llm_d_queue_score(1, 1, 9), 1);
  EXPECT_DOUBLE_EQ(llm_d_queue_score(9, 1, 9), 0);
}

// load_aware_test.go: threshold 10, queues of 2, 0 and 15.
TEST(LlmDScores, LoadIsLlmDs) {
  EXPECT_DOUBLE_EQ(llm_d_load_score(2, 10), 0.4);
  EXPECT_DOUBLE_EQ(llm_d_load_score(0, 10), 0.5);
  EXPECT_DOUBLE_EQ(llm_d_load_score(15, 10), 0);
}

// plugin_test.go of the prefix scorer: 5 and 2 blocks of 10; with a length term of weight 0.5 and
// scale 100, 5 of 10 and 50 of 100 blocks of one token.
TEST(LlmDScores, PrefixIsLlmDs) {
  EXPECT_DOUBLE_EQ(llm_d_prefix_score(5, 10, Tokens(1), 0, 8'192), 0.5);
  EXPECT_DOUBLE_EQ(llm_d_prefix_score(2, 10, Tokens(1), 0, 8'192), 0.2);
  EXPECT_DOUBLE_EQ(llm_d_prefix_score(5, 10, Tokens(1), 0.5, 100), 0.25125);
  EXPECT_DOUBLE_EQ(llm_d_prefix_score(50, 100, Tokens(1), 0.5, 100), 0.375);
  EXPECT_DOUBLE_EQ(llm_d_prefix_score(0, 0, Tokens(1), 0.5, 100), 0);
}

TEST(LlmDScores, KvIsTheFreeShare) {
  EXPECT_DOUBLE_EQ(llm_d_kv_score({.kv_blocks = 250, .kv_blocks_capacity = 1'000}), 0.75);
  EXPECT_DOUBLE_EQ(llm_d_kv_score({}), 1);
}

// no_hit_lru_test.go: three that were never used; then the first was; one alone.
TEST(LlmDScores, ColdIsLlmDs) {
  const std::vector<InstanceId> three{InstanceId{0}, InstanceId{1}, InstanceId{2}};
  EXPECT_EQ(llm_d_cold_scores(three, {}), (std::vector{1.0, 0.5, 0.0}));
  const std::vector<InstanceId> used{InstanceId{0}};
  EXPECT_EQ(llm_d_cold_scores(three, used), (std::vector{0.0, 1.0, 0.5}));
  const std::vector<InstanceId> all{InstanceId{2}, InstanceId{0}, InstanceId{1}};
  EXPECT_EQ(llm_d_cold_scores(three, all), (std::vector{0.5, 0.0, 1.0}));
  EXPECT_EQ(llm_d_cold_scores(used, used), std::vector{1.0});
}

const std::vector<BlockHash> kSixBlocks{BlockHash{1'001}, BlockHash{1'002}, BlockHash{1'003},
                                        BlockHash{1'004}, BlockHash{1'005}, BlockHash{1'006}};

RoutedRequest request(std::uint64_t id, const std::vector<BlockHash>& blocks) {
  RoutedRequest made;
  made.id = id;
  made.prompt = Tokens(16 * std::ssize(blocks));
  made.blocks = blocks;
  return made;
}

/// Only the prefix scores, against `queue_weight` for the other instance.
PolicyParameters precise(double queue_weight) {
  return {{"precise", 1},
          {"kv_weight", 0},
          {"queue_weight", queue_weight},
          {"prefix_weight", 6},
          {"host_weight", 0.5}};
}

/// kvblock_scorer_test.go: `a` holds blocks 1 to 3 and 6, `b` blocks 4 and 5, so that b's score is
/// 0. Instance 0 is a with a queue, instance 1 is b with none: the queue weighs as much as the
/// score of a where choices change.
InstanceId choose_against(double queue_weight, BlockMedium third) {
  TrialCluster cluster(llm_d_routing(), {.instances = 2}, precise(queue_weight));
  const std::span all(kSixBlocks);
  cluster.store(InstanceId{0}, all.subspan(0, 2));
  cluster.store(InstanceId{0}, all.subspan(2, 1), third);
  if (third == BlockMedium::gpu) {
    cluster.store(InstanceId{0}, all.subspan(2, 1), BlockMedium::host);
  }
  cluster.store(InstanceId{0}, all.subspan(5, 1));
  cluster.store(InstanceId{1}, all.subspan(3, 2), BlockMedium::host);
  cluster.set_load(InstanceId{0}, {.waiting = 1});
  cluster.set_load(InstanceId{1}, {});
  return cluster.choose(request(0, kSixBlocks));
}

// a scores 3 of 6 blocks on the GPU, and 2.5 if the third is in host memory alone; times the weight
// of 6 that is 3 and 2.5.
TEST(LlmDRouting, WeighsConsecutiveBlocksByMedium) {
  EXPECT_EQ(choose_against(2.99, BlockMedium::gpu), InstanceId{0});
  EXPECT_EQ(choose_against(3.01, BlockMedium::gpu), InstanceId{1});
  EXPECT_EQ(choose_against(2.49, BlockMedium::host), InstanceId{0});
  EXPECT_EQ(choose_against(2.51, BlockMedium::host), InstanceId{1});
}

TEST(LlmDRouting, NeedsEventsOnlyForItsPreciseIndex) {
  EXPECT_TRUE(llm_d_routing().make({{"precise", 1}})->needs().block_events);
  EXPECT_FALSE(llm_d_routing().make({})->needs().block_events);
  EXPECT_TRUE(llm_d_routing().make({})->needs().blocks);
}

// Blocks of 16: the index's blocks are of 64 tokens, so 3 blocks are none and 7 are one.
TEST(LlmDRouting, NotesWhatItSentInBlocksOf64Tokens) {
  TrialCluster cluster(llm_d_routing(), {.instances = 8}, {{"queue_weight", 0}, {"kv_weight", 0}});
  cluster.dispatch(request(0, kSixBlocks), InstanceId{5});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(cluster.choose(request(1, kSixBlocks)), InstanceId{5});
  }
  std::set<InstanceId> seen;
  for (int i = 0; i < 100; ++i) {
    seen.insert(cluster.choose(request(1, {kSixBlocks.begin(), kSixBlocks.begin() + 3})));
  }
  EXPECT_EQ(seen.size(), 8U);
}

TEST(LlmDRouting, SpreadsColdRequestsByTheirLastOne) {
  TrialCluster cluster(llm_d_routing(), {.instances = 3},
                       {{"queue_weight", 0}, {"kv_weight", 0}, {"no_hit_lru_weight", 1}});
  std::vector<std::uint32_t> chosen;
  for (std::uint64_t id = 0; id < 7; ++id) {
    chosen.push_back(
        cluster.send(request(id, {BlockHash{id}, BlockHash{id}, BlockHash{id}, BlockHash{id + 50}}))
            .value);
  }
  EXPECT_EQ(chosen, (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2, 0}));
  // A warm request changes nothing.
  EXPECT_EQ(cluster.send(request(7, {BlockHash{2}, BlockHash{2}, BlockHash{2}, BlockHash{52}})),
            InstanceId{2});
  EXPECT_EQ(cluster.send(request(8, {BlockHash{9}, BlockHash{9}, BlockHash{9}, BlockHash{99}})),
            InstanceId{1});
}

/// Blocks of the approximate index, the oldest first: every fourth of 16 tokens.
std::list<BlockHash> naive_lru(const Told& told, InstanceId instance, std::size_t capacity) {
  std::list<BlockHash> lru;
  for (const Told::Sent& sent : told.sent) {
    if (sent.instance != instance || sent.lost) {
      continue;
    }
    for (std::size_t i = 3; i < sent.blocks.size(); i += 4) {
      lru.remove(sent.blocks[i]);
      lru.push_back(sent.blocks[i]);
    }
    while (lru.size() > capacity) {
      lru.pop_front();
    }
  }
  return lru;
}

double naive_load_scores(const RoutingView& view, InstanceId instance) {
  std::int64_t fewest = INT64_MAX;
  std::int64_t most = 0;
  for (const InstanceId other : view.candidates) {
    fewest = std::min(fewest, view.load(other).waiting);
    most = std::max(most, view.load(other).waiting);
  }
  const InstanceLoad& load = view.load(instance);
  const double queue = most == fewest ? 1
                                      : static_cast<double>(most - load.waiting) /
                                            static_cast<double>(most - fewest);
  const double kv = 1 - static_cast<double>(load.kv_blocks) / 1'000;
  return 2 * queue + 2 * kv;
}

TEST(LlmDRouting, FollowsItsRuleWithWhatItSent) {
  const Rule rule = [](const Told& told, const RoutedRequest& request, const RoutingView& view) {
    std::map<InstanceId, double> matched;
    std::int64_t blocks = 0;
    bool known = true;
    for (std::size_t i = 3; i < request.blocks.size(); i += 4) {
      ++blocks;
      bool any = false;
      for (const InstanceId instance : view.candidates) {
        const std::list<BlockHash> lru = naive_lru(told, instance, 4);
        const bool has = std::ranges::find(lru, request.blocks[i]) != lru.end();
        any = any || has;
        matched[instance] += known && has ? 1 : 0;
      }
      known = known && any;
    }
    return all_cheapest(view, [&](InstanceId instance) {
      const double prefix = blocks == 0 ? 0 : matched[instance] / static_cast<double>(blocks);
      return -(naive_load_scores(view, instance) + 3 * prefix);
    });
  };
  expect_follows(llm_d_routing(), {{"lru_blocks", 4}, {"auto_tune", 0}}, rule);
}

TEST(LlmDRouting, FollowsItsRuleWithEvents) {
  const Rule rule = [](const Told& told, const RoutedRequest& request, const RoutingView& view) {
    const auto score_of = [&](InstanceId holder) {
      double score = 0;
      for (const BlockHash block : request.blocks) {
        if (!told.has(holder, block)) {
          break;
        }
        const bool fast =
            told.has(holder, block, BlockMedium::gpu) || told.has(holder, block, BlockMedium::disk);
        score += fast ? 1 : 0.8;
      }
      return score;
    };
    const auto blocks = static_cast<double>(std::max<std::size_t>(request.blocks.size(), 1));
    return all_cheapest(view, [&](InstanceId instance) {
      const double prefix = std::max(score_of(instance), score_of(kNoInstance)) / blocks;
      return -(naive_load_scores(view, instance) + 3 * prefix);
    });
  };
  expect_follows(llm_d_routing(), {{"precise", 1}}, rule);
}

}  // namespace
}  // namespace kvtier
