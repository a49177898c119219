#pragma once

#include <cstddef>
#include <vector>

#include "sim/core/assert.hpp"

namespace kvtier {

/// A first-in, first-out queue of small values in one array that grows by doubling. It takes fewer
/// instructions per operation than std::deque, which has blocks.
template <class T>
class Ring {
 public:
  [[nodiscard]] bool empty() const { return begin_ == end_; }
  [[nodiscard]] std::size_t size() const { return end_ - begin_; }
  [[nodiscard]] const T& front() const { return values_[begin_ & mask_]; }

  void push_back(const T& value) {
    if (size() > mask_) [[unlikely]] {
      grow();
    }
    values_[end_++ & mask_] = value;
  }
  void pop_front() {
    KVTIER_ASSERT(!empty(), "only a queue that holds something can be popped");
    ++begin_;
  }
  /// Removes the first value equal to `value`, in O(size) unless it is the front; false if there is
  /// none.
  [[nodiscard]] bool erase(const T& value) {
    if (!empty() && front() == value) [[likely]] {
      pop_front();
      return true;
    }
    for (std::size_t at = begin_; at != end_; ++at) {
      if (values_[at & mask_] == value) {
        for (; at + 1 != end_; ++at) {
          values_[at & mask_] = values_[(at + 1) & mask_];
        }
        --end_;
        return true;
      }
    }
    return false;
  }

 private:
  [[gnu::noinline]] void grow() {
    std::vector<T> larger(2 * values_.size());
    for (std::size_t at = begin_; at != end_; ++at) {
      larger[at & (larger.size() - 1)] = values_[at & mask_];
    }
    values_.swap(larger);
    mask_ = values_.size() - 1;
  }

  std::vector<T> values_ = std::vector<T>(16);
  std::size_t mask_ = 15;
  /// Counts of popped and pushed values. Modulo the array's size they are indexes.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace kvtier
