#include "sim/replay/block_replay.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/engine/history.hpp"
#include "sim/engine/result.hpp"
#include "sim/engine/store_rules.hpp"
#include "sim/replay/accesses.hpp"
#include "sim/store/belady.hpp"
#include "sim/store/stores.hpp"

namespace kvtier {
namespace {

std::unique_ptr<Store> store_of(const StoreRules& rules, const Streams& streams,
                                const PolicyRegistry& registry, bool plain) {
  return plain ? make_reference_store(rules, streams, registry)
               : make_store(rules, streams, registry);
}

Tokens whole_blocks(Tokens tokens, Tokens block) {
  return block * ((tokens.value + block.value - 1) / block.value);
}

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Sums over measured turns.
struct Found {
  std::int64_t turns = 0;
  std::int64_t turns_with_hits = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t prompt_blocks = 0;
  /// By tier.
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> blocks;
};

class BlockReplay {
 public:
  BlockReplay(const RunConfig& config, SessionSource& source, const PolicyRegistry& registry,
              bool plain)
      : rules_(store_rules(config)),
        block_(rules_.pools.front().block),
        partial_blocks_(config.system.blocks->partial_blocks),
        responses_(config.system.blocks->responses),
        chunk_(config.system.blocks->chunk),
        fitter_(config),
        accesses_(source, &fitter_),
        store_(store_of(rules_, accesses_.streams(), registry, plain)) {
    if (partial_blocks_ && !accesses_.named()) {
      throw ConfigError(
          "/system/blocks/partial_blocks: expected false: only a trace that names its blocks says "
          "which partial ones are alike");
    }
    found_.tokens.resize(rules_.pools.size());
    found_.blocks.resize(rules_.pools.size());
  }

  [[nodiscard]] Accesses& accesses() { return accesses_; }

  /// Replays the turn at hand and returns what of its prompt each tier had.
  std::vector<Tokens> turn(bool measured) {
    const TurnContent& content = accesses_.content();
    Context prompt = content.prompt;
    store_->advance(accesses_.now());
    if (partial_blocks_) {
      prompt.tokens = whole_blocks(prompt.tokens, block_);
    }
    Match match = store_->match(prompt);
    // In a radix tree each step makes a node and asks for its own room.
    Tokens room = prompt.tokens;
    if (rules_.pools.front().unit == EvictionUnit::node) {
      room = step_end(match.tokens, prompt.tokens);
    }
    const auto request = store_->acquire(prompt, room, match);
    if (!request) {
      throw_no_room(room);
    }
    compute(*request, match.tokens, prompt.tokens);
    if (responses_ && content.whole.tokens > prompt.tokens) {
      if (!store_->grow(*request, content.whole)) {
        throw_no_room(content.whole.tokens);
      }
      store_->computed(*request, content.whole.tokens);
    }
    store_->release(*request);
    accesses_.close_ended(*store_);
    // A key of a partial block says that no token follows in it.
    Tokens beyond = prompt.tokens - content.prompt.tokens;
    for (std::size_t i = match.by_pool.size(); i-- > 0 && match.tokens == prompt.tokens;) {
      const Tokens less = std::min(beyond, match.by_pool[i]);
      match.by_pool[i] -= less;
      beyond -= less;
    }
    if (measured) {
      count(content.prompt.tokens, prompt.tokens, match);
    }
    return match.by_pool;
  }

  [[nodiscard]] Json metrics() const {
    Json json{{"turns", found_.turns},
              {"turns_with_hits", found_.turns_with_hits},
              {"prompt_tokens", found_.prompt_tokens},
              {"prompt_blocks", found_.prompt_blocks},
              {"hit_tokens", by_tier(found_.tokens, 0)},
              {"hit_blocks", by_tier(found_.blocks, 0)}};
    json["hit_rate"] = {{"turns", share(found_.turns_with_hits, found_.turns)},
                        {"tokens", by_tier(found_.tokens, found_.prompt_tokens)},
                        {"blocks", by_tier(found_.blocks, found_.prompt_blocks)}};
    for (std::size_t i = 0; i < rules_.pools.size(); ++i) {
      const PoolCounters counters = store_->counters(i);
      const PoolRules& pool = rules_.pools[i];
      json["tiers"][pool.name] = {{"block_tokens", pool.block.value},
                                  {"capacity_blocks", pool.capacity},
                                  {"resident_blocks", store_->resident_blocks(i)},
                                  {"inserted_blocks", counters.inserted},
                                  {"evicted_blocks", counters.evicted},
                                  {"demoted_blocks", counters.demoted},
                                  {"skipped_blocks", counters.skipped}};
    }
    return json;
  }
  [[nodiscard]] const Store& store() const { return *store_; }
  [[nodiscard]] std::int64_t turns() const { return found_.turns; }

