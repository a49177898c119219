#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hw/device/decoder.hpp"

namespace kvtier {

/// K without positions and V of each layer, one token after another.
struct ReferenceKv {
  struct Layer {
    std::vector<double> keys;
    std::vector<double> values;
  };
  std::vector<Layer> layers;

  /// A row as a pool holds it: K, then V.
  void append(std::int64_t layer, const std::vector<float>& row);
};

/// A decoder in plain loops and double, with the weights of another decoder as its device holds
/// them.
class ReferenceDecoder {
 public:
  explicit ReferenceDecoder(const Decoder& decoder);

  /// Logits after the last of `tokens`, which continue `kv` and are added to it. `sparsity` gets
  /// each layer's share of scores below 1 % of the largest of their row.
  [[nodiscard]] std::vector<double> logits(const std::vector<std::int32_t>& tokens, ReferenceKv& kv,
                                           std::vector<double>* sparsity = nullptr) const;

 private:
  struct Layer {
    std::vector<double> qkv;
    std::vector<double> output;
    std::vector<double> up;
    std::vector<double> down;
  };
  DecoderShape shape_;
  std::vector<double> embedding_;
  std::vector<Layer> layers_;
  std::vector<double> head_;
};

/// Errors of a decoder's logits on a device, as shares of the bound: for prefill, decode, and steps
/// after a cut of decoupled KV.
[[nodiscard]] std::vector<std::pair<std::string, double>> decoder_errors(Device& device);

/// Decode steps of three requests whose contexts grow beyond a part of a split context. Compares
/// the logits of each step with those of a decoder that queues each operation. Returns a
/// description of the difference, or an empty text.
[[nodiscard]] std::string captured_steps_differ(Device& device);

}  // namespace kvtier
