#include "hw/profile/sibling.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/described_gpu.hpp"
#include "hw/profile/profile_shapes.hpp"

namespace kvtier {
namespace {

// The attained shares of the hardware presets.
constexpr double kComputeShare = 0.68;
constexpr double kMemoryShare = 0.85;

/// The work of a call on one GPU, and the part of its time that does not follow from that:
/// launches, and low occupancy of few blocks. Fitted to the tables of the H100 and the H200.
struct Work {
  double operations = 0;
  double bytes = 0;
  double fixed_seconds = 0;
};

Work of_matrix(const ProfileTable& table, double tokens, double n, double k) {
  const double element =
      table.dtype ? bytes_of(*table.dtype) : static_cast<double>(table.shape.at("element_bytes"));
  return {2 * tokens * n * k, element * k * (n + tokens) + kActivationBytes * tokens * n, 3e-6};
}

Work of_prefill_attention(const ProfileTable& table, double added, double past) {
  const AttentionShape at = attention_of(table);
  const auto width = static_cast<double>(at.head_dim);
  const auto heads = static_cast<double>(at.attention_heads);
  const auto kv_width = static_cast<double>(2 * at.kv_heads * at.element_bytes) * width;
  return {4 * attention_pairs(added, past, window_of(table)) * heads * width,
          2 * kActivationBytes * added * heads * width + (added + past) * kv_width, 10e-6};
}

Work of_decode_attention(const ProfileTable& table, double batch, double context) {
  const AttentionShape at = attention_of(table);
  const auto window = static_cast<double>(window_of(table));
  const double seen = batch * (window > 0 ? std::min(context, window) : context);
  const auto width = static_cast<double>(at.head_dim);
  const double element =
      table.dtype ? bytes_of(*table.dtype) : static_cast<double>(at.element_bytes);
  return {4 * seen * static_cast<double>(at.attention_heads) * width,
          2 * seen * static_cast<double>(at.kv_heads) * width * element, 16e-6};
}

/// Each expert that a token chooses is read once.
Work of_experts(const ProfileTable& table, double tokens) {
  const auto size = [&](const char* key) { return static_cast<double>(table.shape.at(key)); };
  const double groups = size("expert_gpus");
  const double expert = 3 * size("hidden_size") * size("intermediate_size");
  const double chosen = tokens * size("top_k") / groups;
  const double touched =
      size("experts") / groups * (1 - std::pow(1 - size("top_k") / size("experts"), tokens));
  return {2 * chosen * expert,
          touched * expert * bytes_of(table.dtype.value_or(DataType::bf16)) +
              kActivationBytes * chosen * 2 * (size("hidden_size") + 3 * size("intermediate_size")),
          60e-6};
}

/// Latent attention with its projections: the tables have DeepSeek-V3's widths.
Work of_latent_attention(const ProfileTable& table, double rows, double pairs, double kv_bytes) {
  constexpr double kHidden = 7168;
  constexpr double kRank = 512;
  constexpr double kRope = 64;
  constexpr double kQueryRank = 1536;
  constexpr double kHead = 128;
  const auto heads = static_cast<double>(table.shape.at("attention_heads"));
  const double weights =
      kHidden * (kQueryRank + kRank + kRope) +
      heads * (kQueryRank * (kHead + kRope) + 2 * kRank * kHead + kHead * kHidden);
  return {2 * rows * weights + pairs * heads,
          weights * bytes_of(table.dtype.value_or(DataType::bf16)) + kv_bytes, 30e-6};
}

std::optional<Work> work_of(const ProfileTable& table, const ProfileCell& cell) {
  const auto at = [&](std::size_t axis) { return static_cast<double>(cell.at[axis]); };
  switch (table.operation) {
    case OperationId::gemm:
      return of_matrix(table, at(0), static_cast<double>(table.shape.at("n")),
                       static_cast<double>(table.shape.at("k")));
    case OperationId::gemm_grid:
      return of_matrix(table, at(0), at(1), at(2));
    case OperationId::prefill_attention:
      return of_prefill_attention(table, at(0), at(1));
    case OperationId::decode_attention:
      return of_decode_attention(table, at(0), at(1));
    case OperationId::moe:
      return of_experts(table, at(0));
    case OperationId::mla_prefill: {
      constexpr double kOperationsOfPair = 2 * (192 + 128);
      return of_latent_attention(table, at(0), kOperationsOfPair * attention_pairs(at(0), at(1), 0),
                                 0);
    }
    case OperationId::mla_decode: {
      constexpr double kOperationsOfPair = 2 * (576 + 512);
      constexpr double kRow = 576;
      const double element = table.dtype == DataType::bf16 ? 2 : 1;
      return of_latent_attention(table, at(0), kOperationsOfPair * at(0) * at(1),
                                 element * kRow * at(0) * at(1));
    }
    case OperationId::elementwise:
    case OperationId::rotation:
    case OperationId::quantize:
      return Work{.bytes = 1};  // as long as memory takes
    default:
      return std::nullopt;
  }
}

/// Whole passes, and cells of several requests: their work is not that of one operation.
bool is_of_many(const ProfileTable& table) {
  using enum OperationId;
  return table.operation == model_step || table.operation == ragged_attention ||
         table.operation == idle_pass;
}

double roofline_seconds(const Work& work, const Rates& peaks) {
  return work.fixed_seconds + std::max(work.operations / (kComputeShare * peaks.flops_per_second),
                                       work.bytes / (kMemoryShare * peaks.bytes_per_second));
}

void scale(ProfileCell& cell, double ratio) {
  cell.p25_seconds *= ratio;
  cell.median_seconds *= ratio;
  cell.p75_seconds *= ratio;
}

}  // namespace

std::shared_ptr<const Profile> scale_to(const HardwareConfig& hardware, const Profile& relative) {
  Profile scaled = relative;
  scaled.name = fmt::format("{} scaled to {}", relative.name, hardware.gpu.name);
  scaled.device = described_device(hardware);
  std::erase_if(scaled.tables, is_of_many);
  const double factor = hardware.sibling.value_or(1);
  for (ProfileTable& table : scaled.tables) {
    // Weights of 4 bits alone are multiplied in 16.
    const bool is_weight_only = table.dtype == DataType::mxfp4 || table.dtype == DataType::int4;
    const std::optional<DataType> computed = is_weight_only ? std::nullopt : table.dtype;
    const Rates theirs = device_rates(relative, computed, table.cache);
    const Rates ours = device_rates(scaled, computed, table.cache);
    for (ProfileCell& cell : table.cells) {
      if (table.operation == OperationId::all_reduce) {
        scale(cell, factor);
      } else if (const std::optional<Work> work = work_of(table, cell)) {
        scale(cell, factor * roofline_seconds(*work, ours) / roofline_seconds(*work, theirs));
      }
    }
  }
  return std::make_shared<const Profile>(std::move(scaled));
}

}  // namespace kvtier
