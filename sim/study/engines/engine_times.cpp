#include "sim/study/engines/engine_times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/core/build.hpp"
#include "sim/core/csv_reader.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/statistics.hpp"
#include "sim/core/text.hpp"
#include "sim/serving/model_error.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/engines/error_ranges.hpp"
#include "sim/study/runs/run_threads.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// Requests of a run for each slot (InferenceX's scripts: ten prompts per concurrent request).
constexpr std::int64_t kRequestsPerSlot = 10;
/// max_num_batched_tokens of InferenceX's scripts for vLLM, and the default of TensorRT-LLM.
constexpr std::int64_t kTokenBudget = 8192;
constexpr std::int64_t kRoom = 200;
constexpr std::int64_t kLeastWindow = 8192;
/// The `mode` of runs whose GPUs do both prefill and decode.
constexpr std::string_view kTogether = "agg";
/// A run has drafted tokens if its TPOT is below this share of the longest TPOT of the same
/// configuration. The table does not mark such runs.
constexpr double kDraftedShare = 0.92;

/// The first words of the reason of such runs.
constexpr std::string_view kDrafted = "drafted tokens";

struct ModelName {
  std::string_view published;
  std::string_view preset;
  /// Whether engine times were fitted to this model (on the H100).
  bool is_fitted;
};
constexpr std::array kModels{
    ModelName{"Llama-3.1-8B-Instruct", "llama-3.1-8b", true},
    ModelName{"Llama-3.1-8B", "llama-3.1-8b", true},
    ModelName{"Llama-3.1-70B", "llama-3.1-70b", false},
    ModelName{"Qwen3-32B", "qwen3-32b", true},
    ModelName{"Qwen3-32B-NVFP4", "qwen3-32b", true},
    ModelName{"Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", false},
    ModelName{"Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", true},
    ModelName{"Qwen3.5-397B-A17B", "qwen3.5-397b-a17b", false},
    ModelName{"gpt-oss-120b", "gpt-oss-120b", true},
    ModelName{"GLM-5", "glm-5", false},
    ModelName{"DeepSeek-R1", "deepseek-v3", false},
    ModelName{"DeepSeek-R1-NVFP4", "deepseek-v3", false},
    ModelName{"DeepSeek-V3", "deepseek-v3", false},
    ModelName{"DeepSeek-V3.1-NVFP4", "deepseek-v3", false},
    ModelName{"MiniMax-M2.5", "minimax-m2", false},
    ModelName{"Kimi-K2.5", "kimi-k2", false},
};

const ModelName* find_model(std::string_view published) {
  const auto* const found = std::ranges::find(kModels, published, &ModelName::published);
  return found == kModels.end() ? nullptr : found;
}

struct GpuName {
  std::string_view published;
  std::string_view preset;
  /// Whether engine times were fitted to runs on this GPU.
  bool is_fitted = false;
  /// Whether quantized weights have 16-bit KV in the scripts for vLLM. Others have fp8 KV.
  bool has_wide_kv_in_vllm = false;
  /// Whether gpt-oss runs with activations in MXFP8.
  bool has_mx_activations = false;
  /// A profile of a related GPU, for the errors of scaled tables.
  std::string_view relative = {};
};
constexpr std::array kGpus{
    GpuName{"a100_sxm", "a100-80g-8x"},
    GpuName{.published = "h100_sxm",
            .preset = "h100-8x",
            .is_fitted = true,
            .has_wide_kv_in_vllm = true,
            .relative = "b200-vllm"},
    GpuName{"h200_sxm", "h200-8x"},
    GpuName{.published = "b200_sxm",
            .preset = "b200-8x",
            .has_mx_activations = true,
            .relative = "h100-vllm"},
    GpuName{.published = "gb200", .preset = "gb200-nvl72-tray", .has_mx_activations = true},
    GpuName{.published = "b300_sxm", .preset = "b300-8x", .has_mx_activations = true},
    GpuName{.published = "gb300", .preset = "gb300-nvl72-tray", .has_mx_activations = true},
    GpuName{"h20_sxm", "h20-8x"},
    GpuName{"h800_sxm", "h800-8x"},
    GpuName{"l40s", "l40s-8x"},
    GpuName{"mi300x", "mi300x-8x"},
    GpuName{"mi325x", "mi325x-8x"},
    GpuName{"mi355x", "mi355x-8x"},
    GpuName{"rtx_pro_6000_server", "rtxpro6000-8x"},
    GpuName{"rtx_4090", "rtx4090-8x"},
};

/// The GPU of a published name. Any hardware preset may also be named itself.
std::optional<GpuName> find_gpu(std::string_view name, const ConfigDirectory& presets) {
  const auto* const found = std::ranges::find_if(
      kGpus, [name](const GpuName& gpu) { return gpu.published == name || gpu.preset == name; });
  if (found != kGpus.end()) {
    return *found;
  }
  const std::vector<std::string> names = presets.names("hardware");
  return std::ranges::find(names, name) == names.end()
             ? std::nullopt
             : std::optional(GpuName{.published = name, .preset = name});
}

/// The preset of an engine's version. vLLM schedules asynchronously since 2026.
std::string_view system_preset(const MeasuredRun& run) {
  const auto is_of = [&](const auto&... versions) {
    return (run.version.starts_with(versions) || ...);
  };
  if (run.engine == "vllm") {
    return is_of("0.11.", "0.12.") ? "vllm_2025" : "vllm";
  }
  if (run.engine == "trtllm") {
    return is_of("1.0.", "1.1.") ? "tensorrt_llm_2025" : "tensorrt_llm";
  }
  return run.engine == "sglang" ? "sglang" : std::string_view();
}

/// Formats of weights and KV, as in InferenceX's scripts.
Json precision_of(const MeasuredRun& run, const ModelName& model, const GpuName& gpu) {
  const bool has_own_weights = model.preset == "gpt-oss-120b";  // always MXFP4
  const bool is_quantized = run.precision != "bf16";
  const bool has_wide_kv = run.engine == "vllm" && gpu.has_wide_kv_in_vllm;
  Json precision = Json::object();
  if (run.precision == "int4") {  // only the experts
    precision = {{"attention", "none"}, {"mlp", "none"}, {"experts", "int4"}};
  } else if (!has_own_weights) {
    const std::string format = run.precision == "fp4"   ? "nvfp4"
                               : run.precision == "fp8" ? "fp8"
                                                        : "none";
    precision = {{"attention", format}, {"mlp", format}, {"experts", format}};
  } else if (gpu.has_mx_activations) {
    precision = {{"compute", "fp8"}};
  }
  precision["kv"] = is_quantized && !has_wide_kv ? "fp8" : "none";
  return precision;
}

/// Keys of /hardware that take times from another source than the preset's.
Json source_of(const GpuName& gpu, TimeSource source) {
  if (source == TimeSource::roofline) {
    return {{"profile", "none"}, {"sibling", "none"}};
  }
  if (source == TimeSource::sibling) {
    return {{"profile", gpu.relative}, {"sibling", 1}};
  }
  return Json::object();
}

Json config_of(const MeasuredRun& run, const ModelName& model, const GpuName& gpu,
               TimeSource source) {
  const std::int64_t gpus = run.tensor * run.attention_dp;
  // The context length of the scripts' servers.
  const std::int64_t window =
      std::max(kLeastWindow, run.prompt_tokens + run.response_tokens + kRoom);
  Json hardware{{"preset", gpu.preset},
                {"gpus", gpus},
                {"parallel", {{"attention_dp", run.attention_dp}, {"expert", run.expert}}}};
  hardware.update(source_of(gpu, source));
  return {{"model",
           {{"preset", model.preset},
            {"precision", precision_of(run, model, gpu)},
            {"context_window", fmt::format("{}tokens", window)}}},
          {"hardware", hardware},
          // Nothing is offloaded. The scripts set the share of memory for each run.
          {"system",
           {{"preset", system_preset(run)},
            {"tiers", {{"dram", "none"}}},
            {"engine", {{"memory_share", 1}, {"reserved_memory", "0B"}, {"kv_share", 1}}}}},
          {"serving",
           {{"slots", run.concurrency},
            {"token_budget", fmt::format("{}tokens", kTokenBudget * run.attention_dp)}}},
          {"workload",
           {{"generator", "multi_turn"},
            {"sessions", run.concurrency * kRequestsPerSlot},
            {"arrival_rate", "1000000/s"},
            {"measure", "all"},
            {"multi_turn",
             {{"rounds", 1},
              {"user_tokens", fmt::format("{}tokens", run.prompt_tokens)},
              {"response_tokens", fmt::format("{}tokens", run.response_tokens)}}}}},
          {"seed", 1}};
}

ResolvedConfig resolved(const Json& config, const std::string& origin,
                        const ConfigDirectory& presets, const std::shared_ptr<ConfigFiles>& files) {
  ConfigRequest request;
  request.files = files;
  request.inline_config = InlineConfig{config, origin};
  request.name_origins = false;
  return resolve_config(request, presets, builtin_policies());
}

std::string precision_name(const std::string& gemm, const std::string& moe) {
  const std::string& mode = gemm.empty() ? moe : gemm;
  return mode.empty() || mode == "bfloat16" ? "bf16"
         : mode.starts_with("fp8")          ? "fp8"
         : mode.starts_with("nvfp4")        ? "fp4"
         : mode.starts_with("int4")         ? "int4"
                                            : mode;
}

/// Sets the parallel sizes. Some rows have the product of two sizes in one column.
void read_parallel(MeasuredRun& run, std::int64_t tensor, std::int64_t dp, std::int64_t expert) {
  const auto root = [](std::int64_t value) {
    return std::llround(std::sqrt(static_cast<double>(value)));
  };
  const auto is_square = [&](std::int64_t value) {
    return value >= 16 && root(value) * root(value) == value;
  };
  run.tensor = tensor;
  run.attention_dp = dp;
  run.expert = expert;
  if (is_square(tensor)) {
    run.tensor = run.expert = root(tensor);
  } else if (tensor == 1 && is_square(dp)) {
    run.attention_dp = run.expert = root(dp);
  } else if (dp > 1 && tensor == dp) {
    run.tensor = 1;
    run.expert = dp;
  }
}

/// All but the number of GPUs that share a layer, and what the table does not have.
auto same_configuration(const MeasuredRun& run) {
  const ModelName* const model = find_model(run.model);
  return std::tuple(model == nullptr ? std::string_view(run.model) : model->preset, run.gpu,
                    run.engine, run.precision, run.attention_dp, run.expert, run.concurrency,
                    run.prompt_tokens, run.response_tokens);
}

/// Whether the model has a layer that drafts tokens.
bool can_draft(std::string_view model) {
  return model.starts_with("DeepSeek") || model.starts_with("Qwen3.5");
}

/// Marks runs with drafted tokens: runs that are clearly faster than another run of the same
/// configuration on as many GPUs or more, and all runs of a server if most of its runs that have
/// such another one are.
void mark_drafted(std::vector<PredictedRun>& runs) {
  using Key = decltype(same_configuration(runs.front().run));
  const auto is_candidate = [](const PredictedRun& one) {
    return one.run.incomplete.empty() && can_draft(one.run.model);
  };
  std::map<Key, std::vector<const MeasuredRun*>> alike;
  for (const PredictedRun& one : runs) {
    if (is_candidate(one)) {
      alike[same_configuration(one.run)].push_back(&one.run);
    }
  }
  // The table has some runs several times, with times rounded differently.
  const auto is_same = [](const MeasuredRun& a, const MeasuredRun& b) {
    return a.tensor == b.tensor &&
           std::abs(a.tpot_seconds - b.tpot_seconds) < 2e-3 * a.tpot_seconds;
  };
  // The longest TPOT of other runs; 0: there is none.
  const auto longest_other = [&](const MeasuredRun& run) {
    double longest = 0;
    for (const MeasuredRun* other : alike[same_configuration(run)]) {
      if (other->tensor >= run.tensor && !is_same(*other, run)) {
        longest = std::max(longest, other->tpot_seconds);
      }
    }
    return longest;
  };
  struct Count {
    int drafted = 0;
    int compared = 0;
  };
  const auto server_of = [](const MeasuredRun& run) {
    return std::tuple(run.model, run.engine, run.version, run.precision, run.tensor,
                      run.attention_dp, run.expert);
  };
  std::map<decltype(server_of(runs.front().run)), Count> servers;
  const auto mark = [](PredictedRun& one, const char* why) {
    one.not_expressed = fmt::format("{}: {}", kDrafted, why);
  };
  for (PredictedRun& one : runs) {
    if (!is_candidate(one)) {
      continue;
    }
    if (const double longest = longest_other(one.run); longest > 0) {
      Count& count = servers[server_of(one.run)];
      ++count.compared;
      if (one.run.tpot_seconds < kDraftedShare * longest) {
        ++count.drafted;
        mark(one, "another run of the same configuration takes longer");
      }
    }
  }
  for (PredictedRun& one : runs) {
    if (is_candidate(one) && one.not_expressed.empty()) {
      const Count& count = servers[server_of(one.run)];
      if (2 * count.drafted > count.compared) {
        mark(one, "most runs of this server have them");
      }
    }
  }
}

void predict(PredictedRun& one, const ConfigDirectory& presets,
             const std::shared_ptr<ConfigFiles>& files, const RunOptions& options,
             TimeSource source) {
  if (!one.run.incomplete.empty()) {
    one.not_expressed = one.run.incomplete;
    return;
  }
  const ModelName* const model = find_model(one.run.model);
  const std::optional<GpuName> gpu = find_gpu(one.run.gpu, presets);
  std::vector<std::string> missing;
  if (model == nullptr) {
    missing.push_back("the model " + one.run.model);
  }
  if (!gpu) {
    missing.push_back("the GPU " + one.run.gpu);
  }
  if (system_preset(one.run).empty()) {
    missing.push_back("the engine " + one.run.engine);
  }
  if (!missing.empty()) {
    one.not_expressed = "no preset of " + detail::join(missing, ", ");
    return;
  }
  one.is_fitted = model->is_fitted && gpu->is_fitted;
  one.has_experts = resolve_model(std::string(model->preset), presets, "model").experts.has_value();
  constexpr std::array<std::string_view, 4> kPrecisions{"bf16", "fp8", "fp4", "int4"};
  if (std::ranges::find(kPrecisions, one.run.precision) == kPrecisions.end()) {
    one.not_expressed = fmt::format("no format of this name: {}", one.run.precision);
  }
  try {
    const ResolvedConfig config =
        resolved(config_of(one.run, *model, *gpu, source), one.run.id, presets, files);
    if (!one.not_expressed.empty()) {
      return;
    }
    const Json result = simulate(config.config, builtin_policies(), options);
    const Json& metrics = result.at("metrics");
    one.tpot_seconds = metrics.at("tpot_seconds").at("mean").get<double>();
    one.ttft_seconds = metrics.at("ttft_seconds").at("mean").get<double>();
    one.times = model_error_of(result)->decode;
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    one.not_expressed = text.substr(0, text.find('\n'));
  }
}

double quantile_of(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values.empty() ? 0 : quantile(values, share);
}

struct Errors {
  std::int64_t rows = 0;
  std::int64_t not_expressed = 0;
  std::vector<double> absolute;
  std::vector<double> with_sign;

  void add(const PredictedRun& one) {
    ++rows;
    if (!one.not_expressed.empty()) {
      ++not_expressed;
      return;
    }
    absolute.push_back(100 * std::abs(one.error()));
    with_sign.push_back(100 * one.error());
  }
  [[nodiscard]] double p50() const { return quantile_of(absolute, 0.5); }
  [[nodiscard]] double p90() const { return quantile_of(absolute, 0.9); }
  [[nodiscard]] double signed_p50() const { return quantile_of(with_sign, 0.5); }
  [[nodiscard]] Json json() const {
    return {{"rows", rows},
            {"not_expressed", not_expressed},
            {"median_percent", p50()},
            {"p90_percent", p90()},
            {"signed_median_percent", signed_p50()}};
  }
};

/// Errors of the runs for which `belongs` is true.
template <class Belongs>
Errors errors_of(const EngineTimes& times, Belongs belongs) {
  Errors errors;
  for (const PredictedRun& one : times.runs) {
    if (belongs(one)) {
      errors.add(one);
    }
  }
  return errors;
}

using GroupKey = std::tuple<std::string, std::string, std::string, std::string, bool>;
std::map<GroupKey, Errors> groups_of(const EngineTimes& times) {
  std::map<GroupKey, Errors> groups;
  for (const PredictedRun& one : times.runs) {
    groups[{one.run.engine, one.run.model, one.run.precision, one.run.gpu, one.is_fitted}].add(one);
  }
  return groups;
}

/// Number of runs for each reason why they cannot be simulated.
std::map<std::string, std::int64_t> reasons_of(const EngineTimes& times) {
  std::map<std::string, std::int64_t> reasons;
  for (const PredictedRun& one : times.runs) {
    if (!one.not_expressed.empty()) {
      ++reasons[one.not_expressed];
    }
  }
  return reasons;
}

}  // namespace

std::string_view model_preset(std::string_view published) {
  const ModelName* model = find_model(published);
  return model == nullptr ? std::string_view() : model->preset;
}

bool all_met(const std::vector<Wanted>& wanted) {
  return std::ranges::all_of(wanted, &Wanted::is_met);
}

Json to_json(const std::vector<Wanted>& wanted) {
  Json list = Json::array();
  for (const Wanted& one : wanted) {
    list.push_back({{"what", one.what},
                    {"limit_percent", one.limit_percent},
                    {"percent", one.percent},
                    {"met", one.is_met()}});
  }
  return list;
}

std::string to_text(const std::vector<Wanted>& wanted) {
  std::string text;
  for (const Wanted& one : wanted) {
    text += fmt::format("{}: {:.1f} %, wanted {:.0f} %{}\n", one.what, one.percent,
                        one.limit_percent, one.is_met() ? "" : ": missed");
  }
  return text;
}

std::vector<MeasuredRun> read_measured_runs(const fs::path& path) {
  CsvReader csv(path);
  constexpr std::array<std::string_view, 15> kNames{
      "id",          "backend",         "backend_version",
      "model_path",  "system",          "isl",
      "osl",         "gemm_quant_mode", "moe_quant_mode",
      "batch_size",  "tp_size",         "attention_dp_size",
      "moe_ep_size", "silicon_ttft_ms", "silicon_tpot_ms"};
  const std::vector<std::size_t> at = csv.columns(kNames);
  const std::optional<std::size_t> mode = csv.column("mode");
  const std::optional<std::size_t> stages = csv.column("pp_size");
  constexpr std::int64_t kMost = 1'000'000'000;
  std::vector<std::string> empty;
  const auto text = [&](std::size_t name) -> const std::string& {
    if (csv.text(at[name]).empty()) {
      empty.emplace_back(kNames[name]);
    }
    return csv.text(at[name]);
  };
  const auto count = [&](std::size_t name) -> std::int64_t {
    if (text(name).empty()) {
      return 1;
    }
    const std::int64_t value = csv.whole_number(at[name], kMost);
    if (value < 1) {
      throw csv.unexpected(at[name], "a whole number > 0");
    }
    return value;
  };
  const auto count_or_one = [&](std::size_t column) {
    return csv.text(column).empty() ? 1
                                    : std::max<std::int64_t>(1, csv.whole_number(column, kMost));
  };
  const auto seconds = [&](std::size_t name) {
    if (text(name).empty()) {
      return 0.0;
    }
    const std::optional<double> value = parse_number(csv.text(at[name]));
    if (!value || *value <= 0) {
      throw csv.unexpected(at[name], "milliseconds > 0");
    }
    return *value / 1e3;
  };
  std::vector<MeasuredRun> runs;
  while (csv.next()) {
    empty.clear();
    MeasuredRun run;
    run.id = csv.text(at[0]);
    run.engine = text(1);
    run.version = csv.text(at[2]);
    const std::string& name = text(3);
    run.model = name.substr(name.rfind('/') + 1);
    run.gpu = text(4);
    run.prompt_tokens = count(5);
    run.response_tokens = count(6);
    run.precision = precision_name(csv.text(at[7]), csv.text(at[8]));
    run.concurrency = count(9);
    read_parallel(run, count(10), count_or_one(at[11]), count_or_one(at[12]));
    run.ttft_seconds = seconds(13);
    run.tpot_seconds = seconds(14);
    if (mode && !csv.text(*mode).empty() && csv.text(*mode) != kTogether) {
      run.incomplete = fmt::format("prefill and decode apart: mode {}", csv.text(*mode));
    } else if (stages && count_or_one(*stages) > 1) {
      run.incomplete = fmt::format("pipeline parallelism: pp_size {}", csv.text(*stages));
    } else if (!empty.empty()) {
      run.incomplete = "empty " + detail::join(empty, ", ");
    }
    runs.push_back(std::move(run));
  }
  if (runs.empty()) {
    throw ConfigError(fmt::format("{}: expected rows of runs, got none", path.string()));
  }
  return runs;
}

EngineTimes predict_measured_runs(const fs::path& path, const ConfigDirectory& presets,
                                  const EngineTimesOptions& options) {
  EngineTimes times;
  for (MeasuredRun& run : read_measured_runs(path)) {
    times.runs.push_back({.run = std::move(run)});
  }
  mark_drafted(times.runs);
  times.by_sibling = times.by_roofline = times.runs;
  const std::size_t rows = times.runs.size();
  // In the order of TimeSource.
  const std::array by_source{&times.runs, &times.by_sibling, &times.by_roofline};
  const auto all = static_cast<std::int64_t>(by_source.size() * rows);
  const auto files = std::make_shared<ConfigFiles>();
  run_on_threads(
      by_source.size() * rows, options.jobs,
      [&](std::size_t i, const std::stop_token& stop) {
        RunOptions how;
        how.progress = [&](std::int64_t) {
          if (stop.stop_requested()) {
            throw Stopped();
          }
        };
        predict((*by_source[i / rows])[i % rows], presets, files, how,
                static_cast<TimeSource>(i / rows));
      },
      [&](std::int64_t done) {
        if (options.progress) {
          options.progress(done, all);
        }
      });
  if (std::ranges::none_of(times.runs,
                           [](const PredictedRun& one) { return one.not_expressed.empty(); })) {
    std::vector<std::string> reasons;
    for (const auto& [reason, count] : reasons_of(times)) {
      reasons.push_back(fmt::format("{} rows: {}", count, reason));
    }
    throw ConfigError(
        fmt::format("{}: no run can be expressed; {}", path.string(), detail::join(reasons, "; ")));
  }
  return times;
}

std::vector<Wanted> wanted_of(const EngineTimes& times) {
  std::vector<Wanted> wanted;
  const auto add = [&](const char* what, const Errors& errors, double median, double p90) {
    if (errors.rows > errors.not_expressed) {
      wanted.push_back({fmt::format("{}, median of |error|", what), median, errors.p50()});
      wanted.push_back({fmt::format("{}, 90th percentile", what), p90, errors.p90()});
    }
  };
  const Errors all = errors_of(times, [](const PredictedRun&) { return true; });
  add("TPOT of all runs", all, 8, 25);
  add("TPOT of dense models that were not fitted, on the H100",
      errors_of(times,
                [](const PredictedRun& one) {
                  return !one.is_fitted && !one.has_experts && one.run.gpu == "h100_sxm";
                }),
      8, 25);
  add("TPOT of dense models on the B200",
      errors_of(
          times,
          [](const PredictedRun& one) { return !one.has_experts && one.run.gpu == "b200_sxm"; }),
      12, 35);
  add("TPOT of models with experts that were not fitted",
      errors_of(times, [](const PredictedRun& one) { return !one.is_fitted && one.has_experts; }),
      12, 35);
  const std::int64_t drafted = std::ranges::count_if(
      times.runs, [](const PredictedRun& one) { return one.not_expressed.starts_with(kDrafted); });
  wanted.push_back({"Runs that could not be expressed, but for drafted tokens", 5,
                    100 * static_cast<double>(all.not_expressed - drafted) /
                        static_cast<double>(std::max<std::int64_t>(1, all.rows - drafted))});
  return wanted;
}

Json to_json(const EngineTimes& times) {
  Json groups = Json::array();
  for (const auto& [key, errors] : groups_of(times)) {
    Json group{{"engine", std::get<0>(key)},
               {"model", std::get<1>(key)},
               {"precision", std::get<2>(key)},
               {"gpu", std::get<3>(key)},
               {"fitted", std::get<4>(key)}};
    group.update(errors.json());
    groups.push_back(std::move(group));
  }
  Json reasons = Json::array();
  for (const auto& [reason, count] : reasons_of(times)) {
    reasons.push_back({{"reason", reason}, {"rows", count}});
  }
  const auto time = [](double seconds) { return seconds > 0 ? Json(seconds) : Json(); };
  Json runs = Json::array();
  for (const PredictedRun& one : times.runs) {
    Json run{{"id", one.run.id},
             {"measured",
              {{"ttft_seconds", time(one.run.ttft_seconds)},
               {"tpot_seconds", time(one.run.tpot_seconds)}}}};
    if (one.not_expressed.empty()) {
      run["predicted"] = {{"ttft_seconds", one.ttft_seconds}, {"tpot_seconds", one.tpot_seconds}};
      run["class"] = class_of(one.times.shares);
    } else {
      run["not_expressed"] = one.not_expressed;
    }
    runs.push_back(std::move(run));
  }
  Json result = new_result("kvtier.engine_times/1");
  result["wanted"] = to_json(wanted_of(times));
  result["ranges"] = to_json(ranges_of(times));
  result["groups"] = std::move(groups);
  result["not_expressed"] = std::move(reasons);
  result["runs"] = std::move(runs);
  return result;
}

std::string to_table(const EngineTimes& times) {
  std::string text =
      fmt::format("{:<8} {:<22} {:<5} {:<9} {:>5} {:>8} {:>6} {:>6} {:>7}\n", "engine", "model",
                  "type", "GPU", "rows", "left out", "p50 %", "p90 %", "bias %");
  for (const auto& [key, errors] : groups_of(times)) {
    text += fmt::format("{:<8} {:<22} {:<5} {:<9} {:>5} {:>8} {:>6.1f} {:>6.1f} {:>7.1f}{}\n",
                        std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key),
                        errors.rows, errors.not_expressed, errors.p50(), errors.p90(),
                        errors.signed_p50(), std::get<4>(key) ? "  fitted" : "");
  }
  const std::map<std::string, std::int64_t> reasons = reasons_of(times);
  text += reasons.empty() ? "" : "\nNot expressed:\n";
  for (const auto& [reason, count] : reasons) {
    text += fmt::format("  {} rows: {}\n", count, reason);
  }
  return text + "\n" + to_text(ranges_of(times)) + "\n" + to_text(wanted_of(times));
}

}  // namespace kvtier
