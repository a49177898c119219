#include "sim/replay/block_replay.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/replay/accesses.hpp"
#include "sim/serving/block_decisions.hpp"
#include "sim/serving/cluster_router.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/result.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/curves/belady.hpp"
#include "sim/store/curves/unlimited_cache.hpp"
#include "sim/store/untimed_steps.hpp"

namespace kvtier {
namespace {

bool replay_keeps_kv_behind_cuts(const RunConfig& config, SessionSource& source) {
  return keeps_kv_behind_cuts(config, source) && !is_cluster(config) &&
         config.serving.hold_requests == 0;
}

std::vector<std::unique_ptr<Store>> stores_of(const StoreRules& rules, const Streams& streams,
                                              const PolicyRegistry& registry, bool plain,
                                              std::size_t instances) {
  return plain ? make_reference_stores(rules, streams, registry, instances)
               : make_stores(rules, streams, registry, instances);
}

BlockMedium routed_medium(const std::string& tier) {
  return tier == "hbm" ? BlockMedium::gpu : tier == "ssd" ? BlockMedium::disk : BlockMedium::host;
}

Tokens whole_blocks(Tokens tokens, Tokens block) {
  return block * ((tokens.value + block.value - 1) / block.value);
}

class BlockReplay {
 public:
  BlockReplay(const RunConfig& config, SessionSource& source, const PolicyRegistry& registry,
              bool plain)
      : system_(config.system),
        rules_(store_rules(config)),
        block_(rules_.pools.front().block),
        is_tree_(rules_.pools.front().unit == EvictionUnit::node),
        partial_blocks_(config.system.blocks->partial_blocks),
        responses_(config.system.blocks->responses),
        chunk_(config.system.blocks->chunk),
        serving_(config.serving),
        hold_(config.serving.hold_requests),
        keeps_kv_behind_cuts_(replay_keeps_kv_behind_cuts(config, source)),
        fitter_(config),
        accesses_(source, &fitter_, true, keeps_kv_behind_cuts_),
        of_classes_(config.workload.mix.size()) {
    for (const MixMember& member : config.workload.mix) {
      classes_.push_back(member.name);
    }
    for (auto& store : stores_of(rules_, accesses_.streams(), registry, plain,
                                 static_cast<std::size_t>(config.cluster.instances))) {
      instances_.push_back(std::make_unique<InstanceReplay>(std::move(store)));
    }
    if (is_cluster(config)) {
      begin_routing(config, registry);
    }
    enter(0);
    if (partial_blocks_ && !accesses_.named()) {
      throw ConfigError(
          "/system/blocks/partial_blocks: expected false: only a trace that names its blocks tells "
          "equal partial blocks");
    }
    if (accesses_.named()) {
      without_limit_.emplace(accesses_.streams(),
                             config.system.blocks->partial_reuse ? Tokens(1) : block_);
    }
  }

  /// Only of one instance.
  void set_decisions(DecisionObserver& observer) {
    decisions_.emplace(rules_, accesses_.streams(), observer, [this] { return accesses_.now(); });
    const bool tells = store_->set_log(&*decisions_);
    KVTIER_ASSERT(tells, "the options were checked");
  }
  [[nodiscard]] Accesses& accesses() { return accesses_; }

