#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/backend/shared_links.hpp"
#include "sim/core/histogram.hpp"
#include "sim/serving/batch_means.hpp"
#include "sim/serving/block_hits.hpp"
#include "sim/serving/config.hpp"
#include "sim/store/sessions/lookup.hpp"
#include "sim/store/store_counters.hpp"

/// Counters of a run. Hit rates follow AttentionStore (arXiv 2403.19708, sections 4.1 and 4.2);
/// docs/concepts.md has the definitions.
namespace kvtier {

/// One finished turn.
struct RequestRecord {
  std::int64_t session = 0;
  std::int64_t turn = 0;
  SimTime arrived;
  /// History that the turn needs (after truncation), its new input and its response. A shared
  /// prompt is the head of the history, of the first turn too.
  Tokens history;
  Tokens input;
  Tokens output;
  /// Dropped from the history because the context window overflowed.
  Tokens truncated;
  /// Tokens of the shared prompt at the head of the history, and its id; -1: none.
  Tokens shared;
  std::int64_t shared_prompt = -1;
  SimTime admitted;
  SimTime first_token;
  SimTime finished;
  Lookup found;
  /// In a system of blocks: tokens of the whole prompt that the first look-up found, by medium.
  /// Those beyond the history are KV of other sessions.
  std::array<Tokens, kMedia> prompt_found{};
  /// It was admitted, and lost its memory again, so many times.
  std::int32_t preemptions = 0;
  /// The instance that served it, in a cluster.
  std::uint32_t instance = 0;
  /// Time of the prefill and its command's overhead, without waiting for stored KV. In an iteration
  /// with several prompts or running requests: this prompt's share, by computed tokens, of the time
  /// beyond that without prompts. `exposed_load` is then the share by tokens loaded.
  SimDuration prefill_compute;
  /// Time of the decode: each iteration counts for its requests in equal parts.
  SimDuration decode_share;
  /// Time that it waited for stored KV, with the GPUs or alone (/system/load/wait).
  SimDuration exposed_load;
  /// The part of that for a fetch in flight when the turn was admitted.
  SimDuration late_wait;
  /// Tokens of a block of the fastest tier; 0 without blocks that requests share.
  std::int32_t block = 0;
  /// Admitted after warm-up.
  bool measured = false;

  [[nodiscard]] Tokens prompt() const { return history + input; }
  /// In a system of blocks: sets prompt_found, and what `found` says of the history, the cause with
  /// it if some of that is missing. A preempted request keeps what it found before, because later
  /// it also finds its own KV.
  void set_found_of_prompt(const std::array<Tokens, kMedia>& tokens, LossCause missing);
  /// Tokens of the prompt that were found, by medium. Without blocks they are of the history.
  [[nodiscard]] std::array<Tokens, kMedia> found_by_medium() const {
    return block > 0 ? prompt_found : found.by_medium();
  }
  /// The sum of those.
  [[nodiscard]] Tokens found_tokens() const;
  /// The turn has a history: earlier turns of its session, or a shared prompt.
  [[nodiscard]] bool resumed() const { return history.value > 0; }
  /// The whole history was found. One block may be missing: partial blocks are not found, and KV of
  /// a response's last token is not computed.
  [[nodiscard]] bool full_hit() const {
    return resumed() && found.reused + Tokens(block) >= history &&
           (found.reused.value > 0 || block == 0);
  }
  /// Why less than the whole history was found, a history that was truncated away too.
  [[nodiscard]] LossCause lost_because() const {
    if (!resumed()) {
      return truncated.value > 0 ? LossCause::overflow : LossCause::none;
    }
    return full_hit() ? LossCause::none : found.cause;
  }
  /// KV came from another tier than HBM.
  [[nodiscard]] bool loaded() const {
    return found.reused.value > 0 && found.medium != Medium::hbm;
  }
  /// Found tokens that were not in HBM.
  [[nodiscard]] Tokens outside_hbm() const { return found.reused - found.in_hbm(); }
};

/// How fast stored KV comes to HBM when nothing else moves.
struct LoadRates {
  /// 0: not known, and nothing is worked out from it.
  std::int64_t layers = 0;
  /// Bytes of a token of stored KV, with equal layers.
  Bytes kv_bytes_per_token;
  /// By where the KV lies, on the slowest link of its way.
  std::array<BytesPerSecond, kMedia> to_hbm{};
};
[[nodiscard]] LoadRates load_rates(const RunConfig& config);

/// The read buffer with which the turn would not have waited for its KV
/// (read_buffer_to_hide_loading), its prefill spread evenly over the layers. The turn loaded
/// something, and the rates are known.
[[nodiscard]] Bytes read_buffer_to_hide_loading(const RequestRecord& record,
                                                const LoadRates& rates);

/// Costs of the measured turns that have a history. In AttentionStore's experiment with long
/// documents (figures 25 and 26), the second and later turns.
struct ResumedTurnCosts {
  void add(const RequestRecord& record);

  Tokens prompt_tokens;
  Tokens output_tokens;
  Histogram ttft_without_queueing_ns;
  SimDuration prefill;
  SimDuration exposed_load;
  SimDuration decode;
};

/// Turns, and what they found, of every system alike.
struct HitCounts {
  /// `partial`: parts of blocks count as blocks.
  void add(const RequestRecord& record, bool partial = false);
  /// The part of the prompts that was found nowhere.
  [[nodiscard]] Tokens computed_tokens() const {
    return Tokens(prompts.prompt_tokens - prompts.hit_tokens_in_all());
  }

