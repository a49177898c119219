/// A block of threads as fibers, in random order, and checks on what they share. The compiler calls
/// __tsan_* before each read and write of a kernel (-fsanitize=thread); these are those functions.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <numeric>
#include <vector>

#include <boost/context/detail/fcontext.hpp>
#include <fmt/format.h>
#include <sys/mman.h>

#include "tests/cuda_emulation/device_code.hpp"
#include "tests/cuda_emulation/machine.hpp"
#include "tests/cuda_emulation/products.hpp"

extern "C" {
// Bounds of this module, by the linker. Shared memory is its only data that kernels write.
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}

namespace kvtier::emulation {
namespace {

namespace context = boost::context::detail;

constexpr int kWarp = 32;
constexpr int kWarpgroup = 4;
constexpr std::size_t kThreadsMax = 1024;
constexpr std::size_t kStack = 64 << 10;
constexpr std::size_t kGuard = 4096;

enum class State { ready, at_barrier, in_warp, done };

/// A copy of 16 bytes, or zeros without a source.
struct AsyncCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};
using CopyGroup = std::vector<AsyncCopy>;
constexpr std::size_t kCopy = 16;

struct Thread {
  context::fcontext_t context = nullptr;
  State state = State::ready;
  uint3 index{};
  int number = 0;
  int line = 0;
  /// In a warp's operation.
  unsigned mask = 0;
  int from = 0;
  std::uint32_t given = 0;
  std::uint32_t found = 0;
  void* operands = nullptr;
  /// Asynchronous copies that are not in a group yet, and groups that may not have arrived.
  CopyGroup uncommitted{};
  std::deque<CopyGroup> in_flight{};
  /// The block's phase at each of its proxy fences.
  std::vector<std::uint32_t> proxy_fences{};
};

/// The last accesses to two bytes of shared memory.
struct Cell {
  std::uint64_t block = 0;
  std::uint32_t write_phase = 0;
  std::uint32_t write_warp_phase = 0;
  std::uint32_t read_phase = 0;
  std::uint32_t read_warp_phase = 0;
  std::int16_t writer = -1;
  std::int16_t reader = -1;
  /// The thread of an asynchronous copy that may still write.
  std::int16_t copier = -1;
  bool other_readers = false;
  bool other_warps_read = false;
  /// Products in flight that read it, once for each warp.
  std::uint16_t products = 0;
  /// The writer's proxy fences before its write.
  std::uint32_t write_fences = 0;
};
constexpr std::uintptr_t kCell = 2;

/// Lanes that wait for each other.
struct Group {
  unsigned mask = 0;
  unsigned there = 0;
  int line = 0;
};
struct Warp {
  unsigned ready = 0;
  std::uint32_t phase = 0;
  std::vector<Group> groups;
  WarpProducts products;
};

struct Block {
  const Kernel* kernel = nullptr;
  const char* name = "";
  int device = 0;
  std::size_t dynamic_shared = 0;
  std::uint64_t launch = 0;
  std::uint64_t number = 0;
  std::uint64_t number_in_launch = 0;
  std::uint32_t phase = 0;
  std::vector<Thread> threads;
  std::array<Warp, kThreadsMax / kWarp> warps{};
  /// With lanes that are ready, and the one that runs.
  unsigned ready_warps = 0;
  unsigned warp = 0;
  int done = 0;
  Thread* current = nullptr;
  /// The one that the current one took over from; null: the scheduler.
  Thread* before = nullptr;
  bool aborted = false;
  context::fcontext_t scheduler = nullptr;
};

Block block;  // one at a time
alignas(1024) std::byte dynamic_memory[kSharedMax];
/// The host's thread that runs a kernel; others run instrumented code, too: what launches kernels.
std::atomic<void*> kernel_thread = nullptr;
struct {
  dim3 grid;
  dim3 block_size;
  uint3 block{};
  uint3 thread{};
} place;
std::uint64_t launches = 0;
std::uint64_t blocks = 0;

std::byte* stacks() {
  static std::byte* const begin = [] {
    auto* const data =
        static_cast<std::byte*>(::mmap(nullptr, kThreadsMax * kStack, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t i = 0; i < kThreadsMax; ++i) {
      ::mprotect(data + i * kStack, kGuard, PROT_NONE);
    }
    return data;
  }();
  return begin;
}

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

std::vector<Cell>& cells() {
  static std::vector<Cell> all((address_of(_end) - address_of(__bss_start)) / kCell + 1);
  return all;
}

std::string where() {
  return fmt::format("{}, block ({}, {}, {}), thread {}", block.name, place.block.x, place.block.y,
                     place.block.z, block.current->number);
}

void make_ready(const Thread& thread) {
  block.warps[static_cast<std::size_t>(thread.number / kWarp)].ready |= 1U << thread.number % kWarp;
  block.ready_warps |= 1U << thread.number / kWarp;
}

unsigned any_bit(unsigned bits, unsigned from) {
  const auto at = static_cast<unsigned>(std::countr_zero(std::rotr(bits, static_cast<int>(from))));
  return (at + from) % 32;
}

/// Any thread that is ready, mostly of the same warp; null if none is.
[[gnu::always_inline]] inline Thread* next_thread() {
  if (block.ready_warps == 0 || block.aborted) {
    return nullptr;
  }
  const std::uint64_t bits = random();
  constexpr std::uint64_t kRarely = 0x7f000;
  if ((block.ready_warps >> block.warp & 1) == 0 || (bits & kRarely) == 0) {
    block.warp = any_bit(block.ready_warps, bits >> 5 & 31);
  }
  Warp& warp = block.warps[block.warp];
  const unsigned lane = any_bit(warp.ready, bits & 31);
  warp.ready &= ~(1U << lane);
  if (warp.ready == 0) {
    block.ready_warps &= ~(1U << block.warp);
  }
  return &block.threads[block.warp * kWarp + lane];
}

void arrive(context::transfer_t from) {
  (block.before != nullptr ? block.before->context : block.scheduler) = from.fctx;
}

/// To the next thread or, if none is ready, the scheduler.
[[gnu::always_inline]] inline void leave() {
  block.before = block.current;
  block.current = next_thread();
  if (block.current != nullptr) {
    place.thread = block.current->index;
  }
  if (block.current != block.before) {
    arrive(context::jump_fcontext(
        block.current != nullptr ? block.current->context : block.scheduler, nullptr));
  }
}

/// Ends the kernel from within a thread, which never goes on.
[[gnu::noinline]] void abort_kernel(std::string_view check, const std::string& text) {
  fault(check, text);
  block.aborted = true;
  leave();
}

void run_thread(context::transfer_t from) {
  arrive(from);
  block.kernel->thread();
  if (const Thread& me = *block.current;
      !me.uncommitted.empty() ||
      std::ranges::any_of(me.in_flight, [](const CopyGroup& group) { return !group.empty(); })) {
    abort_kernel("async", where() + ": ends before its asynchronous copies have arrived");
  }
  if (!block.warps[static_cast<std::size_t>(block.current->number / kWarp)]
           .products.none_in_flight()) {
    abort_kernel("async", where() + ": ends before its warp's products have ended");
  }
  block.current->state = State::done;
  ++block.done;
  leave();
}

std::string list(const std::vector<int>& threads) {
  std::string text = fmt::format("{}", threads.front());
  if (threads.size() > 1) {
    text += fmt::format(" and {} more", threads.size() - 1);
  }
  return text;
}

/// Nobody can go on: lets all go behind a barrier, or says who is missing.
void release_barrier() {
  std::vector<int> waiting;
  std::vector<int> missing;
  std::vector<int> ended;
  int line = 0;
  bool one_place = true;
  for (const Thread& thread : block.threads) {
    if (thread.state == State::at_barrier) {
      one_place = one_place && (line == 0 || line == thread.line);
      line = thread.line;
      waiting.push_back(thread.number);
    } else {
      (thread.state == State::done ? ended : missing).push_back(thread.number);
    }
  }
  if (!missing.empty()) {
    const Thread& one = block.threads[static_cast<std::size_t>(missing.front())];
    std::vector<int> lanes;
    const int first = one.number / kWarp * kWarp;
    for (int lane = 0; lane < kWarp; ++lane) {
      const auto other = static_cast<std::size_t>(first + lane);
      if ((one.mask >> lane & 1) != 0 &&
          (other >= block.threads.size() || block.threads[other].state != State::in_warp ||
           block.threads[other].line != one.line)) {
        lanes.push_back(lane);
      }
    }
    fault("shuffle", fmt::format("{}: thread {} waits for lanes of its warp that do not come: {}",
                                 block.name, one.number, list(lanes)));
    block.aborted = true;
    return;
  }
  if (!ended.empty() || !one_place) {
    fault("barrier", !one_place
                         ? fmt::format("{}: threads wait at two barriers at once", block.name)
                         : fmt::format("{}: thread {} ended, and {} wait at a barrier", block.name,
                                       list(ended), waiting.size()));
    block.aborted = true;
    return;
  }
  ++block.phase;
  for (Thread& thread : block.threads) {
    thread.state = State::ready;
    make_ready(thread);
  }
}

void run_block() {
  const std::size_t count = block.threads.size();
  block.number = ++blocks;
  block.phase = 0;
  block.done = 0;
  for (Warp& warp : block.warps) {
    warp = {};
  }
  for (std::size_t i = 0; i < count; ++i) {
    Thread& thread = block.threads[i];
    thread.context =
        context::make_fcontext(stacks() + (i + 1) * kStack, kStack - kGuard, run_thread);
    thread.state = State::ready;
    thread.uncommitted.clear();
    thread.in_flight.clear();
    thread.proxy_fences.clear();
    make_ready(thread);
  }
  while (!block.aborted && block.done < static_cast<int>(count)) {
    if (block.ready_warps == 0) {
      release_barrier();
      continue;
    }
    block.current = nullptr;
    leave();
  }
  block.ready_warps = 0;
  for (std::size_t warp = 0; warp * kWarp < count && !block.aborted; ++warp) {
    if (block.warps[warp].products.issued !=
        block.warps[warp / kWarpgroup * kWarpgroup].products.issued) {
      fault("barrier", fmt::format("{}: warp {} has other products than the first of its warpgroup",
                                   block.name, warp));
      block.aborted = true;
    }
  }
}

using Compute = void (*)(void* const* operands);

/// The last of the lanes computes for all of them.
[[gnu::always_inline]] inline void wait_for_warp(unsigned mask, int line,
                                                 Compute compute = nullptr) {
  Thread& me = *block.current;
  me.mask = mask;
  me.line = line;
  me.state = State::in_warp;
  const int first = me.number / kWarp * kWarp;
  const unsigned bit = 1U << (me.number - first);
  if ((mask & bit) == 0) {
    abort_kernel("shuffle", where() + ": is not in its own mask");
  }
  Warp& warp = block.warps[static_cast<std::size_t>(me.number / kWarp)];
  auto group = std::ranges::find_if(
      warp.groups, [&](const Group& one) { return one.mask == mask && one.line == line; });
  if (group == warp.groups.end()) {
    group = warp.groups.insert(group, {mask, 0, line});
  }
  group->there |= bit;
  if (group->there == mask) {
    warp.groups.erase(group);
    if (compute != nullptr) {
      std::array<void*, kWarp> operands{};
      for (int lane = 0; lane < kWarp; ++lane) {
        operands[static_cast<std::size_t>(lane)] =
            block.threads[static_cast<std::size_t>(first + lane)].operands;
      }
      compute(operands.data());
    }
    for (unsigned left = mask; left != 0; left &= left - 1) {
      Thread& thread = block.threads[static_cast<std::size_t>(first + std::countr_zero(left))];
      thread.found = block.threads[static_cast<std::size_t>(first + thread.from)].given;
      thread.state = State::ready;
      make_ready(thread);
    }
  }
  leave();
}

bool same_warp(int a, int b) { return a / kWarp == b / kWarp; }

void shared_access(std::uintptr_t at, std::size_t bytes, bool write) {
  const int me = block.current->number;
  const std::uint32_t warp_phase = block.warps[static_cast<std::size_t>(me / kWarp)].phase;
  // Whether no barrier lies between an access of another thread and now.
  const auto beside = [&](int other, std::uint32_t phase, std::uint32_t other_warp_phase) {
    return other >= 0 && other != me && phase == block.phase &&
           !(same_warp(other, me) && other_warp_phase != warp_phase);
  };
  const std::uintptr_t first = (at - address_of(__bss_start)) / kCell;
  const std::uintptr_t last = (at + bytes - 1 - address_of(__bss_start)) / kCell;
  for (std::uintptr_t i = first; i <= last; ++i) {
    Cell& cell = cells()[i];
    if (cell.block != block.number) {
      cell = {.block = block.number};
    }
    if (cell.copier >= 0) {
      abort_kernel("async", fmt::format("{}: {} shared memory that an asynchronous copy of thread "
                                        "{} may still write",
                                        where(), write ? "writes" : "reads", cell.copier));
    }
    if (beside(cell.writer, cell.write_phase, cell.write_warp_phase)) {
      abort_kernel("race",
                   fmt::format("{}: {} shared memory that thread {} wrote, no barrier between",
                               where(), write ? "writes" : "reads", cell.writer));
    }
    if (write) {
      if (cell.products > 0) {
        abort_kernel("async", where() + ": writes shared memory that a product may still read");
      }
      if (beside(cell.reader, cell.read_phase, cell.read_warp_phase) ||
          (cell.read_phase == block.phase && cell.other_readers &&
           (cell.other_warps_read || cell.read_warp_phase == warp_phase))) {
        abort_kernel("race", fmt::format("{}: writes shared memory that another thread reads, no "
                                         "barrier between",
                                         where()));
      }
      cell.writer = static_cast<std::int16_t>(me);
      cell.write_phase = block.phase;
      cell.write_warp_phase = warp_phase;
      cell.write_fences = static_cast<std::uint32_t>(block.current->proxy_fences.size());
      // All reads before it are behind a barrier.
      cell.reader = -1;
      cell.other_readers = cell.other_warps_read = false;
      continue;
    }
    if (cell.writer < 0) {
      abort_kernel("unwritten", where() + ": reads shared memory that nothing wrote");
    }
    const bool joins = cell.reader >= 0 && cell.reader != me && cell.read_phase == block.phase;
    if (!joins && !(cell.reader == me && cell.read_phase == block.phase)) {
      cell.other_readers = cell.other_warps_read = false;
    }
    cell.other_readers = cell.other_readers || joins;
    cell.other_warps_read = cell.other_warps_read || (joins && !same_warp(cell.reader, me));
    cell.reader = static_cast<std::int16_t>(me);
    cell.read_phase = block.phase;
    cell.read_warp_phase = warp_phase;
  }
}

constexpr int kThreadBits = 32;
constexpr int kPhaseBits = 8;

void global_access(std::uintptr_t at, std::size_t bytes, bool write) {
  const void* const address = reinterpret_cast<const void*>(at);
  const Allocation* const found = find_allocation(address);
  const bool usable = found != nullptr && found->live &&
                      at + bytes <= found->begin + found->bytes &&
                      (found->device == kHost || found->device == block.device);
  if (!usable) {
    check_range(fmt::format("{}: {}", where(), write ? "writes" : "reads").c_str(), address, bytes,
                block.device);
    block.aborted = true;
    leave();
  }
  const std::uint64_t phase = block.phase & ((1U << kPhaseBits) - 1);
  const std::uint64_t first_thread = block.number_in_launch * block.threads.size();
  const std::uint64_t me = first_thread + static_cast<std::uint64_t>(block.current->number);
  const std::uint64_t mine = (block.launch << kPhaseBits | phase) << kThreadBits | me;
  std::uint64_t* const writers = writers_of(at);
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::uint64_t last = writers[i];
    if (last >> (kThreadBits + kPhaseBits) == block.launch && last != mine) {
      const std::uint64_t other = last & 0xffffffffU;
      const bool of_block = other - first_thread < block.threads.size();
      if (other != me && (!of_block || last >> kThreadBits == mine >> kThreadBits)) {
        abort_kernel("race",
                     fmt::format("{}: {} device memory that thread {} of block {} wrote", where(),
                                 write ? "writes" : "reads", other % block.threads.size(),
                                 other / block.threads.size()));
      }
    }
    if (write) {
      writers[i] = mine;
    }
  }
}

void access(const void* address, std::size_t bytes, bool write, bool aligned = true) {
  if (kernel_thread.load(std::memory_order_relaxed) != __builtin_thread_pointer() || bytes == 0) {
    return;
  }
  const std::uintptr_t at = address_of(address);
  if (at - address_of(stacks()) < kThreadsMax * kStack) {
    return;
  }
  if (aligned && (at & (bytes - 1)) != 0) {
    abort_kernel("alignment", fmt::format("{}: {} {} bytes at {}", where(),
                                          write ? "writes" : "reads", bytes, address));
  }
  if (in_arena(address)) {
    global_access(at, bytes, write);
  } else if (at - address_of(__bss_start) < address_of(_end) - address_of(__bss_start)) {
    if (at - address_of(dynamic_memory) < kSharedMax &&
        at - address_of(dynamic_memory) + bytes > block.dynamic_shared) {
      abort_kernel("bounds",
                   fmt::format("{}: {} shared memory behind the {} bytes of the launch", where(),
                               write ? "writes" : "reads", block.dynamic_shared));
    }
    shared_access(at, bytes, write);
  } else if (write ||
             (at - address_of(block.kernel) >= block.kernel->bytes &&
              at - address_of(__ehdr_start) >= address_of(_end) - address_of(__ehdr_start))) {
    abort_kernel("bounds", fmt::format("{}: {} memory of the host at {}", where(),
                                       write ? "writes" : "reads", address));
  }
}

}  // namespace