  /// Replays the current turn, and returns what it found.
  RequestRecord turn(bool measured) {
    const TurnContent& content = accesses_.content();
    Context prompt = content.prompt;
    std::uint64_t routed = 0;
    if (router_) {
      router_->set_now(accesses_.now());
      enter(router_
                ->route({.session = static_cast<std::uint64_t>(accesses_.session().identity()),
                         .priority = accesses_.session().priority,
                         .prompt = prompt.tokens,
                         .context = prompt},
                        routed)
                .value);
    }
    store_->advance(accesses_.now());
    if (keeps_kv_behind_cuts_ && accesses_.cut().value > 0) {
      cut_history();
    }
    if (partial_blocks_) {
      prompt.tokens = whole_blocks(prompt.tokens, block_);
    }
    if (without_limit_) {
      look_up_without_limit(prompt, measured);
    }
    Room room{.taken = prompt.tokens, .needed = prompt.tokens};
    Tokens fetched;
    // Requests of nodes fetch by themselves; a prefetch policy has no queue here.
    if (const auto prefetch = is_tree_ ? store_->prefetch(prompt) : std::nullopt) {
      fetched = store_->prefetched(prefetch->id, prefetch->tokens);
    }
    Match match = store_->match(prompt);
    if (is_tree_) {
      // Each step makes a node and asks for its own room.
      const Tokens behind = match.by_pool.size() > 1 ? match.by_pool[1] : Tokens(0);
      room = {.taken = match.by_pool[0],
              .needed = step_end(match.by_pool[0] + behind, prompt.tokens)};
    }
    if (std::ssize(*held_) == hold_ && hold_ > 0) {
      end_oldest();
    }
    auto request = store_->acquire(prompt, room, match);
    while (!request && make_way()) {
      request = store_->acquire(prompt, room, match);
    }
    if (!request) {
      throw_no_room(room.needed);
    }
    if (is_tree_) {
      grow(*request, {prompt.stream, step_end(match.tokens, prompt.tokens)});
    }
    steps_->begin(*request);
    compute(*request, match.tokens, prompt.tokens);
    match.count_fetched(fetched);
    if (responses_ && content.whole.tokens > prompt.tokens) {
      grow(*request, content.whole);
      respond(*request, prompt.tokens, content.whole.tokens);
    }
    held_->emplace_back(*request, responses_ ? content.whole.tokens : prompt.tokens);
    if (hold_ == 0) {
      end_oldest();
    }
    accesses_.close_ended([this](StreamId stream) {
      return std::any_of(instances_.begin(), instances_.end(),
                         [&](const auto& one) { return one->store->remembers(stream); });
    });
    if (router_) {
      router_->first_token(routed, InstanceId{static_cast<std::uint32_t>(instance_)});
      router_->finished(routed, InstanceId{static_cast<std::uint32_t>(instance_)});
    }
    // The hash of a partial block tells that no token follows in it.
    Tokens beyond = prompt.tokens - content.prompt.tokens;
    for (std::size_t i = match.by_pool.size(); i-- > 0 && match.tokens == prompt.tokens;) {
      const Tokens less = std::min(beyond, match.by_pool[i]);
      match.by_pool[i] -= less;
      beyond -= less;
    }
    const RequestRecord record = record_of(match, measured);
    if (measured) {
      hits_.add(record, partial_blocks_);
      if (router_) {
        instances_[instance_]->hits.add(record, partial_blocks_);
      }
      if (!of_classes_.empty()) {
        of_classes_[static_cast<std::size_t>(accesses_.session().workload_class)].add(
            record, partial_blocks_);
      }
    }
    return record;
  }

  [[nodiscard]] Json metrics() const {
    Json json = hits_report(hits_, system_, without_limit_ ? std::optional(ideal_) : std::nullopt);
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      json["classes"][classes_[i]] = hits_report(of_classes_[i], system_, {});
    }
    for (std::size_t i = 0; i < rules_.pools.size(); ++i) {
      PoolCounters counters;
      std::int64_t resident = 0;
      for (const auto& one : instances_) {
        const PoolCounters own = one->store->counters(i);
        counters.inserted += own.inserted;
        counters.evicted += own.evicted;
        counters.demoted += own.demoted;
        counters.skipped += own.skipped;
        resident += one->store->resident_blocks(i);
      }
      const PoolRules& pool = rules_.pools[i];
      json["tiers"][pool.name] = {{"block_tokens", pool.block.value},
                                  {"capacity_blocks", pool.capacity * std::ssize(instances_)},
                                  {"resident_blocks", resident},
                                  {"inserted_blocks", counters.inserted},
                                  {"evicted_blocks", counters.evicted},
                                  {"demoted_blocks", counters.demoted},
                                  {"skipped_blocks", counters.skipped}};
    }
    for (std::size_t i = 0; router_ && i < instances_.size(); ++i) {
      Json of_instance = hits_report(instances_[i]->hits, system_, {});
      of_instance["instance"] = i;
      json["instances"].push_back(std::move(of_instance));
    }
    return json;
  }
  void check_invariants() const {
    for (const auto& one : instances_) {
      one->store->check_invariants();
    }
    if (router_) {
      router_->check_invariants(0);
    }
  }
  [[nodiscard]] std::int64_t turns() const { return hits_.turns; }

 private:
  /// The store of one instance, and its hits.
  struct InstanceReplay {
    std::unique_ptr<Store> store;
    UntimedSteps steps;
    /// Requests that hold memory, with their tokens of KV.
    std::deque<std::pair<RequestId, Tokens>> held;
    HitCounts hits;

    explicit InstanceReplay(std::unique_ptr<Store> own) : store(std::move(own)), steps(*store) {}
  };

