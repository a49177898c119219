#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "sim/serving/batcher.hpp"
#include "sim/serving/length_predictor.hpp"
#include "sim/serving/requests.hpp"
#include "sim/store/sessions/session_store.hpp"

namespace kvtier {

/// Iteration-level batching on paged KV. Requests are admitted in order while slots, the token
/// budget and blocks last, several at a time. Their prompts run in one pass with the decode of the
/// running requests (`unified`: Pensieve, arXiv 2312.05516), or in a pass of their own that the
/// others wait for (`separate`: vLLM 0.2).
///
/// A running request takes a block whenever it needs one. When they run out, the running request
/// that arrived last is suspended: what it holds stays in the store if the system has a tier in HBM
/// and is dropped otherwise, and it waits again before all that have not run yet. What is missing
/// of its KV when it is admitted again is loaded or computed like that of any prompt.
///
/// A decode runs in one jump to the iteration at which a request ends, blocks run out, or the store
/// has to copy ahead.
class PagedBatcher final : public Batcher, private RunningView {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    Requests* requests = nullptr;
    DecisionObserver* decisions = nullptr;
  };
  explicit PagedBatcher(const Setup& setup);

  void on_turn(SessionSlot slot) override;
  void on_enqueued(SessionSlot slot, QueuePosition position) override;
  void on_completion(Completion completion) override;
  [[nodiscard]] std::size_t tier_count() const override { return store_.tier_count(); }
  [[nodiscard]] Medium medium(std::size_t tier) const override { return store_.medium(tier); }
  [[nodiscard]] TierCounters counters(std::size_t tier) const override {
    return store_.counters(tier);
  }
  [[nodiscard]] const Pool& hbm() const override { return store_.hbm(); }
  [[nodiscard]] std::size_t stored_entries() const override { return store_.live_entries(); }
  [[nodiscard]] Bytes loaded_bytes(Medium medium) const override {
    return loaded_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] Bytes beyond_accounts() const override { return store_.saved_in_hbm(); }
  [[nodiscard]] PrefetchCounters prefetches() const override { return store_.prefetches(); }
  [[nodiscard]] std::int64_t preemptions() const override { return preemptions_; }
  void check_invariants() const override;

 private:
  enum class Gpu : std::uint8_t { idle, prefill, decode, stalled };

  /// A turn between its arrival and its end.
  struct Work {
    /// Order of arrival.
    std::uint64_t arrival = 0;
    /// While it does not run: the tokens whose KV it needs, and those of its response among them.
    Tokens length;
    Tokens generated;
    /// While it runs: its length less the iteration.
    std::int64_t length_offset = 0;
    /// Tokens of a shared prefix that HBM holds for several requests.
    Tokens apart{0};
    /// KV that it has to load.
    std::vector<std::pair<Medium, KvPiece>> loads{};
    /// Loads and fetches in flight that it waits for alone, and since when it does.
    int awaited = 0;
    /// Tokens of the session's own KV that this fetch brings.
    Tokens fetched{0};
    SimTime waits_since{};
    /// The predicted length of the running response; zero: not asked yet.
    mutable Tokens predicted{0};
  };
  struct Running {
    std::int64_t finish_iteration;
    std::uint64_t arrival;
    SessionSlot slot;
  };
  struct FinishesLater {
    [[nodiscard]] bool operator()(const Running& a, const Running& b) const {
      return a.finish_iteration != b.finish_iteration ? a.finish_iteration > b.finish_iteration
                                                      : a.arrival > b.arrival;
    }
  };
  /// A request that was admitted and whose prompt is not computed.
  struct Prompt {
    SessionSlot slot;
    PrefillPart part;
    /// Tokens that its iteration loads.
    Tokens loaded;
  };

  struct Candidate {
    SessionSlot slot;
    /// kNotQueued of a suspended one.
    QueuePosition position;
  };

  // RunningView
  [[nodiscard]] std::optional<SimDuration> tpot() const override;
  void for_each_running(const std::function<void(SimTime, Tokens)>& visit) const override;