dim3 grid() { return place.grid; }
dim3 block_size() { return place.block_size; }
uint3 block_index() { return place.block; }
uint3 thread_index() { return place.thread; }

void barrier(int line) {
  block.current->line = line;
  block.current->state = State::at_barrier;
  leave();
}

void warp_barrier(unsigned mask, int line) {
  Warp& warp = block.warps[static_cast<std::size_t>(block.current->number / kWarp)];
  const std::uint32_t phase = warp.phase;
  block.current->from = block.current->number % kWarp;
  wait_for_warp(mask, line);
  warp.phase = phase + 1;
}

std::uint32_t shuffle(unsigned mask, std::uint32_t value, int from, int line) {
  block.current->given = value;
  block.current->from = from;
  if ((mask >> block.current->from & 1) == 0) {
    abort_kernel("shuffle", where() + ": reads a lane that is not in its mask");
  }
  wait_for_warp(mask, line);
  return block.current->found;
}

int lane() { return block.current->number % kWarp; }

void compute_by_warp(void* operands, Compute compute, int line) {
  block.current->operands = operands;
  block.current->from = lane();
  if (block.threads.size() % kWarp != 0) {
    abort_kernel("shuffle", where() + ": an operation of a warp needs all of its lanes");
  }
  wait_for_warp(0xffffffffU, line, compute);
}

