#include "sim/study/batch_experiments.hpp"

#include <algorithm>
#include <cmath>

#include "hw/model.hpp"
#include "hw/roofline.hpp"
#include "sim/core/assert.hpp"
#include "sim/engine/simulated_backend.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kBatch = 16;
constexpr Tokens kPrompt{1000};
constexpr std::int64_t kMostBuffers = 15;
constexpr std::int64_t kIterations = 20;
constexpr BatchPrefill kReadBufferPrefill{
    .batch = kBatch, .history = Tokens(1000), .added = Tokens(100)};

PrefillTime prefill_time(const RunConfig& config, const BatchPrefill& prefill) {
  KVTIER_ASSERT(prefill.batch >= 1, "a batch has a request");
  const RooflineTiming timing(config.model, config.hardware, 1);
  const std::vector<PrefillPart> parts(static_cast<std::size_t>(prefill.batch),
                                       {.added = prefill.added, .past = prefill.history});
  return timing.prefill(parts);
}

/// Prefill with what is not part of a layer (head, fixed overhead), and its layers as a pipeline.
struct Prefill {
  LayerPipeline pipeline;
  SimDuration outside_layers;
};

Prefill prefill_of(const RunConfig& config, const BatchPrefill& prefill) {
  const PrefillTime time = prefill_time(config, prefill);
  const Bytes layer_bytes =
      kv_bytes_per_token_layer(config.model) * (prefill.batch * prefill.history.value);
  Prefill result;
  result.pipeline.layers = config.model.layers;
  result.pipeline.load = transfer_duration(layer_bytes, config.hardware.links.pcie.forward);
  result.pipeline.compute = time.layer;
  result.outside_layers = time.total - time.layer * config.model.layers;
  return result;
}

double seconds_without_preloading(const Prefill& p) {
  return (unpipelined_finish(p.pipeline) + p.outside_layers).seconds();
}

double seconds_with_buffer(Prefill p, std::int64_t layers) {
  p.pipeline.loaded_ahead = p.pipeline.load * layers;
  return (pipelined_finish(p.pipeline) + p.outside_layers).seconds();
}

RunConfig with_fact(RunConfig config, ReadBufferSensitivity::Fact fact, double value) {
  if (fact == ReadBufferSensitivity::Fact::compute_efficiency) {
    config.hardware.efficiency.compute = value;
  } else {
    config.hardware.links.pcie.forward = BytesPerSecond(value);
  }
  return config;
}

const char* to_string(ReadBufferSensitivity::Fact fact) {
  return fact == ReadBufferSensitivity::Fact::compute_efficiency ? "compute_efficiency"
                                                                 : "host_to_device_bandwidth";
}

}  // namespace

LayerPipeline batch_pipeline(const RunConfig& config, const BatchPrefill& prefill) {
  return prefill_of(config, prefill).pipeline;
}

std::vector<HistoryShareRow> history_share_experiment(const RunConfig& config, std::int64_t batch,
                                                      Tokens prompt,
                                                      const std::vector<Tokens>& added) {
  const double recompute =
      prefill_time(config, {.batch = batch, .history = Tokens(0), .added = prompt}).total.seconds();
  std::vector<HistoryShareRow> rows;
  for (const Tokens tokens : added) {
    const BatchPrefill split{.batch = batch, .history = prompt - tokens, .added = tokens};
    const Prefill p = prefill_of(config, split);
    rows.push_back({.prefill = split,
                    .recompute_seconds = recompute,
                    .blocking_seconds = seconds_without_preloading(p),
                    .preloading_seconds = seconds_with_buffer(p, 0),
                    .buffered_seconds = seconds_with_buffer(p, config.system.load.buffers)});
  }
  return rows;
}

std::vector<HistoryShareRow> history_share_experiment(const RunConfig& config) {
  return history_share_experiment(
      config, kBatch, kPrompt, {Tokens(500), Tokens(400), Tokens(300), Tokens(200), Tokens(100)});
}

double ReadBufferExperiment::change(std::int64_t buffered_layers) const {
  return seconds.at(static_cast<std::size_t>(buffered_layers)) / blocking_seconds - 1;
}

ReadBufferExperiment read_buffer_experiment(const RunConfig& config, const BatchPrefill& prefill,
                                            std::int64_t most_layers) {
  const Prefill p = prefill_of(config, prefill);
  ReadBufferExperiment experiment;
  experiment.blocking_seconds = seconds_without_preloading(p);
  for (std::int64_t layers = 0; layers <= most_layers; ++layers) {
    experiment.seconds.push_back(seconds_with_buffer(p, layers));
  }
  return experiment;
}

ReadBufferExperiment read_buffer_experiment(const RunConfig& config) {
  return read_buffer_experiment(config, kReadBufferPrefill, kMostBuffers);
}

