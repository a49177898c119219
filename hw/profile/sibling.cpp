#include "hw/profile/sibling.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/described_gpu.hpp"
#include "hw/profile/profile_shapes.hpp"
#include "hw/profile/profile_tables.hpp"

namespace kvtier {
namespace {

/// The part of a call's time that does not follow from its work: launches, and low occupancy of few
/// blocks. Fitted to the tables of the H100 and the H200.
double fixed_seconds(OperationId operation) {
  switch (operation) {
    case OperationId::gemm:
      return 3e-6;
    case OperationId::prefill_attention:
      return 10e-6;
    case OperationId::decode_attention:
      return 16e-6;
    case OperationId::moe:
      return 60e-6;
    case OperationId::mla_prefill:
    case OperationId::mla_decode:
      return 30e-6;
    default:
      return 0;
  }
}

/// All-reduces follow links. State layers and their convolution work token by token: they take the
/// same time on H100 and H200.
bool is_independent_of_work(const ProfileTable& table) {
  using enum OperationId;
  constexpr std::array kOperations{all_reduce, state_prefill, state_decode};
  return std::ranges::find(kOperations, table.operation) != kOperations.end() ||
         table.variant == "convolution";
}

bool is_scaled_by_work(const ProfileTable& table) {
  using enum OperationId;
  constexpr std::array kOnDevice{gemm, prefill_attention, decode_attention, elementwise, rotation,
                                 moe,  mla_prefill,       mla_decode,       quantize};
  return std::ranges::find(kOnDevice, table.operation) != kOnDevice.end();
}

/// Whole passes, and cells of several requests: their work is not that of one operation.
bool is_of_many(const ProfileTable& table) {
  using enum OperationId;
  return table.operation == model_step || table.operation == ragged_attention ||
         table.operation == idle_pass;
}

/// The ratio of the roofline's times of a cell on two devices.
class Ratio {
 public:
  Ratio(const Rates& ours, const Rates& theirs)
      : ours_(usual_rates(ours)), theirs_(usual_rates(theirs)) {}

  [[nodiscard]] double of(const Work& work, OperationId operation) const {
    const double fixed = fixed_seconds(operation);
    return (fixed + seconds_of(work, ours_)) / (fixed + seconds_of(work, theirs_));
  }

 private:
  Rates ours_;
  Rates theirs_;
};

/// The table of one matrix of a grid.
ProfileTable matrix_of(const ProfileTable& grid, const ProfileCell& cell) {
  return {.operation = OperationId::gemm,
          .dtype = grid.dtype,
          .shape = {{"n", cell.at[1]}, {"k", cell.at[2]}}};
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
    const Ratio ratio(device_rates(scaled, computed, table.cache),
                      device_rates(relative, computed, table.cache));
    const auto by_work = [&](const WorkOf& work, const ProfileCell& cell, OperationId operation) {
      return factor * ratio.of(work_at(work, cell), operation);
    };
    if (is_independent_of_work(table)) {
      std::ranges::for_each(table.cells, [&](ProfileCell& cell) { scale(cell, factor); });
    } else if (table.operation == OperationId::gemm_grid) {
      for (ProfileCell& cell : table.cells) {
        scale(cell, by_work(work_of(matrix_of(table, cell)), cell, OperationId::gemm));
      }
    } else if (is_scaled_by_work(table)) {
      const WorkOf work = work_of(table);
      for (ProfileCell& cell : table.cells) {
        scale(cell, by_work(work, cell, table.operation));
      }
    }
  }
  return std::make_shared<const Profile>(std::move(scaled));
}

}  // namespace kvtier
