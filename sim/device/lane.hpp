#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "hw/device/processors.hpp"
#include "hw/device/task_threads.hpp"
#include "sim/device/kv_store.hpp"

namespace kvtier {

/// A thread that runs tasks one after another, with its own stream and, if needed, its own storage
/// engine. After a failure it skips all later tasks.
class Lane {
 public:
  using Task = std::function<void(const MoveLane&)>;
  struct Setup {
    Device* device = nullptr;
    StreamKind stream = StreamKind::usual;
    Processors processors;
    std::unique_ptr<StorageEngine> storage;
    std::span<std::byte> scratch;
    /// Called in the lane's thread with the exception of a task.
    std::function<void(std::exception_ptr)> failed;
  };
  explicit Lane(Setup setup);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  /// Ends the current task and skips the waiting ones.
  ~Lane();

  /// Queues a task, which starts at `wake` at the latest.
  void add(Task task);
  void wake() { thread_.wake(); }

 private:
  Setup setup_;
  /// Used by the lane's thread alone.
  std::unique_ptr<Stream> stream_;
  bool failed_ = false;
  /// Last member, so that its thread ends before the members that it uses.
  TaskThreads thread_;
};

}  // namespace kvtier