  std::int64_t turns = 0;
  std::int64_t resumed_turns = 0;
  /// Turns whose whole history was found, by where; one that is spread over HBM and another tier
  /// counts for the other.
  std::array<std::int64_t, kMedia> full_hits{};
  /// The part of those that belongs to HBM by its share of the tokens.
  std::array<std::array<double, kMedia>, kMedia> full_hits_nearer{};
  std::int64_t partial_turns = 0;
  std::int64_t late_hits = 0;
  std::int64_t truncated_turns = 0;
  Tokens truncated_tokens;
  /// Tokens of histories, and hits that they lost.
  Tokens history_tokens;
  std::array<Tokens, kMedia> reused_tokens{};
  std::array<std::int64_t, kLossCauses> lost_hits{};
  /// Histories and new inputs.
  BlockHits prompts;
};

/// Turns, tokens and times of the measured turns.
class TurnMetrics : public HitCounts {
 public:
  TurnMetrics() = default;
  explicit TurnMetrics(const LoadRates& load_rates) : load_rates_(load_rates) {}

  void add(const RequestRecord& record);

  Tokens output_tokens;
  Histogram ttft_ns;
  Histogram ttft_without_queueing_ns;
  Histogram queueing_ns;
  Histogram exposed_load_ns;
  /// Turns whose fetch was in flight on admission only.
  Histogram late_wait_ns;
  Histogram tpot_ns;
  Histogram normalized_latency_ns_per_token;
  ResumedTurnCosts resumed;
  /// Turns that loaded stored KV only.
  Histogram read_buffer_bytes;
  BatchMeans batch_means;

 private:
  [[nodiscard]] RunningTotals totals() const;

  LoadRates load_rates_;
};

/// The use of the instance's time. The rest is idle time.
struct GpuTime {
  SimDuration prefill;
  SimDuration decode;
  SimDuration exposed_load;
  SimDuration exposed_save;

  [[nodiscard]] SimDuration busy() const { return prefill + decode + exposed_load + exposed_save; }
  /// Each part times part / whole.
  [[nodiscard]] GpuTime scaled(SimDuration part, SimDuration whole) const {
    const auto scale = [&](SimDuration time) {
      return SimDuration(
          static_cast<std::int64_t>(static_cast<Int128>(time.ns) * part.ns / whole.ns));
    };
    return {.prefill = scale(prefill),
            .decode = scale(decode),
            .exposed_load = scale(exposed_load),
            .exposed_save = scale(exposed_save)};
  }
  GpuTime& operator+=(const GpuTime& other) {
    prefill += other.prefill;
    decode += other.decode;
    exposed_load += other.exposed_load;
    exposed_save += other.exposed_save;
    return *this;
  }
};

/// The part of a run whose turns, times and costs are counted: the turns that are admitted in it,
/// and the time from its first admission to the next one behind it, or to the end of the last turn.
struct MeasuredPart {
  SimTime from;
  SimTime to;
  /// It begins in the stationary state and ends with the arrivals of sessions.
  bool stationary = false;
  /// Sessions that had arrived when it began.
  std::int64_t sessions_before = 0;

  [[nodiscard]] SimDuration span() const { return to - from; }
};

/// How long sessions last.
struct SessionDurations {
  void add(SimDuration duration) {
    seconds += duration.seconds();
    squares += duration.seconds() * duration.seconds();
  }
  /// Mean over the sessions that live at a random time, in seconds: long sessions live at more
  /// times. 0 without sessions.
  [[nodiscard]] double mean_of_live() const { return seconds > 0 ? squares / seconds : 0; }

  double seconds = 0;
  double squares = 0;
};

/// Integrals over time of shares of an instance that admitted requests take, in seconds.
struct Occupied {
  double slots = 0;
  /// Share of the HBM for the KV of running requests.
  double kv_memory = 0;

  Occupied& operator+=(const Occupied& other) {
    slots += other.slots;
    kv_memory += other.kv_memory;
    return *this;
  }
  friend Occupied operator-(const Occupied& a, const Occupied& b) {
    return {.slots = a.slots - b.slots, .kv_memory = a.kv_memory - b.kv_memory};
  }
};

/// Mean numbers over time of requests that wait and of those in service, in a fixed number of
/// buckets, whose width doubles when the run outgrows them.
class QueueTrend {
 public:
  /// So many requests wait from now on.
  void set_length(std::size_t length, SimTime now);
  /// So many requests have been admitted and have not finished from now on.
  void set_in_service(std::size_t requests, SimTime now);
  /// Mean length between two times, to the resolution of the buckets.
  [[nodiscard]] double mean(SimTime from, SimTime to);
  /// Whether the queue grew in each third of the span and ended longer than `floor`.
  [[nodiscard]] bool grows_throughout(SimTime from, SimTime to, double floor);
  /// The share of the span in which more requests wait than `floor` and than are in service. They
  /// wait longer than they are served (Little's law: both numbers are the throughput times the mean
  /// duration).
  [[nodiscard]] double overloaded_share(SimTime from, SimTime to, double floor);
  [[nodiscard]] std::size_t longest() const { return longest_; }

 private:
  static constexpr std::size_t kBuckets = 512;
  void advance(SimTime now);
  void advance_past_bucket(SimTime now);
  void add_until(SimTime end);
  struct Buckets {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] Buckets buckets(SimTime from, SimTime to);

  /// Requests x ns.
  struct Integral {
    double waiting = 0;
    double in_service = 0;
  };
  std::vector<Integral> integrals_ = std::vector<Integral>(kBuckets);
  std::int64_t width_ns_ = 1000000;
  SimTime updated_;
  /// The bucket that `updated_` lies in or has just reached the end of.
  std::size_t bucket_ = 0;
  SimTime bucket_end_{width_ns_};
  std::size_t length_ = 0;
  std::size_t in_service_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace kvtier
