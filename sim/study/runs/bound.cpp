#include "sim/study/runs/bound.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/replay/block_replay.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/study/runs/upper_bound.hpp"

namespace kvtier {
namespace {

/// Collects the intervals that a replay's accesses need in its tiers (upper_bound.hpp).
///
/// For a whole hit, the tiers must hold the needed prefix from one turn of the session to its next:
/// the history, and the tokens that the next turn cuts. For `n` tokens of the history they must
/// hold at least `n` tokens. A copy is charged its blocks, and all tiers together charge at most
/// the sum of their capacities.
///
/// If a copy of any length is charged a context window, no tier gains by a shorter copy: one tier
/// holds all that is found.
class Demands final : public RunObserver {
 public:
  explicit Demands(const RunConfig& config)
      : config_(config),
        whole_copies_(config.serving.kv_reservation == Reservation::context_window),
        bytes_per_token_(stored_kv_bytes_per_token(config)) {
    const StoreFacts facts = store_facts(config);
    for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
      const Medium medium = medium_of(name);
      capacities_.push_back(medium == Medium::hbm
                                ? facts.hbm.stored
                                : facts.capacity[static_cast<std::size_t>(medium)]);
      common_block_ = std::gcd(common_block_, tier.block_size.value);
      keeps_all_ = keeps_all_ && !tier.ttl && tier.free_buffer.value == 0;
    });
    common_block_ = std::max<std::int64_t>(1, common_block_);
  }

  void on_request(const RequestRecord& request) override {
    if (const auto last = last_.find(request.session); last != last_.end()) {
      need(request, last->second);
    }
    const Tokens stored = request.history + request.input + request.output;
    const Bytes bytes = charge(stored);
    one_size_ = one_size_ && (!size_ || *size_ == bytes);
    size_ = bytes;
    last_[request.session] = place_++;
    turns_ += request.measured ? 1 : 0;
    resumed_turns_ += request.measured && request.resumed() ? 1 : 0;
    history_tokens_ += request.measured ? request.history.value : 0;
    all_count_ = all_count_ && request.measured;
  }
  void on_session_end(EntryKey key, SimTime) override {
    last_.erase(static_cast<std::int64_t>(key.value));
  }

  /// Whether Belady's choice is the optimum: nothing is stored, or all entries have one size, and
  /// every entry that is needed again can be found and counts.
  [[nodiscard]] bool belady_is_optimum() const {
    return capacities_.empty() ||
           (capacities_.size() == 1 && one_size_ && all_count_ && keeps_all_ && all_can_hit_);
  }
  /// An upper bound of the turns whose whole history a policy finds.
  [[nodiscard]] std::int64_t most_turns() const {
    return most_value(turns_wanted_, capacity(one_size_));
  }
  /// An upper bound of the tokens that a policy finds.
  [[nodiscard]] std::int64_t most_tokens() const {
    return most_value(tokens_wanted_, capacity(whole_copies_ && one_size_));
  }
  [[nodiscard]] std::int64_t turns() const { return turns_; }
  [[nodiscard]] std::int64_t resumed_turns() const { return resumed_turns_; }
  [[nodiscard]] std::int64_t history_tokens() const { return history_tokens_; }

 private:
  /// The least charge of these tokens, in one tier or in several.
  [[nodiscard]] Bytes charge(Tokens tokens) const {
    if (whole_copies_) {
      return bytes_per_token_ * config_.model.context_window.value;
    }
    return bytes_per_token_ * ((tokens.value + common_block_ - 1) / common_block_ * common_block_);
  }

  void need(const RequestRecord& request, std::int64_t stored_at) {
    const Tokens needed = request.history;
    const bool is_cut = request.truncated.value > 0;
    const bool can_hit = needed.value > 0 && !capacities_.empty() &&
                         !(is_cut && config_.system.positions == KeyPositions::embedded);
    all_can_hit_ = all_can_hit_ && can_hit;
    if (!can_hit || !request.measured) {
      return;
    }
    const Truncation cut =
        is_cut ? truncation_of(request, config_.serving) : Truncation{Tokens(0), Tokens(0)};
    const Tokens prefix = needed <= cut.kept ? needed : needed + cut.dropped;
    const Bytes whole = charge(prefix);
    one_size_ = one_size_ && whole == *size_;
    if (whole <= largest_room()) {
      turns_wanted_.push_back({stored_at, place_, static_cast<double>(whole.value), 1});
    }
    // If first tokens are kept, a hit of the history needs only its own bytes.
    const Tokens least = cut.kept.value > 0 ? needed : prefix;
    const Bytes bytes = whole_copies_ ? whole : bytes_per_token_ * least.value;
    tokens_wanted_.push_back({stored_at, place_, static_cast<double>(bytes.value), needed.value});
  }

