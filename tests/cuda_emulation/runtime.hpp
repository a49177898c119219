#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/cuda_emulation/device_code.hpp"
#include "tests/cuda_emulation/machine.hpp"

/// Queues of work, for the runtime and cuBLAS.
struct CUstream_st;

namespace kvtier::emulation {

/// A point in a stream.
struct Recording {
  CUstream_st* stream = nullptr;
  bool done = false;
  std::chrono::steady_clock::time_point at;
};

/// Work of a stream, in order. Other streams may run between its steps.
struct Work {
  std::deque<std::function<void()>> steps{};
  /// The recording that must be reached before.
  std::shared_ptr<Recording> after{};
  std::shared_ptr<Recording> recording{};
};

[[nodiscard]] CUstream_st* stream_of(cudaStream_t stream);
void queue(CUstream_st& stream, Work work);
[[nodiscard]] int current_device();
/// Whether a test wants this call to fail.
[[nodiscard]] bool must_fail(const char* function);
[[nodiscard]] Counters& count();

}  // namespace kvtier::emulation

struct CUstream_st {
  int device = 0;
  bool orphan = false;
  /// Its blocks go before those of other streams.
  bool urgent = false;
  std::deque<kvtier::emulation::Work> work{};
  /// Work is captured here, and not queued.
  CUgraph_st* capturing = nullptr;
};
struct CUgraph_st {
  std::vector<kvtier::emulation::Work> work{};
};
struct CUgraphExec_st {
  int device = 0;
  std::vector<kvtier::emulation::Work> work{};
};
struct CUevent_st {
  int device = 0;
  std::shared_ptr<kvtier::emulation::Recording> last;
};
