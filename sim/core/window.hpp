#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"

namespace kvtier {

/// Values by numbers that grow: the number of a new value is larger than all before. Numbers in use
/// at the same time are near each other, because the values lie in one array from the first number
/// to the last one. Every operation on one value is O(1).
template <class T>
class Window {
 public:
  [[nodiscard]] bool empty() const { return first_ == end_; }
  /// The new value is one that was removed before, or a default one: its memory is used again.
  T& add(std::uint64_t number) {
    if (empty()) {
      first_ = number;
    }
    KVTIER_ASSERT(empty() || number >= end_, "numbers grow");
    while (number - first_ >= slots_.size()) [[unlikely]] {
        grow();
      }
    end_ = number + 1;
    slot(number).is_used = true;
    return slot(number).value;
  }
  [[nodiscard]] T* find(std::uint64_t number) {
    return number >= first_ && number < end_ && slot(number).is_used ? &slot(number).value
                                                                     : nullptr;
  }
  [[nodiscard]] T& at(std::uint64_t number) {
    T* value = find(number);
    KVTIER_ASSERT(value != nullptr, "the number is in use");
    return *value;
  }
  /// The number is in use.
  void remove(std::uint64_t number) {
    slot(number).is_used = false;
    while (first_ < end_ && !slot(first_).is_used) {
      ++first_;
    }
  }
  /// Visits numbers and their values in order.
  template <class Visit>
  void for_each(Visit visit) {
    for (std::uint64_t number = first_; number < end_; ++number) {
      if (slot(number).is_used) {
        visit(number, slot(number).value);
      }
    }
  }

 private:
  struct Slot {
    T value{};
    bool is_used = false;
  };

  [[nodiscard]] Slot& slot(std::uint64_t number) { return slots_[number & (slots_.size() - 1)]; }
  [[gnu::noinline]] void grow() {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (std::uint64_t number = first_; number < end_; ++number) {
      slot(number) = std::move(before[number & (before.size() - 1)]);
    }
  }

  /// By number modulo their count, a power of two.
  std::vector<Slot> slots_ = std::vector<Slot>(16);
  std::uint64_t first_ = 0;
  /// Behind the last number.
  std::uint64_t end_ = 0;
};

}  // namespace kvtier