std::byte* dynamic_shared() { return dynamic_memory; }

void will_read(const void* address, std::size_t bytes) { access(address, bytes, /*write=*/false); }

void copy_async(void* shared, const void* global, bool reads) {
  const std::uintptr_t to = address_of(shared);
  if (to - address_of(dynamic_memory) >= kSharedMax || (reads && !in_arena(global))) {
    abort_kernel("bounds",
                 where() + ": copies to or from other memory than an asynchronous copy may");
  }
  if (reads) {
    access(global, kCopy, /*write=*/false);
  }
  access(shared, kCopy, /*write=*/true);
  for (std::size_t i = 0; i < kCopy / kCell; ++i) {
    cells()[(to - address_of(__bss_start)) / kCell + i].copier =
        static_cast<std::int16_t>(block.current->number);
  }
  block.current->uncommitted.push_back(
      {static_cast<std::byte*>(shared), reads ? static_cast<const std::byte*>(global) : nullptr});
}

void commit_copies() {
  block.current->in_flight.push_back(std::move(block.current->uncommitted));
  block.current->uncommitted.clear();
}

void wait_for_copies(int pending) {
  Thread& me = *block.current;
  const std::uint32_t warp_phase = block.warps[static_cast<std::size_t>(me.number / kWarp)].phase;
  for (; std::ssize(me.in_flight) > pending; me.in_flight.pop_front()) {
    for (const AsyncCopy& copy : me.in_flight.front()) {
      copy.from != nullptr ? std::memcpy(copy.to, copy.from, kCopy)
                           : std::memset(copy.to, 0, kCopy);
      for (std::size_t i = 0; i < kCopy / kCell; ++i) {
        Cell& cell = cells()[(address_of(copy.to) - address_of(__bss_start)) / kCell + i];
        cell.copier = -1;
        cell.write_fences = static_cast<std::uint32_t>(me.proxy_fences.size());
        cell.write_phase = block.phase;
        cell.write_warp_phase = warp_phase;
      }
    }
  }
}

