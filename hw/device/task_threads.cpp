#include "hw/device/task_threads.hpp"

#include <cstddef>
#include <utility>

namespace kvtier {

TaskThreads::TaskThreads(std::int64_t threads) {
  for (std::int64_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
  }
}

TaskThreads::~TaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void TaskThreads::add(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (!abandoned_) {
    tasks_.push_back(std::move(task));
  }
}

void TaskThreads::wake() {
  std::size_t tasks = 0;
  {
    const std::lock_guard lock(mutex_);
    tasks = tasks_.size();
  }
  // A thread that wakes up without a task takes a processor from others.
  for (std::size_t i = 0; i < tasks && i < threads_.size(); ++i) {
    changed_.notify_one();
  }
}

void TaskThreads::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return tasks_.empty() && running_ == 0; });
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void TaskThreads::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  tasks_.clear();
}

void TaskThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      return;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      task();
    } catch (...) {
      failure = std::current_exception();
    }
    task = nullptr;  // its captures are destroyed before the task counts as done
    lock.lock();
    if (failure && !failure_) {
      failure_ = failure;
    }
    --running_;
    if (tasks_.empty() && running_ == 0) {
      idle_.notify_all();
    }
  }
}

}  // namespace kvtier
