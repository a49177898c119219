#pragma once

#include <algorithm>
#include <cstdint>

#include <boost/container/small_vector.hpp>

namespace kvtier {

/// A set of numbers as intervals [begin, end), in order, of which no two touch. There is mostly
/// one: every call looks at all of them, and two take no memory of their own (boost::icl allocates
/// each).
class Intervals {
 public:
  struct Interval {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  Intervals() = default;
  Intervals(std::int64_t begin, std::int64_t end) : all_{{begin, end}} {}

  [[nodiscard]] bool empty() const { return all_.empty(); }
  [[nodiscard]] std::int64_t first() const { return all_.front().begin; }
  /// Behind the last number.
  [[nodiscard]] std::int64_t end_of_last() const { return all_.back().end; }
  [[nodiscard]] std::int64_t size() const {
    std::int64_t sum = 0;
    for (const Interval& one : all_) {
      sum += one.end - one.begin;
    }
    return sum;
  }
  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }
  [[nodiscard]] bool contains(const Intervals& others) const {
    return std::all_of(others.begin(), others.end(), [&](const Interval& other) {
      return std::any_of(all_.begin(), all_.end(), [&](const Interval& one) {
        return one.begin <= other.begin && other.end <= one.end;
      });
    });
  }
  [[nodiscard]] bool intersects(std::int64_t begin, std::int64_t end) const {
    return std::any_of(all_.begin(), all_.end(),
                       [&](const Interval& one) { return one.begin < end && begin < one.end; });
  }

  void add(std::int64_t begin, std::int64_t end) {
    const auto first = std::find_if(all_.begin(), all_.end(),
                                    [&](const Interval& one) { return one.end >= begin; });
    const auto behind =
        std::find_if(first, all_.end(), [&](const Interval& one) { return one.begin > end; });
    if (first == behind) {
      all_.insert(first, {begin, end});
      return;
    }
    first->begin = std::min(first->begin, begin);
    first->end = std::max(std::prev(behind)->end, end);
    all_.erase(first + 1, behind);
  }
  void add(const Intervals& others) {
    for (const Interval& one : others) {
      add(one.begin, one.end);
    }
  }
  void subtract(std::int64_t begin, std::int64_t end) {
    for (std::size_t i = all_.size(); i-- > 0;) {
      Interval& one = all_[i];
      if (one.begin >= end || begin >= one.end) {
        continue;
      }
      const Interval behind{end, one.end};
      const bool leaves_head = one.begin < begin;
      const bool leaves_tail = end < one.end;
      const auto at = all_.begin() + static_cast<std::ptrdiff_t>(i);
      if (leaves_head) {
        one.end = begin;
        if (leaves_tail) {
          all_.insert(at + 1, behind);
        }
      } else if (leaves_tail) {
        one.begin = end;
      } else {
        all_.erase(at);
      }
    }
  }

 private:
  boost::container::small_vector<Interval, 2> all_;
};

}  // namespace kvtier
