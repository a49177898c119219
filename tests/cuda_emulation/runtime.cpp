/// CUDA's runtime on the host: streams whose work runs later, in any order that is legal, on
/// devices that are memory and a thread. Strict where the real one may be: memory that is freed
/// while work on it waits is a fault, pageable memory may be read late. What is not here does not
/// link.

#include "tests/cuda_emulation/runtime.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/cuda_emulation/planted.hpp"

namespace kvtier::emulation {
namespace {

constexpr int kDevices = 2;
constexpr int kRuntime = 13000;
/// Far below that of a real GPU, so that tests can exceed it.
constexpr std::size_t kPitchMax = std::size_t{1} << 20;

Schedule schedule = Schedule::random;
Counters counters{};
std::map<std::string, int, std::less<>> failures;
int planted_fault = 0;
thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;
/// The thread captures a graph.
thread_local bool captures = false;

struct Device {
  std::size_t used = 0;
  unsigned flags = 0;
};
Device devices[kDevices];
std::list<std::unique_ptr<CUstream_st>> streams;

std::size_t memory_of_device() {
  static const std::size_t bytes = [] {
    const char* const given = std::getenv("KVTIER_EMULATED_MEMORY_MIB");
    return (given == nullptr ? std::size_t{512} : std::strtoull(given, nullptr, 10)) << 20;
  }();
  return bytes;
}

// ---- Queues ----

/// Whether the next step of the stream's work may run.
bool may_run(const CUstream_st& stream) {
  return !stream.work.empty() &&
         (stream.work.front().after == nullptr || stream.work.front().after->done);
}

void run_step(CUstream_st& stream) {
  Work& work = stream.work.front();
  if (!work.steps.empty()) {
    const auto step = std::move(work.steps.front());
    work.steps.pop_front();
    step();
  }
  if (!work.steps.empty()) {
    return;
  }
  if (work.recording != nullptr) {
    work.recording->done = true;
    work.recording->at = std::chrono::steady_clock::now();
  }
  stream.work.pop_front();
}

CUstream_st* any_that_may_run() {
  std::vector<CUstream_st*> able;
  for (const auto& stream : streams) {
    if (may_run(*stream)) {
      able.push_back(stream.get());
    }
  }
  return able.empty() ? nullptr : able[random_below(able.size())];
}

/// Runs what may run until the condition holds; `stream` is what it waits for.
void run_until(CUstream_st* stream, const std::function<bool()>& reached) {
  while (!reached()) {
    CUstream_st* next = stream;
    if (schedule == Schedule::random) {
      next = any_that_may_run();
    } else {
      while (next != nullptr && !next->work.empty() && !may_run(*next)) {
        next = next->work.front().after->stream;
      }
    }
    if (next == nullptr || next->work.empty()) {
      fault("deadlock", "a stream waits for what nobody does");
      return;
    }
    run_step(*next);
  }
}

/// Other work goes on while the host does.
void let_others_run() {
  if (schedule == Schedule::random) {
    for (std::uint64_t steps = random_below(4); steps > 1; --steps) {
      if (CUstream_st* const next = any_that_may_run()) {
        run_step(*next);
      }
    }
  }
}

void drain(CUstream_st& stream) {
  run_until(&stream, [&] { return stream.work.empty(); });
}

}  // namespace

CUstream_st* stream_of(cudaStream_t stream) {
  // The legacy stream of each device; ours do not wait for it.
  static CUstream_st* legacy[kDevices];
  if (stream != nullptr && stream != cudaStreamLegacy) {
    return stream;
  }
  CUstream_st*& found = legacy[current];
  if (found == nullptr) {
    found = streams.emplace_back(std::make_unique<CUstream_st>()).get();
    found->device = current;
  }
  return found;
}

void queue(CUstream_st& stream, Work work) {
  if (stream.capturing != nullptr) {
    stream.capturing->work.push_back(std::move(work));
    return;
  }
  stream.work.push_back(std::move(work));
  if (schedule == Schedule::eager) {
    drain(stream);
  } else {
    let_others_run();
  }
}

int current_device() { return current; }

bool must_fail(const char* function) {
  const auto found = failures.find(function);
  if (found == failures.end() || --found->second > 0) {
    return false;
  }
  failures.erase(found);
  return true;
}

cudaError_t end_call(cudaError_t error) {
  if (!first_fault().empty()) {
    error = cudaErrorLaunchFailure;
  }
  if (error != cudaSuccess) {
    last_error = error;
  }
  return error;
}

Counters& count() { return counters; }

bool planted(int number) { return planted_fault == number; }

/// Every call begins so.
#define KVTIER_CALL                                    \
  const std::lock_guard lock(machine);                 \
  if (must_fail(__func__) || !first_fault().empty()) { \
    return end_call(cudaErrorUnknown);                 \
  }                                                    \
  let_others_run()

// ---- Kernels ----

namespace {
/// Without cudaFuncSetAttribute; here the largest that any function asked for.
std::size_t dynamic_shared_limit = std::size_t{48} << 10;
}  // namespace

void queue_kernel(const Launch& launch, const char* name, std::unique_ptr<Kernel> kernel) {
  const std::lock_guard lock(machine);
  CUstream_st& stream = *stream_of(launch.stream);
  const auto none = [](const dim3& d) { return d.x == 0 || d.y == 0 || d.z == 0; };
  constexpr unsigned kMost = 65535;
  if (none(launch.grid) || none(launch.block) || launch.grid.y > kMost || launch.grid.z > kMost ||
      launch.grid.x > INT32_MAX || launch.block.x * launch.block.y * launch.block.z > 1024) {
    end_call(cudaErrorInvalidConfiguration);
    return;
  }
  if (launch.shared > dynamic_shared_limit) {
    end_call(cudaErrorInvalidValue);
    return;
  }
  if (stream.device != current) {
    fault("device", fmt::format("{}: launched on a stream of device {} while device {} is current",
                                name, stream.device, current));
    end_call(cudaErrorInvalidResourceHandle);
    return;
  }
  ++counters.kernels;
  counters.blocks += std::int64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  Work work;
  work.steps.push_back(
      [launch, name, device = stream.device, shared = std::shared_ptr<Kernel>(std::move(kernel))] {
        if (first_fault().empty()) {
          run_kernel(launch, name, *shared, device);
        }
      });
  queue(stream, std::move(work));
}

// ---- Copies ----

namespace {

struct Side {
  std::byte* data;
  std::size_t pitch;
};

/// Hash of pageable memory, to detect changes and frees before it was read.
std::uint64_t hash_of(const std::byte* data, std::size_t bytes) {
  std::vector<std::byte> read(std::min<std::size_t>(bytes, 4096));
  iovec to{read.data(), read.size()};
  iovec from{const_cast<std::byte*>(data), read.size()};
  if (::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(read.size())) {
    return 0;
  }
  std::uint64_t hash = 14695981039346656037U;
  for (const std::byte b : read) {
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 1099511628211U;
  }
  return hash;
}

bool is_pageable(const void* data) { return !in_arena(data); }

bool usable(const Side& side, std::size_t width, std::size_t height) {
  if (is_pageable(side.data)) {
    return true;
  }
  const Allocation* const found = find_allocation(side.data);
  return check_range("cudaMemcpy", side.data, (height - 1) * side.pitch + width,
                     found != nullptr ? found->device : kHost);
}

/// A slow link: other work goes on between parts of a copy.
void add_copy(Work& work, Side to, Side from, std::size_t width, std::size_t height) {
  const auto unchanged = [from, width,
                          hash = is_pageable(from.data) ? hash_of(from.data, width) : 0] {
    if (is_pageable(from.data) && hash_of(from.data, width) != hash) {
      fault("pageable", "cudaMemcpyAsync: pageable memory was changed or freed before it was read");
    }
  };
  const std::size_t half = random_below(width);
  work.steps.emplace_back(unchanged);
  for (const auto& [begin, end] : {std::pair(std::size_t{0}, half), std::pair(half, width)}) {
    work.steps.push_back([=, first = begin, last = end] {
      if (first_fault().empty() && usable(to, width, height) && usable(from, width, height)) {
        for (std::size_t row = 0; row < height; ++row) {
          std::memmove(to.data + row * to.pitch + first, from.data + row * from.pitch + first,
                       last - first);
        }
      }
    });
  }
  work.steps.emplace_back(unchanged);
}

cudaError_t copy(Side to, Side from, std::size_t width, std::size_t height, cudaStream_t stream,
                 bool waits) {
  if (width == 0 || height == 0) {
    return cudaSuccess;
  }
  if (to.pitch < width || from.pitch < width) {
    return end_call(cudaErrorInvalidPitchValue);
  }
  if (!usable(to, width, height) || !usable(from, width, height)) {
    return end_call(cudaErrorInvalidValue);
  }
  ++counters.copies;
  CUstream_st& on = *stream_of(stream);
  Work work;
  if (waits && is_pageable(from.data)) {
    // Read now; what is staged arrives later.
    auto staged = std::make_shared<std::vector<std::byte>>(from.data, from.data + width);
    work.steps.push_back([=] {
      if (usable(to, width, 1)) {
        std::memcpy(to.data, staged->data(), width);
      }
    });
    queue(on, std::move(work));
    return end_call(cudaSuccess);
  }
  add_copy(work, to, from, width, height);
  queue(on, std::move(work));
  if (waits || is_pageable(to.data)) {
    drain(on);
  }
  return end_call(cudaSuccess);
}

Side side(const void* data, std::size_t pitch) {
  return {static_cast<std::byte*>(const_cast<void*>(data)), pitch};
}

cudaError_t free_memory(void* data, bool of_device) {
  if (data == nullptr) {
    return cudaSuccess;
  }
  Allocation* const found = find_allocation(data);
  if (found == nullptr || found->begin != reinterpret_cast<std::uintptr_t>(data) || !found->live ||
      (found->device != kHost) != of_device) {
    return end_call(cudaErrorInvalidValue);
  }
  if (of_device) {
    devices[found->device].used -= found->bytes;
  }
  --counters.allocations;
  release(*found);
  return end_call(cudaSuccess);
}

}  // namespace

// ---- What tests ask for ----

extern "C" {
void kvtier_emulation_schedule(Schedule to, std::uint64_t seed) {
  const std::lock_guard lock(machine);
  schedule = to;
  seed_random(seed);
}
void kvtier_emulation_counters(Counters* to) {
  const std::lock_guard lock(machine);
  *to = counters;
  to->device_flags = devices[current].flags;
}
void kvtier_emulation_fail(const char* function, int n) {
  const std::lock_guard lock(machine);
  failures[function] = n;
}
bool kvtier_emulation_plant(const char* name) {
  const std::lock_guard lock(machine);
  planted_fault = 0;
  for (int i = 0; planted_names[i] != nullptr; ++i) {
    if (std::strcmp(name, planted_names[i]) == 0) {
      planted_fault = i + 1;
    }
  }
  return planted_fault > 0;
}
const char* kvtier_emulation_planted(int i) { return planted_names[i]; }
}

}  // namespace kvtier::emulation

