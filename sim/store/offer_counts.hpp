#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "sim/store/block_run.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// How often each block was offered to an offload that stores a block only from the n-th time on
/// (vLLM's store_threshold, with Write::after_uses). It counts EdgeRules::counted blocks, and
/// forgets the one that was offered longest ago, but none of the call at hand.
class OfferCounts {
 public:
  explicit OfferCounts(const StoreRules& rules)
      : wanted_(is_offload(rules) && rules.edges.front().write == Write::after_uses
                    ? rules.edges.front().uses
                    : 0),
        most_(rules.edges.empty() ? 0 : static_cast<std::size_t>(rules.edges.front().counted)) {}

  /// Counts the blocks, and takes those out of `missing` that were offered too rarely.
  void admit(const std::vector<Stretch>& blocks, std::vector<BlockRun>& missing) {
    if (wanted_ < 2) {
      return;
    }
    std::vector<Key> offered;
    for (const Stretch& run : blocks) {
      for (std::int64_t i = run.begin; i < run.end; ++i) {
        offered.emplace_back(run.stream, i);
      }
    }
    count(offered);
    std::vector<BlockRun> admitted;
    for (const BlockRun& run : missing) {
      for (std::int64_t i = run.begin; i < run.end; ++i) {
        const auto found = counts_.find({run.stream, i});
        if (found == counts_.end() || found->second.uses < wanted_) {
          continue;
        }
        if (!admitted.empty() && admitted.back().stream == run.stream && admitted.back().end == i) {
          ++admitted.back().end;
        } else {
          admitted.push_back({run.stream, i, i + 1, run.first});
        }
      }
    }
    missing = std::move(admitted);
  }
  [[nodiscard]] std::int64_t uses(StreamId stream, std::int64_t block) const {
    const auto found = counts_.find({stream, block});
    return found == counts_.end() ? 0 : found->second.uses;
  }

 private:
  using Key = std::pair<StreamId, std::int64_t>;
  struct Count {
    std::int64_t uses;
    std::list<Key>::iterator place;
  };

  void count(const std::vector<Key>& offered) {
    std::size_t known = 0;
    for (const Key& key : offered) {
      if (const auto found = counts_.find(key); found != counts_.end()) {
        ++known;
        ++found->second.uses;
        order_.splice(order_.end(), order_, found->second.place);
      }
    }
    std::size_t others = counts_.size() - known;
    for (const Key& key : offered) {
      if (counts_.contains(key)) {
        continue;
      }
      if (counts_.size() >= most_) {
        if (others == 0) {
          continue;
        }
        counts_.erase(order_.front());
        order_.pop_front();
        --others;
      }
      counts_[key] = {1, order_.insert(order_.end(), key)};
    }
  }

  std::int64_t wanted_;
  std::size_t most_;
  /// Those offered longest ago first.
  std::list<Key> order_;
  std::map<Key, Count> counts_;
};

}  // namespace kvtier
