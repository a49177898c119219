#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include <boost/container/static_vector.hpp>

#include "sim/serving/batcher.hpp"
#include "sim/serving/length_predictor.hpp"
#include "sim/serving/read_buffer.hpp"
#include "sim/serving/requests.hpp"
#include "sim/store/sessions/session_store.hpp"

namespace kvtier {

/// A prefill runs alone, then all running requests decode together. The KV of a turn is reserved
/// when it is admitted; stored KV moves through the session store.
///
/// A prefill waits for the KV that it loads, and the others with it (`/system/load/wait: batch`).
/// With `request` an admitted request waits for its loads while others decode, and then its prefill
/// runs without any. Several may wait at once; they hold slots and HBM.
class PrefillFirst final : public Batcher, private RunningView {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    Requests* requests = nullptr;
    DecisionObserver* decisions = nullptr;
  };
  explicit PrefillFirst(const Setup& setup);

  void on_turn(SessionSlot slot) override;
  void on_enqueued(SessionSlot slot, QueuePosition position) override;
  void on_completion(Completion completion) override;
  [[nodiscard]] std::size_t tier_count() const override { return tiers_.tier_count(); }
  [[nodiscard]] Medium medium(std::size_t tier) const override { return tiers_.medium(tier); }
  [[nodiscard]] TierCounters counters(std::size_t tier) const override {
    return tiers_.counters(tier);
  }
  [[nodiscard]] std::size_t stored_entries() const override { return tiers_.live_entries(); }
  [[nodiscard]] Bytes loaded_bytes(Medium medium) const override {
    return loaded_bytes_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] PrefetchCounters prefetches() const override { return tiers_.prefetches(); }
  /// An admitted request has its KV reserved, so it runs to its end.
  [[nodiscard]] std::int64_t preemptions() const override { return 0; }
  [[nodiscard]] const Pool& hbm() const override { return tiers_.hbm(); }
  [[nodiscard]] Bytes beyond_accounts() const override;
  void check_invariants() const override;

 private:
  static constexpr SessionSlot kNoSession = UINT32_MAX;

  enum class Gpu : std::uint8_t { idle, waits_for_fetch, prefill, decode, stalled };

  /// A turn's room, the load of its stored KV, and its length.
  struct Load {
    /// Tokens whose KV the turn takes, once it is admitted.
    Tokens running;
    /// Its tokens whose first layers are in the read buffer, or on their way there.
    Tokens tokens_ahead;
    std::int64_t layers_ahead = 0;
    Bytes preloaded;
    TransferId transfer;
    /// The predicted length of the running response; zero: not asked yet.
    mutable Tokens predicted;
  };
  struct Running {
    std::int64_t finish_iteration;
    std::uint32_t sequence;
    SessionSlot slot;
  };
  /// A request that was admitted and whose prefill has not begun.
  struct Waiting {
    SessionSlot slot;
    SimTime since;
    /// Its loads in flight.
    int loads = 0;
    /// A shared prompt comes to HBM with this request.
    bool brings_prompt = false;
    std::array<std::vector<KvPiece>, kMedia> pieces{};
  };

  // RunningView
  [[nodiscard]] std::optional<SimDuration> tpot() const override;
  void for_each_running(const std::function<void(SimTime, Tokens)>& visit) const override;

