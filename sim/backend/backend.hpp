#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "hw/timing/layer_schedule.hpp"
#include "hw/timing/timing_model.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/ids.hpp"

/// The machine under the control plane: a simulated clock with the timing model, or real devices
/// with a wall clock. The control plane cannot tell which.
namespace kvtier {

/// Memories of KV, from the GPUs outwards.
enum class Medium : std::uint8_t { hbm, dram, cxl, ssd };
inline constexpr std::size_t kMedia = 4;
[[nodiscard]] const char* to_string(Medium medium);

/// The number of a transfer. It is valid until the completion is reported; that of an open transfer
/// also until it is extended. Later it is reused.
struct TransferId {
  std::uint32_t value = UINT32_MAX;
  friend constexpr bool operator==(TransferId, TransferId) = default;
  [[nodiscard]] constexpr bool valid() const { return value != UINT32_MAX; }
};

/// Consecutive tokens of an entry, or of a stream of blocks.
struct KvPiece {
  EntryKey key;
  /// Position of the first token.
  Tokens first;
  Tokens count;
  /// The turn to which the copy belongs instead of the entry or stream.
  std::optional<EntryKey> turn{};
};

/// A copy of blocks that comes into a medium.
struct BlockCopy {
  Medium to;
  /// Whole blocks of `to`.
  KvPiece blocks;
  /// The request whose memory in HBM the blocks are, or may move from.
  std::optional<EntryKey> request{};
  /// Not HBM: the KV of these tokens is what moves there.
  Medium from = Medium::hbm;
  std::span<const KvPiece> source{};
};

struct TransferCommand {
  Medium from;
  Medium to;
  Bytes bytes;
  EntryKey key;
  /// Tokens [first, end) of the entry move. `to` has the tokens before `first` at the start, and
  /// those before `end` at the end.
  Tokens first;
  Tokens end;
  /// Returned with the completion.
  std::uint64_t cookie = 0;
  /// The transfer will be extended later, during or after its move. Its completion is reported only
  /// after that.
  bool open = false;
  /// Reports also when an open transfer has moved all its bytes before it is extended.
  bool notify_when_drained = false;
  /// Parts of entries, or blocks, that move in place of `first` to `end`. Read during the call
  /// only.
  std::span<const KvPiece> pieces{};
  /// An open transfer moves the layers before this one, another transfer the layers from this one
  /// on. 0: all layers.
  std::int64_t layer = 0;
};

struct PrefillCommand {
  PrefillPart part;
  /// The session of the turn.
  EntryKey key;
  /// Loads of the past tokens' KV, one from each medium; none if all of it is in HBM. Read during
  /// the call only.
  std::span<const TransferId> loads{};
  LayerSchedule schedule{};
};

/// The shared prompt of a turn, if its KV is an entry of its own. Positions of the turn's own
/// tokens start at its end.
struct TurnPrompt {
  EntryKey key;
  Tokens tokens;
  /// Whether its KV is in HBM or part of the turn's load. Otherwise the turn's prefill computes it.
  bool exists = false;
  /// Whether the turn uses the entry's copy in HBM, which other turns share. Otherwise the turn has
  /// its own copy until it ends.
  bool shared = false;
};

struct DecodeCommand {
  std::int64_t batch = 0;
  /// Tokens whose KV the whole batch reads in the first iteration; grows by `batch` each iteration.
  Tokens context;
  std::int64_t iterations = 0;
};

/// One pass over the model that prefills requests and computes a token of each running one.
struct IterationCommand {
  /// At least one; read during the call only.
  std::span<const PrefillPart> parts;
  /// The sessions of the running requests; read during the call only.
  std::span<const EntryKey> keys;
  std::int64_t decode_batch = 0;
  /// Tokens whose KV the running requests read.
  Tokens decode_context;
  /// Loads of the past tokens' KV of all parts, one from each medium; none if all of it is in HBM.
  /// Read during the call only.
  std::span<const TransferId> loads{};
  LayerSchedule schedule{};
};

struct IterationTime {
  /// Time without waiting for KV.
  SimDuration compute;
  /// Time of the running requests alone, at most `compute`.
  SimDuration decode;
};

enum class CompletionKind : std::uint8_t { prefill, decode, transfer, timer };

struct Completion {
  CompletionKind kind = CompletionKind::timer;
  /// timer: its payload; transfer: its cookie; decode: completed iterations; prefill: nanoseconds
  /// of compute, without waiting for KV.
  std::uint64_t payload = 0;
};

/// One instance's devices. One GPU command (prefill, iteration or decode) runs at a time; transfers
/// run beside it.
class Backend {
 public:
  virtual ~Backend() = default;
  /// The time of the last reported completion. The control plane acts at this instant.
  [[nodiscard]] SimTime now() const { return now_; }
  /// Advances the clock to the next completion. Completions of one instant come in the order of
  /// CompletionKind, then in the order of the calls. Throws InvariantError if nothing is pending.
  virtual Completion wait() = 0;
  /// Whether a completion is pending.
  [[nodiscard]] virtual bool pending() const = 0;
  virtual void set_timer(SimTime at, std::uint64_t payload) = 0;
  virtual TransferId start_transfer(const TransferCommand& command) = 0;
  /// Adds the last bytes to an open transfer: these tokens, or the other layers of its tokens.
  /// False if it has moved all its bytes. It has then ended, and these bytes need a transfer of
  /// their own.
  [[nodiscard]] virtual bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                             Tokens end) = 0;
  /// Bytes of transfers from one medium to another that have started and not moved yet.
  [[nodiscard]] virtual Bytes in_flight(Medium /*from*/, Medium /*to*/) const { return Bytes(0); }
  virtual void start_prefill(const PrefillCommand& command) = 0;
  /// Completes as a prefill does.
  virtual void start_iteration(const IterationCommand& command) = 0;
  /// Time of the iteration that completed last.
  [[nodiscard]] virtual IterationTime iteration_time() const = 0;
  virtual void start_decode(const DecodeCommand& command) = 0;
  /// Ends the running decode after the current iteration.
  virtual void stop_decode() = 0;
  /// The end of an iteration, from 1 on, of the decode that completed last, but for its last one.
  /// Throws InvariantError if the backend does not know it.
  [[nodiscard]] virtual SimTime iteration_end(std::int64_t /*iteration*/) const {
    KVTIER_ASSERT(false, "the backend knows when each iteration ended");
    return now_;
  }