WarpProducts& products_of_warp() {
  return block.warps[static_cast<std::size_t>(block.current->number / kWarp)].products;
}

int warp_of_warpgroup() {
  if (block.threads.size() % (kWarpgroup * kWarp) != 0) {
    abort_kernel("barrier", where() + ": a product of a warpgroup needs four warps");
  }
  return block.current->number / kWarp % kWarpgroup;
}

void fail_product(std::string_view check, const std::string& text) {
  abort_kernel(check, where() + ": " + text);
}

void read_by_product(const std::byte* chunk) {
  access(chunk, kCopy, /*write=*/false);
  for (std::size_t i = 0; i < kCopy / kCell; ++i) {
    Cell& cell = cells()[(address_of(chunk) - address_of(__bss_start)) / kCell + i];
    const std::vector<std::uint32_t>& fences =
        block.threads[static_cast<std::size_t>(cell.writer)].proxy_fences;
    if (cell.write_fences >= fences.size()) {
      abort_kernel("proxy", fmt::format("{}: a product reads what thread {} wrote, no proxy fence "
                                        "of that thread between",
                                        where(), cell.writer));
    }
    if (!same_warp(cell.writer, block.current->number) &&
        fences[cell.write_fences] == block.phase) {
      abort_kernel("proxy", fmt::format("{}: a product reads what thread {} wrote, no barrier "
                                        "after its proxy fence",
                                        where(), cell.writer));
    }
    ++cell.products;
  }
}

