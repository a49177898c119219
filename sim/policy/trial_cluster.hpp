#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"
#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// Random numbers for tests of a router, without a library to link with.
class TrialRandom final : public RandomSource {
 public:
  explicit TrialRandom(std::uint64_t seed) : seed_(seed) {}

  [[nodiscard]] double uniform() override {
    return static_cast<double>(random_bits_at(seed_, drawn_++) >> 11) * 0x1p-53;
  }
  [[nodiscard]] std::int64_t index(std::int64_t bound) override {
    return static_cast<std::int64_t>(uniform() * static_cast<double>(bound));
  }
  [[nodiscard]] std::uint64_t drawn() const { return drawn_; }

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

/// A group of instances for tests of a router. Loads are current, unless a test sets them.
class TrialCluster {
 public:
  TrialCluster(const PolicyKind<RoutingPolicy>& kind, const RoutingFacts& facts,
               const PolicyParameters& parameters = {}, std::uint64_t seed = 1)
      : policy_(kind.make(parameters)),
        facts_(facts),
        random_(seed),
        loads_(static_cast<std::size_t>(facts.instances)) {
    policy_->on_start(facts_);
    for (std::int64_t i = 0; i < facts_.instances; ++i) {
      loads_[static_cast<std::size_t>(i)] = {.kv_blocks_capacity = 1'000, .alive = false};
      join(InstanceId{static_cast<std::uint32_t>(i)});
    }
  }

  [[nodiscard]] RoutingPolicy& policy() { return *policy_; }
  [[nodiscard]] const RoutingFacts& facts() const { return facts_; }
  [[nodiscard]] const TrialRandom& random() const { return random_; }
  [[nodiscard]] const std::vector<InstanceId>& candidates() const { return candidates_; }
  [[nodiscard]] const InstanceLoad& load(InstanceId instance) const {
    return loads_[instance.value];
  }
  [[nodiscard]] RoutingView view() {
    return {.now = now_, .candidates = candidates_, .loads = loads_, .random = &random_};
  }
  [[nodiscard]] SimTime now() const { return now_; }
  void advance(SimDuration by) { now_ = now_ + by; }

  /// Returns the router's choice; changes nothing in the cluster.
  [[nodiscard]] InstanceId choose(const RoutedRequest& request) {
    const InstanceId chosen = policy_->choose(request, view());
    KVTIER_ASSERT(is_candidate(chosen), "a router chooses a candidate");
    return chosen;
  }
  /// Dispatches the request to the router's choice.
  InstanceId send(const RoutedRequest& request) {
    const InstanceId chosen = choose(request);
    dispatch(request, chosen);
    return chosen;
  }
  void dispatch(const RoutedRequest& request, InstanceId instance) {
    KVTIER_ASSERT(is_candidate(instance), "a request goes to an instance that serves");
    const Sent sent{.instance = instance,
                    .prompt = request.prompt,
                    .blocks = static_cast<std::int64_t>(request.blocks.size())};
    KVTIER_ASSERT(sent_.emplace(request.id, sent).second, "a request is sent once");
    policy_->on_dispatched(request, instance, now_);
    InstanceLoad& load = loads_[instance.value];
    ++load.requests;
    ++load.waiting;
    load.prefill_tokens += sent.prompt;
    load.uncached_prefill_tokens += sent.prompt;
    load.prefill_blocks += sent.blocks;
    load.kv_blocks += sent.blocks;
  }
  void first_token(std::uint64_t request) {
    Sent& sent = sent_.at(request);
    KVTIER_ASSERT(!sent.decodes, "a request has one first token");
    end_prefill(sent);
    sent.decodes = true;
    loads_[sent.instance.value].decode_blocks += sent.blocks;
    policy_->on_first_token(request, sent.instance, now_);
  }
  void finish(std::uint64_t request) {
    Sent sent = sent_.at(request);
    sent_.erase(request);
    InstanceLoad& load = loads_[sent.instance.value];
    if (sent.decodes) {
      load.decode_blocks -= sent.blocks;
    } else {
      end_prefill(sent);
    }
    --load.requests;
    load.kv_blocks -= sent.blocks;
    policy_->on_finished(request, sent.instance, now_);
  }
  [[nodiscard]] std::vector<std::uint64_t> in_flight() const {
    std::vector<std::uint64_t> requests;
    for (const auto& [request, sent] : sent_) {
      requests.push_back(request);
    }
    return requests;
  }
  [[nodiscard]] bool decodes(std::uint64_t request) const { return sent_.at(request).decodes; }

  void lose(InstanceId instance) {
    KVTIER_ASSERT(is_candidate(instance), "only an instance that serves is lost");
    loads_[instance.value].alive = false;
    list_candidates();
    policy_->on_lost(instance, now_);
    for (const std::uint64_t request : in_flight()) {
      if (sent_.at(request).instance == instance) {
        finish(request);
      }
    }
  }
  void join(InstanceId instance) {
    KVTIER_ASSERT(!is_candidate(instance), "an instance joins once");
    loads_[instance.value].alive = true;
    list_candidates();
    policy_->on_joined(instance, now_);
  }
  void set_load(InstanceId instance, const InstanceLoad& load) {
    loads_[instance.value] = load;
    policy_->on_load(instance, load, now_);
  }
  void store(InstanceId instance, std::span<const BlockHash> blocks,
             BlockMedium medium = BlockMedium::gpu) {
    policy_->on_blocks_stored(instance, medium, blocks, now_);
  }
  void remove(InstanceId instance, std::span<const BlockHash> blocks,
              BlockMedium medium = BlockMedium::gpu) {
    policy_->on_blocks_removed(instance, medium, blocks, now_);
  }
  void check() const { policy_->check_invariants(static_cast<std::int64_t>(sent_.size())); }

 private:
  struct Sent {
    InstanceId instance;
    Tokens prompt;
    std::int64_t blocks = 0;
    bool decodes = false;
  };

  [[nodiscard]] bool is_candidate(InstanceId instance) const {
    return instance.value < loads_.size() && loads_[instance.value].alive;
  }
  void list_candidates() {
    candidates_.clear();
    for (std::uint32_t i = 0; i < loads_.size(); ++i) {
      if (loads_[i].alive) {
        candidates_.push_back(InstanceId{i});
      }
    }
  }
  void end_prefill(const Sent& sent) {
    InstanceLoad& load = loads_[sent.instance.value];
    --load.waiting;
    load.prefill_tokens -= sent.prompt;
    load.uncached_prefill_tokens -= sent.prompt;
    load.prefill_blocks -= sent.blocks;
  }

  std::unique_ptr<RoutingPolicy> policy_;
  RoutingFacts facts_;
  TrialRandom random_;
  std::vector<InstanceLoad> loads_;
  std::vector<InstanceId> candidates_;
  std::map<std::uint64_t, Sent> sent_;
  SimTime now_;
};

}  // namespace kvtier
