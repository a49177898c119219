#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/engines/wanted.hpp"

namespace kvtier {

/// One real run of LLMServingSim's layout beside the same requests in the simulator.
struct ServedRun {
  struct Times {
    double ttft_seconds = 0;
    /// 0 of a response of one token.
    double tpot_seconds = 0;
  };
  std::string model;
  std::string engine;
  bool has_experts = false;
  /// By arrival.
  std::vector<Times> measured;
  std::vector<Times> predicted;
};
/// `folder` or its folder `run` has meta.json (model, vllm_version, engine_kwargs) and
/// requests.jsonl or requests.jsonl.gz (input_toks, output_toks, queued_ts, first_token_ts,
/// last_token_ts). The model and the hardware are presets; an empty profile is the hardware's.
/// Throws ConfigError with every problem.
[[nodiscard]] ServedRun predict_served_run(const std::filesystem::path& folder,
                                           const std::string& hardware, const std::string& profile,
                                           const ConfigDirectory& presets);
[[nodiscard]] std::vector<Wanted> wanted_of(const ServedRun& run);

/// `kvtier.served_run/1` and the table of the same.
[[nodiscard]] Json to_json(const ServedRun& run);
[[nodiscard]] std::string to_table(const ServedRun& run);

}  // namespace kvtier
