#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/policy/random_traffic.hpp"
#include "sim/policy/trial_cluster.hpp"

namespace kvtier {

/// All information that a router received, unprocessed. Rules over it are slow and simple.
struct Told {
  struct Sent {
    std::uint64_t id = 0;
    InstanceId instance;
    std::vector<BlockHash> blocks;
    Tokens prompt;
    SimTime at;
    bool prefills = true;
    bool finished = false;
    /// The instance was lost afterwards.
    bool lost = false;
  };
  RoutingFacts facts;
  std::vector<Sent> sent;
  std::map<std::pair<InstanceId, BlockHash>, std::set<BlockMedium>> stored;

  [[nodiscard]] std::int64_t in_flight(InstanceId instance) const {
    return std::ranges::count_if(sent, [&](const Sent& request) {
      return request.instance == instance && !request.finished;
    });
  }
  /// Blocks from `first` on for which `holds` is true.
  static std::int64_t run(std::span<const BlockHash> blocks, std::int64_t first,
                          const std::function<bool(BlockHash)>& holds) {
    std::int64_t end = first;
    while (end < std::ssize(blocks) && holds(blocks[static_cast<std::size_t>(end)])) {
      ++end;
    }
    return end - first;
  }
  [[nodiscard]] bool has(InstanceId instance, BlockHash block) const {
    return stored.contains({instance, block});
  }
  [[nodiscard]] bool has(InstanceId instance, BlockHash block, BlockMedium medium) const {
    const auto found = stored.find({instance, block});
    return found != stored.end() && found->second.contains(medium);
  }
  /// Blocks of the prefix that the instance or the pool holds.
  [[nodiscard]] std::int64_t prefix(InstanceId instance, std::span<const BlockHash> blocks) const {
    const auto of = [&](InstanceId holder) {
      return run(blocks, 0, [&](BlockHash block) { return has(holder, block); });
    };
    return std::max(of(instance), of(kNoInstance));
  }
};

/// The instances that a rule would choose, equal ones all.
using Rule = std::function<std::vector<InstanceId>(const Told& told, const RoutedRequest& request,
                                                   const RoutingView& view)>;

/// The candidates with the smallest cost.
template <class CostOf>
std::vector<InstanceId> all_cheapest(const RoutingView& view, const CostOf& cost_of) {
  std::vector<InstanceId> found;
  double least = std::numeric_limits<double>::infinity();
  for (const InstanceId candidate : view.candidates) {
    least = std::min(least, static_cast<double>(cost_of(candidate)));
  }
  for (const InstanceId candidate : view.candidates) {
    if (static_cast<double>(cost_of(candidate)) <= least + 1e-9) {
      found.push_back(candidate);
    }
  }
  return found;
}

/// A router beside a rule that is told the same.
class Compared final : public RoutingPolicy {
 public:
  Compared(std::unique_ptr<RoutingPolicy> router, Rule rule, int& decided)
      : router_(std::move(router)), rule_(std::move(rule)), decided_(decided) {}

  [[nodiscard]] RoutingNeeds needs() const override { return router_->needs(); }
  void on_start(const RoutingFacts& facts) override {
    told_.facts = facts;
    router_->on_start(facts);
  }
  void on_joined(InstanceId instance, SimTime now) override { router_->on_joined(instance, now); }
  void on_lost(InstanceId instance, SimTime now) override {
    std::erase_if(told_.stored, [&](const auto& pair) { return pair.first.first == instance; });
    for (Told::Sent& sent : told_.sent) {
      sent.lost = sent.lost || sent.instance == instance;
    }
    router_->on_lost(instance, now);
  }
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const std::vector<InstanceId> allowed = rule_(told_, request, view);
    const InstanceId chosen = router_->choose(request, view);
    std::vector<std::uint32_t> names;
    for (const InstanceId instance : allowed) {
      names.push_back(instance.value);
    }
    EXPECT_TRUE(std::ranges::find(allowed, chosen) != allowed.end())
        << "request " << request.id << ": got " << chosen.value << ", expected one of "
        << testing::PrintToString(names);
    decided_ += allowed.size() == 1 && view.candidates.size() > 1 ? 1 : 0;
    return chosen;
  }
  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    told_.sent.push_back({.id = request.id,
                          .instance = instance,
                          .blocks = {request.blocks.begin(), request.blocks.end()},
                          .prompt = request.prompt,
                          .at = now});
    router_->on_dispatched(request, instance, now);
  }
  void on_first_token(std::uint64_t request, InstanceId instance, SimTime now) override {
    told_.sent[request].prefills = false;
    router_->on_first_token(request, instance, now);
  }
  void on_finished(std::uint64_t request, InstanceId instance, SimTime now) override {
    told_.sent[request].prefills = false;
    told_.sent[request].finished = true;
    router_->on_finished(request, instance, now);
  }
  void on_blocks_stored(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                        SimTime now) override {
    for (const BlockHash block : blocks) {
      told_.stored[{instance, block}].insert(medium);
    }
    router_->on_blocks_stored(instance, medium, blocks, now);
  }
  void on_blocks_removed(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                         SimTime now) override {
    for (const BlockHash block : blocks) {
      const auto found = told_.stored.find({instance, block});
      if (found != told_.stored.end() && found->second.erase(medium) > 0 && found->second.empty()) {
        told_.stored.erase(found);
      }
    }
    router_->on_blocks_removed(instance, medium, blocks, now);
  }
  void check_invariants(std::int64_t requests_in_flight) const override {
    router_->check_invariants(requests_in_flight);
  }

 private:
  std::unique_ptr<RoutingPolicy> router_;
  Rule rule_;
  Told told_;
  int& decided_;
};

/// Random traffic: each choice of the router has to be one of the rule's.
inline void expect_follows(const PolicyKind<RoutingPolicy>& kind,
                           const PolicyParameters& parameters, const Rule& rule,
                           const RoutingFacts& facts = {.instances = 5}) {
  int decided = 0;
  PolicyKind<RoutingPolicy> compared = kind;
  compared.make = [&](const PolicyParameters& given) {
    return std::make_unique<Compared>(kind.make(given), rule, decided);
  };
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    TrialCluster cluster(compared, facts, parameters, seed);
    RandomTraffic traffic(seed, facts.block_tokens);
    for (int step = 0; step < 2'500; ++step) {
      traffic.step(cluster, [](const RoutedRequest&, InstanceId) {});
    }
    cluster.check();
    traffic.drain(cluster);
    cluster.check();
  }
  // Otherwise the rule says nothing.
  EXPECT_GT(decided, 300);
}

}  // namespace kvtier
