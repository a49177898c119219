// SGLang's gateway, policy cache_aware. Loads are uneven if the most and the fewest requests of an
// instance differ by more than `balance_abs` and by more than the factor `balance_rel`. Then it
// chooses the instance with the fewest requests. Otherwise it chooses the instance that was sent
// the longest prefix of the prompt, of several the last. If this prefix is not more than
// `cache_threshold` of the prompt, the fewest requests decide again. The prompt is recorded for the
// chosen instance. Every `eviction_interval`, instances with more than `tree_tokens` forget their
// least recently used blocks. The gateway's tree holds characters; here it holds full blocks of
// tokens, so a prompt's last partial block never matches. O(b + n) per request of b blocks among n
// instances, beside the block index.
#include "policies/routing/sglang_cache_aware.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include "sim/policy/parameters.hpp"
#include "sim/policy/sent_blocks.hpp"
#include "sim/policy/sent_requests.hpp"

namespace kvtier {
namespace {

constexpr const char* kCacheThreshold = "cache_threshold";
constexpr const char* kBalanceAbs = "balance_abs";
constexpr const char* kBalanceRel = "balance_rel";
constexpr const char* kEvictionInterval = "eviction_interval";
constexpr const char* kTreeTokens = "tree_tokens";
constexpr double kDefaultCacheThreshold = 0.3;
constexpr double kDefaultBalanceAbs = 64;
constexpr double kDefaultBalanceRel = 1.5;
constexpr double kDefaultEvictionInterval = 60;
/// 2^26 characters, of which a token has about 4.
constexpr double kDefaultTreeTokens = 1 << 24;

struct SglangSettings {
  double cache_threshold = kDefaultCacheThreshold;
  double balance_abs = kDefaultBalanceAbs;
  double balance_rel = kDefaultBalanceRel;
  SimDuration eviction_interval;
  Tokens tree_tokens;
};

class SglangCacheAwareRouting final : public RoutingPolicy {
 public:
  explicit SglangCacheAwareRouting(const SglangSettings& settings) : settings_(settings) {}

  [[nodiscard]] RoutingNeeds needs() const override {
    return {.blocks = true, .instances_max = BlockIndex::kInstancesMax};
  }
  void on_start(const RoutingFacts& facts) override {
    facts_ = facts;
    tree_.emplace(facts.instances);
    requests_.emplace(facts.instances);
  }
  void on_lost(InstanceId instance, SimTime) override { tree_->lose(instance); }

  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const auto load = [&](InstanceId instance) { return requests_->count(instance); };
    const InstanceId least = *std::ranges::min_element(view.candidates, {}, load);
    const auto fewest = static_cast<double>(load(least));
    const auto most =
        static_cast<double>(load(*std::ranges::max_element(view.candidates, {}, load)));
    if (most - fewest > settings_.balance_abs && most > settings_.balance_rel * fewest) {
      return least;
    }
    // Finds the last instance that was sent the longest prefix.
    std::int64_t longest = 0;
    std::int64_t sent = 0;
    InstanceId holder;
    tree_->index().walk<Match>(
        request.blocks,
        [](Match& match, const BlockIndex::Holder* of_block) {
          if (of_block != nullptr) {
            ++match.blocks;
            match.last = *of_block;
          }
          return of_block != nullptr;
        },
        [&](InstanceId instance, const Match& match) {
          const std::int64_t at = tree_->touched(match.last).ns;
          if (std::tie(match.blocks, at) > std::tie(longest, sent) &&
              std::ranges::binary_search(view.candidates, instance)) {
            std::tie(longest, sent, holder) = std::tuple(match.blocks, at, instance);
          }
        });
    if (!holder.valid()) {
      return least;
    }
    // A look-up is a use of the matched blocks.
    note(holder, request.blocks.first(static_cast<std::size_t>(longest)));
    const auto matched = static_cast<double>((facts_.block_tokens * longest).value);
    const auto prompt = static_cast<double>(request.prompt.value);
    return matched > settings_.cache_threshold * prompt ? holder : least;
  }

  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    requests_->add(request.id, instance, {});
    note(instance, request.blocks);
    if (settings_.eviction_interval > SimDuration(0) &&
        now - evicted_ >= settings_.eviction_interval) {
      evicted_ = now;
      const std::int64_t blocks = settings_.tree_tokens / facts_.block_tokens;
      for (std::uint32_t i = 0; i < facts_.instances; ++i) {
        tree_->trim(InstanceId{i}, blocks);
      }
    }
  }
  void on_finished(std::uint64_t request, InstanceId instance, SimTime) override {
    requests_->remove(request, instance);
  }
  void check_invariants(std::int64_t requests_in_flight) const override {
    requests_->check(requests_in_flight);
  }

