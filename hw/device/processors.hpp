#pragma once

#include <vector>

#include "hw/device/device.hpp"

/// Which processors of the host a thread may run on.
namespace kvtier {

/// Numbers of processors; none: any.
using Processors = std::vector<int>;

/// Keeps the calling thread, and those that it will start, on these processors. Where that is
/// forbidden they run where they like.
void stay_on(const Processors& processors);

/// Those that the calling thread may run on.
[[nodiscard]] Processors processors_of_thread();

/// How many these are: those of the affinity mask (taskset, containers), at least 1.
[[nodiscard]] int available_processors();

/// Keeps the calling thread on some processors for a while.
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

/// Where threads that serve a device run.
struct ProcessorShares {
  Processors compute;
  Processors rest;
};
/// On the host as a device computing competes with what moves KV: the first processors of `all` are
/// for as many computing threads as the device has, the others for the rest. With other devices, or
/// too few processors, any.
[[nodiscard]] ProcessorShares share_processors(const Device& device, const Processors& all);

}  // namespace kvtier
