#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/paged_attention.hpp"
#include "sim/core/units.hpp"

/// Real devices behind one interface: the host itself, and CUDA from a module loaded at run time
/// (open_device.hpp). Work is queued on streams; a call returns before its work is done, unless it
/// says otherwise. Every failure throws DeviceError with the call and the error's name.
namespace kvtier {

enum class MemoryKind { device, pinned, pageable };

/// Type of the numbers in matrices, attention and KV.
enum class ElementType { float32, bfloat16, float16 };

/// Rates that no work on the device exceeds. They come from its datasheet or, on the host, from the
/// rate in registers. Samples beyond them are errors of the measurement.
struct DeviceLimits {
  double flops_per_second = 0;
  /// Memory beside the processor, and one way of the path between it and the host.
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;
  /// The largest cache. Data that fit in it are read faster than memory.
  Bytes cache;
};

struct DeviceInfo {
  /// The kind, as in a profile: "cpu" or "cuda".
  std::string kind;
  std::string name;
  std::string driver;
  /// Library to version.
  std::vector<std::pair<std::string, std::string>> libraries;
  /// Threads of the host, multiprocessors of a GPU.
  std::int64_t processors = 0;
  Bytes memory;
  DeviceLimits limits;
  /// float32 on the host; a GPU is opened with one of the others.
  ElementType element_type = ElementType::float32;
  /// Bytes of one such number.
  Bytes element;
  /// The copy engine moves rows that are farther apart one by one.
  Bytes pitch_max{INT64_MAX};
};

class Device;

/// Owns memory of one kind; its device outlives it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, MemoryKind kind, Bytes size);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] Bytes size() const { return size_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  Device* device_ = nullptr;
  MemoryKind kind_ = MemoryKind::device;
  std::byte* data_ = nullptr;
  Bytes size_;
};

/// Work in order. Processors take the work of background streams when that of other streams leaves
/// some of them free.
enum class StreamKind { usual, background };
class Stream {
 public:
  virtual ~Stream() = default;
  /// Returns when all queued work is done; throws its error.
  virtual void synchronize() = 0;
};

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  /// Returns when the stream has reached the last recorded point.
  virtual void synchronize() = 0;
};

/// Work that was captured from a stream, and that is queued again in one call.
class Graph {
 public:
  virtual ~Graph() = default;
};

/// Rows at equal distances, or a single one. The distances are from the start of a row to that of
/// the next, and no row overlaps another on its side.
struct CopyPiece {
  void* to = nullptr;
  const void* from = nullptr;
  /// Bytes of a row.
  Bytes bytes;
  std::int64_t rows = 1;
  Bytes to_pitch{};
  Bytes from_pitch{};
};

/// Calls visit(to, from) for each row of a piece.
template <class Visit>
void for_each_row(const CopyPiece& piece, Visit visit) {
  auto* const to = static_cast<std::byte*>(piece.to);
  const auto* const from = static_cast<const std::byte*>(piece.from);
  for (std::int64_t i = 0; i < piece.rows; ++i) {
    visit(to + (i * piece.to_pitch).value, from + (i * piece.from_pitch).value);
  }
}

/// Rows between a packed side and a side that slots index: packed row i belongs to row slots[i].
/// `slots` is in device memory. A GPU moves multiples of 16 bytes, from and to multiples of 16
/// bytes.
struct RowWork {
  const void* from = nullptr;
  void* to = nullptr;
  /// Null: row i.
  const std::int32_t* slots = nullptr;
  std::int64_t rows = 0;
  Bytes row;
  /// From the start of a row to that of the next, on the packed side and on the slots'. Zero: rows
  /// follow each other.
  Bytes packed_stride;
  Bytes slot_stride;

  [[nodiscard]] Bytes from_packed(std::int64_t i) const {
    return i * (packed_stride > Bytes() ? packed_stride : row);
  }
  [[nodiscard]] Bytes from_slot(std::int64_t slot) const {
    return slot * (slot_stride > Bytes() ? slot_stride : row);
  }
};

/// output[m][n] = input[m][k] x weights[n][k] transposed, row-major, in elements of the device.
struct GemmWork {
  const void* input = nullptr;
  const void* weights = nullptr;
  void* output = nullptr;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

/// The kernels of attention: the project's own, or those of a library that serving engines use.
enum class AttentionLibrary { own, flashinfer };

/// How a device divides attention over one batch among its processors (Device::plan_attention).
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
};

/// The type of keys and values in memory: the device's element, or e4m3 with a sign, four bits of
/// exponent and three of mantissa.
enum class KvType { element, float8 };

/// All pointers are in device memory. A request without queries has no output.
struct AttentionWork {
  kernels::PagedAttentionShape shape;
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  void* output = nullptr;
  kernels::PagedBatch batch;
  /// Made for the same shape and batch. A GPU needs one.
  const AttentionPlan* plan = nullptr;
  KvType kv_type = KvType::element;
  /// Keys and values are the numbers in memory times their scale. 1 for elements.
  float key_scale = 1;
  float value_scale = 1;
  /// Length of the longest context.
  std::int64_t context_max = 0;
  /// Base of the rotary positions. The kernel rotates keys and queries by their place in the
  /// context. 0: both carry their positions already.
  double rope_base = 0;
};

