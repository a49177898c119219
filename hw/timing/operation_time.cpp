#include "hw/timing/operation_time.hpp"

#include <algorithm>

namespace kvtier {
namespace {

/// Activations travel between GPUs in 16 bits, whatever the weights have.
constexpr double kActivationBytes = 2;

/// After attention and after the MLP.
constexpr double kAllReducesPerLayer = 2;

double longer(double flops, double bytes, const Rates& rates) {
  return std::max(flops / rates.flops_per_second, bytes / rates.bytes_per_second);
}

double flops_per_pair(const AttentionShape& shape) {
  return 4.0 * static_cast<double>(shape.attention_heads * shape.head_dim);
}

double kv_bytes_per_token(const AttentionShape& shape) {
  return 2.0 * static_cast<double>(shape.kv_heads * shape.head_dim * shape.element_bytes);
}

}  // namespace

Rates attained_rates(const HardwareConfig& hardware) {
  return {.flops_per_second = hardware.gpu.peak.value * hardware.efficiency.compute,
          .bytes_per_second = hardware.hbm.bandwidth.value * hardware.efficiency.memory};
}

AttentionShape attention_shape(const ModelConfig& model, std::int64_t gpus) {
  const HeadCounts heads = heads_per_gpu(model, gpus);
  return {.attention_heads = heads.attention,
          .kv_heads = heads.kv,
          .head_dim = model.head_dim,
          .element_bytes = model.kv_bytes_per_element};
}

double matrix_seconds(const MatrixShape& matrix, std::int64_t element_bytes, double tokens,
                      const Rates& rates) {
  const double elements = static_cast<double>(matrix.n) * static_cast<double>(matrix.k);
  return longer(2 * tokens * elements, elements * static_cast<double>(element_bytes), rates);
}

double extend_attention_seconds(const AttentionShape& shape, double added, double past,
                                const Rates& rates) {
  const double pairs = added * past + added * (added + 1) / 2;
  return longer(pairs * flops_per_pair(shape), (past + added) * kv_bytes_per_token(shape), rates);
}

double decode_attention_seconds(const AttentionShape& shape, double context, const Rates& rates) {
  return longer(context * flops_per_pair(shape), context * kv_bytes_per_token(shape), rates);
}

double rows_seconds(std::int64_t width, std::int64_t element_bytes, double rows,
                    const Rates& rates) {
  return rows * static_cast<double>(width * element_bytes) / rates.bytes_per_second;
}

AllReduceTime layer_all_reduces(const ModelConfig& model, const HardwareConfig& hardware) {
  if (hardware.gpus == 1) {
    return {};
  }
  const double gpus = static_cast<double>(hardware.gpus);
  const double link = hardware.links.gpu.bandwidth.value * hardware.efficiency.gpu_link;
  const double ring_steps = 2 * (gpus - 1);
  const double bytes_per_token = static_cast<double>(model.hidden_size) * kActivationBytes;
  return {.seconds_per_token = kAllReducesPerLayer * ring_steps / gpus * bytes_per_token / link,
          .fixed_seconds = kAllReducesPerLayer * ring_steps * hardware.links.gpu.latency.seconds()};
}

}  // namespace kvtier
