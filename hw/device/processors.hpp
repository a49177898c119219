#pragma once

#include <vector>

#include "hw/device/device.hpp"

/// Which processors of the host a thread may run on.
namespace kvtier {

/// Numbers of processors; empty: any processor.
using Processors = std::vector<int>;

/// Keeps the calling thread, and those that it starts later, on these processors. If that is
/// forbidden, they run anywhere.
void stay_on(const Processors& processors);

/// Processors that the calling thread may run on.
[[nodiscard]] Processors processors_of_thread();

/// Number of processors in the affinity mask (taskset, containers), at least 1.
[[nodiscard]] int available_processors();

/// Keeps the calling thread on some processors during its lifetime.
class StayOn {
 public:
  explicit StayOn(const Processors& processors) : before_(processors_of_thread()) {
    stay_on(processors);
  }
  StayOn(const StayOn&) = delete;
  StayOn& operator=(const StayOn&) = delete;
  ~StayOn() { stay_on(before_); }

 private:
  Processors before_;
};

/// Processors for the compute threads of a device, and for all other threads.
struct ProcessorShares {
  Processors compute;
  Processors rest;
};
/// On the host as a device, computing competes with moves of KV. The compute threads get the first
/// processors of `all`, one each, and the other threads the rest. With other devices, or too few
/// processors, all threads use any.
[[nodiscard]] ProcessorShares share_processors(const Device& device, const Processors& all);

}  // namespace kvtier