std::vector<SavingRow> saving_experiment(const RunConfig& config, std::int64_t batch,
                                         const std::vector<Tokens>& prompts,
                                         std::int64_t iterations) {
  const RooflineTiming timing(config.model, config.hardware, batch);
  const double bytes_per_token = static_cast<double>(kv_bytes_per_token(config.model).value);
  const double rate = config.hardware.links.pcie.backward.value;
  const double write_buffer = static_cast<double>(config.system.save.write_buffer.value);
  std::vector<SavingRow> rows;
  for (const Tokens prompt : prompts) {
    SavingRow row;
    row.prompt = prompt;
    row.prefill_seconds =
        prefill_time(config, {.batch = batch, .history = Tokens(0), .added = prompt})
            .total.seconds();
    // Each iteration reads the KV of all tokens so far, of which the last has none yet.
    double unsaved = bytes_per_token * static_cast<double>(batch * prompt.value);
    for (std::int64_t i = 0; i < iterations; ++i) {
      const Tokens context = (prompt + Tokens(1 + i)) * batch;
      const std::int64_t ticks = piece_at(timing.decode(batch), context).at(context);
      const double iteration =
          static_cast<double>(ticks) / (1e9 * static_cast<double>(kTicksPerNs));
      row.decode_seconds += iteration;
      unsaved = std::max(0.0, unsaved - iteration * rate);
      unsaved += bytes_per_token * static_cast<double>(batch);
    }
    row.unsaved = Bytes(static_cast<std::int64_t>(std::ceil(unsaved)));
    row.save_seconds =
        bytes_per_token * static_cast<double>(batch * (prompt.value + iterations)) / rate;
    const double work = row.prefill_seconds + row.decode_seconds;
    row.blocking_seconds = work + row.save_seconds;
    row.async_seconds = work + std::max(0.0, unsaved - write_buffer) / rate;
    rows.push_back(row);
  }
  return rows;
}

std::vector<SavingRow> saving_experiment(const RunConfig& config) {
  return saving_experiment(config, kBatch, {Tokens(1000), Tokens(1200), Tokens(1400), Tokens(1600)},
                           kIterations);
}

std::vector<ReadBufferSensitivity> read_buffer_sensitivity(const RunConfig& config,
                                                           ReadBufferSensitivity::Fact fact,
                                                           const std::vector<double>& values) {
  std::vector<ReadBufferSensitivity> rows;
  for (const double value : values) {
    const RunConfig changed = with_fact(config, fact, value);
    const LayerPipeline layer = batch_pipeline(changed, kReadBufferPrefill);
    const ReadBufferExperiment experiment = read_buffer_experiment(changed);
    rows.push_back({.fact = fact,
                    .value = value,
                    .compute_to_load = layer.compute.seconds() / layer.load.seconds(),
                    .change_without_buffer = experiment.change(0),
                    .change_with_all_buffers = experiment.change(kMostBuffers)});
  }
  return rows;
}

std::optional<double> compute_efficiency_for(const RunConfig& config, std::int64_t buffered_layers,
                                             double change) {
  // From fast to slow, as at first slower compute hides more of the load, and later hides nothing
  // more.
  constexpr int kSteps = 1000;
  for (int step = kSteps; step > 0; --step) {
    const double efficiency = static_cast<double>(step) / kSteps;
    const RunConfig changed =
        with_fact(config, ReadBufferSensitivity::Fact::compute_efficiency, efficiency);
    if (read_buffer_experiment(changed).change(buffered_layers) <= change) {
      return efficiency;
    }
  }
  return std::nullopt;
}

Json batch_experiments_report(const RunConfig& config) {
  Json history = Json::array();
  for (const HistoryShareRow& row : history_share_experiment(config)) {
    history.push_back({{"history_tokens", row.prefill.history.value},
                       {"added_tokens", row.prefill.added.value},
                       {"recompute_seconds", row.recompute_seconds},
                       {"blocking_seconds", row.blocking_seconds},
                       {"preloading_seconds", row.preloading_seconds},
                       {"buffered_seconds", row.buffered_seconds}});
  }
  const ReadBufferExperiment experiment = read_buffer_experiment(config);
  Json buffers = Json::array();
  for (std::int64_t layers = 0; layers <= kMostBuffers; ++layers) {
    buffers.push_back({{"buffered_layers", layers},
                       {"prefill_seconds", experiment.seconds[static_cast<std::size_t>(layers)]},
                       {"change", experiment.change(layers)}});
  }
  Json saving = Json::array();
  for (const SavingRow& row : saving_experiment(config)) {
    saving.push_back({{"prompt_tokens", row.prompt.value},
                      {"prefill_seconds", row.prefill_seconds},
                      {"decode_seconds", row.decode_seconds},
                      {"save_seconds", row.save_seconds},
                      {"unsaved_bytes", row.unsaved.value},
                      {"blocking_seconds", row.blocking_seconds},
                      {"async_seconds", row.async_seconds},
                      {"change", row.change()}});
  }
  Json sensitivity = Json::array();
  const auto sweep = [&](ReadBufferSensitivity::Fact fact, const std::vector<double>& values) {
    for (const ReadBufferSensitivity& row : read_buffer_sensitivity(config, fact, values)) {
      sensitivity.push_back({{"fact", to_string(row.fact)},
                             {"value", row.value},
                             {"compute_to_load", row.compute_to_load},
                             {"change_without_buffer", row.change_without_buffer},
                             {"change_with_all_buffers", row.change_with_all_buffers}});
    }
  };
  sweep(ReadBufferSensitivity::Fact::compute_efficiency, {0.8, 0.68, 0.59, 0.5, 0.45, 0.4, 0.35});
  sweep(ReadBufferSensitivity::Fact::host_to_device_bandwidth, {20e9, 26e9, 32e9, 40e9});
  return Json{
      {"history_share", history},
      {"read_buffer",
       {{"blocking_seconds", experiment.blocking_seconds}, {"by_buffered_layers", buffers}}},
      {"saving", saving},
      {"read_buffer_sensitivity", sensitivity}};
}

}  // namespace kvtier
