#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hw/device/device.hpp"

/// Checks of the computations of every device against references in double. An error is a share of
/// the bound derived beside it; at most 1 is right.
namespace kvtier {

/// Entries of a fixed sequence in [-1, 1).
[[nodiscard]] std::vector<float> random_values(std::size_t count, unsigned seed);

/// Memory of a device with these numbers as its elements, the numbers of such memory, and memory
/// with these bytes.
[[nodiscard]] Buffer elements_on(Device& device, const std::vector<float>& values);
[[nodiscard]] std::vector<float> elements_from(Device& device, const void* from, std::size_t count);
template <class T>
[[nodiscard]] Buffer numbers_on(Device& device, const std::vector<T>& values) {
  Buffer buffer(device, MemoryKind::device,
                Bytes(static_cast<std::int64_t>(values.size() * sizeof(T))));
  const auto stream = device.make_stream();
  device.copy(buffer.data(), values.data(), buffer.size(), *stream);
  stream->synchronize();
  return buffer;
}
template <class T>
[[nodiscard]] std::vector<T> numbers_from(Device& device, const void* from, std::size_t count) {
  std::vector<T> values(count);
  const auto stream = device.make_stream();
  device.copy(values.data(), from, Bytes(static_cast<std::int64_t>(count * sizeof(T))), *stream);
  stream->synchronize();
  return values;
}

/// The relative error of rounding to the device's element: 2^-24, 2^-8 (bfloat16), 2^-11 (float16).
[[nodiscard]] double rounding(const Device& device);
/// The absolute error of rounding near zero: half of the smallest float16, or of the smallest
/// normal float.
[[nodiscard]] double rounding_at_zero(const Device& device);

struct AttentionCase {
  std::string name;
  kernels::PagedAttentionShape shape;
  /// New tokens and context of each request.
  std::vector<std::pair<std::int64_t, std::int64_t>> requests;
  double rope_base = 0;
  /// The first tokens of every context lie in the first context's slots.
  std::int64_t shared = 0;
  /// Queries as part of a wider row, K and V of a slot side by side.
  bool strided = false;
  /// Keys and values in e4m3, with scales.
  bool float8 = false;
};
/// Every case that a device has to pass.
[[nodiscard]] std::vector<AttentionCase> attention_cases();

/// Mistakes that a check of attention must detect.
enum class Mistake { none, swapped_slots, late_positions, sees_next_token };

/// The largest error of one number. Slots are random. Slots outside of contexts, and the output
/// before the call, hold no numbers.
[[nodiscard]] double attention_error(Device& device, const AttentionCase& c,
                                     Mistake mistake = Mistake::none);

/// The largest error of each row function and of rotations, by name.
[[nodiscard]] std::vector<std::pair<std::string, double>> row_errors(Device& device);

/// The largest error of a filled array, and of the element after it, which keeps its value.
[[nodiscard]] double fill_error(Device& device);

/// Gathers, scatters and folds rows with and without slots and strides, and compares all bytes.
/// Returns a description of the difference, or an empty text.
[[nodiscard]] std::string moved_rows_differ(Device& device);

/// The same for pieces of any size and alignment and for rows at any distances, between the device
/// and pinned memory, moved either way by either method.
[[nodiscard]] std::string moved_pieces_differ(Device& device);

/// One thread loads layers on one stream, and another thread reads them on another stream. Events
/// order each read after its load, and each next load after the read. Returns a description of the
/// error, or an empty text.
[[nodiscard]] std::string streams_lose_order(Device& device);

}  // namespace kvtier