 private:
  /// End of the step that begins here. All but the last step end at a block.
  [[nodiscard]] Tokens step_end(Tokens begin, Tokens prompt) const {
    const Tokens end = begin + chunk_.value_or(prompt);
    return end >= prompt ? prompt
                         : std::max(begin + Tokens(1), block_ * (end.value / block_.value));
  }
  void compute(RequestId request, Tokens found, Tokens prompt) {
    const StreamId stream = accesses_.content().prompt.stream;
    Tokens end = step_end(found, prompt);
    store_->computed(request, end);
    while (end < prompt) {
      end = step_end(end, prompt);
      if (rules_.pools.front().unit == EvictionUnit::node &&
          !store_->grow(request, {stream, end})) {
        throw_no_room(end);
      }
      store_->computed(request, end);
    }
  }
  [[noreturn]] void throw_no_room(Tokens tokens) {
    throw ConfigError(fmt::format(
        "/system/tiers/{}: expected room for each turn by itself, got {} blocks of {} tokens, but "
        "turn {} of session {} takes {} tokens",
        rules_.pools.front().name, rules_.pools.front().capacity, block_.value, accesses_.turn(),
        accesses_.session().id, tokens.value));
  }
  /// Counts with their sum, or shares of `whole` if that is not 0.
  [[nodiscard]] Json by_tier(const std::vector<std::int64_t>& counts, std::int64_t whole) const {
    Json json;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      json[rules_.pools[i].name] = whole == 0 ? Json(counts[i]) : Json(share(counts[i], whole));
    }
    json["total"] = whole == 0 ? Json(total) : Json(share(total, whole));
    return json;
  }
  void count(Tokens prompt, Tokens looked_up, const Match& match) {
    ++found_.turns;
    found_.turns_with_hits += match.tokens.value > 0 ? 1 : 0;
    found_.prompt_tokens += prompt.value;
    found_.prompt_blocks += looked_up.value / block_.value;
    for (std::size_t i = 0; i < match.by_pool.size(); ++i) {
      found_.tokens[i] += match.by_pool[i].value;
      found_.blocks[i] +=
          (match.by_pool[i].value + (partial_blocks_ ? block_.value - 1 : 0)) / block_.value;
    }
  }

  StoreRules rules_;
  Tokens block_;
  bool partial_blocks_;
  bool responses_;
  std::optional<Tokens> chunk_;
  TurnFitter fitter_;
  Accesses accesses_;
  std::unique_ptr<Store> store_;
  Found found_;
};

}  // namespace

Json replay_blocks(const RunConfig& config, SessionSource& source, const PolicyRegistry& registry,
                   const RunOptions& options) {
  BlockReplay replay(config, source, registry, options.stepping == DecodeStepping::per_iteration);
  Accesses& accesses = replay.accesses();
  std::int64_t turns = 0;
  while (accesses.next()) {
    const bool measured = turns++ >= config.workload.warmup_turns;
    std::vector<Tokens> found = replay.turn(measured);
    if (options.observer != nullptr) {
      options.observer->on_block_request({.session = accesses.session().id,
                                          .turn = static_cast<std::int64_t>(accesses.turn()),
                                          .arrived = accesses.now(),
                                          .prompt = accesses.content().prompt.tokens,
                                          .output = accesses.output(),
                                          .found = std::move(found),
                                          .measured = measured});
    }
    if (options.progress && turns % 8192 == 0) {
      options.progress(turns);
    }
  }
  replay.store().check_invariants();
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
  Accesses accesses(source, &fitter);
  Belady belady(accesses.streams(), block);
  while (accesses.next()) {
    Context prompt = accesses.content().prompt;
    Context stored = config.system.blocks->responses ? accesses.content().whole : prompt;
    if (config.system.blocks->partial_blocks) {
      prompt.tokens = whole_blocks(prompt.tokens, block);
      stored = prompt;
    } else if (rules.hit_cap == HitCap::last_token) {
      prompt.tokens -= Tokens(1);
    }
    belady.add(prompt, stored);
  }
  std::int64_t capacity = 0;
  for (const PoolRules& pool : rules.pools) {
    capacity += (pool.block * pool.capacity + block - Tokens(1)).value / block.value;
  }
  const std::int64_t hits =
      belady.hits(capacity, static_cast<std::size_t>(config.workload.warmup_turns));
  const Json& metrics = result["metrics"];
  return Json{{"name", "Belady"},
              {"hit_blocks", hits},
              {"hit_rate", {{"blocks", share(hits, metrics["prompt_blocks"])}}},
              {"share_reached", {{"blocks", share(metrics["hit_blocks"]["total"], hits)}}}};
}

}  // namespace kvtier