// ---- The runtime's interface ----

using namespace kvtier::emulation;  // NOLINT(google-build-using-namespace)

extern "C" {

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(machine);
  const cudaError_t error = first_fault().empty() ? last_error : cudaErrorLaunchFailure;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return first_fault().empty() ? cudaGetErrorName(error) : first_fault().c_str();
}

cudaError_t cudaGetDeviceCount(int* count) {
  KVTIER_CALL;
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  KVTIER_CALL;
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  KVTIER_CALL;
  if (device < 0 || device >= kDevices) {
    return end_call(cudaErrorInvalidDevice);
  }
  current = device;
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  KVTIER_CALL;
  devices[current].flags = flags;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  KVTIER_CALL;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU %d", device);
  properties->totalGlobalMem = memory_of_device();
  const char* const processors = std::getenv("KVTIER_EMULATED_PROCESSORS");
  properties->multiProcessorCount = processors != nullptr ? std::atoi(processors) : 132;
  properties->major = 9;
  properties->l2CacheSize = 1 << 20;
  properties->memoryBusWidth = 6144;
  properties->memPitch = kPitchMax;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  KVTIER_CALL;
  switch (attribute) {
    case cudaDevAttrClockRate:
      *value = 1980000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 3201000;
      break;
    // Device 1 shares the page tables of its host, as a GH200 does.
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
      *value = device;
      break;
    default:
      return end_call(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const std::lock_guard lock(machine);
  const auto bytes = static_cast<std::size_t>(value);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes > kSharedMax) {
    return end_call(cudaErrorInvalidValue);
  }
  dynamic_shared_limit = std::max(dynamic_shared_limit, bytes);
  return end_call(cudaSuccess);
}
/// Device 1 has no code of kernels for a warpgroup. Only they ask.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const std::lock_guard lock(machine);
  *attributes = {};
  attributes->maxThreadsPerBlock = current == 0 ? 1024 : 32;
  return end_call(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) {
  KVTIER_CALL;
  *version = kRuntime;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  KVTIER_CALL;
  *version = kRuntime;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  KVTIER_CALL;
  *total = memory_of_device();
  *free = *total - devices[current].used;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  KVTIER_CALL;
  if (captures) {
    return end_call(cudaErrorStreamCaptureUnsupported);
  }
  if (devices[current].used + bytes > memory_of_device()) {
    return end_call(cudaErrorMemoryAllocation);
  }
  devices[current].used += bytes;
  ++count().allocations;
  *data = allocate(bytes, current);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  const std::lock_guard lock(machine);
  return free_memory(data, /*of_device=*/true);
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  KVTIER_CALL;
  ++count().allocations;
  *data = allocate(bytes, kHost);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(machine);
  return free_memory(data, /*of_device=*/false);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  KVTIER_CALL;
  return copy(side(to, bytes), side(from, bytes), bytes, 1, cudaStreamLegacy, /*waits=*/true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  KVTIER_CALL;
  return copy(side(to, bytes), side(from, bytes), bytes, 1, stream, /*waits=*/false);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  KVTIER_CALL;
  if (std::max(to_pitch, from_pitch) > kPitchMax) {
    return end_call(cudaErrorInvalidPitchValue);
  }
  return copy(side(to, to_pitch), side(from, from_pitch), width, height, stream, /*waits=*/false);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  KVTIER_CALL;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  KVTIER_CALL;
  if (flags != cudaStreamNonBlocking) {
    return end_call(cudaErrorNotSupported);  // no emulation of streams that wait for the legacy one
  }
  if (priority < 0) {
    ++count().urgent_streams;
  }
  streams.push_back(std::make_unique<CUstream_st>());
  ++count().streams;
  *stream = streams.back().get();
  (*stream)->device = current;
  (*stream)->urgent = priority < 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
/// Its work goes on.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(machine);
  --count().streams;
  count().urgent_streams -= stream->urgent ? 1 : 0;
  stream->orphan = true;
  std::erase_if(streams, [](const auto& one) { return one->orphan && one->work.empty(); });
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  KVTIER_CALL;
  if (stream_of(stream)->capturing != nullptr) {
    return end_call(cudaErrorStreamCaptureUnsupported);
  }
  drain(*stream_of(stream));
  return end_call(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  KVTIER_CALL;
  if (event->last != nullptr) {
    Work work;
    work.after = event->last;
    queue(*stream_of(stream), std::move(work));
  }
  return end_call(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  KVTIER_CALL;
  if (mode != cudaStreamCaptureModeThreadLocal || stream->capturing != nullptr) {
    return end_call(cudaErrorNotSupported);
  }
  stream->capturing = new CUgraph_st;
  captures = true;
  ++count().graphs;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(machine);
  *graph = stream->capturing;
  stream->capturing = nullptr;
  captures = false;
  return end_call(*graph != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long) {
  KVTIER_CALL;
  *instance = new CUgraphExec_st{.device = current, .work = graph->work};
  ++count().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  KVTIER_CALL;
  if (stream->device != instance->device) {
    fault("device", "a graph is launched on a stream of another device");
    return end_call(cudaErrorInvalidValue);
  }
  ++count().graph_launches;
  for (const Work& work : instance->work) {
    queue(*stream, work);
  }
  return end_call(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  const std::lock_guard lock(machine);
  --count().graphs;
  delete instance;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(machine);
  --count().graphs;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  KVTIER_CALL;
  ++count().events;
  *event = new CUevent_st{.device = current, .last = nullptr};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(machine);
  if (event != nullptr) {
    --count().events;
    delete event;
  }
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  KVTIER_CALL;
  CUstream_st& on = *stream_of(stream);
  if (event->device != on.device) {
    fault("device", fmt::format("an event of device {} is recorded on a stream of device {}",
                                event->device, on.device));
    return end_call(cudaErrorInvalidResourceHandle);
  }
  event->last = std::make_shared<Recording>();
  event->last->stream = &on;
  Work work;
  work.recording = event->last;
  queue(on, std::move(work));
  return end_call(cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  KVTIER_CALL;
  return end_call(event->last == nullptr || event->last->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  KVTIER_CALL;
  if (const std::shared_ptr<Recording> recording = event->last) {
    run_until(recording->done ? nullptr : recording->stream, [&] { return recording->done; });
  }
  return end_call(cudaSuccess);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  KVTIER_CALL;
  if (first->last == nullptr || last->last == nullptr) {
    return end_call(cudaErrorInvalidResourceHandle);
  }
  if (!first->last->done || !last->last->done) {
    return end_call(cudaErrorNotReady);
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(last->last->at - first->last->at).count();
  return cudaSuccess;
}
}
