#pragma once

#include <string>
#include <vector>

#include "policies/registry.hpp"
#include "sim/core/event_queue.hpp"
#include "sim/serving/simulate.hpp"

namespace kvtier::bench {

/// The run that AttentionStore reports (9,000 sessions), with `--set` texts over it.
[[nodiscard]] RunConfig paper_run(const std::vector<std::string>& settings);

/// Processor time of this thread, in seconds.
[[nodiscard]] double thread_seconds();

/// Nanoseconds that a pop and a push take in a std::priority_queue of 1,024 pending events, over
/// 10M of them: what this machine's speed is told by. Measured once.
[[nodiscard]] double heap_pop_push_ns();

/// Times of events in a run: the present plus a wait, in nanoseconds.
class Waits {
 public:
  [[nodiscard]] std::int64_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>(state_ >> 34);
  }

 private:
  std::uint64_t state_ = 1;
};

}  // namespace kvtier::bench
