// llm-d's endpoint picker: several scorers give each instance a score from 0 to 1. It chooses the
// highest weighted sum, ties at random. The weights are those of its chart: 2 for the waiting
// queue, 2 for free KV blocks, 3 for the cached prefix; the load-aware and no-hit-lru scorers are
// off. The approximate prefix index records sent prompts in blocks of at least 64 tokens, and does
// not know of evictions. It counts the prompt's blocks that an instance has, consecutive or not, up
// to the first block that no instance has. The precise index (`precise`) follows events and counts
// consecutive blocks, weighted by medium. llm-d-router and llm-d-kv-cache, August 2026. O(b h + n)
// per request of b blocks with h holders each among n instances.
#include "policies/routing/llm_d.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "policies/routing/coarse_blocks.hpp"
#include "sim/policy/cheapest_instances.hpp"
#include "sim/policy/parameters.hpp"
#include "sim/policy/sent_blocks.hpp"
#include "sim/policy/stored_blocks.hpp"

namespace kvtier {

double llm_d_queue_score(std::int64_t waiting, std::int64_t fewest, std::int64_t most) {
  return most == fewest ? 1.0
                        : static_cast<double>(most - waiting) / static_cast<double>(most - fewest);
}

double llm_d_kv_score(const InstanceLoad& load) {
  return load.kv_blocks_capacity <= 0 ? 1.0
                                      : 1.0 - static_cast<double>(load.kv_blocks) /
                                                  static_cast<double>(load.kv_blocks_capacity);
}

double llm_d_prefix_score(double matched, std::int64_t blocks, Tokens block_tokens,
                          double length_weight, double length_scale) {
  if (blocks == 0) {
    return 0;
  }
  const double ratio = std::min(1.0, matched / static_cast<double>(blocks));
  const double length =
      std::min(1.0, matched * static_cast<double>(block_tokens.value) / length_scale);
  return length_weight * length * length + (1 - length_weight) * ratio;
}

double llm_d_load_score(std::int64_t waiting, double threshold) {
  return 0.5 * (1 - std::min(static_cast<double>(waiting), threshold) / threshold);
}

std::vector<double> llm_d_cold_scores(std::span<const InstanceId> candidates,
                                      std::span<const InstanceId> used) {
  if (candidates.size() == 1) {
    return {1.0};
  }
  const auto last = static_cast<double>(candidates.size() - 1);
  std::vector<double> scores(candidates.size());
  // Unused instances come first, in their order.
  double unused = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (std::ranges::find(used, candidates[i]) == used.end()) {
      scores[i] = 1 - unused / last;
      ++unused;
    }
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto found = std::ranges::find(used, candidates[i]);
    if (found != used.end()) {
      scores[i] = std::max(0.0, 1 - (unused + static_cast<double>(found - used.begin())) / last);
    }
  }
  return scores;
}

