#include "calibrate/worker.hpp"

#include <utility>

namespace kvtier::calibrate {

Worker::Worker(Processors processors, std::function<std::function<void()>()> prepare) {
  thread_.add([this, processors = std::move(processors), prepare = std::move(prepare)] {
    stay_on(processors);
    work_ = prepare();
  });
  thread_.wake();
}

Worker::Times Worker::order() {
  const Clock::time_point told = Clock::now();
  if (!failure_) {
    thread_.add([this] {
      began_ = Clock::now();
      work_();
    });
    thread_.wake();
    try {
      thread_.drain();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  const auto since = [told](Clock::time_point t) {
    return std::chrono::duration<double>(t - told).count();
  };
  return {.to_begin = since(began_), .to_end = since(Clock::now())};
}

}  // namespace kvtier::calibrate
