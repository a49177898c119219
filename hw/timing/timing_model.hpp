#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/units.hpp"

namespace kvtier {

/// One request's part of a prefill: `added` prompt tokens are computed, `past` tokens have their KV
/// already.
struct PrefillPart {
  Tokens added;
  Tokens past;
};

/// Overheads of a pass (a prefill or an iteration) by its place after idle time. Later passes find
/// processors awake and caches filled. An overhead is negative if warm caches save time.
struct WarmUp {
  /// The first pass, the second one, and each later one.
  SimDuration cold{};
  SimDuration second{};
  SimDuration warm{};

  [[nodiscard]] SimDuration after(std::int64_t passes) const {
    return passes == 0 ? cold : passes == 1 ? second : warm;
  }

  friend bool operator==(const WarmUp&, const WarmUp&) = default;
};

/// The shortest idle time between two passes after which the next one is cold, where it was not
/// measured.
inline constexpr SimDuration kUsualIdleGap(10'000'000);

/// Shares of a time by its source. The rest comes from tables, or from an engine's host times.
struct TimeShares {
  /// Operations that the roofline stands in for.
  double roofline = 0;
  /// Attention over cached tokens by a law, because the table has none.
  double cached_law = 0;
};

struct PrefillTime {
  /// Time of the pass as the first one after idle time: all layers, the work outside of layers, and
  /// warm_up.cold.
  SimDuration total;
  /// Time of one layer, needed because loading and saving overlap layer by layer.
  SimDuration layer;
  WarmUp warm_up{};
  /// Operations beyond their measured sizes take a relevant part of it.
  bool extrapolated = false;
  /// Sources of the pass without warm-up.
  TimeShares shares{};

  /// Time of the pass after so many passes since the last idle time.
  [[nodiscard]] SimDuration after(std::int64_t passes) const {
    return total - warm_up.cold + warm_up.after(passes);
  }
};

/// Decode time in 1/1024 ns: fine enough that the slope per token of context (a few ns) has no
/// visible rounding, and integer, so that a closed-form sum over iterations equals adding them one
/// by one.
inline constexpr std::int64_t kTicksPerNs = 1024;

/// To the nearest tick. Throws ConfigError beyond a day, so that sums of iterations stay in 64
/// bits.
[[nodiscard]] std::int64_t ticks_from_seconds(double seconds);

/// The time of one decode iteration while the batch's total context is >= `from` and below the next
/// piece's. time(context) = base + slope * context, in ticks; `context` counts the tokens whose KV
/// is read.
struct DecodePiece {
  Tokens from;
  std::int64_t base = 0;
  std::int64_t slope = 0;
  /// As PrefillTime.
  bool extrapolated = false;
  /// At `from`.
  TimeShares shares{};

  [[nodiscard]] std::int64_t at(Tokens context) const {
    return detail::time_sum(base, detail::time_product(slope, context.value));
  }
};

/// The piece that holds `context`. `pieces` are ascending, the first from 0 tokens.
[[nodiscard]] inline const DecodePiece& piece_at(const std::vector<DecodePiece>& pieces,
                                                 Tokens context) {
  std::size_t i = pieces.size() - 1;
  while (i > 0 && pieces[i].from > context) {
    --i;
  }
  return pieces[i];
}

/// The tokens within `window` of requests with these contexts: the sum of min(context, window).
[[nodiscard]] Tokens tokens_within(std::span<const Tokens> contexts, Tokens window);

/// The same of `batch` requests whose contexts add up to `context` and differ by 1 at most.
[[nodiscard]] Tokens equal_tokens_within(std::int64_t batch, Tokens context, Tokens window);

/// How long GPU work takes: the analytic roofline, or interpolation in a measured profile.
class TimingModel {
 public:
  virtual ~TimingModel() = default;

  /// The pieces for `batch` running requests (1 token each), ascending, the first from 0 tokens.
  /// The reference stays valid as long as the model.
  [[nodiscard]] virtual const std::vector<DecodePiece>& decode(std::int64_t batch) const = 0;

  /// Overheads of all passes. Decode times are those of warm iterations: an iteration as the first
  /// or second pass takes longer by their difference from `warm`.
  [[nodiscard]] virtual WarmUp warm_up() const { return {}; }

  /// The shortest idle time after which a pass is cold.
  [[nodiscard]] virtual SimDuration idle_gap() const { return kUsualIdleGap; }

  /// Additional time of the first of several decode iterations after so many passes.
  [[nodiscard]] SimDuration decode_warm_up(std::int64_t passes) const {
    return passes > 1 ? SimDuration(0) : warm_up().after(passes) - warm_up().warm;
  }

  /// Time of one layer in one iteration of requests with equal contexts; the mean if layers differ.
  [[nodiscard]] virtual SimDuration decode_layer(std::int64_t batch, Tokens context) const = 0;

  /// One iteration that prefills these parts (one at least, each with added > 0) and in the same
  /// pass computes a token of each of `batch` (>= 0) running requests, which read `context` tokens
  /// in all.
  [[nodiscard]] virtual PrefillTime iteration(std::span<const PrefillPart> parts,
                                              std::int64_t batch, Tokens context) const = 0;

  /// Windows of the model: context lengths beyond which a request's time no longer grows in some
  /// layers. Empty for most models. Ascending.
  [[nodiscard]] virtual std::span<const Tokens> windows() const { return {}; }

  /// Ticks of one decode iteration of `batch` requests for each token within each of windows(): the
  /// iteration takes decode(batch) at the total context, and for each window its slope x the sum of
  /// min(context of a request, window).
  [[nodiscard]] virtual std::span<const std::int64_t> window_slopes(std::int64_t /*batch*/) const {
    return {};
  }

  /// The same iteration with the context of each running request. A model without windows needs
  /// their sum alone; `iteration` takes all contexts as equal.
  [[nodiscard]] virtual PrefillTime iteration_of(std::span<const PrefillPart> parts,
                                                 std::span<const Tokens> contexts) const {
    Tokens total;
    for (const Tokens context : contexts) {
      total += context;
    }
    return iteration(parts, static_cast<std::int64_t>(contexts.size()), total);
  }

  /// One prefill of these requests together.
  [[nodiscard]] PrefillTime prefill(std::span<const PrefillPart> parts) const {
    return iteration(parts, 0, Tokens(0));
  }

  /// One decode iteration of requests of equal contexts, in ticks.
  [[nodiscard]] std::int64_t decode_ticks(std::int64_t batch, Tokens context) const {
    const std::int64_t ticks = piece_at(decode(batch), context).at(context);
    return windows().empty() ? ticks : detail::time_sum(ticks, equal_window_ticks(batch, context));
  }

  /// The same to the nanosecond below.
  [[nodiscard]] SimDuration decode_duration(std::int64_t batch, Tokens context) const {
    return SimDuration(decode_ticks(batch, context) / kTicksPerNs);
  }

 private:
  [[nodiscard]] std::int64_t equal_window_ticks(std::int64_t batch, Tokens context) const;
};

}  // namespace kvtier
