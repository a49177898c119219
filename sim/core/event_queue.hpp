#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// What happens at a time. `kind` and `payload` belong to whoever pushed it. Plain data, 32 bytes.
struct Event {
  SimTime time;
  /// Priority in the top byte (smaller first), then the order of pushing: see EventQueue::push.
  std::uint64_t order = 0;
  std::uint64_t payload = 0;
  std::uint32_t kind = 0;
  std::uint32_t tag = 0;
};

/// The one order of events: time, then priority, then the sequence in which they were pushed.
[[nodiscard]] inline bool earlier(const Event& a, const Event& b) {
  return a.time != b.time ? a.time < b.time : a.order < b.order;
}

/// Pending events in a 4-ary heap: fewer levels than a binary heap and neighbours on one cache
/// line.
class EventQueue {
 public:
  /// Events of equal time leave by `priority` (smaller first), then in the order they were pushed.
  void push(SimTime time, std::uint8_t priority, std::uint32_t kind, std::uint64_t payload,
            std::uint32_t tag = 0) {
    const std::uint64_t order = (std::uint64_t{priority} << 56) | next_sequence_++;
    Event event{time, order, payload, kind, tag};
    std::size_t hole = heap_.size();
    heap_.push_back(event);
    while (hole > 0) {
      const std::size_t parent = (hole - 1) / kArity;
      if (!earlier(event, heap_[parent])) {
        break;
      }
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  [[nodiscard]] const Event& top() const { return heap_.front(); }

  Event pop() {
    KVTIER_ASSERT(!heap_.empty(), "pop needs a pending event");
    const Event result = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const std::size_t count = heap_.size();
    if (count == 0) {
      return result;
    }
    std::size_t hole = 0;
    while (true) {
      const std::size_t first = hole * kArity + 1;
      if (first >= count) {
        break;
      }
      const std::size_t end = first + kArity < count ? first + kArity : count;
      std::size_t best = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        best = earlier(heap_[child], heap_[best]) ? child : best;
      }
      if (!earlier(heap_[best], last)) {
        break;
      }
      heap_[hole] = heap_[best];
      hole = best;
    }
    heap_[hole] = last;
    return result;
  }

 private:
  static constexpr std::size_t kArity = 4;
  std::vector<Event> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace kvtier
