#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/engine/batcher.hpp"
#include "sim/engine/contexts.hpp"
#include "sim/engine/requests.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Continuous batching over a store of blocks that any request may share (vLLM v1's scheduler,
/// engines.md 1.2). Each iteration has a budget of tokens. Running requests come first, in the
/// order in which they were admitted: a token of each that decodes, and the next chunk of each
/// prompt in work. If one finds no room, the request that was admitted last is preempted: it gives
/// its memory back, and waits again before all others. If none was, waiting requests are admitted
/// in order while the budget and the slots last, each if all of its prompt has room; memory is
/// taken chunk by chunk.
///
/// A request whose KV is found in the tier behind HBM waits for it while others run
/// (`/system/load/wait: request`), and so does one that found blocks which another still loads.
/// The tier behind HBM finds blocks from the moment it takes them, while their copy still moves. If
/// no prompt is in work, a decode runs in one jump to the iteration at which a request ends
/// or blocks run out.
class BlockBatcher final : public Batcher {
 public:
  struct Setup {
    const RunConfig* config = nullptr;
    const PolicyRegistry* registry = nullptr;
    Backend* backend = nullptr;
    Requests* requests = nullptr;
    /// A plain store of one object per block: the same, slowly.
    bool plain_store = false;
  };
  explicit BlockBatcher(const Setup& setup);

  void on_cut(SessionSlot slot, const Truncation& cut) override;
  void on_turn(SessionSlot slot) override;
  void on_enqueued(SessionSlot, QueuePosition) override { proceed(); }
  void on_completion(Completion completion) override;
  [[nodiscard]] std::size_t tier_count() const override { return tiers_.size(); }
  [[nodiscard]] Medium medium(std::size_t tier) const override { return tiers_[tier]->medium(); }
  [[nodiscard]] TierCounters counters(std::size_t tier) const override;
  [[nodiscard]] const Pool& hbm() const override { return *tiers_.front(); }
  [[nodiscard]] std::size_t stored_entries() const override { return 0; }
  [[nodiscard]] Bytes loaded_bytes(Medium medium) const override {
    return tiers_.size() > 1 && medium == tiers_[1]->medium() ? loaded_ : Bytes(0);
  }
  [[nodiscard]] PrefetchCounters prefetches() const override { return {}; }
  [[nodiscard]] std::int64_t preemptions() const override { return preemptions_; }
  [[nodiscard]] const BlockHits* block_hits() const override { return &hits_; }
  void check_invariants() const override;

 private:
  static constexpr Tokens kMostIterations{std::int64_t{1} << 40};

  enum class Gpu : std::uint8_t { idle, iteration, decode };

  /// A turn between its arrival and its end.
  struct Work {
    TurnContent content;
    RequestId id;
    /// Tokens that its prefill needs KV of: those of the prompt, and of what it had generated when
    /// it was preempted.
    Tokens prompt;
    /// KV exists, and memory is taken, of so many.
    Tokens computed;
    Tokens held;
    Tokens generated;
    /// In the iteration in work: tokens of its prompt, or one of its response.
    Tokens chunk;
    bool decodes_now = false;
    /// By tier, when it was admitted first.
    std::vector<Tokens> found;
    /// It loads the blocks between these tokens, if any.
    Tokens loads_from;
    Tokens loads_to;
    /// Loads that it waits for, and requests that wait for its load.
    int awaited = 0;
    std::vector<SessionSlot> followers;
  };

  void proceed();
  void schedule();
  void note_wait();
  [[nodiscard]] bool has_candidate() const;
  /// Memory for what each running request does next, in order. False: one was preempted.
  [[nodiscard]] bool make_room(Tokens& budget);
  /// Its memory grows to so many tokens. False: it was preempted itself.
  [[nodiscard]] bool hold(SessionSlot slot, Tokens tokens, bool& preempted);
  [[nodiscard]] bool grow(Work& work, Tokens tokens);
  void set_computed(Work& work, Tokens tokens);
  void preempt_last();
  void admit_all(Tokens& budget);
  [[nodiscard]] bool admit(SessionSlot slot, bool again, QueuePosition position, Tokens& budget);
  void begin_load(SessionSlot slot, const Match& match);
  [[nodiscard]] std::vector<SessionSlot> loads_met(const Context& found) const;
  void end_load(SessionSlot slot);
  void finish_iteration();
  void finish_decode(std::int64_t iterations);
  /// The request has so many tokens more.
  void decode(SessionSlot slot, std::int64_t iterations);
  void finish_turn(SessionSlot slot);
  void let_go(SessionSlot slot);
  [[nodiscard]] Context context(const Work& work, Tokens tokens) const {
    return {tokens > work.content.prompt.tokens ? work.content.whole.stream
                                                : work.content.prompt.stream,
            tokens};
  }
  [[nodiscard]] std::int64_t blocks(Tokens tokens) const {
    return (tokens.value + block_ - 1) / block_;
  }
  /// How many iterations the free blocks last, of at most so many.
  [[nodiscard]] std::int64_t iterations_within_room(std::int64_t most) const;
  /// Accounts and transfers follow what the store has done.
  void settle();
  [[nodiscard]] Bytes bytes(std::int64_t blocks) const { return block_bytes_ * blocks; }

  const RunConfig& config_;
  Backend& backend_;
  Requests& requests_;
  Contexts contexts_;
  std::vector<std::unique_ptr<Pool>> tiers_;
  std::unique_ptr<Store> store_;

  std::int64_t block_;
  Bytes bytes_per_token_;
  Bytes block_bytes_;
  /// Blocks of HBM.
  std::int64_t capacity_ = 0;
  Tokens budget_;
  Tokens chunk_;

  std::vector<Work> work_;  // by session
  /// In the order of their admission.
  std::vector<SessionSlot> running_;
  /// The first to be admitted is last.
  std::vector<SessionSlot> preempted_;
  std::vector<SessionSlot> loading_;

  Gpu gpu_ = Gpu::idle;
  SimTime gpu_since_;
  bool stopping_ = false;
  bool lacks_room_ = false;
  std::vector<SessionSlot> prompts_;
  std::vector<PrefillPart> parts_;  // those of prompts_
  std::vector<EntryKey> keys_;      // those of prompts_
  std::int64_t decoding_ = 0;
  Tokens context_;
  SimDuration decode_per_request_;

  std::vector<PoolCounters> counted_;
  Bytes loaded_;
  /// Requests admitted since slots were counted, less those that have left.
  std::int64_t slots_ = 0;
  std::int64_t preemptions_ = 0;
  BlockHits hits_;
};

}  // namespace kvtier
