#pragma once

#include <functional>
#include <utility>

#include "sim/serving/store_rules.hpp"
#include "sim/store/decisions.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Passes the decisions of a store of blocks on, with their time and the names of tiers and
/// streams.
class BlockDecisions final : public BlockLog {
 public:
  /// `streams` and `observer` outlive this.
  BlockDecisions(StoreRules rules, const Streams& streams, DecisionObserver& observer,
                 std::function<SimTime()> now)
      : rules_(std::move(rules)), streams_(streams), observer_(observer), now_(std::move(now)) {}

  void on_shift(std::size_t pool, StreamId stream, std::int64_t from, std::int64_t by) override {
    on_decision(DecisionKind::shift, pool, {stream, from - by, from});
  }
  void on_decision(DecisionKind kind, std::size_t pool, const Stretch& blocks) override {
    const PoolRules& rules = rules_.pools[pool];
    const std::int64_t count = blocks.end - blocks.begin;
    observer_.on_block_decision(BlockDecision{.kind = kind,
                                              .tier = medium_of(rules.name),
                                              .stream = streams_.birth(blocks.stream),
                                              .begin = rules.block * blocks.begin,
                                              .tokens = rules.block * count,
                                              .blocks = count,
                                              .time = now_()});
  }

 private:
  StoreRules rules_;
  const Streams& streams_;
  DecisionObserver& observer_;
  std::function<SimTime()> now_;
};

}  // namespace kvtier
