#include "calibrate/explain.hpp"

#include <fmt/format.h>

#include "hw/timing/layer_pipeline.hpp"

namespace kvtier::calibrate {
namespace {

PrefillTime prefill(const TimingModel& timing, Tokens added, Tokens past) {
  const PrefillPart part{.added = added, .past = past};
  return timing.prefill({&part, 1});
}

std::string milliseconds(SimDuration duration) {
  return fmt::format("{:.3g} ms", duration.seconds() * 1e3);
}

std::string mebibytes(Bytes bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes.value) / (1 << 20));
}

std::string title(const KvSource& source) {
  return fmt::format("{} ({:.3g} GB/s)", source.name, source.bandwidth.value * 1e-9);
}

}  // namespace

Tokens hidden_past(const ModelConfig& model, const TimingModel& timing, const KvSource& source,
                   Tokens added, Tokens limit) {
  const auto hides = [&](Tokens past) {
    return source.load(kv_bytes(model, past)) <= prefill(timing, added, past).total;
  };
  // Both times grow with the past, the load in proportion. After the first crossing the load is
  // longer, unless attention outgrows it. Then the longest loads are hidden, too.
  if (hides(limit)) {
    return limit;
  }
  Tokens hidden(0);
  Tokens exposed = limit;
  while (exposed - hidden > Tokens(1)) {
    const Tokens middle = hidden + (exposed - hidden) / 2;
    (hides(middle) ? hidden : exposed) = middle;
  }
  return hidden;
}

ReadBuffer read_buffer(const ModelConfig& model, const TimingModel& timing, const KvSource& source,
                       Tokens history, Tokens prompt) {
  const PrefillTime time = prefill(timing, prompt, history);
  const SimDuration load = source.load(kv_bytes(model, history));
  const LayerPipeline pipeline{.layers = model.layers,
                               .load = load / model.layers,
                               .compute = time.layer,
                               .loaded_ahead = {}};
  ReadBuffer buffer{.load = load,
                    .prefill = time.total,
                    .attentionstore = {},
                    .hides_loading = read_buffer_to_hide_loading(source.bandwidth, pipeline),
                    .layers = layers_to_hide_loading(pipeline)};
  buffer.attentionstore = attentionstore_read_buffer(source.bandwidth, buffer.load, buffer.prefill);
  return buffer;
}

std::string explain(const ModelConfig& model, const HardwareConfig& hardware,
                    const TimingModel& timing, const std::vector<KvSource>& sources,
                    const ExplainOptions& options) {
  std::string text = fmt::format("{} on {} x {}, {} bytes of KV per token\n", model.name,
                                 hardware.gpus, hardware.gpu.name, kv_bytes_per_token(model).value);
  constexpr std::int64_t kFewestTokens = 32;
  text += "\nPast tokens hidden by the prefill of new tokens, and per new token\n";
  text += fmt::format("{:>12} {:>12}", "new tokens", "prefill");
  for (const KvSource& source : sources) {
    text += fmt::format(" {:>28}", title(source));
  }
  text += "\n";
  for (std::int64_t added = kFewestTokens; added <= model.context_window.value / 2; added *= 4) {
    text += fmt::format("{:>12} {:>12}", added,
                        milliseconds(prefill(timing, Tokens(added), Tokens(0)).total));
    const Tokens limit = model.context_window - Tokens(added);
    for (const KvSource& source : sources) {
      const Tokens hidden = hidden_past(model, timing, source, Tokens(added), limit);
      text += fmt::format(
          " {:>28}", fmt::format("{}{} ({:.3g})", hidden == limit ? "all of " : "", hidden.value,
                                 static_cast<double>(hidden.value) / double(added)));
    }
    text += "\n";
  }
  text += fmt::format("\nRead buffer in HBM for a history of {} and a prompt of {} tokens\n",
                      options.history.value, options.prompt.value);
  text += fmt::format("{:<22} {:>12} {:>12} {:>16} {:>16} {:>7}\n", "", "load", "prefill", "S_buf",
                      "hides loading", "layers");
  for (const KvSource& source : sources) {
    const ReadBuffer buffer = read_buffer(model, timing, source, options.history, options.prompt);
    text += fmt::format("{:<22} {:>12} {:>12} {:>16} {:>16} {:>7}\n", title(source),
                        milliseconds(buffer.load), milliseconds(buffer.prefill),
                        mebibytes(buffer.attentionstore), mebibytes(buffer.hides_loading),
                        buffer.layers);
  }
  return text;
}

}  // namespace kvtier::calibrate
