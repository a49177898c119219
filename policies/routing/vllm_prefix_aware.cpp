// vLLM production-stack, routing logic prefixaware: chooses any of the instances that were sent the
// longest prefix of the prompt. A trie records sent prompts in chunks of 128 characters. Here a
// chunk is the blocks of 32 tokens (128 characters of English). The trie never forgets, so its
// memory grows with all prompts ever sent. O(b + n) per request of b chunks among n instances,
// beside the block index.
#include "policies/routing/vllm_prefix_aware.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "policies/routing/coarse_blocks.hpp"
#include "sim/policy/cheapest_instances.hpp"
#include "sim/policy/parameters.hpp"
#include "sim/policy/sent_blocks.hpp"

namespace kvtier {
namespace {

constexpr const char* kChunk = "chunk";
constexpr double kDefaultChunk = 32;
constexpr const char* kMatchMinimum = "match_minimum";

class VllmPrefixAwareRouting final : public RoutingPolicy {
 public:
  VllmPrefixAwareRouting(std::int64_t chunk, std::int64_t match_minimum)
      : chunk_(chunk), match_minimum_(match_minimum) {}

  [[nodiscard]] RoutingNeeds needs() const override {
    return {.blocks = true, .instances_max = BlockIndex::kInstancesMax};
  }
  void on_start(const RoutingFacts& facts) override {
    blocks_ = CoarseBlocks(facts.block_tokens, chunk_);
    sent_.emplace(facts.instances);
    matched_.assign(static_cast<std::size_t>(facts.instances), 0);
  }
  void on_lost(InstanceId instance, SimTime) override { sent_->lose(instance); }
  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    std::ranges::fill(matched_, 0);
    sent_->index().match(blocks_.of(request), [&](InstanceId instance, std::int64_t chunks) {
      matched_[instance.value] = chunks;
    });
    std::int64_t longest = 0;
    for (const InstanceId candidate : view.candidates) {
      longest = std::max(longest, matched_[candidate.value]);
    }
    if (blocks_.tokens() * longest < match_minimum_) {
      return cheapest(view, [&](InstanceId instance) { return view.load(instance).requests; });
    }
    return cheapest(view, [&](InstanceId instance) { return -matched_[instance.value]; });
  }
  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    for (const BlockHash block : blocks_.of(request)) {
      sent_->touch(instance, block, now);
    }
  }

 private:
  Tokens chunk_;
  Tokens match_minimum_;
  CoarseBlocks blocks_;
  std::optional<SentBlocks> sent_;
  std::vector<std::int64_t> matched_;
};

}  // namespace

PolicyKind<RoutingPolicy> vllm_prefix_aware_routing() {
  return {.name = "vllm_prefix_aware",
          .summary = "any of the instances that were sent the longest prefix of the prompt",
          .source = "vLLM production-stack (prefixaware), August 2026",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kChunk,
                          .documentation = "tokens of a chunk of the trie, rounded up to blocks",
                          .unit = "tokens",
                          .minimum = 1,
                          .maximum = 1e6,
                          .default_value = kDefaultChunk},
                         {.name = kMatchMinimum,
                          .documentation = "tokens of a shorter match do not count: the fewest "
                                           "requests decide",
                          .unit = "tokens",
                          .minimum = 0,
                          .maximum = 1e9,
                          .default_value = 0}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<RoutingPolicy> {
            return std::make_unique<VllmPrefixAwareRouting>(
                static_cast<std::int64_t>(parameter_or(parameters, kChunk, kDefaultChunk)),
                static_cast<std::int64_t>(parameter_or(parameters, kMatchMinimum, 0)));
          }};
}

}  // namespace kvtier
