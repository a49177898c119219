#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvtier {

/// Threads that share the iterations of one loop at a time. A second loop that is started meanwhile
/// runs in its caller alone. Waiting threads poll for a moment before they sleep, because the
/// kernels of a layer follow each other faster than a sleeping thread wakes.
class ThreadPool {
 public:
  /// `threads` includes the calling thread.
  explicit ThreadPool(std::int64_t threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  /// Calls body(0) .. body(count - 1), in any order and by any thread, and returns when all are
  /// done. `body` does not throw.
  void run(std::int64_t count, const std::function<void(std::int64_t)>& body);
  [[nodiscard]] std::int64_t threads() const {
    return static_cast<std::int64_t>(workers_.size()) + 1;
  }

 private:
  void work();

  std::mutex loop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::int64_t)>* body_ = nullptr;
  std::int64_t count_ = 0;
  std::int64_t next_ = 0;
  /// Written under the mutex; polled without it.
  std::atomic<std::int64_t> unfinished_ = 0;
  std::atomic<std::int64_t> loops_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace kvtier
