#include "sim/study/validate/validate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "hw/device/processors.hpp"
#include "hw/profile/profile_timing.hpp"
#include "hw/timing/scaled_timing.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/statistics.hpp"
#include "sim/device/device_backend.hpp"
#include "sim/device/lock_step_backend.hpp"

namespace kvtier {
namespace {

constexpr double kRateBand = 0.01;
constexpr double kTimeBand = 0.1;
constexpr double kNoises = 3;
constexpr double kHighestLoad = 0.7;

enum class Judged { rate, time, not_at_all };

struct Metric {
  const char* pointer;
  const char* unit;
  Judged judged;
  /// Only systems with this tier show the metric.
  const char* tier = nullptr;
};

constexpr std::array kMetrics{
    Metric{"/hit_rate/all_turns/total", "", Judged::rate},
    Metric{"/hit_rate/all_turns/hbm", "", Judged::rate, "hbm"},
    Metric{"/hit_rate/all_turns/dram", "", Judged::rate, "dram"},
    Metric{"/hit_rate/all_turns/cxl", "", Judged::rate, "cxl"},
    Metric{"/hit_rate/all_turns/ssd", "", Judged::rate, "ssd"},
    Metric{"/hit_rate/tokens/total", "", Judged::rate},
    Metric{"/ttft_seconds/p50", "s", Judged::time},
    Metric{"/ttft_seconds/p90", "s", Judged::time},
    Metric{"/ttft_seconds/mean", "s", Judged::not_at_all},
    Metric{"/ttft_seconds_without_queueing/mean", "s", Judged::not_at_all},
    Metric{"/queueing_seconds/mean", "s", Judged::not_at_all},
    Metric{"/exposed_load_seconds/mean", "s", Judged::not_at_all},
    Metric{"/tpot_seconds/mean", "s", Judged::not_at_all},
    Metric{"/gpu_seconds/prefill", "s", Judged::not_at_all},
    Metric{"/gpu_seconds/decode", "s", Judged::not_at_all},
    Metric{"/output_throughput_tokens_per_second", "/s", Judged::not_at_all},
};

/// A metric in a table of several configs, shown as simulated, measured, error and band.
struct LineMetric {
  const char* name;
  const char* header;
};
constexpr std::array kLineMetrics{
    LineMetric{"hit_rate.all_turns.total", "hit rate, % (points)"},
    LineMetric{"hit_rate.all_turns.ssd", "of it the drive, %"},
    LineMetric{"ttft_seconds.p50", "TTFT p50, ms (%)"},
    LineMetric{"ttft_seconds.p90", "TTFT p90, ms (%)"},
};
constexpr int kLineMetricWidth = 28;

std::optional<double> number_at(const Json& result, const char* pointer) {
  const Json::json_pointer at(std::string("/metrics") + pointer);
  if (!result.contains(at) || !result.at(at).is_number()) {
    return std::nullopt;
  }
  return result.at(at).get<double>();
}

bool is_of_system(const Metric& metric, const Json& result) {
  return metric.tier == nullptr || result["config"]["system"]["tiers"][metric.tier].is_object();
}

double error_of(const Metric& metric, double simulated, double measured) {
  if (metric.judged == Judged::rate) {
    return simulated - measured;
  }
  return measured > 0 ? simulated / measured - 1 : (simulated > 0 ? 1 : 0);
}

/// Compares one metric. `at_pace` is the result of the simulation at the device's pace.
std::optional<ValidationRow> compare(const Metric& metric, const Validation& runs,
                                     const Json& at_pace) {
  const std::optional<double> simulated = number_at(runs.simulated, metric.pointer);
  std::vector<double> measured;
  for (const Json& run : runs.measured) {
    if (const std::optional<double> value = number_at(run, metric.pointer)) {
      measured.push_back(*value);
    }
  }
  if (!is_of_system(metric, runs.simulated) || !simulated ||
      measured.size() != runs.measured.size() || measured.empty()) {
    return std::nullopt;
  }
  std::ranges::sort(measured);
  const double median = quantile(measured, 0.5);
  ValidationRow row{.metric = std::string(metric.pointer).substr(1),
                    .unit = metric.unit,
                    .simulated = *simulated,
                    .measured = median,
                    .lowest = measured.front(),
                    .highest = measured.back(),
                    .error = error_of(metric, *simulated, median),
                    .at_pace = number_at(at_pace, metric.pointer).value_or(0),
                    .error_at_pace = 0,
                    .band = {}};
  row.error_at_pace = error_of(metric, row.at_pace, median);
  std::ranges::replace(row.metric, '/', '.');
  if (metric.judged == Judged::rate) {
    row.band = kRateBand;
  } else if (metric.judged == Judged::time) {
    const double noise = median > 0 ? (row.highest - row.lowest) / 2 / median : 0;
    row.band = std::max(kTimeBand, kNoises * noise);
  }
  return row;
}

std::unique_ptr<Device> open(const ValidateOptions& options) {
  DeviceName name = options.device;
  if (name.kind == "cpu" && name.index == 0) {
    name.index = std::max(1, available_processors() - 1);
  }
  return open_device(name);
}

std::unique_ptr<TimingModel> timing_of(const RunConfig& config) {
  return make_timing(config.model, config.hardware, config.system.positions, config.serving.slots,
                     config.system.engine);
}

ServingSetup setup_of(const RunConfig& config, Device& device, const TimingModel& timing,
                      const ValidateOptions& options, bool verify) {
  check_runs_on_device(config, device);
  return {.config = &config,
          .device = &device,
          .directory = options.storage,
          .verify = verify,
          .idle_gap = timing.idle_gap(),
          .check = options.check};
}

class DecisionLines final : public DecisionObserver {
 public:
  void on_decision(const Decision& d) override {
    lines.push_back(fmt::format("{} {} {} {} {} {} {}", static_cast<int>(d.kind),
                                static_cast<int>(d.tier), d.key.value, d.tokens.value, d.time.ns,
                                static_cast<int>(d.demand), d.position.value));
  }
  void on_use(EntryKey key, SimTime now) override {
    lines.push_back(fmt::format("use {} {}", key.value, now.ns));
  }
  void on_block_decision(const BlockDecision& d) override {
    lines.push_back(fmt::format("{} {} {} {} {} {}", static_cast<int>(d.kind),
                                static_cast<int>(d.tier), d.stream, d.begin.value, d.tokens.value,
                                d.time.ns));
  }
  std::vector<std::string> lines;
};

std::string in_lines(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) {
    lines += text + "\n";
  }
  return lines;
}

RunObserver* recorder_of(const ValidateOptions& options, const std::string& run) {
  if (options.recorders != nullptr && options.recorders->timeline) {
    options.recorders->timeline->begin_run(run);
  }
  return options.recorders;
}

RunOptions run_options(const ValidateOptions& options, std::int64_t run,
                       DecisionObserver* decisions = nullptr) {
  return {.decisions = decisions,
          .progress = [&options, run](std::int64_t turns) { options.progress(run, turns); },
          .base_dir = options.base_dir};
}

}  // namespace

