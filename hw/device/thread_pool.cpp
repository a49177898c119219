#include "hw/device/thread_pool.hpp"

#include <chrono>

namespace kvtier {
namespace {

/// Returns once `reached()`, or after several times the time that it takes to wake a thread.
template <class Condition>
void poll(const Condition& reached) {
  constexpr auto kMoment = std::chrono::microseconds(200);
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (!reached() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
}

}  // namespace

ThreadPool::ThreadPool(std::int64_t threads) {
  for (std::int64_t i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    ++loops_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  std::int64_t seen = loops_;
  while (true) {
    lock.unlock();
    poll([&] { return loops_ != seen; });
    lock.lock();
    wake_.wait(lock, [this] { return stop_ || next_ < count_; });
    if (stop_) {
      return;
    }
    seen = loops_;
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
  ++loops_;
  wake_.notify_all();
  while (next_ < count_) {
    const std::int64_t i = next_++;
    lock.unlock();
    body(i);
    lock.lock();
    --unfinished_;
  }
  lock.unlock();
  poll([this] { return unfinished_ == 0; });
  lock.lock();
  done_.wait(lock, [this] { return unfinished_ == 0; });
  count_ = next_ = 0;
}

}  // namespace kvtier