namespace {

/// The parameters in the order of their declaration.
struct LlmDSettings {
  double queue_weight = 2;
  double kv_weight = 2;
  double prefix_weight = 3;
  double load_weight = 0;
  double no_hit_lru_weight = 0;
  double load_threshold = 128;
  double length_weight = 0;
  double length_scale = 8'192;
  double precise = 0;
  double block_tokens = 64;
  double prefix_tokens = 131'072;
  double lru_blocks = 31'250;
  double auto_tune = 1;
  double index_blocks = 1e8;
  double index_instances = 10;
  double gpu_weight = 1;
  double host_weight = 0.8;
  double disk_weight = 1;
};

struct LlmDParameter {
  const char* name;
  double LlmDSettings::*value;
  const char* documentation;
  const char* unit;
  double minimum;
  double maximum;
};

constexpr std::array kLlmDParameters{
    LlmDParameter{"queue_weight", &LlmDSettings::queue_weight,
                  "weight of the score by waiting requests", "of the sum", 0, 1e6},
    LlmDParameter{"kv_weight", &LlmDSettings::kv_weight, "weight of the score by free KV blocks",
                  "of the sum", 0, 1e6},
    LlmDParameter{"prefix_weight", &LlmDSettings::prefix_weight,
                  "weight of the score by the cached prefix", "of the sum", 0, 1e6},
    LlmDParameter{"load_weight", &LlmDSettings::load_weight, "weight of the load-aware score",
                  "of the sum", 0, 1e6},
    LlmDParameter{"no_hit_lru_weight", &LlmDSettings::no_hit_lru_weight,
                  "weight of the no-hit-lru score", "of the sum", 0, 1e6},
    LlmDParameter{"load_threshold", &LlmDSettings::load_threshold,
                  "waiting requests with which the load-aware score is 0", "requests", 1, 1e9},
    LlmDParameter{"length_weight", &LlmDSettings::length_weight,
                  "share of the match's length in the prefix score", "of the score", 0, 1},
    LlmDParameter{"length_scale", &LlmDSettings::length_scale, "length of a match that scores 1",
                  "tokens", 1, 1e9},
    LlmDParameter{"precise", &LlmDSettings::precise,
                  "1: the prefix index follows events; 0: it records sent prompts", "switch", 0, 1},
    LlmDParameter{"block_tokens", &LlmDSettings::block_tokens,
                  "least size of the approximate index's blocks", "tokens", 1, 1e6},
    LlmDParameter{"prefix_tokens", &LlmDSettings::prefix_tokens,
                  "tokens of a prompt that the approximate index looks at", "tokens", 1, 1e9},
    LlmDParameter{"lru_blocks", &LlmDSettings::lru_blocks,
                  "blocks of an instance in the approximate index", "blocks", 1, 1e9},
    LlmDParameter{"auto_tune", &LlmDSettings::auto_tune,
                  "1: as many blocks as the instance reports for its GPU instead", "switch", 0, 1},
    LlmDParameter{"index_blocks", &LlmDSettings::index_blocks, "blocks in the precise index",
                  "blocks", 1, 1e12},
    LlmDParameter{"index_instances", &LlmDSettings::index_instances,
                  "instances of a block in the precise index", "instances", 1, 1e5},
    LlmDParameter{"gpu_weight", &LlmDSettings::gpu_weight,
                  "weight of a block on the GPU in the precise index", "of a block", 0, 1},
    LlmDParameter{"host_weight", &LlmDSettings::host_weight, "weight of a block in host memory",
                  "of a block", 0, 1},
    LlmDParameter{"disk_weight", &LlmDSettings::disk_weight, "weight of a block on disk",
                  "of a block", 0, 1}};

class LlmDRouting final : public RoutingPolicy {
 public:
  explicit LlmDRouting(const LlmDSettings& settings)
      : settings_(settings),
        precise_(settings.precise >= 0.5),
        stored_({.blocks = static_cast<std::int64_t>(settings.index_blocks),
                 .holders = static_cast<std::int64_t>(settings.index_instances)}) {
    const std::array by_medium{settings.gpu_weight, settings.host_weight, settings.disk_weight};
    for (std::size_t media = 1; media < media_weights_.size(); ++media) {
      for (int medium = 0; medium < kBlockMedia; ++medium) {
        if ((media & media_bit(static_cast<BlockMedium>(medium))) != 0) {
          media_weights_[media] =
              std::max(media_weights_[media], by_medium[static_cast<std::size_t>(medium)]);
        }
      }
    }
  }

  [[nodiscard]] RoutingNeeds needs() const override {
    return {.blocks = true, .block_events = precise_, .instances_max = BlockIndex::kInstancesMax};
  }
  void on_start(const RoutingFacts& facts) override {
    block_tokens_ = facts.block_tokens;
    blocks_ =
        CoarseBlocks(facts.block_tokens,
                     Tokens(precise_ ? 1 : static_cast<std::int64_t>(settings_.block_tokens)));
    sent_.emplace(facts.instances);
    matched_.assign(static_cast<std::size_t>(facts.instances), 0);
    capacities_.assign(static_cast<std::size_t>(facts.instances), 0);
  }
  void on_lost(InstanceId instance, SimTime) override {
    stored_.lose(instance);
    sent_->lose(instance);
    std::erase(used_, instance);
  }
  void on_blocks_stored(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                        SimTime) override {
    stored_.store(instance, medium, blocks);
  }
  void on_blocks_removed(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                         SimTime) override {
    stored_.remove(instance, medium, blocks);
  }

  InstanceId choose(const RoutedRequest& request, const RoutingView& view) override {
    const std::span<const BlockHash> blocks = blocks_of(request);
    match(blocks);
    const auto waiting = [&](InstanceId instance) { return view.load(instance).waiting; };
    const std::int64_t fewest = waiting(*std::ranges::min_element(view.candidates, {}, waiting));
    const std::int64_t most = waiting(*std::ranges::max_element(view.candidates, {}, waiting));
    std::vector<double> cold(view.candidates.size(), 0.5);
    chosen_for_ = request.id;
    is_cold_ = std::ranges::all_of(
        view.candidates, [&](InstanceId instance) { return matched_[instance.value] <= 0; });
    if (is_cold_ && settings_.no_hit_lru_weight > 0) {
      cold = llm_d_cold_scores(view.candidates, used_);
    }
    CheapestInstances<double> best;
    for (std::size_t i = 0; i < view.candidates.size(); ++i) {
      const InstanceId instance = view.candidates[i];
      const InstanceLoad& load = view.load(instance);
      if (settings_.auto_tune >= 0.5) {
        capacities_[instance.value] = own_blocks(load.kv_blocks_capacity);
      }
      const double score =
          settings_.queue_weight * llm_d_queue_score(load.waiting, fewest, most) +
          settings_.kv_weight * llm_d_kv_score(load) +
          settings_.prefix_weight * llm_d_prefix_score(matched_[instance.value], std::ssize(blocks),
                                                       blocks_.tokens(), settings_.length_weight,
                                                       settings_.length_scale) +
          settings_.load_weight * llm_d_load_score(load.waiting, settings_.load_threshold) +
          settings_.no_hit_lru_weight * cold[i];
      best.offer(instance, -score);
    }
    return best.any(*view.random);
  }

