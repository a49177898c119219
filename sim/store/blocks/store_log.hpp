#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/store/block_run.hpp"
#include "sim/store/decisions.hpp"

namespace kvtier {

/// Tells a log, if there is one, of what a store decides about runs of blocks.
class StoreLog {
 public:
  explicit StoreLog(std::size_t pools) : skipped_(pools) {}

  void set(BlockLog* log) { log_ = log; }
  [[nodiscard]] bool is_set() const { return log_ != nullptr; }
  void tell(DecisionKind kind, std::size_t pool, const BlockRun& run) {
    if (log_ != nullptr && run.size() > 0) [[unlikely]] {
      log_->on_decision(kind, pool, {run.stream, run.begin, run.end});
      if (kind == DecisionKind::skip && skipped_[pool].counts) {
        skipped_[pool].runs.push_back(run);
      }
    }
  }

  void tell_shift(std::size_t pool, const Stretch& cut) {
    if (log_ != nullptr) [[unlikely]] {
      log_->on_shift(pool, cut.stream, cut.end, cut.end - cut.begin);
    }
  }

  /// A victim of this pool is about to be written to the next one.
  void begin_demotion(std::size_t pool) {
    if (log_ != nullptr) [[unlikely]] {
      skipped_[pool + 1].counts = true;
    }
  }
  /// The next pool took those of its blocks that it did not skip.
  void end_demotion(std::size_t pool, const BlockRun& victim) {
    if (log_ == nullptr) [[likely]] {
      return;
    }
    std::vector<BlockRun>& skipped = skipped_[pool + 1].runs;
    std::sort(skipped.begin(), skipped.end(),
              [](const BlockRun& a, const BlockRun& b) { return a.begin < b.begin; });
    BlockRun rest = victim;
    for (const BlockRun& run : skipped) {
      tell(DecisionKind::demote, pool, {run.stream, rest.begin, run.begin, victim.first});
      tell(DecisionKind::evict, pool, {run.stream, run.begin, run.end, victim.first});
      rest.begin = run.end;
    }
    tell(DecisionKind::demote, pool, rest);
    skipped.clear();
    skipped_[pool + 1].counts = false;
  }

 private:
  struct Skipped {
    bool counts = false;
    std::vector<BlockRun> runs;
  };
  BlockLog* log_ = nullptr;
  /// By pool: blocks of the victim at work that it did not take.
  std::vector<Skipped> skipped_;
};

}  // namespace kvtier
