/// The CUDA device is a module, because cuBLAS alone is hundreds of megabytes of shared libraries.
/// The program must start without them.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <sched.h>

#include "hw/device/cuda/check.hpp"
#include "hw/device/cuda/flashinfer_attention.hpp"
#include "hw/device/cuda/gemm_plans.hpp"
#include "hw/device/device.hpp"
#include "hw/device/host_memory.hpp"
#include "hw/device/open_device.hpp"
#include "kernels/attention_cuda.hpp"
#include "kernels/paged_cuda.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/quantity.hpp"

namespace kvtier {
namespace {

/// Whether waiting threads block. A spinning thread takes a processor from threads that queue work.
bool waits_block() {
  constexpr int kFewProcessors = 8;
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < kFewProcessors;
}

struct CudaEvent final : Event {
  CudaEvent() {
    check(
        "cudaEventCreateWithFlags",
        cudaEventCreateWithFlags(&event, waits_block() ? cudaEventBlockingSync : cudaEventDefault));
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() override { cudaEventDestroy(event); }
  void synchronize() override { check("cudaEventSynchronize", cudaEventSynchronize(event)); }
  cudaEvent_t event = nullptr;
};

struct CudaGraph final : Graph {
  CudaGraph() = default;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  ~CudaGraph() override {
    if (instance != nullptr) {
      cudaGraphExecDestroy(instance);
    }
    if (graph != nullptr) {
      cudaGraphDestroy(graph);
    }
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
};

/// An AttentionPlan of kernels on the device, and room for its parts.
struct CudaAttentionPlan final : AttentionPlan {
  kernels::PagedAttentionShape shape;
  std::int64_t requests = 0;
  kernels::cuda::AttentionLists lists;
  Buffer on_host;
  Buffer on_device;
  Buffer parts;
  CudaEvent uploaded;
};

/// A plan of FlashInfer: lists of 32-bit numbers (contexts, queries, lengths of pages) and its own
/// memory.
struct FlashInferPlan final : AttentionPlan {
  kernels::PagedAttentionShape shape;
  std::int64_t requests = 0;
  std::vector<std::int64_t> planned;
  flashinfer_attention::Memory memory;
  Buffer lists;
  Buffer floats;
  Buffer integers;
  Buffer integers_on_host;
};

struct CudaStream final : Stream {
  explicit CudaStream(StreamKind kind) {
    int least = 0;
    int greatest = 0;
    check("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    check("cudaStreamCreateWithPriority",
          cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       kind == StreamKind::background ? least : greatest));
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override {
    cudaStreamSynchronize(stream);  // queued products use the workspace
    cudaStreamDestroy(stream);
  }
  void synchronize() override { check("cudaStreamSynchronize", cudaStreamSynchronize(stream)); }
  /// Memory for products of matrices, which run one after another.
  std::byte* workspace_of(Device& device, Bytes bytes) {
    if (workspace.size() < bytes) {
      workspace = Buffer(device, MemoryKind::device, bytes);
    }
    return workspace.data();
  }
  cudaStream_t stream = nullptr;
  Buffer workspace;
};

template <class Element>
constexpr ElementType kElementType = ElementType::bfloat16;
template <>
constexpr ElementType kElementType<__half> = ElementType::float16;
template <class Element>
constexpr cudaDataType_t kDataType = CUDA_R_16BF;
template <>
constexpr cudaDataType_t kDataType<__half> = CUDA_R_16F;

float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
float to_float(__half x) { return __half2float(x); }
template <class Element>
Element to_element(float x) {
  if constexpr (kElementType<Element> == ElementType::float16) {
    return __float2half(x);
  } else {
    return __float2bfloat16(x);
  }
}

/// `Element` is __nv_bfloat16 or __half.
template <class Element>
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    int count = 0;  // unchanged by the call if there is no driver
    check("cudaGetDeviceCount", cudaGetDeviceCount(&count));
    if (index >= count) {
      throw DeviceError(fmt::format("there are {} CUDA devices", count));
    }
    select();
    cudaDeviceProp properties{};
    check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index));
    int driver = 0;
    int runtime = 0;
    check("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
    check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
    if (waits_block()) {
      check("cudaSetDeviceFlags", cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    }
    workspace_ = std::min(
        kWorkspaceMax, Bytes(static_cast<std::int64_t>(properties.totalGlobalMem) / kWorkspaces));
    products_.emplace(kDataType<Element>, static_cast<std::size_t>(workspace_.value));
    const std::size_t blas_version = cublasLtGetVersion();
    info_.kind = "cuda";
    info_.name = properties.name;
    info_.driver = fmt::format("CUDA {}.{}", driver / 1000, driver % 1000 / 10);
    info_.libraries = {{"cudart", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10)},
                       {"cublas", fmt::format("{}.{}.{}", blas_version / 10000,
                                              blas_version % 10000 / 100, blas_version % 100)}};
    if (const std::string version = flashinfer_attention::version(); !version.empty()) {
      info_.libraries.emplace_back("flashinfer", version);
    }
    info_.processors = properties.multiProcessorCount;
    info_.memory = Bytes(static_cast<std::int64_t>(properties.totalGlobalMem));
    info_.element_type = kElementType<Element>;
    info_.element = Bytes(sizeof(Element));
    info_.limits = limits_of(properties);
    info_.pitch_max = Bytes(static_cast<std::int64_t>(properties.memPitch));
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override = default;

  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] Bytes free_memory(MemoryKind kind) const override {
    if (kind == MemoryKind::device) {
      std::size_t free = 0;
      std::size_t total = 0;
      select();
      check("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
      return Bytes(static_cast<std::int64_t>(free));
    }
    return available_host_memory();
  }

  [[nodiscard]] std::unique_ptr<Stream> make_stream(StreamKind kind) override {
    select();
    return std::make_unique<CudaStream>(kind);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    select();
    return std::make_unique<CudaEvent>();
  }
  void record(Event& event, Stream& stream) override {
    check("cudaEventRecord", cudaEventRecord(static_cast<CudaEvent&>(event).event, on(stream)));
  }
  void wait(Stream& stream, Event& event) override {
    check("cudaStreamWaitEvent",
          cudaStreamWaitEvent(on(stream), static_cast<CudaEvent&>(event).event, 0));
  }
  [[nodiscard]] double seconds_between(const Event& first, const Event& last) const override {
    float milliseconds = 0;
    check("cudaEventElapsedTime",
          cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(first).event,
                               static_cast<const CudaEvent&>(last).event));
    constexpr double kMillisecond = 1e-3;
    return static_cast<double>(milliseconds) * kMillisecond;
  }

