#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvtier {

/// Threads that start tasks in the order of `add`. Each task runs in one thread.
class TaskThreads {
 public:
  explicit TaskThreads(std::int64_t threads = 1);
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;
  /// Runs the waiting tasks first.
  ~TaskThreads();

  /// The task may start at once. Only `wake` guarantees that it starts.
  void add(std::function<void()> task);
  void wake();
  /// Returns when no task waits or runs. Rethrows the first exception of a task since the last
  /// call.
  void drain();
  /// Drops waiting tasks and all tasks that are added later.
  void abandon();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> tasks_;
  std::exception_ptr failure_;
  std::int64_t running_ = 0;
  bool stop_ = false;
  bool abandoned_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvtier
