#include "sim/study/engines/served_run.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/core/build.hpp"
#include "sim/core/compressed_stream.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/statistics.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// The engine_kwargs of meta.json that become keys of a config.
struct EngineArguments {
  std::int64_t tensor = 1;
  std::int64_t data = 1;
  bool expert_parallel = false;
  std::int64_t max_requests = 1;
  std::int64_t max_tokens = 1;
  /// The longest request; nullopt: the model's context window.
  std::optional<std::int64_t> max_length;
};

struct Meta {
  std::string model;
  std::string version;
  EngineArguments engine;
  /// Tokens of KV that the engine has room for, all GPUs together; nullopt: not recorded.
  std::optional<std::int64_t> kv_tokens;
};

/// Reads one value of an object that may have other keys.
template <class T>
void take(const Json& object, const std::string& pointer, const char* key, T& to,
          Problems& problems, const Limits& limits = {}) {
  const auto found = object.find(key);
  if (found == object.end()) {
    problems.add(pointer + "/" + key, "expected a value, got none");
  } else {
    read_value(to, *found, pointer + "/" + key, problems, limits);
  }
}

/// Reads a value that may be absent or null.
void take_optional(const Json& object, const std::string& pointer, const char* key,
                   std::optional<std::int64_t>& to, Problems& problems, const Limits& limits) {
  if (!object.is_object()) {
    problems.add(pointer, fmt::format("expected an object, got {}", quote_json(object)));
  } else if (object.contains(key) && !object[key].is_null()) {
    take(object, pointer, key, to.emplace(), problems, limits);
  }
}

const Limits kCount = between(1, 1'000'000);
const Limits kTokens = between(1, 1'000'000'000'000);

Meta read_meta(const fs::path& path) {
  const Json json = read_json_file(path);
  Problems problems;
  problems.set_origin("", path.string());
  Meta meta;
  take(json, "", "model", meta.model, problems);
  take(json, "", "vllm_version", meta.version, problems);
  const Json arguments = json.value("engine_kwargs", Json::object());
  const auto engine = [&](const char* key, std::int64_t& to) {
    take(arguments, "/engine_kwargs", key, to, problems, kCount);
  };
  engine("tensor_parallel_size", meta.engine.tensor);
  engine("data_parallel_size", meta.engine.data);
  take(arguments, "/engine_kwargs", "enable_expert_parallel", meta.engine.expert_parallel,
       problems);
  engine("max_num_seqs", meta.engine.max_requests);
  engine("max_num_batched_tokens", meta.engine.max_tokens);
  take_optional(arguments, "/engine_kwargs", "max_model_len", meta.engine.max_length, problems,
                kTokens);
  take_optional(json.value("kv_cache", Json::object()), "/kv_cache", "num_kv_tokens",
                meta.kv_tokens, problems, kTokens);
  problems.throw_if_any();
  return meta;
}

fs::path run_file(const fs::path& folder, std::initializer_list<const char*> names) {
  for (const fs::path& place : {folder, folder / "run"}) {
    for (const char* name : names) {
      if (is_file(place / name)) {
        return place / name;
      }
    }
  }
  throw ConfigError(fmt::format("{}: expected {} in it or in its folder run, got neither",
                                folder.string(), *names.begin()));
}

/// Reads the requests' times, sorted by arrival, as the simulator numbers sessions. No request may
/// be longer than `max_length`.
std::vector<ServedRun::Times> read_requests(const fs::path& path,
                                            const std::optional<std::int64_t>& max_length) {
  struct Row {
    double queued = 0;
    double first = 0;
    double last = 0;
    std::int64_t prompt = 0;
    std::int64_t tokens = 0;
  };
  std::vector<Row> rows;
  LineReader lines(path);
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty()) {
      continue;
    }
    const std::string origin = fmt::format("{}:{}", path.string(), lines.line_number());
    const Json json = parse_json_strictly(line, origin);
    Problems problems;
    problems.set_origin("", origin);
    Row row;
    take(json, "", "queued_ts", row.queued, problems);
    take(json, "", "first_token_ts", row.first, problems);
    take(json, "", "last_token_ts", row.last, problems);
    take(json, "", "input_toks", row.prompt, problems, kCount);
    take(json, "", "output_toks", row.tokens, problems, kCount);
    if (problems.empty() && !(row.queued < row.first && row.first <= row.last && row.tokens > 0)) {
      problems.add("", "expected queued_ts < first_token_ts <= last_token_ts and tokens");
    }
    if (problems.empty() && max_length && row.prompt + row.tokens > *max_length) {
      problems.add("", fmt::format("expected at most max_model_len, {}, of input_toks and "
                                   "output_toks together, got {}",
                                   *max_length, row.prompt + row.tokens));
    }
    problems.throw_if_any();
    rows.push_back(row);
  }
  if (std::ranges::none_of(rows, [](const Row& row) { return row.tokens > 1; })) {
    throw ConfigError(fmt::format(
        "{}: expected requests with responses of several tokens, got none", path.string()));
  }
  std::ranges::stable_sort(rows, {}, &Row::queued);
  std::vector<ServedRun::Times> times;
  times.reserve(rows.size());
  for (const Row& row : rows) {
    times.push_back(
        {.ttft_seconds = row.first - row.queued,
         .tpot_seconds =
             row.tokens > 1 ? (row.last - row.first) / static_cast<double>(row.tokens - 1) : 0});
  }
  return times;
}

class TimesRecorder final : public RunObserver {
 public:
  explicit TimesRecorder(std::size_t requests) : times(requests) {}

  void on_request(const RequestRecord& record) override {
    const double tokens = static_cast<double>(record.output.value - 1);
    times.at(static_cast<std::size_t>(record.session)) = {
        .ttft_seconds = (record.first_token - record.arrived).seconds(),
        .tpot_seconds = tokens > 0 ? (record.finished - record.first_token).seconds() / tokens : 0};
  }

  std::vector<ServedRun::Times> times;
};

/// Errors in percent of the requests that have this time.
std::vector<double> errors_of(const ServedRun& run, double ServedRun::Times::*time) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < run.measured.size(); ++i) {
    if (run.measured[i].*time > 0) {
      errors.push_back(100 * (run.predicted[i].*time / run.measured[i].*time - 1));
    }
  }
  return errors;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) {
    value = std::abs(value);
  }
  return values;
}

double sum_of(const std::vector<ServedRun::Times>& requests, double ServedRun::Times::*time) {
  double sum = 0;
  for (const ServedRun::Times& one : requests) {
    sum += one.*time;
  }
  return sum;
}

/// Throws if the engine's own KV capacity, `wanted`, cannot be that of the config.
void check_kv_tokens(const RunConfig& config, Bytes wanted, std::int64_t tokens,
                     const fs::path& meta) {
  Problems problems;
  problems.set_origin("", meta.string());
  const Bytes capacity = running_kv_capacity(config);
  if (has_unequal_layers(config)) {
    problems.add("/kv_cache/num_kv_tokens",
                 fmt::format("expected none for {}, whose layers keep KV of different sizes, got "
                             "{}: without the key, the hardware preset sets the capacity",
                             config.model.name, tokens));
  } else if (capacity < wanted) {
    problems.add("/kv_cache/num_kv_tokens",
                 fmt::format("expected at most {}, the KV of {} that {} holds beside the weights, "
                             "got {}",
                             capacity / kv_bytes_per_token(config.model), config.model.name,
                             config.hardware.name, tokens));
  }
  problems.throw_if_any();
}

/// Error of the mean over requests, in percent.
double error_of_mean(const ServedRun& run, double ServedRun::Times::*time) {
  return 100 * (sum_of(run.predicted, time) / sum_of(run.measured, time) - 1);
}

}  // namespace

