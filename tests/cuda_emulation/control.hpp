#pragma once

#include <cstdint>

/// Functions of the emulation that tests find by dlsym in its module. An emulation that finds a
/// fault notes it, fails every later call and goes on as far as it can.
namespace kvtier::emulation {

/// When queued work runs: as soon as it may, as late as it may, or at random between other calls.
enum class Schedule : int { eager, lazy, random };

struct Counters {
  std::int64_t kernels;
  std::int64_t blocks;
  /// Copies that were queued, two-dimensional ones as one.
  std::int64_t copies;
  std::int64_t blas_calls;
  /// Choices of a kernel for a product.
  std::int64_t blas_choices;
  /// Products of warpgroups, once for each warp.
  std::int64_t products;
  /// Handles and allocations that are there now.
  std::int64_t streams;
  std::int64_t urgent_streams;
  std::int64_t events;
  std::int64_t blas_handles;
  std::int64_t allocations;
  std::int64_t graphs;
  std::int64_t graph_launches;
  /// Flags of the current device (cudaSetDeviceFlags).
  std::int64_t device_flags;
};

extern "C" {
void kvtier_emulation_schedule(Schedule schedule, std::uint64_t seed);
void kvtier_emulation_counters(Counters* counters);
/// The next call of this function that is the n-th from now on (1: the next) fails, once.
void kvtier_emulation_fail(const char* function, int n);
/// Turns on the planted fault of this name, and any other off; returns whether the module has it.
bool kvtier_emulation_plant(const char* name);
/// The i-th fault as "check: text", or null.
const char* kvtier_emulation_fault(int i);
/// The i-th planted fault's name, or null behind the last one.
const char* kvtier_emulation_planted(int i);
}

}  // namespace kvtier::emulation