bool ValidationRow::in_band() const { return !band || std::abs(error) <= *band; }

bool Validation::in_band() const {
  return occupied <= kHighestLoad && std::ranges::all_of(rows, &ValidationRow::in_band);
}

void check_validates(const RunConfig& config, const ValidateOptions& options) {
  check_runs_on_device(config, *open(options));
}

Validation validate(const RunConfig& config, const PolicyRegistry& registry,
                    const ValidateOptions& options) {
  const std::unique_ptr<Device> device = open(options);
  const auto timing = timing_of(config);
  const ServingSetup setup = setup_of(config, *device, *timing, options, options.verify);
  Validation result{.device = device->info().name,
                    .stand_ins = stand_ins(config),
                    .rows = {},
                    .simulated = {},
                    .measured = {}};
  RunOptions simulated = run_options(options, 0);
  simulated.observer = recorder_of(options, "simulated");
  result.simulated = simulate(config, registry, simulated);
  const Json& load = result.simulated["load"];
  result.occupied = std::max(load["slots_in_use_fraction"].get<double>(),
                             load["kv_memory_in_use_fraction"].get<double>());
  std::vector<ComputedWork> work;
  for (std::int64_t i = 1; i <= options.repetitions; ++i) {
    DeviceBackend backend(setup);
    RunOptions run = run_options(options, i);
    run.observer = i == 1 ? recorder_of(options, "measured on " + result.device) : nullptr;
    result.measured.push_back(run_on(backend, config, registry, run));
    backend.finish();
    work.insert(work.end(), backend.computed().begin(), backend.computed().end());
  }
  result.passes = passes_of(work, *timing);
  const ScaledTiming paced(*timing, result.passes.prefill.pace(), result.passes.decode.pace());
  SimulatedBackend backend(config.hardware, config.model.layers, paced,
                           DecodeStepping::closed_form);
  const Json at_pace = run_on(backend, config, registry, run_options(options, 0));
  for (const Metric& metric : kMetrics) {
    if (const std::optional<ValidationRow> row = compare(metric, result, at_pace)) {
      result.rows.push_back(*row);
    }
  }
  return result;
}