  void proceed();
  void act();
  void schedule();
  /// Notes what the next waiting request waits for from now on.
  void note_wait();
  void admit_all();
  /// The request that is admitted next, a suspended one before all others.
  [[nodiscard]] std::optional<Candidate> next() const;
  /// Whether it can be admitted into the batch as it is now; asks the store for room, and notes in
  /// `lacks_blocks_` if there is none.
  [[nodiscard]] bool admissible(SessionSlot slot);
  void admit(const Candidate& candidate);
  /// Slots that running requests take more, after a change of their blocks.
  void occupy(std::int64_t slots) { requests_.occupy(slots, store_.hbm().used(Account::running)); }
  /// Tokens that running requests add to an iteration with prompts.
  [[nodiscard]] Tokens decoding_tokens() const {
    return Tokens(mixes_ ? static_cast<std::int64_t>(running_.size()) : 0);
  }
  [[nodiscard]] std::int64_t batch_size() const {
    return static_cast<std::int64_t>(running_.size() + prompts_.size() + loading_.size() +
                                     ready_.size());
  }
  /// Suspends requests until the others can decode once more. Without: the GPUs have to wait.
  [[nodiscard]] bool make_room_to_decode();
  void suspend_latest();
  void start_iteration();
  void finish_iteration();
  /// Tokens that the request takes HBM of, or will.
  [[nodiscard]] Tokens own(const Work& work, Tokens length) const { return length - work.apart; }
  [[nodiscard]] Bytes taken(const Work& work, Tokens length) const {
    return block_bytes_ * blocks(own(work, length));
  }
  /// Tokens at the beginning of the context that are stored apart from the session's own.
  [[nodiscard]] Tokens stored_apart(SessionSlot slot) const {
    return shares_ ? requests_.request(slot).shared : Tokens(0);
  }
  void save(SessionSlot slot, Tokens length, Tokens kept);
  /// The prompt is computed by the next iteration.
  void join(const Prompt& prompt);
  void join_ready();
  /// Starts loads that the request waits for alone.
  void start_own_loads(SessionSlot slot);
  void finish_own_load(SessionSlot slot);
  /// The fetch that the request waited for is done; its KV can be loaded from there.
  void finish_fetch(SessionSlot slot, Medium medium);
  void make_ready(SessionSlot slot);
  [[nodiscard]] std::vector<Prompt>::iterator loading(SessionSlot slot);
  void start_loads();
  void finish_load();
  /// The GPUs wait for saves: one that blocks, or more than the write buffer holds.
  [[nodiscard]] bool must_stall() const;
  [[gnu::noinline]] void tell_running_requests();
  void start_decode();
  /// `decodes`: the running requests take part.
  void report_iterations(bool decodes, std::int64_t iterations);
  void finish_decode(std::int64_t iterations);
  void advance(std::int64_t iterations);
  void finish_ended();
  void run(SessionSlot slot);
  void finish_turn(SessionSlot slot);
  void stall();
  /// Counts the stall up to now.
  void count_stall();
  void end_stall();

  [[nodiscard]] std::int64_t blocks(Tokens tokens) const {
    return (tokens.value + block_size_ - 1) / block_size_;
  }
  [[nodiscard]] std::int64_t available() const { return whole_blocks(store_.available()); }
  [[nodiscard]] std::int64_t whole_blocks(Bytes bytes) const {
    return std::max(bytes, Bytes(0)) / block_bytes_;
  }
  /// Blocks that `iterations` more iterations of the running requests take.
  [[nodiscard]] std::int64_t growth(std::int64_t iterations) const;
  /// How many iterations take no more than `blocks`.
  [[nodiscard]] std::int64_t iterations_within(std::int64_t blocks) const;
  /// Running requests that take a block for the iteration number `iteration`.
  [[nodiscard]] std::int64_t& takers(const Work& work) {
    return takers_[static_cast<std::size_t>(modulo(work.length_offset - work.apart.value))];
  }
  [[nodiscard]] std::int64_t modulo(std::int64_t number) const {
    const std::int64_t rest = number % block_size_;
    return rest < 0 ? rest + block_size_ : rest;
  }
  [[nodiscard]] std::int64_t takers_at(std::int64_t iteration) const {
    return takers_[static_cast<std::size_t>(modulo(-iteration))];
  }

  const RunConfig& config_;
  Backend& backend_;
  Requests& requests_;
  SessionStore store_;

  bool mixes_;
  bool shares_;
  /// A request waits for its loads alone.
  bool loads_alone_;
  /// Stored KV of a token up to each layer; as it is loaded.
  std::vector<Bytes> stored_sizes_;
  bool unequal_layers_;
  /// KV of running requests.
  Bytes block_bytes_;
  std::int64_t block_size_;
  Tokens token_budget_;
  /// Blocks that only running requests may take.
  std::int64_t reserve_;

  std::vector<Work> work_;  // by session
  std::uint64_t next_arrival_ = 0;
  /// The first to be admitted is last.
  std::vector<SessionSlot> suspended_;

  Gpu gpu_ = Gpu::idle;
  SimTime gpu_since_;
  SimTime stall_counted_;
  bool stopping_ = false;
  /// The request that was asked about last found no room.
  bool lacks_blocks_ = false;
  std::vector<Prompt> prompts_;
  /// Requests that wait for their KV, and those whose KV has come since the last iteration began.
  std::vector<Prompt> loading_;
  std::vector<Prompt> ready_;
  std::vector<PrefillPart> parts_;  // those of prompts_
  std::vector<EntryKey> keys_;      // those of prompts_
  /// From each medium, of those of prompts_ that load.
  std::array<std::vector<KvPiece>, kMedia> loads_;
  std::vector<TransferId> load_;
  Medium slowest_load_ = Medium::hbm;
  int loads_in_flight_ = 0;
  Tokens loaded_now_;
  Tokens prompt_tokens_;
  std::vector<Running> running_;  // a heap, the first to finish in front
  std::int64_t iteration_ = 0;
  Tokens context_;
  /// Running requests by their length offset, modulo the block size: at the iteration with which it
  /// adds up to a multiple of that, their last block is full.
  std::vector<std::int64_t> takers_;
  /// Integral of decode time over the number of running requests.
  SimDuration decode_per_request_;
  std::array<Bytes, kMedia> loaded_{};
  SimDuration last_decode_;
  std::int64_t last_iterations_ = 0;
  LengthPredictor predictor_;
  std::int64_t preemptions_ = 0;
};

}  // namespace kvtier
