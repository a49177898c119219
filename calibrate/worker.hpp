#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "hw/device/processors.hpp"

namespace kvtier::calibrate {

/// A thread of the host that does one thing each time it is told to, as the threads of a server
/// that compute and move KV do.
class Worker {
 public:
  /// `prepare` runs in the thread, on these processors, and makes what it does each time.
  Worker(Processors processors, std::function<std::function<void()>()> prepare);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  struct Times {
    /// Seconds from the order until the thread runs, and until its end is known here.
    double to_begin = 0;
    double to_end = 0;
  };
  /// Throws what the work, or its preparation, threw.
  Times order();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Order { none, work, stop };

  void tell(Order order);
  void run(const Processors& processors, const std::function<std::function<void()>()>& prepare);

  std::mutex mutex_;
  std::condition_variable told_;
  std::condition_variable done_;
  Order order_ = Order::none;
  Clock::time_point began_;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace kvtier::calibrate