  /// Compares numbers that continue from 0 after the largest.
  [[nodiscard]] static bool later(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b) > 0;
  }
  struct FinishesLater {
    [[nodiscard]] bool operator()(const Running& a, const Running& b) const {
      return a.finish_iteration != b.finish_iteration ? a.finish_iteration > b.finish_iteration
                                                      : later(a.sequence, b.sequence);
    }
  };

  void proceed();
  /// Apart from `proceed`, which mostly finds the GPUs busy.
  [[gnu::noinline]] void schedule();
  /// A prefill whose KV has come is first; else requests are admitted until one needs not wait.
  void schedule_beside_loads();
  /// Notes what the next waiting request waits for from now on.
  void note_wait();
  /// The waiting request that is next, if it can be admitted now; else kNotQueued. Notes in
  /// `lacks_room_` if HBM has no room for it.
  [[nodiscard]] QueuePosition admissible();
  [[nodiscard]] bool has_free_slot() const { return free_slots_ > 0; }
  void admit(QueuePosition position);
  /// Slots and HBM that running requests take more.
  void occupy(std::int64_t slots, Tokens tokens) {
    tiers_.hbm().charge(Account::running, bytes_per_token_ * tokens.value);
    requests_.occupy(slots, tiers_.hbm().used(Account::running));
    free_slots_ -= slots;
  }
  /// Tokens whose KV the turn takes of the HBM for running requests.
  [[nodiscard]] Tokens running_tokens(SessionSlot slot) const {
    const RequestRecord& r = requests_.request(slot);
    const Tokens total = r.history + r.input + r.output;
    return shares_ && tiers_.shares_prompt(slot) ? total - r.shared : total;
  }
  /// Notes what a turn that begins with a shared prompt loads.
  void note_pieces(EntryKey key, const Lookup& prompt, const Lookup& own);
  void start_load(SessionSlot slot, Medium medium);
  void start_loads(SessionSlot slot);
  // Requests that wait for their KV alone.
  [[nodiscard]] std::vector<Waiting>::iterator waiting(SessionSlot slot);
  /// Whether the KV of this shared prompt is on its way to HBM with another request.
  [[nodiscard]] bool prompt_comes(std::int64_t prompt) const;
  void wait_for_kv(SessionSlot slot, bool brings_prompt);
  /// From all media where its KV is; without pieces, from this one.
  void start_own_loads(SessionSlot slot, Medium medium);
  [[gnu::noinline]] void finish_own_load(SessionSlot slot);
  void make_ready(SessionSlot slot);
  /// Counts what the prefill in work waited for since the last such call, up to now.
  void count_wait(SimDuration elapsed, SimDuration waited, Medium from, Medium to);
  void start_prefill(SessionSlot slot, std::span<const TransferId> loads, std::int64_t layers_ready,
                     bool has_waited = false);
  void finish_prefill(SimDuration compute);
  void start_decode();
  void finish_decode(std::int64_t iterations);
  void finish_turn(SessionSlot slot);
  void finish_load_transfer(SessionSlot slot);
  void finish_fetch(SessionSlot slot, Medium medium);
  void preload_next();
  [[nodiscard]] bool must_stall() const;
  void stall();
  [[gnu::noinline]] void end_stall();

  const RunConfig& config_;
  Backend& backend_;
  Requests& requests_;
  SessionStore tiers_;

  /// Bytes of a token of running requests.
  Bytes bytes_per_token_;
  /// Bytes of a token of stored KV, up to each layer.
  std::vector<Bytes> stored_sizes_;
  bool unequal_layers_;
  /// A truncation makes stored KV useless, which shows when the turn is served; where it only cuts
  /// the KV, the room is free as soon as the turn arrives.
  bool invalidates_;
  ReadBuffer read_buffer_;
  bool preloads_;
  bool shares_;
  /// A request waits for its loads alone.
  bool loads_alone_;
  /// From each medium.
  std::array<bool, kMedia> waits_for_whole_load_;
  /// By session.
  std::vector<Load> loads_;

  Gpu gpu_ = Gpu::idle;
  SimTime gpu_since_;
  SessionSlot prefilling_ = kNoSession;
  std::int64_t free_slots_;
  SessionSlot preloading_ = kNoSession;
  int loads_in_flight_ = 0;
  /// The request that was asked about last found no room.
  bool lacks_room_ = false;
  /// Medium from which the current prefill loads stored KV.
  Medium loading_from_ = Medium::hbm;
  /// Shared prompt of the turn that is being prefilled, if any, and the part in its load.
  TurnPrompt prompt_;
  std::array<std::vector<KvPiece>, kMedia> load_pieces_;
  /// Requests that wait for their KV, and those whose KV has come.
  std::vector<Waiting> waiting_;
  std::vector<SessionSlot> ready_;
  std::vector<Running> running_;  // the first to finish at the back
  std::int64_t iteration_ = 0;
  Tokens context_;
  /// Integral of decode time over the number of running requests.
  SimDuration decode_per_request_;
  /// The last decode that has ended.
  SimDuration last_decode_;
  std::int64_t last_iterations_ = 0;
  LengthPredictor predictor_;
  std::uint32_t next_sequence_ = 0;
  std::array<Bytes, kMedia> loaded_bytes_{};
};

}  // namespace kvtier
