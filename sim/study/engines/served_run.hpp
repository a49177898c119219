#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/engines/wanted.hpp"

namespace kvtier {

/// A real run in LLMServingSim's layout, and the same requests in the simulator.
struct ServedRun {
  struct Times {
    double ttft_seconds = 0;
    /// 0 for a response of one token.
    double tpot_seconds = 0;
  };
  std::string model;
  std::string engine;
  bool has_experts = false;
  /// Times of the requests, sorted by arrival.
  std::vector<Times> measured;
  std::vector<Times> predicted;
};
/// `folder` or its folder `run` has meta.json (model, vllm_version, engine_kwargs) and
/// requests.jsonl or requests.jsonl.gz (input_toks, output_toks, queued_ts, first_token_ts,
/// last_token_ts). The model and the hardware are presets. An empty `profile` means the hardware's.
/// max_model_len, if not null, is the context window, and num_kv_tokens of kv_cache, if recorded,
/// the KV capacity.
/// Throws ConfigError.
[[nodiscard]] ServedRun predict_served_run(const std::filesystem::path& folder,
                                           const std::string& hardware, const std::string& profile,
                                           const ConfigDirectory& presets);
[[nodiscard]] std::vector<Wanted> wanted_of(const ServedRun& run);

/// The result as JSON (`kvtier.served_run/1`) and as a table.
[[nodiscard]] Json to_json(const ServedRun& run);
[[nodiscard]] std::string to_table(const ServedRun& run);

}  // namespace kvtier
