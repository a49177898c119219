#include <cstring>
#include <deque>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "tests/cuda_emulation/machine.hpp"

namespace kvtier::emulation {

std::recursive_mutex machine;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kArena = std::size_t{4} << 40;

std::byte* reserve(std::size_t bytes) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(data);
}

std::byte* arena() {
  static std::byte* const begin = reserve(kArena);
  return begin;
}
std::byte* writers() {
  static std::byte* const begin = reserve(kArena * sizeof(std::uint64_t));
  return begin;
}
/// Number of a page's allocation, plus one.
std::uint32_t* owners() {
  static auto* const begin =
      reinterpret_cast<std::uint32_t*>(reserve(kArena / kPage * sizeof(std::uint32_t)));
  return begin;
}

std::deque<Allocation> allocations;
std::size_t used_pages = 1;
std::vector<std::string> faults;
std::uint64_t state = 0x9E3779B97F4A7C15;

}  // namespace

void fault(std::string_view check, const std::string& text) {
  faults.push_back(fmt::format("{}: {}", check, text));
  if (faults.size() == 1) {
    fmt::print(stderr, "CUDA emulation: {}\n", faults.back());
  }
}

const std::string& first_fault() {
  static const std::string none;
  return faults.empty() ? none : faults.front();
}

extern "C" const char* kvtier_emulation_fault(int i) {
  const std::lock_guard lock(machine);
  const auto at = static_cast<std::size_t>(i);
  return at < faults.size() ? faults[at].c_str() : nullptr;
}

std::uint64_t random() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state * 0x2545F4914F6CDD1D >> 16;
}
void seed_random(std::uint64_t seed) { state = seed * 2 + 0x9E3779B97F4A7C15; }

void* allocate(std::size_t bytes, int device) {
  const std::size_t pages = (bytes + kPage - 1) / kPage;
  if ((used_pages + pages + 1) * kPage > kArena) {
    throw std::bad_alloc();
  }
  std::byte* const begin = arena() + used_pages * kPage;
  allocations.push_back({reinterpret_cast<std::uintptr_t>(begin), bytes, device, /*live=*/true});
  for (std::size_t i = 0; i < pages; ++i) {
    owners()[used_pages + i] = static_cast<std::uint32_t>(allocations.size());
  }
  used_pages += pages + 1;  // a page between two that nothing may touch
  if (device != kHost) {
    std::memset(begin, 0xff, bytes);
  }
  return begin;
}

void release(Allocation& allocation) {
  allocation.live = false;
  auto* const begin = reinterpret_cast<std::byte*>(allocation.begin);
  const std::size_t bytes = (allocation.bytes + kPage - 1) / kPage * kPage;
  ::madvise(begin, bytes, MADV_DONTNEED);
  ::madvise(writers_of(allocation.begin), bytes * sizeof(std::uint64_t), MADV_DONTNEED);
}

bool in_arena(const void* address) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(address) - arena()) < kArena;
}

Allocation* find_allocation(const void* address) {
  if (!in_arena(address)) {
    return nullptr;
  }
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - arena());
  const std::uint32_t owner = owners()[offset / kPage];
  return owner == 0 ? nullptr : &allocations[owner - 1];
}

bool check_range(const char* who, const void* address, std::size_t bytes, int device) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const Allocation* const found = find_allocation(address);
  if (found == nullptr || at + bytes > found->begin + found->bytes) {
    fault("bounds",
          fmt::format("{}: {} bytes at {}, {}", who, bytes, address,
                      found == nullptr ? "memory that no device can reach"
                                       : fmt::format("{} bytes behind the beginning of {} bytes",
                                                     at - found->begin, found->bytes)));
    return false;
  }
  if (!found->live) {
    fault("freed", fmt::format("{}: {} bytes at {} were freed", who, bytes, address));
    return false;
  }
  if (found->device != kHost && found->device != device) {
    fault("device", fmt::format("{}: work of device {} uses memory of device {}", who, device,
                                found->device));
    return false;
  }
  return true;
}

std::uint64_t* writers_of(std::uintptr_t address) {
  const std::size_t offset = address - reinterpret_cast<std::uintptr_t>(arena());
  return reinterpret_cast<std::uint64_t*>(writers()) + offset;
}

}  // namespace kvtier::emulation
