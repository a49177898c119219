#include "hw/timing/roofline.hpp"

#include <algorithm>
#include <cmath>

#include "hw/timing/operation_time.hpp"
#include "sim/core/assert.hpp"

namespace kvtier {
namespace {

double as_double(Bytes bytes) { return static_cast<double>(bytes.value); }

}  // namespace

RooflineTiming::RooflineTiming(const ModelConfig& model, const HardwareConfig& hardware,
                               std::int64_t max_batch)
    : layers_(model.layers), iteration_overhead_(hardware.efficiency.iteration_overhead) {
  KVTIER_ASSERT(max_batch >= 1, "a timing model serves at least one request");
  const double gpus = static_cast<double>(hardware.gpus);
  const double flops_per_second = gpus * hardware.gpu.peak.value * hardware.efficiency.compute;
  const double bytes_per_second = gpus * hardware.hbm.bandwidth.value * hardware.efficiency.memory;
  KVTIER_ASSERT(flops_per_second > 0 && bytes_per_second > 0, "rates are positive");

  linear_seconds_per_token_ = linear_flops_per_token_layer(model) / flops_per_second;
  weight_seconds_ = as_double(weight_bytes_per_layer(model)) / bytes_per_second;
  attention_seconds_per_pair_ = attention_flops_per_pair_layer(model) / flops_per_second;
  kv_seconds_per_token_ = as_double(kv_bytes_per_token_layer(model)) / bytes_per_second;
  head_seconds_per_row_ = lm_head_flops_per_token(model) / flops_per_second;
  head_weight_seconds_ = as_double(lm_head_bytes(model)) / bytes_per_second;

  const AllReduceTime all_reduces = layer_all_reduces(model, hardware);
  all_reduce_seconds_per_token_ = all_reduces.seconds_per_token;
  all_reduce_fixed_seconds_ = all_reduces.fixed_seconds;

  // Reading a token's KV and computing with it are both proportional to the context: the slower one
  // is the slope.
  const double slope =
      static_cast<double>(layers_) * std::max(kv_seconds_per_token_, attention_seconds_per_pair_);
  const double overhead = iteration_overhead_.seconds();
  decode_.reserve(static_cast<std::size_t>(max_batch));
  for (std::int64_t batch = 1; batch <= max_batch; ++batch) {
    const double tokens = static_cast<double>(batch);
    const double layer = dense_seconds(tokens);
    const double base = static_cast<double>(layers_) * layer + head_seconds(tokens) + overhead;
    DecodeBatch entry;
    entry.layer_base = ticks_from_seconds(layer);
    entry.pieces.push_back(
        {.from = Tokens(0), .base = ticks_from_seconds(base), .slope = ticks_from_seconds(slope)});
    decode_.push_back(std::move(entry));
  }
  head_of_one_row_ = duration_from_seconds(head_seconds(1));
}

double RooflineTiming::dense_seconds(double tokens) const {
  return std::max(tokens * linear_seconds_per_token_, weight_seconds_) +
         tokens * all_reduce_seconds_per_token_ + all_reduce_fixed_seconds_;
}

double RooflineTiming::attention_seconds(const PrefillPart& part) const {
  const double added = static_cast<double>(part.added.value);
  const double past = static_cast<double>(part.past.value);
  const double pairs = added * past + added * (added + 1) / 2;
  const double kv_tokens = past + 2 * added;
  return std::max(pairs * attention_seconds_per_pair_, kv_tokens * kv_seconds_per_token_);
}

double RooflineTiming::head_seconds(double rows) const {
  return std::max(rows * head_seconds_per_row_, head_weight_seconds_);
}

PrefillTime RooflineTiming::iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const {
  KVTIER_ASSERT(!parts.empty(), "a prefill has at least one part");
  KVTIER_ASSERT(batch >= 0 && batch <= max_batch(),
                "the batch is one the timing model was made for");
  Tokens added(batch);
  double attention = static_cast<double>(context.value) *
                     std::max(kv_seconds_per_token_, attention_seconds_per_pair_);
  for (const PrefillPart& part : parts) {
    KVTIER_ASSERT(part.added > Tokens(0) && part.past >= Tokens(0),
                  "a part of a prefill computes at least one token");
    added += part.added;
    attention += attention_seconds(part);
  }
  const SimDuration layer =
      duration_from_seconds(dense_seconds(static_cast<double>(added.value)) + attention);
  const SimDuration head =
      parts.size() == 1 && batch == 0
          ? head_of_one_row_
          : duration_from_seconds(
                head_seconds(static_cast<double>(parts.size()) + static_cast<double>(batch)));
  return {.total = layer * layers_ + head + iteration_overhead_, .layer = layer};
}

const RooflineTiming::DecodeBatch& RooflineTiming::decode_batch(std::int64_t batch) const {
  KVTIER_ASSERT(batch >= 1 && batch <= max_batch(),
                "the batch is one the timing model was made for");
  return decode_[static_cast<std::size_t>(batch - 1)];
}

const std::vector<DecodePiece>& RooflineTiming::decode(std::int64_t batch) const {
  return decode_batch(batch).pieces;
}

SimDuration RooflineTiming::decode_layer(std::int64_t batch, Tokens context) const {
  const DecodeBatch& entry = decode_batch(batch);
  const std::int64_t ticks =
      entry.layer_base + detail::time_product(entry.pieces.front().slope, context.value) / layers_;
  return SimDuration((ticks + kTicksPerNs / 2) / kTicksPerNs);
}

}  // namespace kvtier