void end_read_by_product(const std::byte* chunk) {
  for (std::size_t i = 0; i < kCopy / kCell; ++i) {
    --cells()[(address_of(chunk) - address_of(__bss_start)) / kCell + i].products;
  }
}

void fence_async_proxy() { block.current->proxy_fences.push_back(block.phase); }

std::int64_t global_timer() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void run_kernel(const Launch& launch, const char* name, const Kernel& kernel, int device) {
  kernel_thread = __builtin_thread_pointer();
  block.kernel = &kernel;
  block.name = name;
  block.device = device;
  block.dynamic_shared = launch.shared;
  block.aborted = false;
  block.launch = ++launches & 0xffffffU;
  place.grid = launch.grid;
  place.block_size = launch.block;
  const std::size_t threads = std::size_t{launch.block.x} * launch.block.y * launch.block.z;
  block.threads.resize(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    const auto n = static_cast<unsigned>(i);
    block.threads[i].number = static_cast<int>(i);
    block.threads[i].index = {n % launch.block.x, n / launch.block.x % launch.block.y,
                              n / launch.block.x / launch.block.y};
  }
  const std::uint64_t count = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  // All blocks once, from anywhere in steps that have no divisor in common with their number.
  std::uint64_t at = random_below(count);
  std::uint64_t step = 1 + random_below(count);
  while (std::gcd(step, count) != 1) {
    ++step;
  }
  for (std::uint64_t i = 0; i < count && !block.aborted; ++i) {
    place.block = {static_cast<unsigned>(at % launch.grid.x),
                   static_cast<unsigned>(at / launch.grid.x % launch.grid.y),
                   static_cast<unsigned>(at / launch.grid.x / launch.grid.y)};
    block.number_in_launch = at;
    run_block();
    at = (at + step) % count;
  }
  kernel_thread = nullptr;
}

}  // namespace kvtier::emulation

using kvtier::emulation::access;

// NOLINTBEGIN(bugprone-reserved-identifier): the compiler's names.
#define KVTIER_HOOKS(bytes)                                                      \
  void __tsan_read##bytes(void* p) { access(p, bytes, false); }                  \
  void __tsan_write##bytes(void* p) { access(p, bytes, true); }                  \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, false, false); } \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, true, false); }
extern "C" {
KVTIER_HOOKS(1)
KVTIER_HOOKS(2)
KVTIER_HOOKS(4)
KVTIER_HOOKS(8)
KVTIER_HOOKS(16)
void __tsan_read_range(void* p, std::size_t bytes) { access(p, bytes, false, false); }
void __tsan_write_range(void* p, std::size_t bytes) { access(p, bytes, true, false); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
}
#undef KVTIER_HOOKS
// NOLINTEND(bugprone-reserved-identifier)
