#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sim/serving/block_batcher.hpp"

namespace kvtier {

/// SGLang's scheduler (engines.md 2.2) over a radix tree of KV: batches of prompts come before the
/// decode of the running requests, and do not mix with it. A batch has a budget of tokens, in whole
/// blocks. A prompt that exceeds what is left of it is cut there, goes on first in the next batch,
/// and none is cut beside it.
///
/// A request is admitted if its prompt and its response have room beside what the running requests
/// are expected to take yet: a share of the rest of each response (`/system/blocks/response_room`).
/// If one has none, requests are admitted again only when a running one has left. When a decode
/// finds no room, the requests with the shortest responses, and of those the longest prompts, are
/// preempted: nothing of theirs is published, and they wait at the end of the queue. The share
/// falls with each decode, and is estimated anew by a preemption.
///
/// A prompt's hits are locked when it is admitted; the memory of the batch is taken when all of its
/// prompts are chosen. KV found behind HBM is loaded while the batch computes.
///
/// KV is copied to the tier behind HBM from the end of the batch that computed it. If it is written
/// there on eviction, a batch waits for the copies that free its memory. It also waits while copies
/// to storage and prefetches keep nodes where they are; SGLang fails there. Requests that wait
/// prefetch from the storage behind that tier (engines.md 2.3), and are passed over as
/// `/system/blocks/storage_fetch` says. Storage reads for one request and writes one node at a
/// time. The scheduler notices finished copies and prefetches when it puts the next batch together.
class PrefillBatches final : public BlockBatcher {
 public:
  explicit PrefillBatches(const Setup& setup);

 private:
  void on_enqueued(SessionSlot slot, QueuePosition position) override;
  bool plan() override;
  [[nodiscard]] bool has_candidate() const override;
  void on_decoded(std::int64_t iterations) override;
  void on_copied(std::uint64_t tier, std::uint32_t id) override;
  void on_prefetched(std::uint32_t id) override;
  void on_deadline() override;
  [[nodiscard]] SessionSlot turn_without_room() const override { return without_room_; }
  [[nodiscard]] bool take_memory() override;
  [[nodiscard]] bool waits_for_storage() const override {
    return passed_over_ > 0 && !any_candidate();
  }
  void check_invariants() const override;

  enum class Chosen : std::uint8_t { yes, no_room, no_budget };

  void choose_prompts();
  void choose_waiting();
  void refresh_waiting();
  /// False: it has no room now.
  [[nodiscard]] bool continue_chunked();
  [[nodiscard]] Chosen choose(SessionSlot slot);
  /// Tokens of a prompt that the batch computes behind the known ones.
  [[nodiscard]] Tokens step(Tokens prompt, Tokens known) const;
  [[nodiscard]] bool decode_all();
  /// False: the last request that runs has to wait for room.
  [[nodiscard]] bool preempt_for_decode();
  /// Copies or prefetches go on, which keep KV where it is. If not, the request has no room.
  void expect_more_room(SessionSlot slot);
  /// Blocks that the next token of each takes.
  [[nodiscard]] std::int64_t next_blocks(const std::vector<SessionSlot>& slots) const;
  [[nodiscard]] std::vector<SessionSlot> decoding_slots() const;
  /// Tokens of its response that it is allowed.
  [[nodiscard]] Tokens longest_response(SessionSlot slot) const;
  [[nodiscard]] Tokens rest_of_response(SessionSlot slot) const;
  [[nodiscard]] Tokens in_blocks(Tokens tokens) const { return Tokens(blocks(tokens) * block_); }
  /// Tokens that are available beside what is expected of others.
  [[nodiscard]] double remaining() const;
  void reserve(Tokens prompt, Tokens response);
  [[nodiscard]] double share() const;

  /// KV that comes from storage for a request, batch by batch.
  struct PrefetchInFlight {
    SessionSlot slot = 0;
    Prefetch wanted;
    Tokens came;
    /// It has been reached by the scheduler, which passes it over until then.
    std::optional<SimTime> deadline;
    bool passed_over = false;

    [[nodiscard]] bool is_complete() const { return came == wanted.tokens; }
  };
  void begin_prefetch(SessionSlot slot);
  /// Names the next `tokens` tokens in pieces_.
  void add_prefetched(const PrefetchInFlight& prefetch, Tokens tokens);
  void read_next();
  void end_prefetch(std::uint32_t id);
  /// Whether the scheduler may choose the request; if not, it is passed over.
  [[nodiscard]] bool is_prefetched(SessionSlot slot);
  /// Returns whether there were any.
  bool note_ends();
  [[nodiscard]] bool any_candidate() const { return requests_.queue_length() > passed_over_; }

  ResponseRoomConfig room_;
  /// The prompt that was cut.
  std::optional<SessionSlot> chunked_;
  /// No request is admitted until one leaves of those that ran last.
  bool full_ = false;
  std::size_t ran_ = 0;
  /// The last one that had no room.
  SessionSlot without_room_ = 0;
  /// Requests of the batch that lack memory for what they do in it.
  std::vector<SessionSlot> lacking_;
  bool refreshes_;
  std::int64_t passes_ = 0;

  StorageFetchConfig storage_;
  /// In the order in which they began. Storage is read for the first that is not complete.
  std::map<std::uint32_t, PrefetchInFlight> prefetches_;
  bool reading_ = false;
  std::size_t passed_over_ = 0;
  /// Copies, by tier, that have ended since the last batch.
  std::array<std::vector<std::uint32_t>, 3> copied_;

  // The batch that is being chosen.
  Tokens left_;
  double expected_ = 0;

  // The share of responses that room is kept for.
  double first_share_;
  std::int64_t decodes_since_ = 0;
  /// The decode that begins follows a preemption, and does not lower it.
  bool keeps_share_ = false;
};

}  // namespace kvtier
