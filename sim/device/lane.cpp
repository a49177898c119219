#include "sim/device/lane.hpp"

#include <utility>

#include <sched.h>

namespace kvtier {

void stay_on(const Processors& processors) {
  if (processors.empty()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) {
    CPU_SET(static_cast<std::size_t>(processor), &set);
  }
  // Where it is forbidden the threads run where they like.
  static_cast<void>(::sched_setaffinity(0, sizeof set, &set));
}

Processors processors_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  Processors processors;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(static_cast<std::size_t>(i), &set)) {
        processors.push_back(i);
      }
    }
  }
  return processors;
}

Lane::Lane(Setup setup) : setup_(std::move(setup)), thread_([this] { work(); }) {}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Lane::run(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Lane::work() {
  bool failed = false;
  std::unique_ptr<Stream> stream;
  const auto attempt = [&](const auto& what) {
    try {
      what();
    } catch (...) {
      failed = true;
      setup_.failed(std::current_exception());
    }
  };
  attempt([&] {
    stay_on(setup_.processors);
    stream = setup_.device->make_stream();
  });
  const MoveLane lane{
      .stream = stream.get(), .storage = setup_.storage.get(), .scratch = setup_.scratch};
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) {
      return;
    }
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (!failed) {
      attempt([&] { task(lane); });
    }
    lock.lock();
  }
}

}  // namespace kvtier
