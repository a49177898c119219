#include "tests/traces/allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvtier::testing {
namespace {

// Libraries under test may have threads.
std::atomic<std::int64_t> count = 0;
std::atomic<std::int64_t> bytes = 0;

void* allocate(std::size_t size) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}

void* allocate_or_throw(std::size_t size) {
  void* memory = allocate(size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

Allocations allocations_so_far() { return {.count = count, .bytes = bytes}; }

}  // namespace kvtier::testing

// In a source of their own, because a compiler that inlines them sees `new` met by `free` and
// warns. Each form that allocates has to be here: what another one allocates, free() may not
// release.
void* operator new(std::size_t size) { return kvtier::testing::allocate_or_throw(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return kvtier::testing::allocate(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