ServedRun predict_served_run(const fs::path& folder, const std::string& hardware,
                             const std::string& profile, const ConfigDirectory& presets) {
  const fs::path meta_file = run_file(folder, {"meta.json"});
  const Meta meta = read_meta(meta_file);
  const fs::path requests = run_file(folder, {"requests.jsonl", "requests.jsonl.gz"});
  ServedRun run;
  run.model = meta.model.substr(meta.model.rfind('/') + 1);
  run.engine = "vllm " + meta.version;
  run.measured = read_requests(requests, meta.engine.max_length);
  const std::string_view model = model_preset(run.model);
  if (model.empty()) {
    throw ConfigError(fmt::format("{}: no preset of the model {}", folder.string(), meta.model));
  }
  const std::int64_t gpus = meta.engine.tensor * meta.engine.data;
  Json server{
      {"preset", hardware},
      {"gpus", gpus},
      {"parallel",
       {{"attention_dp", meta.engine.data}, {"expert", meta.engine.expert_parallel ? gpus : 1}}}};
  if (!profile.empty()) {
    server["profile"] = profile;
  }
  Json served{{"preset", model}};
  if (meta.engine.max_length) {
    served["context_window"] = fmt::format("{}tokens", *meta.engine.max_length);
  }
  Json system{{"preset", "vllm"}};
  Json serving{
      {"slots", meta.engine.max_requests * meta.engine.data},
      {"token_budget", fmt::format("{}tokens", meta.engine.max_tokens * meta.engine.data)}};
  Bytes kv_memory(0);
  if (meta.kv_tokens) {
    kv_memory =
        kv_bytes_per_token(resolve_model(std::string(model), presets, "model")) * *meta.kv_tokens;
    serving["kv_memory"] = format_quantity(kv_memory);
    // The recorded capacity takes the place of the preset's estimate.
    system["engine"] = {{"memory_share", 1}, {"reserved_memory", "0B"}};
  }
  ConfigRequest request;
  request.inline_config =
      InlineConfig{.json = {{"model", served},
                            {"hardware", server},
                            {"system", system},
                            {"serving", serving},
                            {"workload",
                             {{"trace", fs::absolute(requests).string()},
                              {"format", "columns"},
                              {"columns", "time=queued_ts:s,input=input_toks,output=output_toks"},
                              {"arrivals", "trace"},
                              {"measure", "all"}}},
                            {"seed", 1}},
                   .origin = folder.string()};
  request.name_origins = false;
  const ResolvedConfig config = resolve_config(request, presets, builtin_policies());
  if (meta.kv_tokens) {
    check_kv_tokens(config.config, kv_memory, *meta.kv_tokens, meta_file);
  }
  run.has_experts = config.config.model.experts.has_value();
  TimesRecorder recorder(run.measured.size());
  RunOptions options;
  options.observer = &recorder;
  options.base_dir = config.base_dir;
  const Json result = simulate(config.config, builtin_policies(), options);
  run.predicted = std::move(recorder.times);
  return run;
}

std::vector<Wanted> wanted_of(const ServedRun& run) {
  const std::vector<double> tpot = absolute(errors_of(run, &ServedRun::Times::tpot_seconds));
  std::vector<Wanted> wanted{
      {"TPOT, mean of |error| per request", run.has_experts ? 12.0 : 5.0, mean(tpot)}};
  if (!run.has_experts) {
    wanted.push_back({"TTFT, error of the mean", 9,
                      std::abs(error_of_mean(run, &ServedRun::Times::ttft_seconds))});
  }
  return wanted;
}

Json to_json(const ServedRun& run) {
  Json result = new_result("kvtier.served_run/1");
  result["model"] = run.model;
  result["engine"] = run.engine;
  Json rows = Json::array();
  for (std::size_t i = 0; i < run.measured.size(); ++i) {
    const auto times = [](const ServedRun::Times& one) {
      return Json{{"ttft_seconds", one.ttft_seconds}, {"tpot_seconds", one.tpot_seconds}};
    };
    rows.push_back({{"measured", times(run.measured[i])}, {"predicted", times(run.predicted[i])}});
  }
  result["wanted"] = to_json(wanted_of(run));
  result["requests"] = std::move(rows);
  return result;
}

std::string to_table(const ServedRun& run) {
  std::string text =
      fmt::format("{} on {}, {} requests\n{:<6} {:>14} {:>14} {:>9} {:>12} {:>12} {:>12}\n",
                  run.model, run.engine, run.measured.size(), "", "measured ms", "predicted ms",
                  "error %", "mean |e| %", "median |e| %", "p90 |e| %");
  const auto row = [&](const char* name, double ServedRun::Times::*time) {
    const double count = static_cast<double>(run.measured.size());
    std::vector<double> errors = absolute(errors_of(run, time));
    std::ranges::sort(errors);
    text += fmt::format("{:<6} {:>14.3f} {:>14.3f} {:>9.1f} {:>12.1f} {:>12.1f} {:>12.1f}\n", name,
                        1e3 * sum_of(run.measured, time) / count,
                        1e3 * sum_of(run.predicted, time) / count, error_of_mean(run, time),
                        mean(errors), errors.empty() ? 0 : quantile(errors, 0.5),
                        errors.empty() ? 0 : quantile(errors, 0.9));
  };
  row("TTFT", &ServedRun::Times::ttft_seconds);
  row("TPOT", &ServedRun::Times::tpot_seconds);
  return text + "\n" + to_text(wanted_of(run));
}

}  // namespace kvtier