LockStep validate_in_lock_step(const RunConfig& config, const PolicyRegistry& registry,
                               const ValidateOptions& options) {
  const std::unique_ptr<Device> device = open(options);
  const auto timing = timing_of(config);
  const ServingSetup setup = setup_of(config, *device, *timing, options, true);
  DecisionLines expected;
  Json simulated = simulate(config, registry, run_options(options, 0, &expected));
  SimulatedBackend clock(config.hardware, config.model.layers, *timing,
                         DecodeStepping::closed_form);
  LockStepBackend backend(clock, setup);
  DecisionLines found;
  const Json result = run_on(backend, config, registry, run_options(options, 1, &found));
  backend.finish();
  // Only the simulated backend reports links.
  simulated["metrics"].erase("links");
  Json without_links = result;
  without_links["metrics"].erase("links");
  const KvStore::Counters counters = backend.store().counters();
  return {.device = device->info().name,
          .stand_ins = stand_ins(config),
          .equal = found.lines == expected.lines &&
                   without_links["metrics"] == simulated["metrics"] &&
                   without_links["workload"] == simulated["workload"],
          .decisions = std::ssize(found.lines),
          .moves = counters.moves,
          .moved = counters.moved,
          .verified = counters.verified};
}

Json to_json(const Validation& validation) {
  Json json = new_result("kvtier.validation/1");
  json["device"] = validation.device;
  json["stand_ins"] = validation.stand_ins;
  json["in_band"] = validation.in_band();
  json["occupied_fraction"] = validation.occupied;
  for (const auto& [name, times] : {std::pair("prefill", validation.passes.prefill),
                                    std::pair("decode", validation.passes.decode)}) {
    json["pace"][name] = times.pace();
    Json& passes = json["passes"][name];
    passes["passes"] = times.passes;
    passes["simulated_seconds"] = times.predicted;
    passes["measured_seconds"] = times.measured;
    passes["device_seconds"] = times.device;
    passes["submission_seconds"] = times.submission;
  }
  Json rows = Json::array();
  for (const ValidationRow& row : validation.rows) {
    Json line;
    line["metric"] = row.metric;
    line["simulated"] = row.simulated;
    line["measured"] = row.measured;
    line["measured_lowest"] = row.lowest;
    line["measured_highest"] = row.highest;
    line["error"] = row.error;
    line["simulated_at_pace"] = row.at_pace;
    line["error_at_pace"] = row.error_at_pace;
    line["band"] = row.band ? Json(*row.band) : Json(nullptr);
    line["in_band"] = row.band ? Json(row.in_band()) : Json(nullptr);
    rows.push_back(line);
  }
  json["rows"] = rows;
  json["simulated"] = validation.simulated;
  json["measured"] = validation.measured;
  return json;
}

Json to_json(const LockStep& run) {
  Json json = new_result("kvtier.validation/1");
  json["device"] = run.device;
  json["stand_ins"] = run.stand_ins;
  json["lock_step"]["equal"] = run.equal;
  json["lock_step"]["decisions"] = run.decisions;
  json["lock_step"]["moves"] = run.moves;
  json["lock_step"]["moved_bytes"] = run.moved.value;
  json["lock_step"]["verified_bytes"] = run.verified.value;
  return json;
}

std::string line_of(const char* name, const PassTimes& times) {
  constexpr double kMillisecond = 1e-3;
  const double each = kMillisecond * static_cast<double>(std::max<std::int64_t>(1, times.passes));
  return fmt::format(
      "{:<8} {:>7} passes of {:>8.3f} ms, simulated {:>8.3f} ms (pace {:.2f}), of it on the device "
      "{:>8.3f} ms, submission {:>8.3f} ms\n",
      name, times.passes, times.measured / each, times.predicted / each, times.pace(),
      times.device / each, times.submission / each);
}

