#pragma once

#include <chrono>
#include <exception>
#include <functional>

#include "hw/device/processors.hpp"
#include "hw/device/task_threads.hpp"

namespace kvtier::calibrate {

/// A host thread that runs its task once for each order, like a server's threads that compute and
/// move KV.
class Worker {
 public:
  /// `prepare` runs in the thread, on the given processors, and returns the task.
  Worker(Processors processors, std::function<std::function<void()>()> prepare);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  struct Times {
    /// Seconds from the order to the beginning of the task, and to the notice of its end.
    double to_begin = 0;
    double to_end = 0;
  };
  /// Throws the exception of the task or its preparation.
  Times order();

 private:
  using Clock = std::chrono::steady_clock;

  std::function<void()> work_;
  Clock::time_point began_;
  std::exception_ptr failure_;
  /// Last member, so that its thread ends before the members that it uses.
  TaskThreads thread_;
};

}  // namespace kvtier::calibrate
