#pragma once

#include <cstdint>
#include <span>

#include "hw/timing/timing_model.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"

/// What the control plane runs on: a simulated clock and the timing model, or real devices and a
/// wall clock. The control plane cannot tell which.
namespace kvtier {

/// Where KV can lie, from the GPUs outwards.
enum class Medium : std::uint8_t { hbm, dram, cxl, ssd };
inline constexpr std::size_t kMedia = 4;
[[nodiscard]] const char* to_string(Medium medium);

/// Names a transfer until its completion has been reported or, of an open one, until it has been
/// extended; then the number is used again.
struct TransferId {
  std::uint32_t value = UINT32_MAX;
  friend constexpr bool operator==(TransferId, TransferId) = default;
  [[nodiscard]] constexpr bool valid() const { return value != UINT32_MAX; }
};

/// Tokens of an entry that lie behind each other.
struct KvPiece {
  EntryKey key;
  /// Position of the first one.
  Tokens first;
  Tokens count;
  /// What arrives is no copy of the entry's but of the turn alone that the transfer is for.
  bool for_turn = false;
};

struct TransferCommand {
  Medium from;
  Medium to;
  Bytes bytes;
  EntryKey key;
  /// Tokens of the entry that it moves, without `end`. Before, `to` has those before `first` and
  /// none behind; after, those before `end`.
  Tokens first;
  Tokens end;
  /// Given back with the completion.
  std::uint64_t cookie = 0;
  /// More bytes will follow: the transfer is extended later, moving or not, and its completion is
  /// reported only then.
  bool open = false;
  /// The end of an open transfer that has moved all it had before it was extended is reported, too.
  bool tells_end = false;
  /// Parts of entries that move, or several for one turn, instead of `first` to `end`. Looked at
  /// during the call only.
  std::span<const KvPiece> pieces{};
  /// An open transfer moves the layers of these tokens before this one, another transfer those from
  /// this one on. 0: all layers.
  std::int64_t layer = 0;
};

struct PrefillCommand {
  PrefillPart part;
  /// The session whose turn it is.
  EntryKey key;
  /// The transfers that bring the past tokens' KV, one from each medium; none if all of it is in
  /// HBM. Looked at during the call only.
  std::span<const TransferId> loads{};
  /// Layers whose KV is in HBM already when the prefill starts.
  std::int64_t ready_layers = 0;
  /// Bytes of the KV that is loaded up to and with each layer, in the same proportion; none: all
  /// layers have as much. Looked at until the load is done.
  std::span<const Bytes> up_to_layers{};
  /// Compute starts when all KV is there, instead of layer by layer.
  bool wait_for_all_layers = false;
};

/// The prompt that a turn's context begins with, where its KV is an entry of its own. What the turn
/// has itself is counted from behind it.
struct TurnPrompt {
  EntryKey key;
  Tokens tokens;
  /// Its KV is in HBM, or comes with the turn's load; else the turn's prefill computes it.
  bool exists = false;
  /// It is the entry's in HBM, which turns use together; else the turn's alone until it ends.
  bool shared = false;
};

struct DecodeCommand {
  std::int64_t batch = 0;
  /// Tokens whose KV the first iteration reads, over the whole batch; grows by `batch` each
  /// iteration.
  Tokens context;
  std::int64_t iterations = 0;
};

/// One pass over the model that prefills requests and computes a token of each running one.
struct IterationCommand {
  /// One at least; looked at during the call only.
  std::span<const PrefillPart> parts;
  /// The sessions whose turns they are; looked at during the call only.
  std::span<const EntryKey> keys;
  std::int64_t decode_batch = 0;
  /// Tokens whose KV the running requests read.
  Tokens decode_context;
  /// The transfers that bring the past tokens' KV of all parts, one from each medium; none if all
  /// of it is in HBM. Looked at during the call only.
  std::span<const TransferId> loads{};
  /// As of a prefill.
  std::span<const Bytes> up_to_layers{};
  /// Compute starts when all KV is there, instead of layer by layer.
  bool wait_for_all_layers = false;
};

struct IterationTime {
  /// Without waiting for KV.
  SimDuration compute;
  /// What the running requests alone would have taken, never more than `compute`.
  SimDuration decode;
};

enum class CompletionKind : std::uint8_t { prefill, decode, transfer, timer };

struct Completion {
  CompletionKind kind = CompletionKind::timer;
  /// timer: its payload; transfer: its cookie; decode: iterations done; prefill: nanoseconds of
  /// compute, without waiting for KV.
  std::uint64_t payload = 0;
};

/// One instance's devices. One GPU command (prefill, iteration or decode) runs at a time; transfers
/// run beside it.
class Backend {
 public:
  virtual ~Backend() = default;
  /// When the completion that was reported last happened: what the control plane does about it, it
  /// does at that instant.
  [[nodiscard]] SimTime now() const { return now_; }
  /// Advances the clock to the next completion. Completions of one instant come in the order of
  /// CompletionKind, then in the order in which they were asked for. Throws InvariantError if
  /// nothing is pending.
  virtual Completion wait() = 0;
  /// Whether any completion is still to come.
  [[nodiscard]] virtual bool pending() const = 0;
  virtual void set_timer(SimTime at, std::uint64_t payload) = 0;
  virtual TransferId start_transfer(const TransferCommand& command) = 0;
  /// Adds the last bytes to an open transfer: these tokens, or the other layers of its tokens.
  /// False if it has moved all it had: it is over then, and these bytes need a transfer of their
  /// own.
  [[nodiscard]] virtual bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                             Tokens end) = 0;
  virtual void start_prefill(const PrefillCommand& command) = 0;
  /// Completes as a prefill does.
  virtual void start_iteration(const IterationCommand& command) = 0;
  /// Of the iteration that completed last.
  [[nodiscard]] virtual IterationTime iteration_time() const = 0;
  virtual void start_decode(const DecodeCommand& command) = 0;
  /// Ends the running decode after the iteration in work.
  virtual void stop_decode() = 0;

