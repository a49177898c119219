#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hw/timing/model_error.hpp"
#include "sim/core/config.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/engines/wanted.hpp"

/// Compares simulated times with published runs of serving engines.
namespace kvtier {

/// One published run at a fixed concurrency.
struct MeasuredRun {
  std::string id;
  std::string engine;
  std::string version;
  /// The last part of the model's name on Hugging Face.
  std::string model;
  std::string gpu;
  /// bf16, fp8, fp4 or int4.
  std::string precision;
  std::int64_t concurrency = 1;
  std::int64_t prompt_tokens = 1;
  std::int64_t response_tokens = 1;
  std::int64_t tensor = 1;
  std::int64_t attention_dp = 1;
  std::int64_t expert = 1;
  /// 0 if the table has no value.
  double ttft_seconds = 0;
  double tpot_seconds = 0;
  /// Why the row does not describe a run that can be simulated, such as an empty field.
  std::string incomplete;
};

/// Reads rows with the columns of ai-dynamo/aiconfigurator: id, backend, backend_version,
/// model_path, system, isl, osl, gemm_quant_mode, moe_quant_mode, batch_size (concurrency),
/// tp_size, attention_dp_size, moe_ep_size, silicon_ttft_ms, silicon_tpot_ms; mode and pp_size are
/// optional. Sizes that count the GPUs twice (64 for 8 tensor parallel GPUs with whole experts) are
/// corrected. An empty field makes its row incomplete. Throws ConfigError for a malformed field.
[[nodiscard]] std::vector<MeasuredRun> read_measured_runs(const std::filesystem::path& path);

/// A measured run with its prediction, or the reason why it cannot be simulated.
struct PredictedRun {
  MeasuredRun run;
  /// Whether engine times were fitted to runs of this model on this GPU.
  bool is_fitted = false;
  bool has_experts = false;
  double ttft_seconds = 0;
  double tpot_seconds = 0;
  /// The sources of the predicted TPOT.
  TimeOrigin times;
  std::string not_expressed;

  /// predicted / measured - 1, of TPOT.
  [[nodiscard]] double error() const { return tpot_seconds / run.tpot_seconds - 1; }
};

struct EngineTimes {
  std::vector<PredictedRun> runs;
  /// The same runs by the tables of another GPU, and by the roofline.
  std::vector<PredictedRun> by_sibling;
  std::vector<PredictedRun> by_roofline;
};

struct EngineTimesOptions {
  std::int64_t jobs = 1;
  /// Called with the runs done and the number of all runs; may throw to stop.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

/// Simulates each run with ten requests per slot, which all arrive at the start, three times: as
/// its preset says, with the scaled tables of another GPU, and by the roofline. Throws ConfigError
/// for a malformed file, and if no run can be simulated.
[[nodiscard]] EngineTimes predict_measured_runs(const std::filesystem::path& path,
                                                const ConfigDirectory& presets,
                                                const EngineTimesOptions& options = {});

[[nodiscard]] std::vector<Wanted> wanted_of(const EngineTimes& times);

/// The result as JSON (`kvtier.engine_times/1`) and as a table.
[[nodiscard]] Json to_json(const EngineTimes& times);
[[nodiscard]] std::string to_table(const EngineTimes& times);

}  // namespace kvtier