 private:
  struct Match {
    std::int64_t blocks = 0;
    BlockIndex::Holder last;
  };
  struct Nothing {};

  /// Touches the last block first, so that no block is forgotten before those behind it.
  void note(InstanceId instance, std::span<const BlockHash> blocks) {
    ++noted_;
    for (std::size_t i = blocks.size(); i-- > 0;) {
      tree_->touch(instance, blocks[i], SimTime(noted_));
    }
  }

  SglangSettings settings_;
  RoutingFacts facts_;
  std::optional<SentBlocks> tree_;
  std::optional<SentRequests<Nothing>> requests_;
  /// Replaces the time in the tree, because two requests may come at once.
  std::int64_t noted_ = 0;
  SimTime evicted_;
};

}  // namespace

PolicyKind<RoutingPolicy> sglang_cache_aware_routing() {
  return {
      .name = "sglang_cache_aware",
      .summary = "the longest prefix sent before while loads are even, else the fewest requests",
      .source =
          "SGLang's gateway (cache_aware), July 2026; over blocks of tokens instead of "
          "characters",
      .knowledge = Knowledge::online,
      .parameters = {{.name = kCacheThreshold,
                      .documentation = "share of the prompt that a match has to exceed",
                      .unit = "of the prompt",
                      .minimum = 0,
                      .maximum = 1,
                      .default_value = kDefaultCacheThreshold},
                     {.name = kBalanceAbs,
                      .documentation = "loads are uneven if they differ by more",
                      .unit = "requests",
                      .minimum = 0,
                      .maximum = 1e9,
                      .default_value = kDefaultBalanceAbs},
                     {.name = kBalanceRel,
                      .documentation = "and if the most is more than this factor times the fewest",
                      .unit = "times",
                      .minimum = 0,
                      .maximum = 1e9,
                      .default_value = kDefaultBalanceRel},
                     {.name = kEvictionInterval,
                      .documentation = "time between evictions from the tree; 0 for none",
                      .unit = "seconds",
                      .minimum = 0,
                      .maximum = 1e9,
                      .default_value = kDefaultEvictionInterval},
                     {.name = kTreeTokens,
                      .documentation = "tokens that the tree keeps of an instance",
                      .unit = "tokens",
                      .minimum = 1,
                      .maximum = 1e15,
                      .default_value = kDefaultTreeTokens}},
      .make = [](const PolicyParameters& given) -> std::unique_ptr<RoutingPolicy> {
        SglangSettings settings;
        settings.cache_threshold = parameter_or(given, kCacheThreshold, kDefaultCacheThreshold);
        settings.balance_abs = parameter_or(given, kBalanceAbs, kDefaultBalanceAbs);
        settings.balance_rel = parameter_or(given, kBalanceRel, kDefaultBalanceRel);
        settings.eviction_interval = SimDuration(static_cast<std::int64_t>(
            parameter_or(given, kEvictionInterval, kDefaultEvictionInterval) * 1e9));
        settings.tree_tokens =
            Tokens(static_cast<std::int64_t>(parameter_or(given, kTreeTokens, kDefaultTreeTokens)));
        return std::make_unique<SglangCacheAwareRouting>(settings);
      }};
}

}  // namespace kvtier
