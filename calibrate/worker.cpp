#include "calibrate/worker.hpp"

#include <utility>

namespace kvtier::calibrate {

Worker::Worker(Processors processors, std::function<std::function<void()>()> prepare)
    : thread_([this, processors = std::move(processors), prepare = std::move(prepare)] {
        run(processors, prepare);
      }) {}

Worker::~Worker() {
  tell(Order::stop);
  thread_.join();
}

Worker::Times Worker::order() {
  const Clock::time_point told = Clock::now();
  tell(Order::work);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return order_ == Order::none; });
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  const auto since = [told](Clock::time_point t) {
    return std::chrono::duration<double>(t - told).count();
  };
  return {.to_begin = since(began_), .to_end = since(Clock::now())};
}

void Worker::tell(Order order) {
  {
    const std::lock_guard lock(mutex_);
    order_ = order;
  }
  told_.notify_one();
}

void Worker::run(const Processors& processors,
                 const std::function<std::function<void()>()>& prepare) {
  stay_on(processors);
  std::function<void()> work;
  const auto attempt = [this](const auto& what) {
    try {
      what();
    } catch (...) {
      failure_ = std::current_exception();
    }
  };
  std::unique_lock lock(mutex_);
  attempt([&] { work = prepare(); });
  while (true) {
    told_.wait(lock, [this] { return order_ != Order::none; });
    if (order_ == Order::stop) {
      return;
    }
    began_ = Clock::now();
    if (!failure_) {
      attempt(work);
    }
    order_ = Order::none;
    done_.notify_one();
  }
}

}  // namespace kvtier::calibrate
