#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/serving/block_batcher.hpp"
#include "sim/serving/length_predictor.hpp"

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
class PrefillBatches final : public BlockBatcher {
 public:
  explicit PrefillBatches(const Setup& setup);

 private:
  bool plan() override;
  [[nodiscard]] bool has_candidate() const override;
  void on_decoded(std::int64_t iterations) override;

  enum class Chosen : std::uint8_t { yes, no_room, no_budget };

  void choose_prompts();
  void refresh_waiting();
  /// False: it has no room now.
  [[nodiscard]] bool continue_chunked();
  [[nodiscard]] Chosen choose(SessionSlot slot);
  [[nodiscard]] bool decode_all();
  void preempt_for_decode();
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

  ResponseRoomConfig room_;
  LengthPredictor predictor_;
  /// The prompt that was cut.
  std::optional<SessionSlot> chunked_;
  /// No request is admitted until one leaves.
  bool full_ = false;
  bool refreshes_;
  std::int64_t passes_ = 0;

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
