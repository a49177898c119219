#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "tests/cuda_emulation/control.hpp"

/// Parts of the emulation that the runtime, cuBLAS and kernels share. Whoever calls holds
/// `machine`.
namespace kvtier::emulation {

struct Kernel;
struct Launch;

extern std::recursive_mutex machine;

// ---- Faults ----

/// Notes a fault of the program that runs on the emulation.
void fault(std::string_view check, const std::string& text);
[[nodiscard]] const std::string& first_fault();

/// A generator of its own, seeded by the schedule's seed.
[[nodiscard]] std::uint64_t random();
[[nodiscard]] inline std::uint64_t random_below(std::uint64_t n) { return random() % n; }
void seed_random(std::uint64_t seed);

// ---- Memory: of devices and pinned memory of the host, at addresses that are never used again
// ----

constexpr int kHost = -1;

struct Allocation {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  int device = kHost;
  bool live = false;
};

/// Device memory begins as numbers that are none.
[[nodiscard]] void* allocate(std::size_t bytes, int device);
void release(Allocation& allocation);
/// Null for memory that is neither of a device nor pinned.
[[nodiscard]] Allocation* find_allocation(const void* address);
[[nodiscard]] bool in_arena(const void* address);
/// Whether work on the device may use this memory; notes a fault if not.
bool check_range(const char* who, const void* address, std::size_t bytes, int device);

/// The last write of a kernel to each byte: launch, phase of its block, thread.
[[nodiscard]] std::uint64_t* writers_of(std::uintptr_t address);

// ---- Kernels ----

/// Runs all blocks, threads in random order; stops at the first fault.
void run_kernel(const Launch& launch, const char* name, const Kernel& kernel, int device);

}  // namespace kvtier::emulation
