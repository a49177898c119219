#include "sim/serving/metrics.hpp"

#include <algorithm>
#include <numeric>

#include "hw/model/model.hpp"
#include "hw/timing/layer_pipeline.hpp"
#include "sim/backend/topology.hpp"

namespace kvtier {

LoadRates load_rates(const RunConfig& config) {
  LoadRates rates{.layers = config.model.layers,
                  .kv_bytes_per_token = stored_kv_bytes_per_token(config),
                  .to_hbm = {}};
  const Topology topology = server_topology(config.hardware);
  const auto from = [&](Medium medium, bool installed) {
    if (installed) {
      rates.to_hbm[static_cast<std::size_t>(medium)] = topology.edge(medium, Medium::hbm).idle_rate;
    }
  };
  rates.to_hbm.fill(host_link(config.hardware).forward.rate);
  from(Medium::dram, config.hardware.dram.has_value());
  from(Medium::cxl, config.hardware.cxl.has_value());
  from(Medium::ssd, config.hardware.ssd.has_value());
  return rates;
}

void RequestRecord::set_found_of_prompt(const std::array<Tokens, kMedia>& tokens,
                                        LossCause missing) {
  if (preemptions > 0) {
    return;
  }
  prompt_found = tokens;
  found = {.reused = std::min(std::accumulate(tokens.begin(), tokens.end(), Tokens(0)), history)};
  found.cause = found.reused >= history ? LossCause::none : missing;
  // The fastest media have the head of the history.
  Tokens faster;
  for (std::size_t i = 0; i < kMedia; ++i) {
    const Tokens here = std::min(tokens[i], found.reused - faster);
    if (here.value > 0) {
      found.medium = static_cast<Medium>(i);
      found.nearer[i] = here;
      faster += here;
    }
  }
  found.nearer[static_cast<std::size_t>(found.medium)] = Tokens(0);
}

Tokens RequestRecord::found_tokens() const {
  return block > 0 ? std::accumulate(prompt_found.begin(), prompt_found.end(), Tokens(0))
                   : found.reused;
}

Bytes read_buffer_to_hide_loading(const RequestRecord& r, const LoadRates& rates) {
  const BytesPerSecond bandwidth = rates.to_hbm[static_cast<std::size_t>(r.found.medium)];
  const Bytes bytes = rates.kv_bytes_per_token * r.outside_hbm().value;
  return read_buffer_to_hide_loading(bandwidth,
                                     {.layers = rates.layers,
                                      .load = transfer_duration(bytes, bandwidth) / rates.layers,
                                      .compute = r.prefill_compute / rates.layers,
                                      .loaded_ahead = SimDuration(0)});
}

void ResumedTurnCosts::add(const RequestRecord& r) {
  prompt_tokens += r.history + r.input;
  output_tokens += r.output;
  ttft_without_queueing_ns.add((r.first_token - r.admitted).ns);
  prefill += r.prefill_compute;
  exposed_load += r.exposed_load;
  decode += r.decode_share;
}

void HitCounts::add(const RequestRecord& r, bool partial) {
  ++turns;
  const bool of_blocks = r.block > 0;
  if (of_blocks) {
    prompts.add(r.prompt(), r.prompt_found, Tokens(r.block), partial);
  } else {
    prompts.add_prompt(r.prompt(), r.found.reused.value > 0);
  }
  const auto add_reused = [&](std::size_t medium, Tokens tokens) {
    reused_tokens[medium] += tokens;
    if (!of_blocks) {
      prompts.hit_tokens[medium] += tokens.value;
    }
  };
  const auto where = static_cast<std::size_t>(r.found.medium);
  if (r.resumed()) {
    ++resumed_turns;
    history_tokens += r.history;
    Tokens here = r.found.reused;
    for (std::size_t i = 0; i < where; ++i) {
      here -= r.found.nearer[i];
      add_reused(i, r.found.nearer[i]);
    }
    add_reused(where, here);
    if (r.full_hit()) {
      ++full_hits[where];
      for (std::size_t i = 0; i < where; ++i) {
        full_hits_nearer[where][i] += static_cast<double>(r.found.nearer[i].value) /
                                      static_cast<double>(r.found.reused.value);
      }
      late_hits += r.found.late ? 1 : 0;
    } else {
      partial_turns += r.found.reused.value > 0 ? 1 : 0;
      ++lost_hits[static_cast<std::size_t>(r.lost_because())];
    }
  } else if (r.truncated.value > 0) {
    ++lost_hits[static_cast<std::size_t>(r.lost_because())];
  }
  truncated_turns += r.truncated.value > 0 ? 1 : 0;
  truncated_tokens += r.truncated;
}

void TurnMetrics::add(const RequestRecord& r) {
  HitCounts::add(r);
  if (r.resumed()) {
    resumed.add(r);
  }
  output_tokens += r.output;

  ttft_ns.add((r.first_token - r.arrived).ns);
  ttft_without_queueing_ns.add((r.first_token - r.admitted).ns);
  queueing_ns.add((r.admitted - r.arrived).ns);
  exposed_load_ns.add(r.exposed_load.ns);
  if (r.found.late) {
    late_wait_ns.add(r.late_wait.ns);
  }
  if (r.output.value > 1) {
    tpot_ns.add((r.finished - r.first_token).ns / (r.output.value - 1));
  }
  normalized_latency_ns_per_token.add((r.finished - r.arrived).ns / r.output.value);
  if (r.loaded() && load_rates_.layers > 0) {
    read_buffer_bytes.add(read_buffer_to_hide_loading(r, load_rates_).value);
  }
  if (batch_means.ends_batch()) [[unlikely]] {
    batch_means.add(totals());
  }
}

RunningTotals TurnMetrics::totals() const {
  RunningTotals t{.turns = static_cast<double>(turns),
                  .history_tokens = static_cast<double>(history_tokens.value),
                  .ttft_ns = static_cast<double>(ttft_ns.sum()),
                  .queueing_ns = static_cast<double>(queueing_ns.sum()),
                  .ttft = HistogramCounts(ttft_ns)};
  for (std::size_t i = 0; i < kMedia; ++i) {
    t.full_hits += static_cast<double>(full_hits[i]);
    t.reused_tokens += static_cast<double>(reused_tokens[i].value);
  }
  return t;
}

inline void QueueTrend::add_until(SimTime end) {
  const auto ns = static_cast<double>((end - updated_).ns);
  integrals_[bucket_].waiting += static_cast<double>(length_) * ns;
  integrals_[bucket_].in_service += static_cast<double>(in_service_) * ns;
  updated_ = end;
}

void QueueTrend::advance_past_bucket(SimTime now) {
  while (updated_ < now) {
    if (updated_ >= bucket_end_) {
      if (++bucket_ == kBuckets) {
        for (std::size_t i = 0; i < kBuckets / 2; ++i) {
          const Integral& a = integrals_[2 * i];
          const Integral& b = integrals_[2 * i + 1];
          integrals_[i] = {a.waiting + b.waiting, a.in_service + b.in_service};
        }
        std::fill(integrals_.begin() + kBuckets / 2, integrals_.end(), Integral{});
        width_ns_ *= 2;
        bucket_ = kBuckets / 2;
      }
      bucket_end_ = SimTime(static_cast<std::int64_t>(bucket_ + 1) * width_ns_);
    }
    add_until(std::min(bucket_end_, now));
  }
}

inline void QueueTrend::advance(SimTime now) {
  if (now <= updated_) {
    return;
  }
  if (updated_ < bucket_end_ && now <= bucket_end_) [[likely]] {
    add_until(now);
  } else {
    advance_past_bucket(now);
  }
}

void QueueTrend::set_length(std::size_t length, SimTime now) {
  if (length == length_) {
    return;
  }
  advance(now);
  length_ = length;
  longest_ = std::max(longest_, length);
}

void QueueTrend::set_in_service(std::size_t requests, SimTime now) {
  if (requests != in_service_) {
    advance(now);
    in_service_ = requests;
  }
}

QueueTrend::Buckets QueueTrend::buckets(SimTime from, SimTime to) {
  advance(to);
  return {static_cast<std::size_t>(from.ns / width_ns_),
          std::min(kBuckets, static_cast<std::size_t>(to.ns / width_ns_) + 1)};
}

double QueueTrend::mean(SimTime from, SimTime to) {
  const auto [first, last] = buckets(from, to);
  double integral = 0;
  for (std::size_t i = first; i < last; ++i) {
    integral += integrals_[i].waiting;
  }
  const double ns = static_cast<double>(static_cast<std::int64_t>(last - first) * width_ns_);
  return last > first ? integral / ns : 0;
}

double QueueTrend::overloaded_share(SimTime from, SimTime to, double floor) {
  const auto [first, last] = buckets(from, to);
  const double least = floor * static_cast<double>(width_ns_);
  std::size_t overloaded = 0;
  for (std::size_t i = first; i < last; ++i) {
    const Integral& integral = integrals_[i];
    overloaded += integral.waiting > std::max(least, integral.in_service) ? 1 : 0;
  }
  return last > first ? static_cast<double>(overloaded) / static_cast<double>(last - first) : 0;
}

bool QueueTrend::grows_throughout(SimTime from, SimTime to, double floor) {
  if (to <= from) {
    return false;
  }
  const SimDuration third = (to - from) / 3;
  const double begin = mean(from, from + third);
  const double middle = mean(from + third, from + third * 2);
  const double end = mean(from + third * 2, to);
  return begin < middle && middle < end && end > floor;
}

}  // namespace kvtier
