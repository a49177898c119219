#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/engines/wanted.hpp"

/// Simulated times beside published runs of serving engines.
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
  double ttft_seconds = 0;
  double tpot_seconds = 0;
};

/// Rows of the table of ai-dynamo/aiconfigurator: id, backend, backend_version, model_path, system,
/// isl, osl, gemm_quant_mode, moe_quant_mode, batch_size (concurrency), tp_size, attention_dp_size,
/// moe_ep_size, silicon_ttft_ms, silicon_tpot_ms. Sizes that count the GPUs twice (64 for 8 tensor
/// parallel GPUs whose experts are whole) are read as those of the GPUs. Throws ConfigError.
[[nodiscard]] std::vector<MeasuredRun> read_measured_runs(const std::filesystem::path& path);

/// A run beside what was predicted, or the reason why it could not be.
struct PredictedRun {
  MeasuredRun run;
  /// The engine's times were fitted to runs of this model on this GPU.
  bool is_fitted = false;
  bool has_experts = false;
  double ttft_seconds = 0;
  double tpot_seconds = 0;
  std::string not_expressed;

  /// predicted / measured - 1, of TPOT.
  [[nodiscard]] double error() const { return tpot_seconds / run.tpot_seconds - 1; }
};

struct EngineTimes {
  std::vector<PredictedRun> runs;
};

struct EngineTimesOptions {
  std::int64_t jobs = 1;
  /// Called with the runs done and all; may throw to end the work.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

/// Simulates each run with ten requests a slot, all of which wait at the start. Throws ConfigError:
/// an unreadable or malformed file.
[[nodiscard]] EngineTimes predict_measured_runs(const std::filesystem::path& path,
                                                const ConfigDirectory& presets,
                                                const EngineTimesOptions& options = {});

[[nodiscard]] std::vector<Wanted> wanted_of(const EngineTimes& times);

/// `kvtier.engine_times/1` and the table of the same.
[[nodiscard]] Json to_json(const EngineTimes& times);
[[nodiscard]] std::string to_table(const EngineTimes& times);

}  // namespace kvtier