  // What the control plane says of the KV that is stored. A clock alone needs none of it; memories
  // with bytes in them do.

  /// What the session's turn has of the prompt that it begins with; before its prefill starts.
  virtual void begin_with(EntryKey, const TurnPrompt&) {}
  /// The running sessions, of which the decode or iteration that starts next computes a token each;
  /// only if the backend has bytes.
  virtual void decode_next(std::span<const EntryKey>) {}
  /// Tokens whose KV each running request reads in the decode or iteration that starts next; only
  /// if the backend wants_contexts. Looked at during the call only.
  virtual void decode_contexts(std::span<const Tokens>) {}
  /// The session's turn has ended: its request computes no further token.
  virtual void end_request(EntryKey) {}
  /// Of this entry the medium holds the first `tokens` ones, and none behind them any more; their
  /// room is free. HBM: of a turn that does not run.
  void keep(Medium medium, EntryKey key, Tokens tokens) {
    if (has_bytes_) [[unlikely]] {
      on_keep(medium, key, tokens);
    }
  }
  /// In every medium, and of what is on its way, the `dropped` tokens behind the first `kept` ones
  /// go, and those behind them move up.
  virtual void cut(EntryKey, Tokens /*kept*/, Tokens /*dropped*/) {}
  /// Whether it wants to hear `keep` and `decode_next`, which are said several times a turn.
  [[nodiscard]] bool has_bytes() const { return has_bytes_; }
  /// Whether it wants to hear `decode_contexts`.
  [[nodiscard]] bool wants_contexts() const { return wants_contexts_; }
  /// Either of the two.
  [[nodiscard]] bool wants_running() const { return wants_running_; }

 protected:
  explicit Backend(bool has_bytes = false, bool wants_contexts = false)
      : has_bytes_(has_bytes),
        wants_contexts_(wants_contexts),
        wants_running_(has_bytes || wants_contexts) {}
  virtual void on_keep(Medium, EntryKey, Tokens) {}

  SimTime now_;

 private:
  bool has_bytes_;
  bool wants_contexts_;
  bool wants_running_;
};

}  // namespace kvtier
