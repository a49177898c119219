#include "tests/traces/allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvtier::testing {
namespace {

// Plain numbers: the tests of this folder have one thread.
Allocations so_far;

void* allocate(std::size_t size) {
  ++so_far.count;
  so_far.bytes += static_cast<std::int64_t>(size);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

Allocations allocations_so_far() { return so_far; }

}  // namespace kvtier::testing

// In a source of their own, because a compiler that inlines them sees `new` met by `free` and
// warns.
void* operator new(std::size_t size) { return kvtier::testing::allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
