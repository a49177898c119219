#include "hw/device/thread_pool.hpp"

namespace kvtier {

ThreadPool::ThreadPool(std::int64_t threads) {
  for (std::int64_t i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || next_ < count_; });
    if (stop_) {
      return;
    }
    while (next_ < count_) {
      const std::int64_t i = next_++;
      const auto* const body = body_;
      lock.unlock();
      (*body)(i);
      lock.lock();
      if (--unfinished_ == 0) {
        done_.notify_one();
      }
    }
  }
}

void ThreadPool::run(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  std::unique_lock alone(loop_, std::try_to_lock);
  if (workers_.empty() || count < 2 || !alone.owns_lock()) {
    for (std::int64_t i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  std::unique_lock lock(mutex_);
  body_ = &body;
  count_ = count;
  next_ = 0;
  unfinished_ = count;
  wake_.notify_all();
  while (next_ < count_) {
    const std::int64_t i = next_++;
    lock.unlock();
    body(i);
    lock.lock();
    --unfinished_;
  }
  done_.wait(lock, [this] { return unfinished_ == 0; });
  count_ = next_ = 0;
}

}  // namespace kvtier