  void cut_history() {
    const TurnContent& content = accesses_.content();
    const Turn& turn = accesses_.session().turns[accesses_.turn()];
    RequestRecord record{.history = content.prompt.tokens - turn.user};
    record.truncated = accesses_.cut();
    record.shared = accesses_.session().shared_prompt.tokens;
    const Truncation cut = truncation_of(record, serving_);
    store_->cut(content.prompt.stream, cut.kept, cut.dropped);
  }
  void look_up_without_limit(const Context& prompt, bool measured) {
    const TurnContent& content = accesses_.content();
    const Tokens found =
        without_limit_->serve(prompt, accesses_.response_is_known() ? content.whole : Context{});
    if (measured) {
      ideal_.add(content.prompt.tokens, {std::min(found, content.prompt.tokens)}, block_,
                 partial_blocks_);
    }
  }
  [[nodiscard]] RequestRecord record_of(const Match& match, bool measured) {
    const Turn& turn = accesses_.session().turns[accesses_.turn()];
    const SimTime now = accesses_.now();
    RequestRecord record{.session = accesses_.session().id,
                         .turn = static_cast<std::int64_t>(accesses_.turn()),
                         .arrived = now,
                         .history = accesses_.content().prompt.tokens - turn.user,
                         .input = turn.user,
                         .output = turn.assistant,
                         .truncated = accesses_.cut(),
                         .admitted = now,
                         .first_token = now,
                         .finished = now,
                         .instance = static_cast<std::uint32_t>(instance_),
                         .block = static_cast<std::int32_t>(block_.value),
                         .measured = measured};
    std::array<Tokens, kMedia> found{};
    for (std::size_t i = 0; i < match.by_pool.size(); ++i) {
      found[static_cast<std::size_t>(medium_of(rules_.pools[i].name))] = match.by_pool[i];
    }
    record.set_found_of_prompt(found, cause_of_missing(record, keeps_kv_behind_cuts_));
    return record;
  }
  void begin_routing(const RunConfig& config, const PolicyRegistry& registry) {
    router_.emplace(ClusterRouter::Setup{
        .config = &config, .registry = &registry, .streams = &accesses_.streams()});
    std::vector<BlockMedium> media;
    for (const PoolRules& pool : rules_.pools) {
      media.push_back(routed_medium(pool.name));
    }
    router_->set_media(std::move(media));
    for (std::size_t i = 0; router_->wants_block_events() && i < instances_.size(); ++i) {
      const bool tells = instances_[i]->store->set_listener(
          &router_->listener(InstanceId{static_cast<std::uint32_t>(i)}));
      KVTIER_ASSERT(tells, "the config was checked");
    }
  }
  /// Selects the instance of the current turn.
  void enter(std::size_t instance) {
    instance_ = instance;
    store_ = instances_[instance]->store.get();
    steps_ = &instances_[instance]->steps;
    held_ = &instances_[instance]->held;
  }
  /// Frees memory: ends copies that hold nodes, or else the oldest request. False if there is
  /// neither.
  [[nodiscard]] bool make_way() {
    if (is_tree_ && finish_copies(*store_)) {
      return true;
    }
    if (held_->empty()) {
      return false;
    }
    end_oldest();
    return true;
  }
  /// Ends the oldest request and frees its memory.
  void end_oldest() {
    const auto [request, tokens] = held_->front();
    held_->pop_front();
    store_->release(request);
    steps_->end(request, tokens);
  }
  /// End of the step that begins here. All but the last step end at a block.
  [[nodiscard]] Tokens step_end(Tokens begin, Tokens prompt) const {
    const Tokens end = begin + chunk_.value_or(prompt);
    return end >= prompt ? prompt
                         : std::max(begin + Tokens(1), block_ * (end.value / block_.value));
  }
  void compute(RequestId request, Tokens found, Tokens prompt) {
    const StreamId stream = accesses_.content().prompt.stream;
    Tokens end = step_end(found, prompt);
    steps_->compute(request, end);
    while (end < prompt) {
      end = step_end(end, prompt);
      if (is_tree_) {
        grow(request, {stream, end});
      }
      steps_->compute(request, end);
    }
  }
  void grow(RequestId request, const Context& context) {
    while (!store_->grow(request, context)) {
      if (!make_way()) {
        throw_no_room(context.tokens);
      }
    }
  }
  /// Computes a response, one token per step. Only steps that fill a block matter to an offload, if
  /// it takes responses.
  void respond(RequestId request, Tokens prompt, Tokens whole) {
    if (store_->offloads() && rules_.edges.front().responses == Responses::computed) {
      const Tokens block = rules_.pools[1].block;
      for (Tokens end = block * (prompt.value / block.value + 1); end < whole; end += block) {
        steps_->compute(request, end);
        steps_->compute(request, std::min(end + Tokens(1), whole));
      }
    }
    steps_->compute(request, whole);
  }
  [[noreturn]] void throw_no_room(Tokens tokens) {
    throw ConfigError(fmt::format(
        "/system/tiers/{}: expected room for each turn by itself, got {} blocks of {} tokens, but "
        "turn {} of session {} takes {} tokens",
        rules_.pools.front().name, rules_.pools.front().capacity, block_.value, accesses_.turn(),
        accesses_.session().id, tokens.value));
  }

