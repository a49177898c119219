#pragma once

#include <chrono>
#include <exception>
#include <functional>

#include "hw/device/processors.hpp"
#include "hw/device/task_threads.hpp"

namespace kvtier::calibrate {

/// A thread of the host that does one thing each time it is told to, as the threads of a server
/// that compute and move KV do.
class Worker {
 public:
  /// `prepare` runs in the thread, on these processors, and makes what it does each time.
  Worker(Processors processors, std::function<std::function<void()>()> prepare);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  struct Times {
    /// Seconds from the order until the thread runs, and until its end is known here.
    double to_begin = 0;
    double to_end = 0;
  };
  /// Throws what the work, or its preparation, threw.
  Times order();

 private:
  using Clock = std::chrono::steady_clock;

  std::function<void()> work_;
  Clock::time_point began_;
  std::exception_ptr failure_;
  /// The last member: its thread ends before what it uses.
  TaskThreads thread_;
};

}  // namespace kvtier::calibrate
