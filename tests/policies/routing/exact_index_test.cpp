/// Routers that follow events about blocks: longest_prefix, prefix_load, vllm_kvaware.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "policies/routing/longest_prefix.hpp"
#include "policies/routing/prefix_load.hpp"
#include "policies/routing/vllm_kvaware.hpp"
#include "sim/policy/session_ring.hpp"
#include "tests/policies/routing/naive.hpp"

namespace kvtier {
namespace {

const std::vector<BlockHash> kPrompt{BlockHash{11}, BlockHash{12}, BlockHash{13}, BlockHash{14}};

std::vector<BlockHash> first(std::size_t count) {
  return {kPrompt.begin(), kPrompt.begin() + static_cast<std::ptrdiff_t>(count)};
}

RoutedRequest request(std::uint64_t id, std::int64_t tokens = 70) {
  RoutedRequest made;
  made.id = id;
  made.prompt = Tokens(tokens);
  made.blocks = kPrompt;
  return made;
}

TEST(LongestPrefixRouting, ChoosesTheInstanceThatHoldsMostWhateverItsLoad) {
  TrialCluster cluster(longest_prefix_routing(), {.instances = 3});
  cluster.store(InstanceId{1}, first(2));
  cluster.store(InstanceId{2}, first(3));
  for (std::uint64_t id = 0; id < 100; ++id) {
    EXPECT_EQ(cluster.send(request(id)), InstanceId{2});
  }
  cluster.remove(InstanceId{2}, std::vector{BlockHash{11}});
  EXPECT_EQ(cluster.choose(request(100)), InstanceId{1});
}

TEST(LongestPrefixRouting, ChoosesTheFirstOfEqualOnes) {
  TrialCluster cluster(longest_prefix_routing(), {.instances = 4});
  EXPECT_EQ(cluster.choose(request(0)), InstanceId{0});
  cluster.store(InstanceId{3}, first(2));
  cluster.store(InstanceId{2}, first(2), BlockMedium::disk);
  EXPECT_EQ(cluster.choose(request(0)), InstanceId{2});
  cluster.lose(InstanceId{2});
  EXPECT_EQ(cluster.choose(request(0)), InstanceId{3});
  cluster.join(InstanceId{2});
  EXPECT_EQ(cluster.choose(request(0)), InstanceId{3}) << "it comes back empty";
}

TEST(LongestPrefixRouting, FollowsItsRule) {
  expect_follows(longest_prefix_routing(), {},
                 [](const Told& told, const RoutedRequest& request, const RoutingView& view) {
                   std::vector<InstanceId> best = all_cheapest(view, [&](InstanceId instance) {
                     return -told.prefix(instance, request.blocks);
                   });
                   best.resize(1);
                   return best;
                 });
}

// 70 tokens, blocks of 16. Instance 0 lacks all and has nothing to do: 70. Instance 1 lacks 70 - 48
// = 22 and has 40 to prefill: 62. With 50 to prefill: 72.
TEST(PrefixLoadRouting, WeighsTheQueueAgainstTheHit) {
  TrialCluster cluster(prefix_load_routing(), {.instances = 2});
  cluster.store(InstanceId{1}, first(3));
  cluster.dispatch({.id = 0, .prompt = Tokens(40)}, InstanceId{1});
  EXPECT_EQ(cluster.choose(request(1)), InstanceId{1});
  cluster.dispatch({.id = 1, .prompt = Tokens(10)}, InstanceId{1});
  EXPECT_EQ(cluster.choose(request(2)), InstanceId{0});
}

TEST(PrefixLoadRouting, ReadsTheSharedPoolFromEveryInstance) {
  TrialCluster cluster(prefix_load_routing(), {.instances = 2});
  cluster.store(InstanceId{1}, first(1));
  cluster.dispatch({.id = 0, .prompt = Tokens(10)}, InstanceId{1});
  EXPECT_EQ(cluster.choose(request(1)), InstanceId{1});
  cluster.store(kNoInstance, first(4));
  EXPECT_EQ(cluster.choose(request(1)), InstanceId{0});
}

TEST(PrefixLoadRouting, FollowsItsRule) {
  expect_follows(prefix_load_routing(), {},
                 [](const Told& told, const RoutedRequest& request, const RoutingView& view) {
                   return all_cheapest(view, [&](InstanceId instance) {
                     const std::int64_t lacks =
                         request.prompt.value - 16 * told.prefix(instance, request.blocks);
                     const InstanceLoad& load = view.load(instance);
                     // Requests decide between equal ones: they are far fewer than 10,000.
                     return 10'000 * (lacks + load.uncached_prefill_tokens.value) + load.requests;
                   });
                 });
}

// 70 tokens and a threshold of 20: the holder needs 50, which are 4 blocks of 16.
TEST(VllmKvawareRouting, UsesTheHolderIfItLacksLittle) {
  TrialCluster cluster(vllm_kvaware_routing(), {.instances = 3}, {{"threshold", 20}});
  cluster.dispatch({.id = 0}, InstanceId{0});
  cluster.dispatch({.id = 1}, InstanceId{1});
  cluster.store(InstanceId{1}, first(3));
  EXPECT_EQ(cluster.choose(request(2)), InstanceId{2}) << "without a session: the fewest requests";
  cluster.store(InstanceId{1}, first(4));
  EXPECT_EQ(cluster.choose(request(2)), InstanceId{1});
  EXPECT_EQ(cluster.choose(request(2, 84)), InstanceId{1});
  EXPECT_EQ(cluster.choose(request(2, 85)), InstanceId{2});
}

// With the default threshold a prompt of up to 2,000 tokens goes to any holder of its first block.
TEST(VllmKvawareRouting, HasTheThresholdOfTheRouter) {
  TrialCluster cluster(vllm_kvaware_routing(), {.instances = 2});
  cluster.dispatch({.id = 0}, InstanceId{1});
  EXPECT_EQ(cluster.choose(request(1, 2'016)), InstanceId{0}) << "no instance holds any of it";
  cluster.store(InstanceId{1}, first(1));
  EXPECT_EQ(cluster.choose(request(1, 2'016)), InstanceId{1});
  EXPECT_EQ(cluster.choose(request(1, 2'017)), InstanceId{0});
}

TEST(VllmKvawareRouting, FollowsItsRule) {
  const SessionRing ring(5, 160);
  expect_follows(vllm_kvaware_routing(), {{"threshold", 60}},
                 [&](const Told& told, const RoutedRequest& request, const RoutingView& view) {
                   std::vector<InstanceId> best = all_cheapest(view, [&](InstanceId instance) {
                     return -told.prefix(instance, request.blocks);
                   });
                   best.resize(1);
                   const std::int64_t matched = 16 * told.prefix(best.front(), request.blocks);
                   if (matched > 0 && matched >= request.prompt.value - 60) {
                     return best;
                   }
                   if (request.session != kNoSession) {
                     return std::vector{ring.find(request.session, view.candidates)};
                   }
                   return all_cheapest(
                       view, [&](InstanceId instance) { return view.load(instance).requests; });
                 });
}

TEST(ExactIndexRouting, HoldsAsManyInstancesAsItsIndex) {
  for (const auto& kind : {longest_prefix_routing(), prefix_load_routing()}) {
    const RoutingNeeds needs = kind.make({})->needs();
    EXPECT_TRUE(needs.block_events);
    EXPECT_EQ(needs.instances_max, 65'535);
  }
}

}  // namespace
}  // namespace kvtier
