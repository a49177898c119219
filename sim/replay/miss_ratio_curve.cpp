#include "sim/replay/miss_ratio_curve.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/build.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "sim/replay/access_order.hpp"
#include "sim/serving/history.hpp"
#include "sim/serving/result.hpp"
#include "sim/store/curves/stack_distances.hpp"

namespace kvtier {
namespace {

/// Bytes that the config's fastest tier charges for an entry; without a tier, those of whole
/// tokens.
class EntrySize {
 public:
  explicit EntrySize(const RunConfig& config)
      : bytes_per_token_(stored_kv_bytes_per_token(config)) {
    if (config.serving.kv_reservation == Reservation::context_window) {
      window_ = bytes_per_token_ * config.model.context_window.value;
    }
    bool first = true;
    for_each_tier(config.system.tiers, [&](const char*, const TierConfig& tier) {
      block_ = first ? tier.block_size.value : block_;
      first = false;
    });
  }
  [[nodiscard]] Bytes of(Tokens tokens) const {
    return window_.value > 0 ? window_
                             : bytes_per_token_ * ((tokens.value + block_ - 1) / block_ * block_);
  }

 private:
  Bytes bytes_per_token_;
  Bytes window_{0};
  std::int64_t block_ = 1;
};

/// Four capacities for each doubling, from 1 MiB to 2^60 bytes.
std::vector<Bytes> capacity_grid() {
  std::vector<Bytes> grid;
  for (int power = 20; power < 60; ++power) {
    for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
      grid.emplace_back((std::int64_t{1} << power) / 4 * (4 + quarter));
    }
  }
  return grid;
}

/// Whether a hash of the session's number selects it. The sample of a lower rate is part of that of
/// a higher rate.
bool is_sampled(std::int64_t session, double rate) {
  constexpr std::uint64_t kSeed = 0;
  constexpr double kAll = 18446744073709551616.0;  // 2^64
  return rate >= 1 || static_cast<double>(
                          random_bits_at(kSeed, static_cast<std::uint64_t>(session))) < rate * kAll;
}

void check_curve(const RunConfig& config, const PolicyRegistry& registry) {
  Problems problems;
  check_run_config(config, registry, problems);
  check_one_instance(config, "a miss-ratio curve", problems);
  if (config.system.sharing == Sharing::prompts) {
    problems.add("/system/sharing",
                 "expected \"none\": a miss-ratio curve needs sessions that share no prompts");
  }
  problems.throw_if_any();
}

}  // namespace

Json miss_ratio_curve(const RunConfig& config, const PolicyRegistry& registry,
                      const MissRatioOptions& curve, const RunOptions& options) {
  check_curve(config, registry);
  const bool chosen = !curve.capacities.empty();
  std::vector<Bytes> capacities = chosen ? curve.capacities : capacity_grid();
  std::sort(capacities.begin(), capacities.end());
  capacities.erase(std::unique(capacities.begin(), capacities.end()), capacities.end());

  const auto source =
      make_source(config.workload, static_cast<std::uint64_t>(config.seed), options.base_dir);
  KVTIER_ASSERT(source->streams() == nullptr, "requests that name their tokens share blocks");
  const TurnFitter fitter(config);
  AccessOrder order(*source, &fitter);
  const EntrySize size(config);
  StackDistances stack;
  /// Additional hits at each capacity, beyond those of the next smaller one. The last element
  /// counts hits beyond all capacities.
  std::vector<std::int64_t> hits(capacities.size() + 1);
  std::int64_t turns = 0;
  std::int64_t measured = 0;
  std::int64_t resumed = 0;
  std::int64_t sampled_sessions = 0;
  SimTime now;
  while (const auto slot = order.next(now)) {
    AccessOrder::Live& live = order.at(*slot);
    Turn& turn = live.session.turns[live.next_turn];
    const Tokens truncated = order.fit_history(live);
    if (is_sampled(live.session.id, curve.sampling_rate)) {
      sampled_sessions += live.next_turn == 0 ? 1 : 0;
      if (truncated.value > 0 && config.system.positions == KeyPositions::embedded) {
        stack.drop(*slot);
      }
      if (turns >= config.workload.warmup_turns) {
        ++measured;
        resumed += live.history.value > 0 ? 1 : 0;
        const std::int64_t own = stack.size(*slot);
        if (own > 0 && live.history.value > 0) {
          // Sampled entries stand for all others; the entry itself counts once.
          const auto others = static_cast<double>(stack.distance(*slot) - own);
          const Bytes scaled(own + std::llround(others / curve.sampling_rate));
          const auto from = std::lower_bound(capacities.begin(), capacities.end(), scaled);
          ++hits[static_cast<std::size_t>(from - capacities.begin())];
        }
      }
      stack.use(*slot, size.of(live.history + turn.user + turn.assistant).value);
    }
    ++turns;
    live.history += turn.user + turn.assistant;
    if (options.progress && turns % 8192 == 0) {
      options.progress(turns);
    }
    if (!order.advance(*slot, now)) {
      stack.forget(*slot);
    }
  }
  if (measured == 0) {
    throw ConfigError(fmt::format(
        "/workload/warmup_turns: expected less than the workload's {} turns, got {}, and at least "
        "one turn of a sampled session behind them",
        turns, config.workload.warmup_turns));
  }

  Json points = Json::array();
  std::int64_t found = 0;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  std::int64_t last = 0;
  for (const std::int64_t count : hits) {
    last += count;
  }
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    const bool done = found == last - hits.back();
    found += hits[i];
    if (!chosen && (found == 0 || done)) {
      continue;
    }
    points.push_back(
        {{"capacity_bytes", capacities[i].value},
         {"hits", found},
         {"miss_ratio", 1 - share(found, measured)},
         {"hit_rate",
          {{"all_turns", share(found, measured)}, {"resumed_turns", share(found, resumed)}}}});
  }
  Json result = new_result("kvtier.miss_ratio_curve/1");
  result["config"] = write_value(config);
  result["workload"] = workload_report(config, order.statistics());
  result["sampling"] = {{"rate", curve.sampling_rate},
                        {"sessions", sampled_sessions},
                        {"turns", measured},
                        {"resumed_turns", resumed}};
  result["hit_rate_without_limit"] = {{"all_turns", share(last, measured)},
                                      {"resumed_turns", share(last, resumed)}};
  result["points"] = points;
  return result;
}

}  // namespace kvtier
