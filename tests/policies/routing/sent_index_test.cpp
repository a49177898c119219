/// Routers that note what they sent where: sglang_cache_aware, vllm_prefix_aware.

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "policies/routing/sglang_cache_aware.hpp"
#include "policies/routing/vllm_prefix_aware.hpp"
#include "tests/policies/routing/naive.hpp"

namespace kvtier {
namespace {

std::vector<BlockHash> blocks(std::uint64_t first, std::uint64_t count) {
  std::vector<BlockHash> made;
  for (std::uint64_t i = 0; i < count; ++i) {
    made.push_back(BlockHash{first + i});
  }
  return made;
}

RoutedRequest request(std::uint64_t id, const std::vector<BlockHash>& blocks) {
  RoutedRequest made;
  made.id = id;
  made.prompt = Tokens(16 * std::ssize(blocks));
  made.blocks = blocks;
  return made;
}

// cache_aware.rs: the same prompt and a prefix of it go where the first went.
TEST(SglangCacheAwareRouting, SendsAPromptAndItsPrefixToTheSameInstance) {
  TrialCluster cluster(sglang_cache_aware_routing(), {.instances = 2});
  const std::vector<BlockHash> prompt = blocks(1, 11);
  const InstanceId first = cluster.send(request(0, prompt));
  EXPECT_EQ(cluster.send(request(1, prompt)), first);
  EXPECT_EQ(cluster.send(request(2, blocks(1, 5))), first);
}

// cache_aware.rs: thresholds 5 and 2.0, loads of 20 and 0.
TEST(SglangCacheAwareRouting, SendsToTheFewestRequestsWhileLoadsAreUneven) {
  TrialCluster cluster(sglang_cache_aware_routing(), {.instances = 2},
                       {{"cache_threshold", 0.5}, {"balance_abs", 5}, {"balance_rel", 2}});
  const std::vector<BlockHash> prompt = blocks(1, 4);
  for (std::uint64_t id = 0; id < 20; ++id) {
    cluster.dispatch(request(id, prompt), InstanceId{0});
  }
  for (std::uint64_t id = 20; id < 25; ++id) {
    EXPECT_EQ(cluster.send(request(id, prompt)), InstanceId{1});
  }
}

// cache_aware.rs: after the first worker is removed all requests go to the second.
TEST(SglangCacheAwareRouting, ForgetsALostInstance) {
  TrialCluster cluster(sglang_cache_aware_routing(), {.instances = 2});
  cluster.dispatch(request(0, blocks(1, 4)), InstanceId{0});
  cluster.lose(InstanceId{0});
  EXPECT_EQ(cluster.send(request(1, blocks(1, 4))), InstanceId{1});
}

// 6 against 0 requests: 6 > 5 and 6 > 2 * 0. 12 against 6: 6 > 5, but 12 is not more than 2 * 6.
TEST(SglangCacheAwareRouting, LoadsAreUnevenByDifferenceAndRatio) {
  const auto choose = [](std::uint64_t on_first, std::uint64_t on_second) {
    TrialCluster cluster(sglang_cache_aware_routing(), {.instances = 2},
                         {{"balance_abs", 5}, {"balance_rel", 2}});
    std::uint64_t id = 0;
    for (std::uint64_t i = 0; i < on_second; ++i) {
      cluster.dispatch(request(id++, blocks(50, 1)), InstanceId{1});
    }
    for (std::uint64_t i = 0; i < on_first; ++i) {
      cluster.dispatch(request(id++, blocks(1, 4)), InstanceId{0});
    }
    return cluster.choose(request(id, blocks(1, 4)));
  };
  EXPECT_EQ(choose(5, 0), InstanceId{0});
  EXPECT_EQ(choose(6, 0), InstanceId{1});
  EXPECT_EQ(choose(12, 6), InstanceId{0});
  EXPECT_EQ(choose(13, 6), InstanceId{1});
}

// 3 of 10 blocks are not more than 0.3 of the prompt, 4 are.
TEST(SglangCacheAwareRouting, AMatchHasToExceedTheThreshold) {
  for (const std::uint64_t matched : {3U, 4U}) {
    TrialCluster cluster(sglang_cache_aware_routing(), {.instances = 2});
    cluster.dispatch(request(0, blocks(1, matched)), InstanceId{0});
    EXPECT_EQ(cluster.choose(request(1, blocks(1, 10))), InstanceId{matched == 4 ? 0U : 1U});
  }
}

// Each instance keeps 64 tokens, which are 4 blocks: the ends go first.
TEST(SglangCacheAwareRouting, EvictsTheEndsOfLongPromptsEveryInterval) {
  TrialCluster cluster(sglang_cache_aware_routing(), {.instances = 2},
                       {{"tree_tokens", 64}, {"eviction_interval", 60}, {"cache_threshold", 0.5}});
  cluster.dispatch(request(0, blocks(1, 10)), InstanceId{0});
  EXPECT_EQ(cluster.choose(request(1, blocks(1, 10))), InstanceId{0});
  cluster.advance(SimDuration(60'000'000'000));
  cluster.dispatch(request(1, {}), InstanceId{0});
  // 4 of 10 blocks are left, and 4 of 7.
  EXPECT_EQ(cluster.choose(request(2, blocks(1, 10))), InstanceId{1});
  EXPECT_EQ(cluster.choose(request(2, blocks(1, 7))), InstanceId{0});
}

TEST(SglangCacheAwareRouting, FollowsItsRule) {
  const Rule rule = [](const Told& told, const RoutedRequest& request, const RoutingView& view) {
    std::vector<InstanceId> least =
        all_cheapest(view, [&](InstanceId instance) { return told.in_flight(instance); });
    least.resize(1);
    std::int64_t most = 0;
    for (const InstanceId instance : view.candidates) {
      most = std::max(most, told.in_flight(instance));
    }
    const std::int64_t fewest = told.in_flight(least.front());
    if (most - fewest > 3 && static_cast<double>(most) > 1.5 * static_cast<double>(fewest)) {
      return least;
    }
    // Nothing is evicted, so an instance's prefix is the longest that it shares with a prompt that
    // it was sent.
    const auto matched = [&](InstanceId instance) {
      std::int64_t longest = 0;
      for (const Told::Sent& sent : told.sent) {
        if (sent.instance == instance && !sent.lost) {
          std::int64_t common = 0;
          while (common < std::ssize(sent.blocks) && common < std::ssize(request.blocks) &&
                 sent.blocks[static_cast<std::size_t>(common)] ==
                     request.blocks[static_cast<std::size_t>(common)]) {
            ++common;
          }
          longest = std::max(longest, common);
        }
      }
      return longest;
    };
    const std::vector<InstanceId> best =
        all_cheapest(view, [&](InstanceId instance) { return -matched(instance); });
    const double share = static_cast<double>(16 * matched(best.front()));
    return share > 0.3 * static_cast<double>(request.prompt.value) ? best : least;
  };
  expect_follows(sglang_cache_aware_routing(), {{"balance_abs", 3}, {"eviction_interval", 0}},
                 rule);
}

TEST(VllmPrefixAwareRouting, ChoosesAnyOfThoseThatWereSentTheLongestPrefix) {
  TrialCluster cluster(vllm_prefix_aware_routing(), {.instances = 4});
  cluster.dispatch(request(0, blocks(1, 6)), InstanceId{1});
  cluster.dispatch(request(1, blocks(1, 4)), InstanceId{2});
  cluster.dispatch(request(2, blocks(1, 6)), InstanceId{3});
  std::set<InstanceId> seen;
  for (int i = 0; i < 100; ++i) {
    seen.insert(cluster.choose(request(3, blocks(1, 8))));
  }
  EXPECT_EQ(seen, (std::set<InstanceId>{InstanceId{1}, InstanceId{3}}));
  // A prompt that none was sent goes anywhere.
  seen.clear();
  for (int i = 0; i < 200; ++i) {
    seen.insert(cluster.choose(request(3, blocks(90, 8))));
  }
  EXPECT_EQ(seen.size(), 4U);
}

// A chunk of 32 tokens is two blocks: one block more makes no longer match.
TEST(VllmPrefixAwareRouting, ComparesWholeChunks) {
  TrialCluster cluster(vllm_prefix_aware_routing(), {.instances = 2});
  cluster.dispatch(request(0, blocks(1, 4)), InstanceId{0});
  cluster.dispatch(request(1, blocks(1, 5)), InstanceId{1});
  std::set<InstanceId> seen;
  for (int i = 0; i < 100; ++i) {
    seen.insert(cluster.choose(request(2, blocks(1, 5))));
  }
  EXPECT_EQ(seen.size(), 2U);
}

TEST(VllmPrefixAwareRouting, AShortMatchLeavesItToTheFewestRequests) {
  TrialCluster cluster(vllm_prefix_aware_routing(), {.instances = 2}, {{"match_minimum", 65}});
  cluster.dispatch(request(0, blocks(1, 6)), InstanceId{0});
  EXPECT_EQ(cluster.choose(request(1, blocks(1, 4))), InstanceId{1});
  EXPECT_EQ(cluster.choose(request(1, blocks(1, 6))), InstanceId{0});
}

TEST(VllmPrefixAwareRouting, FollowsItsRule) {
  const Rule rule = [](const Told& told, const RoutedRequest& request, const RoutingView& view) {
    return all_cheapest(view, [&](InstanceId instance) {
      std::int64_t longest = 0;
      for (std::int64_t chunks = 1; 2 * chunks <= std::ssize(request.blocks); ++chunks) {
        const BlockHash end = request.blocks[static_cast<std::size_t>(2 * chunks - 1)];
        for (const Told::Sent& sent : told.sent) {
          if (sent.instance == instance && !sent.lost && 2 * chunks <= std::ssize(sent.blocks) &&
              sent.blocks[static_cast<std::size_t>(2 * chunks - 1)] == end) {
            longest = std::max(longest, chunks);
          }
        }
      }
      return -longest;
    });
  };
  expect_follows(vllm_prefix_aware_routing(), {}, rule);
}

}  // namespace
}  // namespace kvtier
