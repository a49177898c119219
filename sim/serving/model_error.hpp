#pragma once

#include <optional>
#include <span>

#include "hw/timing/model_error.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/core/config.hpp"
#include "sim/serving/config.hpp"

/// The errors of a run's times: /model_error of a result (kvtier.result/1).
namespace kvtier {

/// The times that an instance used.
struct SourceUse {
  const HardwareConfig* hardware = nullptr;
  TimingUse timing;
};

struct ModelError {
  TimeOrigin prefill;
  TimeOrigin decode;
  /// Factors on TTFT, TPOT, and the time of the GPUs.
  ErrorRange ttft;
  ErrorRange tpot;
  ErrorRange gpu_time;
};

/// The errors of the whole run with its warm-up. `use` has an item for each instance.
[[nodiscard]] ModelError model_error(const RunConfig& config, const Json& metrics,
                                     std::span<const SourceUse> use);

/// {"low", "high"}: a value times the factors of a range.
[[nodiscard]] Json range_json(const ErrorRange& range, double value = 1);

/// Without the GPU, which the result's config names.
[[nodiscard]] Json to_json(const ModelError& error);

/// The same with the ranges of TTFT and TPOT: scaled times of this run.
[[nodiscard]] Json model_error_report(const ModelError& error, const Json& metrics);

/// nullopt for a result without times of the simulator, or with a malformed member. The GPU has no
/// name if the result lacks its config.
[[nodiscard]] std::optional<ModelError> model_error_of(const Json& result);

}  // namespace kvtier