/// Row i of `to` is row slots[i] of `from` (the slots' side), with its first `heads` heads rotated
/// to the row's position. `to` may be `from` if both sides are alike.
struct RopeWork {
  RowWork rows;
  std::int64_t heads = 1;
  std::int64_t head_dim = 2;
  double base = 10000;
  /// Row i is at position first_position + i, or, with `positions` in device memory, at
  /// positions[i], which is below `positions_end`.
  std::int64_t first_position = 0;
  const std::int32_t* positions = nullptr;
  std::int64_t positions_end = 0;
};

/// `norm`: RMS norm of rows of `width`. `gated_activation`: rows of 2 x width become silu(first
/// half) x second half. `activation`: gelu of each number. `add`: the sum of `input` and `other`;
/// `output` may be either. `sample`: the largest of `width` logits, one int32 a row.
enum class RowFunction { norm, gated_activation, activation, add, sample };
struct RowFunctionWork {
  RowFunction function = RowFunction::norm;
  const void* input = nullptr;
  const void* other = nullptr;
  void* output = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual const DeviceInfo& info() const = 0;
  /// Free memory of this kind.
  [[nodiscard]] virtual Bytes free_memory(MemoryKind kind) const = 0;

  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(
      StreamKind kind = StreamKind::usual) = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Event& event, Stream& stream) = 0;
  /// Work queued on `stream` after this call starts once the event has been reached.
  virtual void wait(Stream& stream, Event& event) = 0;
  /// Seconds between two recorded events, both of which have been reached.
  [[nodiscard]] virtual double seconds_between(const Event& first, const Event& last) const = 0;

  virtual void copy(void* to, const void* from, Bytes bytes, Stream& stream) = 0;
  /// The copy engine moves one piece after another.
  virtual void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) = 0;
  /// Copies small data from pinned memory without the copy engine, whose queued copies may take
  /// long. Both addresses are multiples of 16 bytes.
  virtual void upload(void* to, const void* from, Bytes bytes, Stream& stream) {
    copy(to, from, bytes, stream);
  }
  virtual void gather(const RowWork& work, Stream& stream) = 0;
  virtual void scatter(const RowWork& work, Stream& stream) = 0;
  /// Reads the rows and writes only the exclusive or of each row's 32-bit words to `to`. Its time
  /// is a lower bound for reading rows by slots.
  virtual void fold(const RowWork& work, Stream& stream) = 0;
  virtual void gemm(const GemmWork& work, Stream& stream) = 0;
  /// Products of `m` rows use the kernel that was chosen for this many rows, m or more.
  [[nodiscard]] virtual std::int64_t gemm_rows(std::int64_t m) const { return m; }
  /// Captures what `queue` queues on the stream, without running it; null without graphs. `queue`
  /// allocates nothing, has been queued on the stream before, and does not wait.
  [[nodiscard]] virtual std::unique_ptr<Graph> capture(Stream& /*stream*/,
                                                       const std::function<void()>& /*queue*/) {
    return nullptr;
  }
  virtual void launch(Graph& /*graph*/, Stream& /*stream*/) {}
  /// Whether these kernels exist and take the heads.
  [[nodiscard]] virtual bool has_attention(AttentionLibrary library,
                                           const kernels::PagedAttentionShape& /*shape*/) const {
    return library == AttentionLibrary::own;
  }
  /// Makes or replaces the plan for a batch with these lists on the host. All attention with the
  /// plan is queued on this stream, or done before it is replaced. A device may need none. If each
  /// request has one new token, captured attention with the plan stays valid for later batches of
  /// as many requests, as long as no batch is larger than the first.
  virtual void plan_attention(std::unique_ptr<AttentionPlan>& /*plan*/,
                              AttentionLibrary /*library*/,
                              const kernels::PagedAttentionShape& /*shape*/,
                              std::span<const std::int64_t> /*context_begin*/,
                              std::span<const std::int64_t> /*query_begin*/, Stream& /*stream*/) {}
  virtual void attention(const AttentionWork& work, Stream& stream) = 0;
  virtual void rope(const RopeWork& work, Stream& stream) = 0;
  virtual void row_function(const RowFunctionWork& work, Stream& stream) = 0;
  /// Keeps the stream busy for this long by the device's own clock. Zero is an empty launch. Tests
  /// of measurements use it.
  virtual void busy(double seconds, Stream& stream) = 0;

  /// Element i of `count` at `to` becomes bound x uniform_at(seed, i) of
  /// kernels/uniform_numbers.hpp.
  virtual void fill_uniform(void* to, std::int64_t count, float bound, std::uint64_t seed,
                            Stream& stream) = 0;
  /// Convert between `values` and elements in memory of the device. Both return when done.
  virtual void write_elements(void* to, std::span<const float> values) = 0;
  virtual void read_elements(std::span<float> values, const void* from) = 0;

 protected:
  friend class Buffer;
  [[nodiscard]] virtual std::byte* allocate(MemoryKind kind, Bytes size) = 0;
  virtual void release(MemoryKind kind, std::byte* data, Bytes size) noexcept = 0;
};

inline Buffer::Buffer(Device& device, MemoryKind kind, Bytes size)
    : device_(&device), kind_(kind), data_(device.allocate(kind, size)), size_(size) {}

inline Buffer::~Buffer() {
  if (data_ != nullptr) {
    device_->release(kind_, data_, size_);
  }
}

}  // namespace kvtier