  void on_dispatched(const RoutedRequest& request, InstanceId instance, SimTime now) override {
    // is_cold_ is known only for the last scored request.
    if (is_cold_ && chosen_for_ == request.id && settings_.no_hit_lru_weight > 0) {
      std::erase(used_, instance);
      used_.push_back(instance);
    }
    if (precise_) {
      return;
    }
    for (const BlockHash block : blocks_of(request)) {
      sent_->touch(instance, block, now);
    }
    const std::int64_t reported = capacities_[instance.value];
    sent_->trim(instance,
                reported > 0 ? reported : static_cast<std::int64_t>(settings_.lru_blocks));
  }

 private:
  [[nodiscard]] std::span<const BlockHash> blocks_of(const RoutedRequest& request) {
    if (precise_) {
      return request.blocks;
    }
    return blocks_.of(request,
                      static_cast<std::int64_t>(settings_.prefix_tokens) / blocks_.tokens().value);
  }

  /// Number of blocks of the approximate index for `reported` blocks of an instance: at least one,
  /// and 0 for 0.
  [[nodiscard]] std::int64_t own_blocks(std::int64_t reported) const {
    return reported <= 0
               ? 0
               : std::max<std::int64_t>(1, reported * block_tokens_.value / blocks_.tokens().value);
  }

  /// Sets matched_ to the blocks that each instance has, weighted if the index is precise.
  void match(std::span<const BlockHash> blocks) {
    std::ranges::fill(matched_, 0);
    if (!precise_) {
      for (const BlockHash block : blocks) {
        const std::span<const BlockIndex::Holder> holders = sent_->index().holders(block);
        if (holders.empty()) {
          return;
        }
        for (const BlockIndex::Holder& holder : holders) {
          ++matched_[holder.instance];
        }
      }
      return;
    }
    stored_.look_up(blocks);
    double in_pool = 0;
    stored_.index().walk<double>(
        blocks,
        [this](double& score, const BlockIndex::Holder* holder) {
          score += holder != nullptr ? media_weights_[holder->media] : 0;
          return holder != nullptr;
        },
        [&](InstanceId instance, double score) {
          (instance.valid() ? matched_[instance.value] : in_pool) = score;
        });
    for (double& score : matched_) {
      score = std::max(score, in_pool);
    }
  }

  LlmDSettings settings_;
  bool precise_;
  /// Tokens of an instance's block.
  Tokens block_tokens_;
  CoarseBlocks blocks_;
  StoredBlocks stored_;
  std::optional<SentBlocks> sent_;
  std::array<double, 1U << kBlockMedia> media_weights_{};
  std::vector<double> matched_;
  /// Reported capacity in blocks of the approximate index; 0 if not reported.
  std::vector<std::int64_t> capacities_;
  /// The last scored request, and whether no candidate had any of its blocks.
  std::uint64_t chosen_for_ = 0;
  bool is_cold_ = false;
  /// Instances that were sent cold requests, the least recent first.
  std::vector<InstanceId> used_;
};

}  // namespace

PolicyKind<RoutingPolicy> llm_d_routing() {
  std::vector<PolicyParameter> parameters;
  for (const LlmDParameter& parameter : kLlmDParameters) {
    parameters.push_back({.name = parameter.name,
                          .documentation = parameter.documentation,
                          .unit = parameter.unit,
                          .minimum = parameter.minimum,
                          .maximum = parameter.maximum,
                          .default_value = LlmDSettings().*parameter.value});
  }
  return {.name = "llm_d",
          .summary =
              "the highest weighted sum of scores: waiting queue, free KV blocks, cached "
              "prefix",
          .source = "llm-d-router and llm-d-kv-cache, August 2026",
          .knowledge = Knowledge::online,
          .parameters = std::move(parameters),
          .make = [](const PolicyParameters& given) -> std::unique_ptr<RoutingPolicy> {
            LlmDSettings settings;
            for (const LlmDParameter& parameter : kLlmDParameters) {
              settings.*parameter.value =
                  parameter_or(given, parameter.name, settings.*parameter.value);
            }
            return std::make_unique<LlmDRouting>(settings);
          }};
}

}  // namespace kvtier
