#include "sim/study/papers/batch_experiments.hpp"

#include <algorithm>
#include <cmath>

#include "hw/model/model.hpp"
#include "hw/profile/profile_timing.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/backend/topology.hpp"
#include "sim/core/assert.hpp"
#include "sim/serving/metrics.hpp"

namespace kvtier {
namespace {

PrefillTime prefill_time(const RunConfig& config, const BatchPrefill& prefill) {
  KVTIER_ASSERT(prefill.batch >= 1, "a batch has a request");
  const auto timing =
      make_timing(config.model, config.hardware, config.system.positions, 1, config.system.engine);
  const std::vector<PrefillPart> parts(static_cast<std::size_t>(prefill.batch),
                                       {.added = prefill.added, .past = prefill.history});
  return timing->prefill(parts);
}

BytesPerSecond bandwidth_from(const RunConfig& config, Medium medium) {
  return load_rates(config).to_hbm[static_cast<std::size_t>(medium)];
}

/// A prefill: its layers as a pipeline, and the time outside the layers (head, fixed overhead).
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
  result.pipeline.load = transfer_duration(layer_bytes, bandwidth_from(config, prefill.source));
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

double recompute_seconds(const RunConfig& config, const BatchPrefill& prefill) {
  BatchPrefill whole = prefill;
  whole.history = Tokens(0);
  whole.added = prefill.history + prefill.added;
  return prefill_time(config, whole).total.seconds();
}

}  // namespace

LayerPipeline batch_pipeline(const RunConfig& config, const BatchPrefill& prefill) {
  return prefill_of(config, prefill).pipeline;
}

BatchPrefillTimes batch_prefill_times(const RunConfig& config, const BatchPrefill& prefill) {
  const Prefill p = prefill_of(config, prefill);
  BatchPrefillTimes times;
  times.recompute_seconds = recompute_seconds(config, prefill);
  times.blocking_seconds = seconds_without_preloading(p);
  for (std::int64_t layers = 0; layers <= config.model.layers; ++layers) {
    times.preloading_seconds.push_back(seconds_with_buffer(p, layers));
  }
  return times;
}

ReuseTimes reuse_times(const RunConfig& config, const BatchPrefill& request, Tokens response) {
  const auto timing = make_timing(config.model, config.hardware, config.system.positions,
                                  request.batch, config.system.engine);
  const Prefill p = prefill_of(config, request);
  const Tokens prompt = (request.history + request.added) * request.batch;
  const std::int64_t ticks = sum_equal_decode_ticks(
      *timing, request.batch, prompt + Tokens(request.batch), response.value - 1);
  return {.recompute_seconds = recompute_seconds(config, request),
          .reload_seconds = seconds_without_preloading(p),
          .overlapped_seconds = seconds_with_buffer(p, 0),
          .decode_seconds = static_cast<double>(ticks) / (1e9 * kTicksPerNs),
          .bandwidth = bandwidth_from(config, request.source),
          .loaded = kv_bytes(config.model, request.history) * request.batch};
}

BatchSaveTimes batch_save_times(const RunConfig& config, std::int64_t batch, Tokens prompt,
                                std::int64_t iterations) {
  const auto timing = make_timing(config.model, config.hardware, config.system.positions, batch,
                                  config.system.engine);
  const double bytes_per_token = static_cast<double>(kv_bytes_per_token(config.model).value);
  const double rate =
      server_topology(config.hardware).edge(Medium::hbm, Medium::dram).idle_rate.value;
  const double write_buffer = static_cast<double>(config.system.save.write_buffer.value);
  BatchSaveTimes times;
  times.prefill_seconds =
      prefill_time(config, {.batch = batch, .history = Tokens(0), .added = prompt}).total.seconds();
  // Each iteration reads the KV of all tokens so far, except the last one.
  double unsaved = bytes_per_token * static_cast<double>(batch * prompt.value);
  for (std::int64_t i = 0; i < iterations; ++i) {
    const Tokens context = (prompt + Tokens(1 + i)) * batch;
    const std::int64_t ticks = timing->decode_ticks(batch, context);
    const double iteration = static_cast<double>(ticks) / (1e9 * static_cast<double>(kTicksPerNs));
    times.decode_seconds += iteration;
    unsaved = std::max(0.0, unsaved - iteration * rate);
    unsaved += bytes_per_token * static_cast<double>(batch);
  }
  times.unsaved = Bytes(static_cast<std::int64_t>(std::ceil(unsaved)));
  times.save_seconds =
      bytes_per_token * static_cast<double>(batch * (prompt.value + iterations)) / rate;
  const double work = times.prefill_seconds + times.decode_seconds;
  times.blocking_seconds = work + times.save_seconds;
  times.async_seconds = work + std::max(0.0, unsaved - write_buffer) / rate;
  return times;
}

}  // namespace kvtier
