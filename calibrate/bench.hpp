#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "calibrate/instrument.hpp"
#include "calibrate/plan.hpp"
#include "hw/device/device.hpp"
#include "hw/model/model.hpp"
#include "sim/core/rng.hpp"

/// Common parts of the measurements of a device.
namespace kvtier::calibrate {

/// The device and model of a calibration, and its detail.
struct Target {
  Device& device;
  ModelConfig model;
  /// The whole grid, with more time for each cell.
  bool full = false;
  /// Limit for all buffers of one cell together.
  Bytes memory;
  /// The same for cells with a whole model, if other than `memory`.
  std::optional<Bytes> model_memory{};
  std::uint64_t seed = 1;
  /// The kernels of attention to keys as stored.
  AttentionLibrary attention = AttentionLibrary::own;
};

/// The variant of tables of FlashInfer's kernels.
inline constexpr const char* kFlashInferVariant = "flashinfer";

[[nodiscard]] inline kernels::PagedAttentionShape attention_heads(const ModelConfig& model) {
  return {
      .query_heads = model.attention_heads, .kv_heads = model.kv_heads, .head_dim = model.head_dim};
}

/// Sizes from smallest to largest, each `factor` times the one before. The largest is always
/// included.
[[nodiscard]] std::vector<std::int64_t> geometric(std::int64_t smallest, std::int64_t largest,
                                                  std::int64_t factor);

[[nodiscard]] StopRules rules_of(const Target& target);

/// Pause before measurements of idle devices and threads. Idle processors and drives take longer to
/// begin than in a loop. In a run, tasks and transfers come after longer pauses or right after
/// others; a short pause stands for both.
inline constexpr std::chrono::milliseconds kPause(20);
/// Pause before whole steps and loads. Other work uses the caches meanwhile.
inline constexpr std::chrono::milliseconds kLongPause(100);

/// Rules for cells with a pause before each sample. The budget allows only some samples.
[[nodiscard]] StopRules rules_with_pauses(const Target& target);

/// Fills memory of the device with random elements in [-1, 1).
void fill_random(Device& device, const Buffer& buffer, RandomStream& random);

/// 0 .. count - 1 in random order.
[[nodiscard]] std::vector<std::int32_t> shuffled(std::int64_t count, RandomStream& random);

/// A buffer of the device with a copy of these numbers.
template <class T>
[[nodiscard]] Buffer on_device(Device& device, std::span<const T> values);

/// Times work on a stream of its own between two events. Short work is repeated until a sample
/// lasts long enough for the clock; the queue is filled while the stream is busy, so that the speed
/// of the host does not count.
class StreamTimer {
 public:
  explicit StreamTimer(Device& device);
  /// Queues the work for the i-th time; i goes on from sample to sample, for data that rotates.
  using Queue = std::function<void(Stream& stream, std::int64_t i)>;
  [[nodiscard]] double seconds(const Queue& queue);
  [[nodiscard]] Stream& stream() { return *stream_; }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_;
  std::unique_ptr<Event> end_;
  std::int64_t repeats_ = 1;
  std::int64_t done_ = 0;
};

/// A sample that times `queue` on a stream of its own. `keep` lives as long as the sample.
template <class Keep>
[[nodiscard]] Sample stream_sample(Device& device, StreamTimer::Queue queue, Keep keep) {
  auto timer = std::make_shared<StreamTimer>(device);
  return
      [timer, queue = std::move(queue), keep = std::move(keep)] { return timer->seconds(queue); };
}

template <class T>
Buffer on_device(Device& device, std::span<const T> values) {
  Buffer buffer(device, MemoryKind::device, Bytes(static_cast<std::int64_t>(values.size_bytes())));
  const auto stream = device.make_stream();
  device.copy(buffer.data(), values.data(), buffer.size(), *stream);
  stream->synchronize();
  return buffer;
}

}  // namespace kvtier::calibrate
