#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/rng.hpp"
#include "sim/core/streams.hpp"
#include "sim/store/curves/stack_distances.hpp"

namespace kvtier {

/// Blocks that LRU hits, as a function of the capacity: sums of ramps that rise by one for each
/// block of capacity. O(ramps) of memory, of which equal ends are joined.
class HitCurve {
 public:
  /// Hits of `blocks` neighbours, the first of them from a capacity of `before` + 1 on.
  void add(std::int64_t before, std::int64_t blocks) {
    bends_.push_back({before, 1});
    bends_.push_back({before + blocks, -1});
    if (bends_.size() >= limit_) {
      sort();
      limit_ = std::max<std::size_t>(kFewestBends, 2 * bends_.size());
    }
  }
  /// Hits at each of the capacities, which are in ascending order.
  [[nodiscard]] std::vector<std::int64_t> hits_at(const std::vector<std::int64_t>& capacities) {
    sort();
    std::vector<std::int64_t> hits;
    auto bend = bends_.begin();
    std::int64_t at = 0;
    std::int64_t slope = 0;
    std::int64_t sum = 0;
    const auto go_to = [&](std::int64_t capacity) {
      sum += slope * (capacity - at);
      at = capacity;
    };
    for (const std::int64_t capacity : capacities) {
      for (; bend != bends_.end() && bend->at <= capacity; ++bend) {
        go_to(bend->at);
        slope += bend->change;
      }
      go_to(capacity);
      hits.push_back(sum);
    }
    return hits;
  }
  /// From this capacity on there are no more hits.
  [[nodiscard]] std::int64_t last_bend() {
    sort();
    return bends_.empty() ? 0 : bends_.back().at;
  }

 private:
  static constexpr std::size_t kFewestBends = 1U << 16;
  struct Bend {
    std::int64_t at = 0;
    std::int64_t change = 0;
  };

  void sort() {
    std::sort(bends_.begin(), bends_.end(),
              [](const Bend& a, const Bend& b) { return a.at < b.at; });
    std::size_t kept = 0;
    for (const Bend& bend : bends_) {
      if (kept > 0 && bends_[kept - 1].at == bend.at) {
        bends_[kept - 1].change += bend.change;
      } else {
        bends_[kept++] = bend;
      }
    }
    bends_.resize(kept);
  }

  std::vector<Bend> bends_;
  std::size_t limit_ = kFewestBends;
};

/// Mattson's LRU stack of the blocks of streams, a run of blocks as one entry. A request uses its
/// blocks from the tail to the head, so the blocks of its path have growing distances, and LRU at
/// any capacity hits a leading run of them. O(runs on the path x log runs) per request.
///
/// With a sampling rate it looks at that share of the streams, and takes their distances to be as
/// many times longer (SHARDS: Waldspurger, Park, Garthwaite and Ahmad, FAST 2015).
class PrefixStack {
 public:
  PrefixStack(const Streams& streams, Tokens block, double sampling_rate = 1)
      : streams_(streams), block_(block.value), rate_(sampling_rate) {}

  /// Adds what a look-up of the context's first whole blocks hits, at each capacity. Returns the
  /// capacity from which on all that is looked at is hit; 0 if there is none.
  std::int64_t look_up(const Context& context, HitCurve& curve) {
    streams_.path(context.stream, context.tokens.value / block_, block_, path_);
    std::int64_t capacity = 0;
    for (const Stretch& stretch : path_) {
      if (!is_sampled(stretch.stream)) {
        continue;
      }
      std::int64_t begin = stretch.begin;
      for (std::uint32_t at = head_of(stretch.stream); at != kNone && begin < stretch.end;
           at = runs_[at].behind) {
        const std::int64_t end = std::min(runs_[at].end, stretch.end);
        const std::int64_t before = scaled(stack_.distance(at) - stack_.size(at));
        curve.add(before, end - begin);
        capacity = before + end - begin;
        begin = end;
      }
      if (begin < stretch.end) {
        return 0;
      }
    }
    return capacity;
  }

  /// The context's whole blocks are the latest used.
  void use(const Context& context) {
    streams_.path(context.stream, context.tokens.value / block_, block_, path_);
    for (std::size_t i = path_.size(); i-- > 0;) {
      const Stretch& stretch = path_[i];
      if (!is_sampled(stretch.stream)) {
        continue;
      }
      if (stretch.stream.value >= heads_.size()) {
        heads_.resize(static_cast<std::size_t>(stretch.stream.value) + 1, kNone);
      }
      std::uint32_t& head = heads_[stretch.stream.value];
      std::int64_t begin = stretch.begin;
      while (head != kNone && runs_[head].end <= stretch.end) {
        begin = runs_[head].end;
        stack_.drop(head);
        free_.push_back(head);
        head = runs_[head].behind;
      }
      if (head != kNone && begin < stretch.end) {
        stack_.shrink(head, runs_[head].end - stretch.end);
      }
      std::uint32_t made = static_cast<std::uint32_t>(runs_.size());
      if (free_.empty()) {
        runs_.emplace_back();
      } else {
        made = free_.back();
        free_.pop_back();
      }
      runs_[made] = {stretch.end, head};
      head = made;
      stack_.use(made, stretch.end - stretch.begin);
    }
  }

  /// The stream will not be named again, and its number is free for another one. Its blocks still
  /// take room.
  void forget(StreamId stream) {
    if (stream.value < heads_.size()) {
      for (std::uint32_t at = std::exchange(heads_[stream.value], kNone); at != kNone;
           at = runs_[at].behind) {
        stack_.forget(at);
        free_.push_back(at);
      }
    }
    if (stream.value < sampled_.size()) {
      sampled_[stream.value] = Sampled::unknown;
    }
  }
  /// Whether the stream is looked at. Decided when it is first seen.
  [[nodiscard]] bool is_sampled(StreamId stream) {
    if (rate_ >= 1) {
      return true;
    }
    if (stream.value >= sampled_.size()) {
      sampled_.resize(static_cast<std::size_t>(stream.value) + 1, Sampled::unknown);
    }
    Sampled& sampled = sampled_[stream.value];
    if (sampled == Sampled::unknown) {
      constexpr double kAll = 18446744073709551616.0;  // 2^64
      sampled = static_cast<double>(random_bits_at(0, seen_++)) < rate_ * kAll ? Sampled::yes
                                                                               : Sampled::no;
    }
    return sampled == Sampled::yes;
  }

 private:
  enum class Sampled : std::uint8_t { unknown, no, yes };

  static constexpr std::uint32_t kNone = UINT32_MAX;
  /// A run begins where the run ahead ends, the first one where the stream's blocks do.
  struct Run {
    std::int64_t end = 0;
    std::uint32_t behind = kNone;
  };

  [[nodiscard]] std::uint32_t head_of(StreamId stream) const {
    return stream.value < heads_.size() ? heads_[stream.value] : kNone;
  }

  [[nodiscard]] std::int64_t scaled(std::int64_t blocks) const {
    return rate_ >= 1 ? blocks : std::llround(static_cast<double>(blocks) / rate_);
  }

  const Streams& streams_;
  std::int64_t block_;
  double rate_;
  std::vector<Sampled> sampled_;
  std::uint64_t seen_ = 0;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> heads_;
  StackDistances stack_;
  std::vector<Stretch> path_;
};

}  // namespace kvtier
