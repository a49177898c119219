#pragma once

#include <cstdint>
#include <vector>

#include "hw/model/model.hpp"
#include "sim/core/units.hpp"

namespace kvtier::calibrate {

/// For each layer of a decoder of the model's shape with random weights, the share of causal
/// attention scores below 1 % of the largest of their row, over one prompt of random tokens. CaR
/// (section III-C) sets the compression of each layer by this share
/// (`/system/compression/sparsity`). On the host, with numbers of 4 bytes. Throws ConfigError for
/// heads that the kernels do not take or a prompt longer than the context window, DeviceError when
/// memory is short.
[[nodiscard]] std::vector<double> score_sparsity(const ModelConfig& model, Tokens prompt,
                                                 std::uint64_t seed);

}  // namespace kvtier::calibrate
