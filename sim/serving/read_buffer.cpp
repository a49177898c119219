#include "sim/serving/read_buffer.hpp"

#include <algorithm>
#include <optional>

#include "hw/profile/profile_timing.hpp"
#include "hw/timing/layer_pipeline.hpp"
#include "sim/backend/simulated_backend.hpp"

namespace kvtier {
namespace {

std::optional<Medium> fastest_outside_hbm(const TiersConfig& tiers) {
  if (tiers.dram) {
    return Medium::dram;
  }
  if (tiers.cxl) {
    return Medium::cxl;
  }
  return tiers.ssd ? std::optional(Medium::ssd) : std::nullopt;
}

}  // namespace

ReadBuffer::ReadBuffer(const RunConfig& config) {
  const SystemConfig& system = config.system;
  if (system.load.buffers) {
    most_layers_ = std::min(*system.load.buffers, config.model.layers);
  } else if (const std::optional<Medium> from = fastest_outside_hbm(system.tiers);
             from && system.load.discipline == LoadDiscipline::layer_overlapped) {
    timing_ = make_timing(config.model, config.hardware, system.positions, 1, system.engine);
    layer_sizes_ = stored_layer_sizes(config);
    for (std::size_t i = 0; i < layer_sizes_.size(); ++i) {
      const Bytes if_equal = layer_sizes_.front() * static_cast<std::int64_t>(i + 1);
      equal_layers_ = equal_layers_ && layer_sizes_[i] == if_equal;
    }
    bandwidth_ =
        load_bandwidth_beside_work(config.hardware, *from, system.save.mode == SaveMode::async);
    layers_overlap_ = !waits_for_whole_load(config, *from);
    // A turn has a token of input and one of output at least.
    most_layers_ =
        layers_to_hide({.added = Tokens(1), .past = config.model.context_window - Tokens(2)});
  }
  capacity_ =
      kv_bytes_per_token_layer(config.model) * (config.model.context_window.value * most_layers_);
}

std::int64_t ReadBuffer::layers(const PrefillPart& prefill) const {
  return timing_ == nullptr ? most_layers_ : std::min(most_layers_, layers_to_hide(prefill));
}

std::int64_t ReadBuffer::layers_to_hide(const PrefillPart& prefill) const {
  if (!layers_overlap_) {
    return std::ssize(layer_sizes_);
  }
  // The layers of `past` tokens at the bandwidth are those of one token at its share of it.
  const auto tokens = static_cast<double>(std::max<std::int64_t>(1, prefill.past.value));
  return layers_to_hide_loading(layer_sizes_, bandwidth_ / tokens,
                                timing_->prefill({&prefill, 1}).layer, equal_layers_);
}

}  // namespace kvtier
