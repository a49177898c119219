/// Routers that look at no blocks: random, round_robin, least_requests, least_tokens, power_of_two.

#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "policies/routing/least_requests.hpp"
#include "policies/routing/least_tokens.hpp"
#include "policies/routing/power_of_two.hpp"
#include "policies/routing/random.hpp"
#include "policies/routing/round_robin.hpp"
#include "sim/policy/trial_cluster.hpp"

namespace kvtier {
namespace {

std::vector<std::uint32_t> send(TrialCluster& cluster, std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint32_t> chosen;
  for (std::uint64_t id = first; id < first + count; ++id) {
    chosen.push_back(cluster.send({.id = id, .prompt = Tokens(10)}).value);
  }
  return chosen;
}

void set_requests(TrialCluster& cluster, const std::vector<std::int64_t>& requests) {
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    InstanceLoad load = cluster.load(InstanceId{i});
    load.requests = requests[i];
    cluster.set_load(InstanceId{i}, load);
  }
}

/// How often each instance is chosen.
std::vector<int> shares(TrialCluster& cluster, int choices) {
  std::vector<int> counts(static_cast<std::size_t>(cluster.facts().instances));
  for (int i = 0; i < choices; ++i) {
    ++counts[cluster.choose({}).value];
  }
  return counts;
}

TEST(RandomRouting, ChoosesEachInstanceAsOften) {
  TrialCluster cluster(random_routing(), {.instances = 4});
  // 10,000 draws of probability 1/4: the standard deviation is 43.
  for (const int count : shares(cluster, 10'000)) {
    EXPECT_NEAR(count, 2'500, 5 * 43);
  }
}

TEST(RandomRouting, DrawsTheSameForTheSameSeed) {
  TrialCluster first(random_routing(), {.instances = 8}, {}, 3);
  TrialCluster same(random_routing(), {.instances = 8}, {}, 3);
  TrialCluster other(random_routing(), {.instances = 8}, {}, 4);
  const std::vector<std::uint32_t> chosen = send(first, 0, 50);
  EXPECT_EQ(send(same, 0, 50), chosen);
  EXPECT_NE(send(other, 0, 50), chosen);
}

TEST(RoundRobinRouting, SendsRequestIToInstanceIModuloTheirNumber) {
  TrialCluster cluster(round_robin_routing(), {.instances = 3});
  EXPECT_EQ(send(cluster, 0, 7), (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2, 0}));
}

TEST(RoundRobinRouting, PassesOverALostInstance) {
  TrialCluster cluster(round_robin_routing(), {.instances = 4});
  cluster.lose(InstanceId{1});
  EXPECT_EQ(send(cluster, 0, 4), (std::vector<std::uint32_t>{0, 2, 3, 0}));
  cluster.join(InstanceId{1});
  EXPECT_EQ(send(cluster, 4, 4), (std::vector<std::uint32_t>{1, 2, 3, 0}));
  cluster.lose(InstanceId{3});
  EXPECT_EQ(send(cluster, 8, 4), (std::vector<std::uint32_t>{1, 2, 0, 1}));
}

TEST(LeastRequestsRouting, ChoosesTheInstanceWithTheFewest) {
  TrialCluster cluster(least_requests_routing(), {.instances = 4});
  set_requests(cluster, {5, 3, 2, 4});
  EXPECT_EQ(send(cluster, 0, 1), std::vector<std::uint32_t>{2});
  cluster.lose(InstanceId{2});
  set_requests(cluster, {5, 3, 0, 4});
  cluster.lose(InstanceId{1});
  EXPECT_EQ(send(cluster, 1, 1), std::vector<std::uint32_t>{3});
}

TEST(LeastRequestsRouting, ChoosesAmongEqualOnesAtRandom) {
  TrialCluster cluster(least_requests_routing(), {.instances = 4});
  set_requests(cluster, {1, 0, 1, 0});
  const std::vector<int> counts = shares(cluster, 10'000);
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_NEAR(counts[1], 5'000, 5 * 50);
}

// An instance that reports late gets the whole burst.
TEST(LeastRequestsRouting, GoesByTheLastReport) {
  TrialCluster cluster(least_requests_routing(), {.instances = 3});
  set_requests(cluster, {1, 0, 1});
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(cluster.choose({}), InstanceId{1});
  }
}

TEST(LeastTokensRouting, GoesByThePromptTokensThatAreNotPrefilled) {
  TrialCluster cluster(least_tokens_routing(), {.instances = 2});
  cluster.dispatch({.id = 0, .prompt = Tokens(1'000)}, InstanceId{0});
  for (std::uint64_t id = 1; id < 10; ++id) {
    EXPECT_EQ(cluster.send({.id = id, .prompt = Tokens(100)}), InstanceId{1}) << id;
  }
  // 1,000 tokens on the first, 900 on the second.
  cluster.first_token(0);
  EXPECT_EQ(cluster.send({.id = 10, .prompt = Tokens(100)}), InstanceId{0});
}

TEST(LeastTokensRouting, BreaksTiesByRequests) {
  TrialCluster cluster(least_tokens_routing(), {.instances = 3});
  set_requests(cluster, {3, 1, 2});
  EXPECT_EQ(cluster.choose({}), InstanceId{1});
}

// Three instances with 0, 1 and 2 requests make the pairs (0,1), (0,2) and (1,2): the one with 0
// is chosen for two pairs, the one with 1 for one, the one with 2 for none.
TEST(PowerOfTwoRouting, ChoosesTheLessLoadedOfEachPair) {
  TrialCluster cluster(power_of_two_routing(), {.instances = 3});
  set_requests(cluster, {2, 0, 1});
  const std::vector<int> counts = shares(cluster, 9'000);
  EXPECT_EQ(counts[0], 0);
  EXPECT_NEAR(counts[1], 6'000, 5 * 45);
}

TEST(PowerOfTwoRouting, DrawsTwoDifferentInstances) {
  TrialCluster cluster(power_of_two_routing(), {.instances = 2});
  set_requests(cluster, {1, 0});
  EXPECT_EQ(shares(cluster, 1'000), (std::vector<int>{0, 1'000}));
}

// Balls into bins: of n requests on n instances the longest queue has about log n / log log n with
// random and log log n / log 2 with two choices (Mitzenmacher, 2001).
TEST(PowerOfTwoRouting, KeepsTheLongestQueueShorterThanRandom) {
  const auto longest = [](const PolicyKind<RoutingPolicy>& kind) {
    TrialCluster cluster(kind, {.instances = 1'000});
    send(cluster, 0, 1'000);
    std::int64_t most = 0;
    for (const InstanceId instance : cluster.candidates()) {
      most = std::max(most, cluster.load(instance).requests);
    }
    return most;
  };
  EXPECT_LE(longest(power_of_two_routing()), 4);
  EXPECT_GE(longest(random_routing()), 5);
}

}  // namespace
}  // namespace kvtier