std::string to_table(const Validation& validation) {
  std::string text = fmt::format(
      "{}, {} repetitions, occupied {:.2f}\n{}{}\"at pace\": simulated at the pace of these "
      "passes\n{}\n",
      validation.device, validation.measured.size(), validation.occupied,
      line_of("prefill", validation.passes.prefill), line_of("decode", validation.passes.decode),
      in_lines(validation.stand_ins));
  text += fmt::format("{:<38} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>10} {:>9}\n", "metric",
                      "simulated", "measured", "lowest", "highest", "error", "band", "at pace",
                      "error");
  for (const ValidationRow& row : validation.rows) {
    const bool rate = row.band && row.unit.empty();
    const auto percent = [&](double value) {
      return rate ? fmt::format("{:+.2f} pt", 100 * value) : fmt::format("{:+.1f} %", 100 * value);
    };
    std::string band = "-";
    if (row.band) {
      band = rate ? fmt::format("{:.0f} pt", 100 * *row.band)
                  : fmt::format("{:.0f} %", 100 * *row.band);
      band += row.in_band() ? "" : " OUT";
    }
    text +=
        fmt::format("{:<38} {:>10.4g} {:>10.4g} {:>10.4g} {:>10.4g} {:>9} {:>9} {:>10.4g} {:>9}\n",
                    row.metric, row.simulated, row.measured, row.lowest, row.highest,
                    percent(row.error), band, row.at_pace, percent(row.error_at_pace));
  }
  if (validation.occupied > kHighestLoad) {
    text += fmt::format(
        "\nOUT: a load of {:.2f} is more than {:.1f}, where waiting hides errors or "
        "multiplies them\n",
        validation.occupied, kHighestLoad);
  }
  return text;
}

ValidationColumns columns_of(const Sweep& sweep) {
  ValidationColumns columns;
  for (const SweepAxis& axis : sweep.axes) {
    columns.axes.push_back(axis.name);
    std::size_t width = axis.name.size();
    for (const AxisValue& value : axis.values) {
      width = std::max(width, value.label.size());
    }
    columns.widths.push_back(width);
  }
  return columns;
}

std::string header_line(const ValidationColumns& columns) {
  std::string line;
  for (std::size_t i = 0; i < columns.axes.size(); ++i) {
    line += fmt::format("{:<{}}  ", columns.axes[i], columns.widths[i]);
  }
  line += fmt::format("{:>4}  {:>9}", "load", "pace");
  for (const LineMetric& metric : kLineMetrics) {
    line += fmt::format("  {:>{}}", metric.header, kLineMetricWidth);
  }
  return line + "  verdict\n";
}

std::string table_line(const ValidationColumns& columns, const std::vector<std::string>& labels,
                       const Validation& validation) {
  std::string line;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    line += fmt::format("{:<{}}  ", labels[i], columns.widths[i]);
  }
  line += fmt::format("{:>4.2f}  {:>4.2f} {:>4.2f}", validation.occupied,
                      validation.passes.prefill.pace(), validation.passes.decode.pace());
  for (const LineMetric& metric : kLineMetrics) {
    const auto row = std::ranges::find(validation.rows, metric.name, &ValidationRow::metric);
    std::string cell = "-";
    if (row != validation.rows.end() && row->band) {
      const double factor = row->unit.empty() ? 100 : 1000;
      cell = fmt::format("{:.1f} {:.1f} {:+.1f} ({:.0f}){}", factor * row->simulated,
                         factor * row->measured, 100 * row->error, 100 * *row->band,
                         row->in_band() ? "" : "!");
    }
    line += fmt::format("  {:>{}}", cell, kLineMetricWidth);
  }
  return line + fmt::format("  {}\n", validation.in_band() ? "in band" : "OUT");
}

std::string to_text(const LockStep& run) {
  constexpr double kMebibyte = 1 << 20;
  return fmt::format(
      "{}\n{}{} decisions, {} the simulation's\n{} moves, {:.1f} MiB; {:.1f} MiB compared, every "
      "token right\n",
      run.device, in_lines(run.stand_ins), run.decisions, run.equal ? "all" : "NOT all", run.moves,
      static_cast<double>(run.moved.value) / kMebibyte,
      static_cast<double>(run.verified.value) / kMebibyte);
}

}  // namespace kvtier
