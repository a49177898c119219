#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hw/device/processors.hpp"
#include "sim/device/kv_store.hpp"

namespace kvtier {

/// A thread that does one thing after another with a stream and, where it needs one, a storage
/// engine of its own. Once something has failed, what comes later is not done.
class Lane {
 public:
  using Task = std::function<void(const MoveLane&)>;
  struct Setup {
    Device* device = nullptr;
    Processors processors;
    std::unique_ptr<StorageEngine> storage;
    std::span<const std::int32_t> scratch;
    /// Called in the lane's thread with what a task threw.
    std::function<void(std::exception_ptr)> failed;
  };
  explicit Lane(Setup setup);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  /// Ends what is in work, and leaves out what waits.
  ~Lane();

  /// To be done in turn, by `wake` at the latest.
  void add(Task task);
  void wake();

 private:
  void work();

  Setup setup_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvtier
