#include "sim/device/lane.hpp"

#include <utility>

namespace kvtier {

Lane::Lane(Setup setup) : setup_(std::move(setup)), thread_([this] { work(); }) {}

Lane::~Lane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Lane::add(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
}

void Lane::wake() {
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) {
      return;  // a thread that wakes up for nothing takes a processor from others
    }
  }
  changed_.notify_one();
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
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
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