  void copy(void* to, const void* from, Bytes bytes, Stream& stream) override {
    if (bytes == Bytes()) {
      return;
    }
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.value),
                                             cudaMemcpyDefault, on(stream)));
  }
  /// One call for each piece, unless its rows are too far apart.
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    for (const CopyPiece& piece : pieces) {
      const auto size = [](Bytes bytes) { return static_cast<std::size_t>(bytes.value); };
      const bool fits = std::max(piece.to_pitch, piece.from_pitch) <= info_.pitch_max;
      if (piece.rows > 1 && piece.bytes > Bytes() && fits) {
        check("cudaMemcpy2DAsync",
              cudaMemcpy2DAsync(piece.to, size(piece.to_pitch), piece.from, size(piece.from_pitch),
                                size(piece.bytes), static_cast<std::size_t>(piece.rows),
                                cudaMemcpyDefault, on(stream)));
      } else {
        for_each_row(piece,
                     [&](void* to, const void* from) { copy(to, from, piece.bytes, stream); });
      }
    }
  }
  void upload(void* to, const void* from, Bytes bytes, Stream& stream) override {
    expect_aligned(to, kUnit);
    expect_aligned(from, kUnit);
    check("upload", kernels::cuda::upload(to, from, bytes.value, on(stream)));
  }
  void gather(const RowWork& work, Stream& stream) override {
    check("gather", kernels::cuda::gather_rows(rows_of(work), on(stream)));
  }
  void scatter(const RowWork& work, Stream& stream) override {
    check("scatter", kernels::cuda::scatter_rows(rows_of(work), on(stream)));
  }
  void fold(const RowWork& work, Stream& stream) override {
    check("fold", kernels::cuda::fold_rows(rows_of(work, sizeof(std::uint32_t)), on(stream)));
  }
  void gemm(const GemmWork& work, Stream& stream) override {
    if (work.m > 0) {
      products_->multiply(work, workspace_of(stream), on(stream));
    }
  }
  [[nodiscard]] std::int64_t gemm_rows(std::int64_t m) const override { return GemmPlans::rows(m); }
  [[nodiscard]] std::unique_ptr<Graph> capture(Stream& stream,
                                               const std::function<void()>& queue) override {
    auto captured = std::make_unique<CudaGraph>();
    static_cast<void>(workspace_of(stream));  // nothing may be allocated meanwhile
    const cudaStream_t from = on(stream);
    check("cudaStreamBeginCapture", cudaStreamBeginCapture(from, cudaStreamCaptureModeThreadLocal));
    try {
      queue();
    } catch (...) {
      cudaStreamEndCapture(from, &captured->graph);
      throw;
    }
    check("cudaStreamEndCapture", cudaStreamEndCapture(from, &captured->graph));
    check("cudaGraphInstantiate", cudaGraphInstantiate(&captured->instance, captured->graph, 0));
    return captured;
  }
  void launch(Graph& graph, Stream& stream) override {
    check("cudaGraphLaunch", cudaGraphLaunch(static_cast<CudaGraph&>(graph).instance, on(stream)));
  }
  [[nodiscard]] bool has_attention(AttentionLibrary library,
                                   const kernels::PagedAttentionShape& shape) const override {
    return library == AttentionLibrary::own || flashinfer_attention::takes(shape);
  }
  void plan_attention(std::unique_ptr<AttentionPlan>& plan, AttentionLibrary library,
                      const kernels::PagedAttentionShape& shape,
                      std::span<const std::int64_t> context_begin,
                      std::span<const std::int64_t> query_begin, Stream& stream) override {
    expect_valid(shape);
    if (library == AttentionLibrary::flashinfer) {
      plan = plan_with_flashinfer(shape, context_begin, query_begin, stream);
      return;
    }
    kernels::AttentionPlan planned = plan_on_host(shape, context_begin, query_begin);
    const std::int64_t requests = std::ssize(query_begin) - 1;
    const bool one_each =
        requests > 0 && std::ranges::adjacent_find(query_begin, [](std::int64_t a, std::int64_t b) {
                          return b - a != 1;
                        }) == query_begin.end();
    if (one_each) {
      kernels::pad_decode(planned, shape, requests, info_.processors);
    }
    if (dynamic_cast<CudaAttentionPlan*>(plan.get()) == nullptr) {
      select();
      plan = std::make_unique<CudaAttentionPlan>();
    }
    auto& mine = static_cast<CudaAttentionPlan&>(*plan);
    const auto items = std::ssize(planned.decode) + std::ssize(planned.prefill);
    const Bytes lists(items * static_cast<std::int64_t>(sizeof(kernels::AttentionItem)) +
                      std::ssize(planned.merges) *
                          static_cast<std::int64_t>(sizeof(kernels::AttentionMerge)));
    const Bytes parts(planned.part_rows * kernels::cuda::part_numbers(shape) *
                      static_cast<std::int64_t>(sizeof(float)));
    mine.uploaded.synchronize();
    if (mine.on_device.size() < lists || mine.parts.size() < parts) {
      stream.synchronize();  // queued work still uses the smaller buffers
      mine.on_host = Buffer(*this, MemoryKind::pinned, std::max(mine.on_host.size(), 2 * lists));
      mine.on_device = Buffer(*this, MemoryKind::device, mine.on_host.size());
      mine.parts = Buffer(*this, MemoryKind::device, std::max(mine.parts.size(), parts));
    }
    auto* const decode = mine.on_host.template as<kernels::AttentionItem>();
    auto* const prefill = std::ranges::copy(planned.decode, decode).out;
    auto* const end = std::ranges::copy(planned.prefill, prefill).out;
    std::ranges::copy(planned.merges, reinterpret_cast<kernels::AttentionMerge*>(end));
    upload(mine.on_device.data(), mine.on_host.data(), lists, stream);
    check("cudaEventRecord", cudaEventRecord(mine.uploaded.event, on(stream)));
    const auto* const first = mine.on_device.template as<kernels::AttentionItem>();
    mine.shape = shape;
    mine.requests = requests;
    mine.lists = {.decode = first,
                  .prefill = first + planned.decode.size(),
                  .merges = reinterpret_cast<const kernels::AttentionMerge*>(first + items),
                  .decode_items = std::ssize(planned.decode),
                  .prefill_items = std::ssize(planned.prefill),
                  .merge_items = std::ssize(planned.merges),
                  .merge_rows = planned.merge_rows,
                  .decode_rows = planned.decode_rows,
                  .parts = mine.parts.template as<float>()};
  }
  void attention(const AttentionWork& work, Stream& stream) override {
    expect_valid(work.shape);
    for (const void* const address :
         {work.queries, work.keys, work.values, static_cast<const void*>(work.output)}) {
      expect_aligned(address, kUnit);
    }
    if (const auto* const other = dynamic_cast<const FlashInferPlan*>(work.plan)) {
      expect_planned(other, work);
      attend_with_flashinfer(work, *other, stream);
      return;
    }
    const auto* const plan = dynamic_cast<const CudaAttentionPlan*>(work.plan);
    expect_planned(plan, work);
    if (work.kv_type == KvType::float8) {
      attend<kernels::cuda::Float8>(work, plan->lists, stream);
    } else {
      attend<Element>(work, plan->lists, stream);
    }
  }
  void rope(const RopeWork& work, Stream& stream) override {
    select();  // for a new table
    const std::int64_t end =
        work.positions != nullptr ? work.positions_end : work.first_position + work.rows.rows;
    const auto elements = [](Bytes bytes) { return bytes / Bytes(sizeof(Element)); };
    check("rope", kernels::cuda::rotate(static_cast<const Element*>(work.rows.from),
                                        static_cast<Element*>(work.rows.to), work.rows.slots,
                                        work.rows.rows, elements(work.rows.from_slot(1)),
                                        elements(work.rows.from_packed(1)), work.heads,
                                        work.head_dim, rotary_angles(work.head_dim, work.base, end),
                                        work.positions, work.first_position, on(stream)));
  }
  void row_function(const RowFunctionWork& work, Stream& stream) override {
    const auto* const input = static_cast<const Element*>(work.input);
    auto* const output = static_cast<Element*>(work.output);
    switch (work.function) {
      case RowFunction::norm:
        check("norm", kernels::cuda::rms_norm(input, output, work.rows, work.width, on(stream)));
        break;
      case RowFunction::gated_activation:
        check("gated_activation",
              kernels::cuda::gated_activation(input, output, work.rows, work.width, on(stream)));
        break;
      case RowFunction::activation:
        check("activation",
              kernels::cuda::activation(input, output, work.rows * work.width, on(stream)));
        break;
      case RowFunction::add:
        check("add", kernels::cuda::add(input, static_cast<const Element*>(work.other), output,
                                        work.rows * work.width, on(stream)));
        break;
      case RowFunction::sample:
        check("sample",
              kernels::cuda::index_of_largest(input, static_cast<std::int32_t*>(work.output),
                                              work.rows, work.width, on(stream)));
        break;
    }
  }
  void busy(double seconds, Stream& stream) override {
    constexpr double kNanoseconds = 1e9;
    check("busy",
          kernels::cuda::busy(static_cast<std::int64_t>(seconds * kNanoseconds), on(stream)));
  }

  void fill_uniform(void* to, std::int64_t count, float bound, std::uint64_t seed,
                    Stream& stream) override {
    check("fill_uniform",
          kernels::cuda::fill_uniform(static_cast<Element*>(to), count, bound, seed, on(stream)));
  }
  void write_elements(void* to, std::span<const float> values) override {
    select();
    std::vector<Element> elements(values.size());
    std::ranges::transform(values, elements.begin(), to_element<Element>);
    copy_from_pageable(to, elements.data(), elements.size() * sizeof(Element));
  }
  void read_elements(std::span<float> values, const void* from) override {
    select();
    std::vector<Element> elements(values.size());
    check("cudaMemcpy", cudaMemcpy(elements.data(), from, elements.size() * sizeof(Element),
                                   cudaMemcpyDeviceToHost));
    std::ranges::transform(elements, values.begin(), [](Element x) { return to_float(x); });
  }

 private:
  /// Each thread has its own current device, to which CUDA calls refer.
  void select() const { check("cudaSetDevice", cudaSetDevice(index_)); }
  [[nodiscard]] cudaStream_t on(Stream& stream) const {
    select();
    return static_cast<CudaStream&>(stream).stream;
  }
  [[nodiscard]] std::byte* workspace_of(Stream& stream) {
    return static_cast<CudaStream&>(stream).workspace_of(*this, workspace_);
  }

  static void expect_valid(const kernels::PagedAttentionShape& shape) {
    if (!kernels::is_valid(shape)) {
      throw DeviceError(fmt::format(
          "attention: {} query heads on {} KV heads of width {} are not what the kernel takes",
          shape.query_heads, shape.kv_heads, shape.head_dim));
    }
  }
  template <class Plan>
  static void expect_planned(const Plan* plan, const AttentionWork& work) {
    if (plan == nullptr || plan->shape.query_heads != work.shape.query_heads ||
        plan->shape.kv_heads != work.shape.kv_heads ||
        plan->shape.head_dim != work.shape.head_dim || plan->requests != work.batch.requests) {
      throw DeviceError("attention: a GPU needs a plan for the same heads and requests");
    }
  }
  /// Makes a new plan each time, after the stream has finished with the last one. Calibration times
  /// these plans; decoders do not use them.
  [[nodiscard]] std::unique_ptr<AttentionPlan> plan_with_flashinfer(
      const kernels::PagedAttentionShape& shape, std::span<const std::int64_t> context_begin,
      std::span<const std::int64_t> query_begin, Stream& stream) {
    if (!flashinfer_attention::takes(shape)) {
      throw DeviceError(
          fmt::format("attention: FlashInfer is missing or takes no heads of {}", shape.head_dim));
    }
    stream.synchronize();
    const auto bytes = [](std::size_t n) { return Bytes(static_cast<std::int64_t>(n)); };
    flashinfer_attention::Batch batch{.shape = shape};
    std::ranges::transform(context_begin, std::back_inserter(batch.context_begin),
                           [](std::int64_t n) { return static_cast<std::int32_t>(n); });
    std::ranges::transform(query_begin, std::back_inserter(batch.query_begin),
                           [](std::int64_t n) { return static_cast<std::int32_t>(n); });
    select();
    auto plan = std::make_unique<FlashInferPlan>();
    plan->shape = shape;
    plan->requests = std::ssize(query_begin) - 1;
    std::vector<std::int32_t> lists = batch.context_begin;
    lists.insert(lists.end(), batch.query_begin.begin(), batch.query_begin.end());
    lists.resize(lists.size() + query_begin.size(), 1);
    plan->lists = Buffer(*this, MemoryKind::device, bytes(lists.size() * sizeof lists.front()));
    copy_from_pageable(plan->lists.data(), lists.data(), lists.size() * sizeof lists.front());
    try {
      const flashinfer_attention::Sizes sizes = flashinfer_attention::sizes_of(batch);
      plan->floats = Buffer(*this, MemoryKind::device, bytes(sizes.floats));
      plan->integers = Buffer(*this, MemoryKind::device, bytes(sizes.integers));
      plan->integers_on_host = Buffer(*this, MemoryKind::pinned, bytes(sizes.integers));
      plan->memory = {.floats = plan->floats.data(),
                      .integers = plan->integers.data(),
                      .integers_on_host = plan->integers_on_host.data(),
                      .sizes = sizes};
      plan->planned = flashinfer_attention::plan(batch, plan->memory, on(stream));
    } catch (const DeviceError&) {
      throw;
    } catch (const std::exception& error) {
      throw DeviceError(fmt::format("FlashInfer: {}", error.what()));
    }
    stream.synchronize();
    return plan;
  }
  void attend_with_flashinfer(const AttentionWork& work, const FlashInferPlan& plan,
                              Stream& stream) {
    if (work.rope_base > 0 || work.kv_type != KvType::element) {
      throw DeviceError("attention: FlashInfer takes keys with positions, in the device's element");
    }
    const auto* const lists = plan.lists.template as<std::int32_t>();
    try {
      check("FlashInfer", flashinfer_attention::attend(
                              flashinfer_attention::Call<Element>{
                                  .shape = work.shape,
                                  .requests = work.batch.requests,
                                  .slots = work.batch.slots,
                                  .context_begin = lists,
                                  .query_begin = lists + plan.requests + 1,
                                  .page_lengths = lists + 2 * (plan.requests + 1),
                                  .queries = static_cast<const Element*>(work.queries),
                                  .keys = static_cast<const Element*>(work.keys),
                                  .values = static_cast<const Element*>(work.values),
                                  .output = static_cast<Element*>(work.output)},
                              plan.planned, plan.memory, on(stream)));
    } catch (const DeviceError&) {
      throw;
    } catch (const std::exception& error) {
      throw DeviceError(fmt::format("FlashInfer: {}", error.what()));
    }
  }
  [[nodiscard]] kernels::AttentionPlan plan_on_host(
      const kernels::PagedAttentionShape& shape, std::span<const std::int64_t> context_begin,
      std::span<const std::int64_t> query_begin) const {
    try {
      return kernels::plan_attention(shape, context_begin, query_begin, info_.processors);
    } catch (const std::invalid_argument& error) {
      throw DeviceError(error.what());
    }
  }
  template <class Kv>
  void attend(const AttentionWork& work, const kernels::cuda::AttentionLists& lists,
              Stream& stream) {
    for (const auto& [stride, size] : {std::pair(work.shape.query_stride, sizeof(Element)),
                                       std::pair(work.shape.kv_stride, sizeof(Kv))}) {
      if (stride * static_cast<std::int64_t>(size) % kUnit != 0) {
        throw DeviceError(
            fmt::format("attention: rows {} numbers apart: a GPU needs multiples of "
                        "{} bytes",
                        stride, kUnit));
      }
    }
    select();  // for a new table
    const kernels::RotaryAngles angles =
        work.rope_base > 0 ? rotary_angles(work.shape.head_dim, work.rope_base, work.context_max)
                           : kernels::RotaryAngles{};
    check("attention", kernels::cuda::attend_paged(
                           kernels::cuda::AttentionCall<Element, Kv>{
                               .shape = work.shape,
                               .batch = work.batch,
                               .angles = angles,
                               .lists = lists,
                               .queries = static_cast<const Element*>(work.queries),
                               .keys = static_cast<const Kv*>(work.keys),
                               .values = static_cast<const Kv*>(work.values),
                               .output = static_cast<Element*>(work.output),
                               .key_scale = work.key_scale,
                               .value_scale = work.value_scale},
                           on(stream)));
  }

  /// Throws for an address that is no multiple of the access size.
  static void expect_aligned(const void* address, std::size_t unit) {
    if (reinterpret_cast<std::uintptr_t>(address) % unit != 0) {
      throw DeviceError(
          fmt::format("{}: a GPU works on addresses that are multiples of {} here", address, unit));
    }
  }

  static constexpr std::int64_t kUnit = 16;

  static kernels::cuda::Rows rows_of(const RowWork& work, std::size_t to_unit = kUnit) {
    for (const Bytes size : {work.row, work.from_packed(1), work.from_slot(1)}) {
      if (size.value % kUnit != 0) {
        throw DeviceError(
            fmt::format("rows of {} bytes: a GPU moves multiples of {}", size.value, kUnit));
      }
    }
    expect_aligned(work.from, kUnit);
    expect_aligned(work.to, to_unit);
    expect_aligned(work.slots, sizeof *work.slots);
    return {.from = work.from,
            .to = work.to,
            .slots = work.slots,
            .rows = work.rows,
            .row_bytes = work.row.value,
            .packed_stride = work.from_packed(1).value,
            .slot_stride = work.from_slot(1).value};
  }

  /// Angles of at least `positions` positions, in device memory. Shorter tables stay for queued
  /// work. Each table is at least twice as long as the last.
  kernels::RotaryAngles rotary_angles(std::int64_t head_dim, double base, std::int64_t positions) {
    std::vector<RotaryOnDevice>& tables = rotary_tables_[{head_dim, base}];
    if (tables.empty() || tables.back().positions < positions) {
      constexpr std::int64_t kFew = 1024;
      static_assert(kFew >= kernels::cuda::kPositionsMin);
      const kernels::RotaryTable table(
          head_dim, base,
          std::max({positions, kFew, tables.empty() ? 0 : 2 * tables.back().positions}));
      const auto bytes = static_cast<std::int64_t>(table.cosines().size() * sizeof(float));
      RotaryOnDevice on_device{.positions = table.positions(),
                               .cosines = Buffer(*this, MemoryKind::device, Bytes(bytes)),
                               .sines = Buffer(*this, MemoryKind::device, Bytes(bytes))};
      copy_from_pageable(on_device.cosines.data(), table.cosines().data(),
                         static_cast<std::size_t>(bytes));
      copy_from_pageable(on_device.sines.data(), table.sines().data(),
                         static_cast<std::size_t>(bytes));
      tables.push_back(std::move(on_device));
    }
    return {.cosines = tables.back().cosines.template as<float>(),
            .sines = tables.back().sines.template as<float>()};
  }
  /// cudaMemcpy from pageable memory returns when the host's memory has been read. Other streams do
  /// not wait for the rest of the copy.
  static void copy_from_pageable(void* to, const void* from, std::size_t bytes) {
    check("cudaMemcpy", cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    check("cudaStreamSynchronize", cudaStreamSynchronize(cudaStreamLegacy));
  }

  /// Datasheet peaks from the device's own data: multiprocessors, clocks, bus. A multiprocessor
  /// does 2,048 dense bfloat16 operations a clock on sm_80 (half of it on other sm_8x), 4,096 on
  /// sm_90; unknown ones count as the fastest.
  static DeviceLimits limits_of(const cudaDeviceProp& properties) {
    int device = 0;
    int clock_khz = 0;
    int memory_khz = 0;
    check("cudaGetDevice", cudaGetDevice(&device));
    check("cudaDeviceGetAttribute",
          cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device));
    check("cudaDeviceGetAttribute",
          cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device));
    const double operations = properties.major == 8   ? (properties.minor == 0 ? 2048 : 1024)
                              : properties.major == 9 ? 4096
                                                      : 8192;
    constexpr double kKilohertz = 1e3;
    constexpr double kPerClock = 2;  // double data rate
    constexpr double kBitsPerByte = 8;
    // One way: NVLink-C2C, which shares the host's page tables, or 16 lanes of PCIe 6.0, the
    // fastest that a GPU has. The link itself may be slower.
    constexpr double kChipToChip = 450e9;
    constexpr double kFastestPcie = 128e9;
    int shares_page_tables = 0;
    check("cudaDeviceGetAttribute",
          cudaDeviceGetAttribute(&shares_page_tables,
                                 cudaDevAttrPageableMemoryAccessUsesHostPageTables, device));
    return {.flops_per_second = operations * properties.multiProcessorCount *
                                static_cast<double>(clock_khz) * kKilohertz,
            .memory_bytes_per_second = kPerClock * static_cast<double>(memory_khz) * kKilohertz *
                                       properties.memoryBusWidth / kBitsPerByte,
            .link_bytes_per_second = shares_page_tables != 0 ? kChipToChip : kFastestPcie,
            .cache = Bytes(properties.l2CacheSize)};
  }

  [[nodiscard]] std::byte* allocate(MemoryKind kind, Bytes size) override {
    select();
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(1, size.value));
    void* data = nullptr;
    switch (kind) {
      case MemoryKind::device:
        check("cudaMalloc", cudaMalloc(&data, bytes));
        break;
      case MemoryKind::pinned:
        check("cudaMallocHost", cudaMallocHost(&data, bytes));
        break;
      case MemoryKind::pageable:
        data = ::operator new(bytes);
        break;
    }
    return static_cast<std::byte*>(data);
  }
  void release(MemoryKind kind, std::byte* data, Bytes /*size*/) noexcept override {
    switch (kind) {
      case MemoryKind::device:
        cudaFree(data);
        break;
      case MemoryKind::pinned:
        cudaFreeHost(data);
        break;
      case MemoryKind::pageable:
        ::operator delete(data);
        break;
    }
  }

  /// A product of matrices may use this much memory, or a thousandth of a small device.
  static constexpr Bytes kWorkspaceMax{std::int64_t{32} << 20};
  static constexpr std::int64_t kWorkspaces = 1024;

  int index_;
  DeviceInfo info_;
  Bytes workspace_;
  std::optional<GemmPlans> products_;
  struct RotaryOnDevice {
    std::int64_t positions;
    Buffer cosines;
    Buffer sines;
  };
  std::map<std::pair<std::int64_t, double>, std::vector<RotaryOnDevice>> rotary_tables_;
};

}  // namespace
}  // namespace kvtier

extern "C" {
int kvtier_device_module_version() { return kvtier::kDeviceModuleVersion; }
kvtier::Device* kvtier_open_device(int index, kvtier::ElementType element) {
  if (element == kvtier::ElementType::float16) {
    return new kvtier::CudaDevice<__half>(index);
  }
  return new kvtier::CudaDevice<__nv_bfloat16>(index);
}
}