  const SystemConfig& system_;
  StoreRules rules_;
  Tokens block_;
  bool is_tree_;
  bool partial_blocks_;
  bool responses_;
  std::optional<Tokens> chunk_;
  const ServingConfig& serving_;
  /// Number of requests that may hold memory; 0: a request ends at once.
  std::int64_t hold_;
  bool keeps_kv_behind_cuts_;
  TurnFitter fitter_;
  Accesses accesses_;
  std::optional<BlockDecisions> decisions_;
  std::vector<std::unique_ptr<InstanceReplay>> instances_;
  /// Set for clusters.
  std::optional<ClusterRouter> router_;
  std::size_t instance_ = 0;
  /// Members of the selected instance.
  Store* store_ = nullptr;
  UntimedSteps* steps_ = nullptr;
  std::deque<std::pair<RequestId, Tokens>>* held_ = nullptr;
  /// Hits of the measured turns.
  HitCounts hits_;
  /// Set for a source that names its tokens: what the same requests find in a cache without limit.
  std::optional<UnlimitedCache> without_limit_;
  BlockHits ideal_;
  /// Hits by class of a mix of workloads.
  std::vector<HitCounts> of_classes_;
  std::vector<std::string> classes_;
};

}  // namespace

Json replay_blocks(const RunConfig& config, SessionSource& source, const PolicyRegistry& registry,
                   const RunOptions& options) {
  BlockReplay replay(config, source, registry, options.stepping == DecodeStepping::per_iteration);
  if (options.decisions != nullptr) {
    replay.set_decisions(*options.decisions);
  }
  Accesses& accesses = replay.accesses();
  std::int64_t turns = 0;
  while (accesses.next()) {
    const bool measured = turns++ >= config.workload.warmup_turns;
    const RequestRecord record = replay.turn(measured);
    if (options.observer != nullptr) {
      options.observer->on_request(record);
    }
    if (options.progress && turns % 8192 == 0) {
      options.progress(turns);
    }
  }
  replay.check_invariants();
  if (replay.turns() == 0) {
    throw ConfigError(
        fmt::format("/workload/warmup_turns: expected less than the workload's {} turns, got {}",
                    turns, config.workload.warmup_turns));
  }
  Json result = new_result("kvtier.untimed/1");
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, accesses.statistics());
  result["metrics"] = replay.metrics();
  return result;
}

Json bound_of_blocks(const RunConfig& config, SessionSource& source, const Json& result) {
  const StoreRules rules = store_rules(config);
  const Tokens block = rules.pools.front().block;
  const TurnFitter fitter(config);
  // A cut that keeps KV finds no more than the same number of tokens without it.
  Accesses accesses(source, &fitter, false, replay_keeps_kv_behind_cuts(config, source));
  Belady belady(accesses.streams(), block);
  // A tier of nodes has none of its own, nor one of what leaves HBM.
  const bool has_own_cap = rules.requests_in_first && rules.pools.size() > 1 &&
                           rules.pools.front().unit != EvictionUnit::node &&
                           !has_victims_behind(rules);
  const bool finds_last =
      rules.hit_cap == HitCap::none || (has_own_cap && rules.hit_cap_behind == HitCap::none);
  std::int64_t longest = 0;
  for (std::int64_t turns = 0; accesses.next(); ++turns) {
    Context prompt = accesses.content().prompt;
    Context stored = config.system.blocks->responses ? accesses.content().whole : prompt;
    if (config.system.blocks->partial_blocks) {
      prompt.tokens = whole_blocks(prompt.tokens, block);
      stored = prompt;
    } else if (!finds_last) {
      prompt.tokens -= Tokens(1);
    }
    belady.add(prompt, stored, turns >= config.workload.warmup_turns);
    longest = std::max(longest, stored.tokens / block);
  }
  // No router finds more in the pools of several instances than in one global pool.
  std::int64_t capacity = 0;
  for (const PoolRules& pool : rules.pools) {
    if (&pool == &rules.pools.front() && rules.publication == Publication::never) {
      continue;
    }
    const std::int64_t pools = pool.shared ? 1 : config.cluster.instances;
    capacity += (pool.block * pool.capacity + block - Tokens(1)).value / block.value * pools;
  }
  if (!rules.requests_in_first) {
    // Requests that do not run in a pool hold beside the pools what comes there when they end.
    capacity += config.serving.hold_requests * config.cluster.instances * longest;
  }
  const std::int64_t hits = belady.hits(capacity);
  const Json& metrics = result["metrics"];
  return Json{{"name", "Belady"},
              {"hit_blocks", hits},
              {"hit_rate", {{"blocks", share(hits, metrics["prompt_blocks"])}}},
              {"share_reached", {{"blocks", share(metrics["hit_blocks"]["total"], hits)}}}};
}

}  // namespace kvtier
