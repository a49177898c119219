#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/policy/policy.hpp"
#include "sim/store/entries/waiting_requests.hpp"
#include "sim/store/store_counters.hpp"

namespace kvtier {

/// Chooses the waiting requests whose KV comes a tier nearer before they are admitted, one
/// after the other, and counts how useful that was. The policy says which (PrefetchPolicy); an
/// entry of its is a request, by its place.
class QueuePrefetch {
 public:
  struct Setup {
    std::unique_ptr<PrefetchPolicy> policy;
    /// These outlive this.
    const QueueView* queue = nullptr;
    const RunningView* running = nullptr;
    /// That of the tier to which the KV comes.
    Bytes memory;
    Bytes bytes_per_token;
    /// Memory that the tier reserves for a request's KV; 0: the mean of the prompts counts.
    Bytes reserved;
    /// Tokens of a waiting request that are found behind that tier, of which none is on its way.
    std::function<Tokens(std::uint32_t place)> lacking;
    /// Time of a fetch of so many bytes without other transfers.
    std::function<SimDuration(Bytes bytes)> duration;
  };
  explicit QueuePrefetch(Setup setup);
  QueuePrefetch(const QueuePrefetch&) = delete;
  QueuePrefetch& operator=(const QueuePrefetch&) = delete;

  /// A request waits in the queue, for these blocks of the tier.
  void begin_waiting(QueuePosition position, std::span<const Stretch> path, Tokens prompt);
  void end_waiting(QueuePosition position) { waiting_.remove(position); }
  /// Blocks have left the tier.
  void note_demoted(const std::vector<Stretch>& blocks);

  [[nodiscard]] bool is_fetching() const { return fetching_.has_value(); }
  /// The policy's next fetch. No fetch may be in flight.
  [[nodiscard]] std::optional<Fetch> next(SimTime now);
  /// Whether no earlier timer is set than one for this time; it counts as set then.
  [[nodiscard]] bool sets_timer(SimTime at);
  void on_timer() { asks_at_ = kNever; }

  /// A fetch of so many tokens, with which the tier and faster ones have `whole` of the prompt.
  void begin(std::uint32_t place, Tokens tokens, Tokens whole, SimTime now);
  /// Returns the request's place, and the tokens that have come.
  std::pair<std::uint32_t, Tokens> end(SimTime now);
  /// The scheduler comes to a request whose KV is on its way.
  void pass_over(SimTime now);
  /// A request is admitted, with so many tokens found in the tier and faster ones. Returns how long
  /// it was passed over, if it was.
  std::optional<SimDuration> use(std::uint32_t place, Tokens found, SimTime now);

  [[nodiscard]] const PrefetchCounters& counters() const { return counters_; }

 private:
  struct OfRequest {
    Tokens tokens;
    Tokens whole;
    SimTime began;
    SimTime ended;
    std::optional<SimTime> passed_over;
  };

  Setup setup_;
  std::function<bool(EntryId)> needs_fetch_;
  std::function<SimDuration(EntryId)> fetch_duration_;
  PrefetchContext context_;
  WaitingRequests waiting_;
  /// The sum over all requests that have waited, and their number.
  Tokens prompts_;
  std::int64_t requests_ = 0;
  std::optional<std::uint32_t> fetching_;
  /// By place.
  std::unordered_map<std::uint32_t, OfRequest> fetches_;
  SimTime asks_at_ = kNever;
  PrefetchCounters counters_;
};

}  // namespace kvtier
