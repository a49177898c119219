#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "hw/device/processors.hpp"
#include "hw/device/task_threads.hpp"
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
  void wake() { thread_.wake(); }

 private:
  Setup setup_;
  /// The lane's thread alone uses these.
  std::unique_ptr<Stream> stream_;
  bool failed_ = false;
  /// The last member: its thread ends before what it uses.
  TaskThreads thread_;
};

}  // namespace kvtier
