#include "sim/study/runs/run_threads.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace kvtier {

void run_on_threads(std::size_t count, std::int64_t jobs,
                    const std::function<void(std::size_t, const std::stop_token&)>& work,
                    const std::function<void(std::int64_t)>& progress) {
  std::stop_source stop;
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::condition_variable ended;
  // Guarded by `mutex`.
  std::size_t done = 0;
  std::exception_ptr failure;
  std::size_t failed = count;

  const auto take = [&] {
    for (std::size_t i = 0; (i = next++) < count && !stop.stop_requested();) {
      try {
        work(i, stop.get_token());
        const std::lock_guard lock(mutex);
        ++done;
      } catch (const Stopped&) {
        return;
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failure = std::current_exception();
          failed = i;
        }
        stop.request_stop();
      }
      ended.notify_one();
    }
  };

  std::vector<std::jthread> threads;
  try {
    const auto most = std::min(static_cast<std::size_t>(jobs), count);
    while (threads.size() < most) {
      threads.emplace_back(take);
    }
    std::unique_lock lock(mutex);
    while (done < count && !failure) {
      constexpr auto kShowEvery = std::chrono::milliseconds(100);
      ended.wait_for(lock, kShowEvery);
      if (progress) {
        const std::size_t now = done;
        lock.unlock();
        progress(static_cast<std::int64_t>(now));
        lock.lock();
      }
    }
  } catch (...) {
    stop.request_stop();
    throw;
  }
  threads.clear();  // joins them
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace kvtier