  // Calls about stored KV. A simulated clock ignores them; memories with bytes need them.

  /// Names the shared prompt that the session's turn begins with; called before its prefill starts.
  virtual void begin_with(EntryKey, const TurnPrompt&) {}
  /// The running sessions. The next decode or iteration computes a token of each. Called only if
  /// the backend has bytes.
  virtual void decode_next(std::span<const EntryKey>) {}
  /// Tokens that each running request reads in the next decode or iteration. Called only if
  /// wants_contexts(). Read during the call only.
  virtual void decode_contexts(std::span<const Tokens>) {}
  /// The session's turn has ended: its request computes no further token.
  virtual void end_request(EntryKey) {}
  /// The medium keeps the first `tokens` tokens of this entry, and the room of the others is free.
  /// For HBM, the entry's turn must not be running.
  void set_resident_prefix(Medium medium, EntryKey key, Tokens tokens) {
    if (has_bytes_) [[unlikely]] {
      on_resident_prefix(medium, key, tokens);
    }
  }
  /// Removes the `dropped` tokens after the first `kept` ones, in every medium and in flight. Later
  /// tokens move up.
  virtual void cut(EntryKey, Tokens /*kept*/, Tokens /*dropped*/) {}

  // The same for stores of blocks. Pieces name tokens of streams. Called only if the backend has
  // bytes.

  /// A request begins, or goes on after a preemption. These are the tokens of its context, from the
  /// first one on.
  virtual void begin_request(EntryKey, std::span<const KvPiece> /*context*/) {}
  /// The request's context begins with these blocks of HBM, in place of blocks of its own.
  virtual void share_blocks(EntryKey, std::span<const KvPiece>) {}
  /// Blocks come into a medium. In HBM they are blocks of the request, computed or not. In another
  /// medium, a transfer brings them: one that begins later, or one that has arrived.
  virtual void add_blocks(const BlockCopy&) {}
  /// The blocks of the request may leave HBM. Those without a copy elsewhere may be added there
  /// until end_request.
  virtual void release_request(EntryKey) {}
  /// A copy of each of these blocks, which no request uses, leaves the medium.
  virtual void remove_blocks(Medium, const KvPiece&) {}
  /// Blocks that transfers with this cookie have brought, and that were not added, are not needed.
  virtual void drop_arrivals(std::uint64_t /*cookie*/) {}
  /// Whether the backend needs the calls `set_resident_prefix` and `decode_next`, which come
  /// several times a turn.
  [[nodiscard]] bool has_bytes() const { return has_bytes_; }
  /// Whether the backend needs the calls `decode_contexts`.
  [[nodiscard]] bool wants_contexts() const { return wants_contexts_; }
  /// has_bytes() or wants_contexts().
  [[nodiscard]] bool wants_running() const { return wants_running_; }

 protected:
  explicit Backend(bool has_bytes = false, bool wants_contexts = false)
      : has_bytes_(has_bytes),
        wants_contexts_(wants_contexts),
        wants_running_(has_bytes || wants_contexts) {}
  virtual void on_resident_prefix(Medium, EntryKey, Tokens) {}

  SimTime now_;

 private:
  bool has_bytes_;
  bool wants_contexts_;
  bool wants_running_;
};

}  // namespace kvtier
