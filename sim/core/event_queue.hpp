#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// An event at a time. `payload` belongs to the caller of push. Plain data, 24 bytes.
struct TimedEvent {
  SimTime time;
  /// Priority in the top byte (smaller first), then the order of pushing: see EventQueue::push.
  std::uint64_t order = 0;
  std::uint64_t payload = 0;
};

/// The order of events: time, then priority, then the sequence of pushes.
[[nodiscard]] inline bool earlier(const TimedEvent& a, const TimedEvent& b) {
  if (a.time == b.time) [[unlikely]] {
    return a.order < b.order;
  }
  return a.time < b.time;
}

/// Pending events in a 4-ary heap. It has fewer levels than a binary heap, and siblings share cache
/// lines.
class EventQueue {
 public:
  /// Events of equal time leave by `priority` (smaller first), then in the order they were pushed.
  void push(SimTime time, std::uint8_t priority, std::uint64_t payload) {
    const std::uint64_t order = (std::uint64_t{priority} << 56) | next_sequence_++;
    const TimedEvent event{time, order, payload};
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
  [[nodiscard]] const TimedEvent& top() const { return heap_.front(); }

  TimedEvent pop() {
    KVTIER_ASSERT(!heap_.empty(), "pop needs a pending event");
    const TimedEvent result = heap_.front();
    const TimedEvent last = heap_.back();
    heap_.pop_back();
    const std::size_t count = heap_.size();
    if (count == 0) {
      return result;
    }
    TimedEvent* const events = heap_.data();
    std::size_t hole = 0;
    while (true) {
      const std::size_t first = hole * kArity + 1;
      const TimedEvent* best = events + first;
      if (first + kArity <= count) [[likely]] {
        best = earlier_of(earlier_of(best, best + 1), earlier_of(best + 2, best + 3));
      } else if (first < count) {
        for (const TimedEvent* child = best + 1; child < events + count; ++child) {
          best = earlier_of(best, child);
        }
      } else {
        break;
      }
      if (!earlier(*best, last)) {
        break;
      }
      events[hole] = *best;
      hole = static_cast<std::size_t>(best - events);
    }
    events[hole] = last;
    return result;
  }

 private:
  static constexpr std::size_t kArity = 4;
  [[nodiscard]] static const TimedEvent* earlier_of(const TimedEvent* a, const TimedEvent* b) {
    return earlier(*b, *a) ? b : a;
  }
  std::vector<TimedEvent> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace kvtier
