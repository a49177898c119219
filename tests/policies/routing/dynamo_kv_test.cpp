#include "policies/routing/dynamo_kv.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/routing/naive.hpp"

namespace kvtier {
namespace {

struct CostCase {
  const char* name;
  DynamoWeights weights;
  RoutingPhase phase;
  double request_blocks;
  DynamoCandidate candidate;
  double cost;
};

/// Numbers of the tests in lib/kv-router/src/scheduling/selector/default.rs. Prompts have 64 tokens
/// in blocks of 16 unless stated otherwise.
const std::array kCosts{
    // 2 max(0, 1 + 4 - 4) + (2 + 3)
    CostCase{"a credit is at most the request",
             {.prefill_load_scale = 2},
             RoutingPhase::both,
             4,
             {.device = 4, .active_prefill = 1, .decode = 5},
             7},
    CostCase{"active requests are free by default",
             {},
             RoutingPhase::both,
             0,
             {.decode = 100, .requests = 4},
             100},
    // 100 + 32 * 4
    CostCase{"active requests are charged",
             {.active_request_weight = 32},
             RoutingPhase::both,
             0,
             {.decode = 100, .requests = 4},
             228},
    // 10 - 3
    CostCase{"a decode worker's overlap is credited against its load",
             {},
             RoutingPhase::decode,
             4,
             {.device = 3, .decode = 10},
             7},
    CostCase{"a decode worker without credit goes by load",
             {.overlap_score_credit = 0},
             RoutingPhase::decode,
             4,
             {.device = 3, .decode = 10},
             10},
    // Blocks of 1 token, a prompt of 4: 4 - 2 - 0.5 * 2, and 4 - 0.5 * 4.
    CostCase{"shared hits beyond the device",
             {.shared_cache_multiplier = 0.5},
             RoutingPhase::both,
             4,
             {.device = 2, .shared = 2},
             1},
    CostCase{"shared hits alone",
             {.shared_cache_multiplier = 0.5},
             RoutingPhase::both,
             4,
             {.shared = 4},
             2},
    // 2 (4 - 2) + 3 against 2 * 4
    CostCase{"the scale applies after the credit",
             {.prefill_load_scale = 2},
             RoutingPhase::both,
             4,
             {.device = 2, .decode = 3},
             7},
    CostCase{"the scale without a credit", {.prefill_load_scale = 2}, RoutingPhase::both, 4, {}, 8},
    // A prompt of 128: 8 - 4 + 5, and with 1.5 per block 8 - 6 + 5; a cold worker costs 8.
    CostCase{"a credit of 1", {}, RoutingPhase::both, 8, {.device = 4, .decode = 5}, 9},
    CostCase{"a credit of 1.5",
             {.overlap_score_credit = 1.5},
             RoutingPhase::both,
             8,
             {.device = 4, .decode = 5},
             7},
    // 48 tokens of prefill are 3 blocks. 3 + 4 - 4; with decay 1: 3 + 4 - 4 / (1 + 3/4).
    CostCase{"no decay", {}, RoutingPhase::both, 4, {.device = 4, .active_prefill = 3}, 3},
    CostCase{"decay by the excess of prefill",
             {.overlap_score_credit_decay = 1},
             RoutingPhase::both,
             4,
             {.device = 4, .active_prefill = 3},
             7 - 4 / 1.75},
    CostCase{"no decay at the least prefill",
             {.overlap_score_credit_decay = 1},
             RoutingPhase::both,
             4,
             {.device = 4, .active_prefill = 3, .active_prefill_min = 3},
             3},
    // 8 - 2 - 0.75 * 2 - 0.25 * 4
    CostCase{"slower tiers are credited in part",
             {},
             RoutingPhase::both,
             8,
             {.device = 2, .host = 2, .disk = 4},
             3.5}};

TEST(DynamoCost, EqualsTheRoutersCost) {
  for (const CostCase& each : kCosts) {
    EXPECT_DOUBLE_EQ(dynamo_cost(each.weights, each.phase, each.request_blocks, each.candidate),
                     each.cost)
        << each.name;
  }
}

std::vector<BlockHash> blocks(std::uint64_t first, std::uint64_t count) {
  std::vector<BlockHash> made;
  for (std::uint64_t i = 0; i < count; ++i) {
    made.push_back(BlockHash{first + i});
  }
  return made;
}

/// Instance 0 has two of the prompt's four blocks and decodes one block, instance 1 nothing; blocks
/// of one token. Dynamo's per_request_overrides_change_selection.
InstanceId warm_or_cold(const PolicyParameters& parameters, bool shared) {
  TrialCluster cluster(dynamo_kv_routing(), {.instances = 2, .block_tokens = Tokens(1)},
                       parameters);
  const std::vector<BlockHash> other = blocks(100, 1);
  RoutedRequest decoding;
  decoding.id = 0;
  decoding.prompt = Tokens(1);
  decoding.blocks = other;
  cluster.dispatch(decoding, InstanceId{0});
  cluster.first_token(0);
  const std::vector<BlockHash> prompt = blocks(1, 4);
  cluster.store(InstanceId{0}, std::span(prompt).first(2));
  if (shared) {
    cluster.store(kNoInstance, prompt, BlockMedium::disk);
  }
  RoutedRequest request;
  request.id = 1;
  request.prompt = Tokens(4);
  request.blocks = prompt;
  return cluster.choose(request);
}

// Both would decode 4 blocks more. Warm: 4 - 2 + 1, cold: 4.
TEST(DynamoKvRouting, ChangesItsChoiceWithEachWeight) {
  EXPECT_EQ(warm_or_cold({}, false), InstanceId{0});
  EXPECT_EQ(warm_or_cold({{"overlap_score_credit", 0}}, false), InstanceId{1});
  EXPECT_EQ(warm_or_cold({{"prefill_load_scale", 0}}, false), InstanceId{1});
  EXPECT_EQ(warm_or_cold({}, true), InstanceId{0});
  EXPECT_EQ(warm_or_cold({{"shared_cache_multiplier", 1}}, true), InstanceId{1});
}

TEST(DynamoKvRouting, BreaksTiesAtRandom) {
  TrialCluster cluster(dynamo_kv_routing(), {.instances = 3});
  std::set<InstanceId> seen;
  for (int i = 0; i < 120; ++i) {
    seen.insert(cluster.choose({.prompt = Tokens(16)}));
  }
  EXPECT_EQ(seen.size(), 3U);
}

// Costs 0 and 4 blocks: the weights are 1 and exp(-1 / T).
TEST(DynamoKvRouting, DrawsByTheSoftmaxOfScaledCosts) {
  for (const double temperature : {0.5, 2.0}) {
    TrialCluster cluster(dynamo_kv_routing(), {.instances = 2}, {{"temperature", temperature}});
    cluster.dispatch({.id = 0, .prompt = Tokens(64)}, InstanceId{0});
    const double expected = std::exp(-1 / temperature) / (1 + std::exp(-1 / temperature));
    constexpr int kDraws = 20'000;
    int dear = 0;
    for (int i = 0; i < kDraws; ++i) {
      dear += cluster.choose({}) == InstanceId{0} ? 1 : 0;
    }
    EXPECT_NEAR(dear, expected * kDraws, 5 * std::sqrt(kDraws * expected * (1 - expected)));
  }
}

TEST(DynamoKvRouting, BelievesASentBlockCachedFor120Seconds) {
  TrialCluster cluster(dynamo_kv_routing(), {.instances = 4}, {{"kv_events", 0}});
  EXPECT_FALSE(cluster.policy().needs().block_events);
  const std::vector<BlockHash> prompt = blocks(1, 4);
  RoutedRequest request;
  request.prompt = Tokens(64);
  request.blocks = prompt;
  cluster.dispatch(request, InstanceId{2});
  cluster.finish(0);
  cluster.advance(SimDuration(120'000'000'000));
  EXPECT_EQ(cluster.choose(request), InstanceId{2});
  cluster.advance(SimDuration(1));
  std::set<InstanceId> seen;
  for (int i = 0; i < 200; ++i) {
    seen.insert(cluster.choose(request));
  }
  EXPECT_EQ(seen.size(), 4U);
}

TEST(DynamoKvRouting, ChoosesDecodeInstancesByLoad) {
  const std::vector<BlockHash> prompt = blocks(1, 4);
  const std::vector<BlockHash> other = blocks(50, 2);
  const auto choose = [&](const PolicyParameters& parameters) {
    TrialCluster cluster(dynamo_kv_routing(), {.instances = 2, .phase = RoutingPhase::decode},
                         parameters);
    RoutedRequest decoding;
    decoding.prompt = Tokens(32);
    decoding.blocks = other;
    cluster.dispatch(decoding, InstanceId{0});
    cluster.store(InstanceId{0}, prompt);
    RoutedRequest request;
    request.id = 1;
    request.prompt = Tokens(64);
    request.blocks = prompt;
    return cluster.choose(request);
  };
  // 2 + 4 blocks against 4; with the credit 6 - 4 against 4.
  EXPECT_EQ(choose({}), InstanceId{1});
  EXPECT_EQ(choose({{"decode_overlap_credit", 1}}), InstanceId{0});
}

/// The cost from scratch, by the router's documentation.
double naive_cost(const Told& told, const RoutedRequest& request, InstanceId instance,
                  double least_prefill, double prefill, const DynamoWeights& weights) {
  const double blocks = static_cast<double>(request.prompt.value) / 16;
  const auto in = [&](BlockMedium medium) {
    return [&told, instance, medium](BlockHash block) { return told.has(instance, block, medium); };
  };
  const std::int64_t device = Told::run(request.blocks, 0, in(BlockMedium::gpu));
  const std::int64_t host = Told::run(request.blocks, device, in(BlockMedium::host));
  const std::int64_t disk = Told::run(request.blocks, device + host, in(BlockMedium::disk));
  std::set<BlockHash> active(request.blocks.begin(), request.blocks.end());
  for (const Told::Sent& sent : told.sent) {
    if (sent.instance == instance && !sent.finished) {
      active.insert(sent.blocks.begin(), sent.blocks.end());
    }
  }
  double credit = weights.overlap_score_credit * static_cast<double>(device);
  if (blocks > 0) {
    credit /= 1 + weights.overlap_score_credit_decay * (prefill - least_prefill) / blocks;
  }
  credit += 0.75 * static_cast<double>(host) + 0.25 * static_cast<double>(disk);
  return weights.prefill_load_scale * std::max(0.0, prefill + blocks - credit) +
         static_cast<double>(active.size()) +
         weights.active_request_weight * static_cast<double>(told.in_flight(instance));
}

TEST(DynamoKvRouting, FollowsItsRule) {
  const DynamoWeights weights{.overlap_score_credit = 1.25,
                              .overlap_score_credit_decay = 0.5,
                              .prefill_load_scale = 1.5,
                              .active_request_weight = 0.125};
  // The prefill load of each request by its number, noted when it is sent.
  std::map<std::uint64_t, double> prefill_of;
  const Rule rule = [&](const Told& told, const RoutedRequest& request, const RoutingView& view) {
    if (told.sent.empty()) {
      prefill_of.clear();
    }
    std::vector<double> prefill(5, 0);
    for (const Told::Sent& sent : told.sent) {
      prefill[sent.instance.value] += sent.prefills ? prefill_of.at(sent.id) : 0;
    }
    double least = std::numeric_limits<double>::infinity();
    for (const InstanceId instance : view.candidates) {
      least = std::min(least, prefill[instance.value]);
    }
    return all_cheapest(view, [&](InstanceId instance) {
      return naive_cost(told, request, instance, least, prefill[instance.value], weights);
    });
  };
  // The prefill of a request depends on what its instance held when it was sent.
  PolicyKind<RoutingPolicy> kind = dynamo_kv_routing();
  class Noting final : public RoutingPolicy {
   public:
    Noting(std::unique_ptr<RoutingPolicy> router, std::map<std::uint64_t, double>& prefill_of)
        : router_(std::move(router)), prefill_of_(prefill_of) {}
    [[nodiscard]] RoutingNeeds needs() const override { return router_->needs(); }
    void on_start(const RoutingFacts& facts) override { router_->on_start(facts); }
    void on_lost(InstanceId instance, SimTime now) override {
      std::erase_if(stored_, [&](const auto& held) { return held.first.first == instance; });
      router_->on_lost(instance, now);
    }
    InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
      return router_->choose(request, view);
    }
    void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
      double cached = 0;
      std::size_t at = 0;
      const std::array<double, 3> worth{1, 0.75, 0.25};
      for (int medium = 0; medium < kBlockMedia; ++medium) {
        while (at < request.blocks.size() &&
               stored_[{instance, request.blocks[at]}].contains(static_cast<BlockMedium>(medium))) {
          cached += worth[static_cast<std::size_t>(medium)];
          ++at;
        }
      }
      prefill_of_[request.id] =
          std::max(0.0, static_cast<double>(request.prompt.value) / 16 - cached);
      router_->on_dispatched(request, instance, now);
    }
    void on_first_token(std::uint64_t request, InstanceId instance, SimTime now) override {
      router_->on_first_token(request, instance, now);
    }
    void on_finished(std::uint64_t request, InstanceId instance, SimTime now) override {
      router_->on_finished(request, instance, now);
    }
    void on_blocks_stored(InstanceId instance, BlockMedium medium,
                          std::span<const BlockHash> stored, SimTime now) override {
      for (const BlockHash block : stored) {
        stored_[{instance, block}].insert(medium);
      }
      router_->on_blocks_stored(instance, medium, stored, now);
    }
    void on_blocks_removed(InstanceId instance, BlockMedium medium,
                           std::span<const BlockHash> removed, SimTime now) override {
      for (const BlockHash block : removed) {
        stored_[{instance, block}].erase(medium);
      }
      router_->on_blocks_removed(instance, medium, removed, now);
    }
    void check_invariants(std::int64_t requests) const override {
      router_->check_invariants(requests);
    }

   private:
    std::unique_ptr<RoutingPolicy> router_;
    std::map<std::uint64_t, double>& prefill_of_;
    std::map<std::pair<InstanceId, BlockHash>, std::set<BlockMedium>> stored_;
  };
  kind.make = [&](const PolicyParameters& given) {
    return std::make_unique<Noting>(dynamo_kv_routing().make(given), prefill_of);
  };
  expect_follows(kind,
                 {{"overlap_score_credit", 1.25},
                  {"overlap_score_credit_decay", 0.5},
                  {"prefill_load_scale", 1.5},
                  {"active_request_weight", 0.125}},
                 rule);
}

}  // namespace
}  // namespace kvtier