  [[nodiscard]] Bytes sum_of_capacities() const {
    return std::accumulate(capacities_.begin(), capacities_.end(), Bytes(0));
  }
  /// The most that a copy, or all parts of an entry, may be charged.
  [[nodiscard]] Bytes largest_room() const {
    return whole_copies_ ? *std::max_element(capacities_.begin(), capacities_.end())
                         : sum_of_capacities();
  }
  /// The capacity of all tiers. With `whole_entries`, only the part that entries of one size fill.
  [[nodiscard]] double capacity(bool whole_entries) const {
    const auto filled = [&](Bytes bytes) {
      return whole_entries && size_ ? *size_ * (bytes.value / size_->value) : bytes;
    };
    Bytes sum;
    for (const Bytes tier : capacities_) {
      sum += whole_copies_ ? filled(tier) : tier;
    }
    return static_cast<double>((whole_copies_ ? sum : filled(sum)).value);
  }

  const RunConfig& config_;
  /// A copy of any length is charged a context window; otherwise copies are charged what they hold.
  bool whole_copies_;
  Bytes bytes_per_token_;
  /// The greatest common divisor of the tiers' blocks, in tokens.
  std::int64_t common_block_ = 0;
  std::vector<Bytes> capacities_;
  /// Place of the last access of each session that has not ended.
  std::unordered_map<std::int64_t, std::int64_t> last_;
  std::int64_t place_ = 0;
  /// The last charge.
  std::optional<Bytes> size_;
  bool one_size_ = true;
  bool all_count_ = true;
  bool keeps_all_ = true;
  bool all_can_hit_ = true;
  std::vector<StoredInterval> turns_wanted_;
  std::vector<StoredInterval> tokens_wanted_;
  std::int64_t turns_ = 0;
  std::int64_t resumed_turns_ = 0;
  std::int64_t history_tokens_ = 0;
};

Json share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? Json() : Json(static_cast<double>(part) / static_cast<double>(whole));
}

/// The share of the maximum that was reached, by kind of hit rate.
template <class Most>
Json shares_reached(const Json& reached, const Most& most) {
  Json shares;
  for (const char* among : {"all_turns", "resumed_turns", "tokens"}) {
    const Json whole = most(among);
    shares[among] =
        !whole.is_number() || whole.template get<double>() == 0
            ? Json()
            : Json(reached[among]["total"].template get<double>() / whole.template get<double>());
  }
  return shares;
}

}  // namespace

Json bound_of(const RunConfig& config, const Json& result, const PolicyRegistry& registry,
              const RunOptions& options) {
  if (config.system.blocks) {
    const auto source =
        make_source(config.workload, static_cast<std::uint64_t>(config.seed), options.base_dir);
    return bound_of_blocks(config, *source, result);
  }
  if (config.system.sharing == Sharing::prompts) {
    throw ConfigError(
        "/system/sharing: expected \"none\": a bound needs the next use of stored KV, which is "
        "unknown for shared prompts");
  }
  const auto oracle =
      std::find_if(registry.eviction.begin(), registry.eviction.end(),
                   [](const auto& kind) { return kind.knowledge == Knowledge::oracle; });
  KVTIER_ASSERT(oracle != registry.eviction.end(), "the registry has an oracle");
  RunConfig best = config;
  const auto set = [&](auto& tier) {
    if (tier) {
      tier->eviction = {.name = oracle->name, .parameters = {}};
      tier->admission = {.name = kAlwaysAdmitted, .parameters = {}};
    }
  };
  set(best.system.tiers.hbm);
  set(best.system.tiers.dram);
  set(best.system.tiers.cxl);
  set(best.system.tiers.ssd);
  Demands demands(best);
  RunOptions silent = options;
  silent.observer = &demands;
  silent.decisions = nullptr;
  const Json greedy = simulate_untimed(best, registry, silent)["metrics"]["hit_rate"];
  const Json& reached = result["metrics"]["hit_rate"];
  const bool is_optimum = demands.belady_is_optimum();
  Json most;
  if (is_optimum) {
    most["all_turns"] = greedy["all_turns"]["total"];
    most["resumed_turns"] = greedy["resumed_turns"]["total"];
  } else {
    const std::int64_t turns = demands.most_turns();
    most["all_turns"] = share(turns, demands.turns());
    most["resumed_turns"] = share(turns, demands.resumed_turns());
  }
  most["tokens"] = share(demands.most_tokens(), demands.history_tokens());
  return {{"policy", oracle->name},
          {"name", is_optimum ? "Belady" : "Belady, greedy"},
          {"is_optimum", is_optimum},
          {"hit_rate", greedy},
          {"share_reached",
           shares_reached(reached, [&](const char* among) { return greedy[among]["total"]; })},
          {"upper_bound",
           {{"hit_rate", most}, {"share_reached", shares_reached(reached, [&](const char* among) {
                                   return most[among];
                                 })}}}};
}

Json untimed_bound(const RunConfig& config, const PolicyRegistry& registry,
                   const RunOptions& options) {
  if (config.system.sharing == Sharing::prompts || is_cluster(config) ||
      config.system.tiers.count() == 0) {
    return nullptr;
  }
  RunOptions silent = options;
  silent.observer = nullptr;
  silent.decisions = nullptr;
  const Json untimed = simulate_untimed(config, registry, silent);
  Json bound = bound_of(config, untimed, registry, silent);
  bound["untimed_hit_rate"] = untimed["metrics"]["hit_rate"];
  return bound;
}

}  // namespace kvtier
