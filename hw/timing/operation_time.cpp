#include "hw/timing/operation_time.hpp"

#include <algorithm>
#include <cmath>

namespace kvtier {
namespace {

double flops_per_pair(const AttentionShape& shape) {
  return 4.0 * static_cast<double>(shape.attention_heads * shape.head_dim);
}

double kv_bytes_per_token(const AttentionShape& shape) {
  return 2.0 * static_cast<double>(shape.kv_heads * shape.head_dim * shape.element_bytes);
}

}  // namespace

double seconds_of(const Work& work, const Rates& rates) {
  return std::max(work.operations / rates.flops_per_second, work.bytes / rates.bytes_per_second);
}

Rates usual_rates(const Rates& peaks) {
  constexpr double kComputeShare = 0.68;
  constexpr double kMemoryShare = 0.85;
  return {.flops_per_second = kComputeShare * peaks.flops_per_second,
          .bytes_per_second = kMemoryShare * peaks.bytes_per_second};
}

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

Work matrix_work(const MatrixShape& matrix, double element_bytes, double tokens) {
  const double elements = static_cast<double>(matrix.n) * static_cast<double>(matrix.k);
  return {2 * tokens * elements, elements * element_bytes};
}

double matrix_seconds(const MatrixShape& matrix, double element_bytes, double tokens,
                      const Rates& rates) {
  return seconds_of(matrix_work(matrix, element_bytes, tokens), rates);
}

double attention_pairs(double added, double past, std::int64_t window) {
  const auto most = static_cast<double>(window);
  if (window == 0 || past + added <= most) {
    return added * past + added * (added + 1) / 2;
  }
  // First the tokens that see all tokens before them, then those that see a full window.
  const double growing = std::max(0.0, most - past);
  return growing * past + growing * (growing + 1) / 2 + (added - growing) * most;
}

Work extend_attention_work(const AttentionShape& shape, double added, double past,
                           std::int64_t window) {
  const double seen = window == 0 ? past : std::min(past, static_cast<double>(window));
  return {attention_pairs(added, past, window) * flops_per_pair(shape),
          (seen + added) * kv_bytes_per_token(shape)};
}

double extend_attention_seconds(const AttentionShape& shape, double added, double past,
                                const Rates& rates) {
  return seconds_of(extend_attention_work(shape, added, past), rates);
}

Work decode_attention_work(const AttentionShape& shape, double context) {
  return {context * flops_per_pair(shape), context * kv_bytes_per_token(shape)};
}

double decode_attention_seconds(const AttentionShape& shape, double context, const Rates& rates) {
  return seconds_of(decode_attention_work(shape, context), rates);
}

Work rows_work(std::int64_t width, std::int64_t element_bytes, double rows) {
  return {0, rows * static_cast<double>(width * element_bytes)};
}

double rows_seconds(std::int64_t width, std::int64_t element_bytes, double rows,
                    const Rates& rates) {
  return seconds_of(rows_work(width, element_bytes, rows), rates);
}

double attained_flops(const ModelConfig& model, const HardwareConfig& hardware,
                      const std::optional<NumberFormat>& format, double gpus) {
  const GpuConfig& gpu = hardware.gpu;
  const double eight_bits = gpu.peaks.eight_bits.value_or(gpu.peak * 2).value;
  const double four_bits = gpu.peaks.four_bits ? gpu.peaks.four_bits->value : eight_bits;
  double peak = gpu.peak.value;
  if (format) {
    switch (model.precision.compute.value_or(*format)) {
      case NumberFormat::fp8:
      case NumberFormat::int8:
        peak = eight_bits;
        break;
      case NumberFormat::nvfp4:
        peak = four_bits;
        break;
      case NumberFormat::mxfp4:
      case NumberFormat::int4:
      case NumberFormat::bf16:
      case NumberFormat::fp32:
        break;
    }
  }
  const double in_16_bits = gpus * gpu.peak.value * hardware.efficiency.compute;
  // Matrices in fewer bits are never slower than in 16.
  return peak > gpu.peak.value
             ? std::max(gpus * peak * hardware.efficiency.compute * kLowPrecisionShare, in_16_bits)
             : in_16_bits;
}

AllReduceTime all_reduce(const ModelConfig& model, const HardwareConfig& hardware,
                         std::int64_t gpus) {
  if (gpus == 1) {
    return {};
  }
  const double count = static_cast<double>(gpus);
  const double link = hardware.links.gpu.bandwidth.value * hardware.efficiency.gpu_link;
  const double ring_steps = 2 * (count - 1);
  const double bytes_per_token = static_cast<double>(model.hidden_size) * kActivationBytes;
  return {.seconds_per_token = ring_steps / count * bytes_per_token / link,
          .fixed_seconds = ring_steps * hardware.links.gpu.latency.seconds()};
}

AllReduceTime expert_all_to_all(const ModelConfig& model, const HardwareConfig& hardware) {
  const double gpus = static_cast<double>(gpus_of_stage(hardware));
  const double groups = static_cast<double>(hardware.parallel.expert);
  const double active = static_cast<double>(model.experts->active);
  // Other groups that a token is sent to, if its experts are chosen at random.
  const double sent = (groups - 1) * (1 - std::pow(1 - 1 / groups, active));
  const double link = hardware.links.gpu.bandwidth.value * hardware.efficiency.gpu_link;
  const double bytes = static_cast<double>(model.hidden_size) * kActivationBytes;
  constexpr double kWays = 2;
  return {.seconds_per_token = kWays * sent * bytes / gpus / link,
          .fixed_seconds = kWays * hardware.links.gpu.latency.seconds()};
}

AllReduceTime stage_send(const ModelConfig& model, const HardwareConfig& hardware) {
  const double link = hardware.links.gpu.bandwidth.value * hardware.efficiency.gpu_link;
  return {.seconds_per_token = static_cast<double>(model.hidden_size) * kActivationBytes / link,
          .fixed_seconds = hardware.links.gpu.latency.seconds()};
}

}  // namespace kvtier
