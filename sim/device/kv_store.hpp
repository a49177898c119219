#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hw/device/decoder.hpp"
#include "hw/device/device.hpp"
#include "hw/device/ring_load.hpp"
#include "hw/device/storage.hpp"
#include "sim/backend/backend.hpp"
#include "sim/device/free_slots.hpp"

/// The map from entries and blocks to memory: HBM, host memory, CXL memory (a region of host
/// memory) and a file on a drive. A slot holds one token. An entry has a list of slots in each
/// medium, for its first tokens. A block of a stream has a list of slots for each of its copies.
namespace kvtier {

/// The stream and storage engine with which one thread moves KV.
struct MoveLane {
  Stream* stream = nullptr;
  /// Null: the lane cannot reach a drive.
  StorageEngine* storage = nullptr;
  /// Host memory for this lane alone: for moves between drive and HBM, and to read back written
  /// data.
  std::span<std::byte> scratch{};
};

/// The extension of an open transfer: these tokens, or the other layers of its tokens.
[[nodiscard]] inline TransferCommand rest_of(TransferCommand command, Tokens first, Tokens end) {
  command.open = false;
  command.first = first;
  command.end = end;
  return command;
}

/// A move of some tokens, or of some of their layers. Its slots stay taken until `end`, even if the
/// entries change.
struct KvMove {
  Medium from = Medium::hbm;
  Medium to = Medium::hbm;
  /// Layers `first_layer` .. `last_layer` - 1.
  std::int64_t first_layer = 0;
  std::int64_t last_layer = 0;
  std::vector<KvPiece> pieces;
  /// Slots of the tokens of all pieces, in order.
  std::vector<std::int32_t> from_slots;
  std::vector<std::int32_t> to_slots;
};

class KvStore {
 public:
  struct Setup {
    Device* device = nullptr;
    DecoderShape shape;
    /// Tokens of each medium; 0: not used. HBM is always there.
    std::array<std::int64_t, kMedia> slots{};
    /// Tokens of a block of each medium; 0: it holds entries.
    std::array<std::int64_t, kMedia> block{};
    /// Folder of the file, if there is a drive.
    std::string directory;
    /// Lanes that have scratch memory.
    std::int64_t lanes = 1;
    /// Called while the file is filled, before it has KV.
    std::function<void()> check = [] {};
    /// Replaces the file in `directory`; for tests.
    std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open_storage{};
    /// Compares each token's bytes in each layer after every move with the computed ones. Slots of
    /// HBM are NaN until they are written. KV computed from NaN is refused.
    bool verify = false;
  };
  /// Throws DeviceError if memory is short, the drive cannot be used, or a token's KV is not a
  /// multiple of the drive's blocks.
  explicit KvStore(const Setup& setup);
  ~KvStore();

  [[nodiscard]] const KvPool& hbm() const { return hbm_; }
  [[nodiscard]] Bytes token_bytes() const { return token_; }
  [[nodiscard]] std::span<std::byte> scratch(std::int64_t lane) const;
  /// An engine that reaches the file from host memory; null without a drive.
  [[nodiscard]] std::unique_ptr<StorageEngine> open_engine() const;

  // Any thread may call these.

  /// The number of the entry's tokens in the medium. With blocks, the request's tokens in HBM whose
  /// KV is computed or loaded.
  [[nodiscard]] std::int64_t tokens(Medium medium, EntryKey key) const;
  /// Frees all tokens after the first `tokens` of the entry. Throws InvariantError if one of the
  /// first tokens is missing. The last token of a turn in HBM is an exception: it was never an
  /// input, and gets a copy of the KV before it.
  void set_resident_prefix(Medium medium, EntryKey key, std::int64_t tokens);
  /// Removes `dropped` tokens after the first `kept` ones in all media.
  void cut(EntryKey key, std::int64_t kept, std::int64_t dropped);
  /// The entry's context in HBM: the head of its turn, if it has one, its first `past` tokens, and
  /// room for `added` more.
  std::vector<std::int32_t> extend(EntryKey key, std::int64_t past, std::int64_t added);
  /// Makes the turn's context begin with the entry of the prompt, which must stay in HBM until
  /// drop_head.
  void share_head(EntryKey turn, EntryKey prompt, std::int64_t tokens);
  /// Makes the turn's context begin with `tokens` slots of its own.
  void take_head(EntryKey turn, std::int64_t tokens);
  [[nodiscard]] std::vector<std::int32_t> head(EntryKey turn) const;
  void drop_head(EntryKey turn);

  // Blocks (kv_blocks.cpp). Their pieces name tokens of streams.

  void begin_request(EntryKey request, std::span<const KvPiece> context);
  /// Blocks that the request has in HBM may leave. It keeps their slots until its end.
  void release_request(EntryKey request);
  void end_request(EntryKey request);
  /// The request's context begins with the slots of these blocks in HBM.
  void share_blocks(EntryKey request, std::span<const KvPiece> blocks);
  /// In HBM the blocks have slots of the request. Elsewhere they have those of the transfer that
  /// has brought them; if none has, they get slots, and their source stays until the transfer
  /// begins.
  void add_blocks(const BlockCopy& copy);
  /// Throws InvariantError if they are not there, or if a request uses them.
  void remove_blocks(Medium medium, const KvPiece& blocks);
  /// Frees blocks that transfers with this cookie have brought and that were not added.
  void drop_arrivals(std::uint64_t cookie);
  /// Names of the tokens `first` .. `first` + `count` - 1 of a context: a stream's or an entry's
  /// key and the position there.
  [[nodiscard]] std::vector<std::pair<EntryKey, std::int64_t>> names(EntryKey key,
                                                                     std::int64_t first,
                                                                     std::int64_t count) const;

  /// Records the checksums of these computed slots of HBM, if moves are verified. Throws
  /// DeviceError for NaN.
  void note_computed(std::span<const std::int32_t> slots, const MoveLane& lane);
  /// Takes room for tokens behind the tokens of their entries in `to`, or for the head of the turn.
  /// Later layers already have room. A drive that cannot read single layers reads
  /// all with the first. Throws InvariantError if `from` does not have the tokens.
  [[nodiscard]] KvMove begin(const TransferCommand& command);
  /// Moves layers `first` .. `last` - 1, between HBM and host memory, by queueing copies.
  void queue_layers(const KvMove& move, std::int64_t first, std::int64_t last, Stream& stream);
  /// Whether a layer can be read from the drive without the others.
  [[nodiscard]] bool reads_layers() const { return row_.value % kStorageAlignment == 0; }
  /// Moves layers from the drive to HBM, one after another if reads_layers(). Calls
  /// on_layer(layer) once all copies of that layer are queued on the lane's stream, where they may
  /// still be in flight. The lane's scratch memory is the ring of load_through_ring.
  void load_from_drive(const KvMove& move, const MoveLane& lane,
                       const std::function<void(std::int64_t layer)>& on_layer) const;
  /// Moves all tokens, and verifies them if moves are verified. Throws DeviceError for a wrong
  /// byte, with the entry, token, layer and media.
  void move(const KvMove& move, const MoveLane& lane);
  /// Ends a move by layers; compares its bytes if moves are verified.
  void verify(const KvMove& move, const MoveLane& lane);
  void end(const KvMove& move);

  /// Number of slots that entries hold. Moves may hold more slots, of cancelled KV.
  [[nodiscard]] std::int64_t held(Medium medium) const;
  struct Counters {
    std::int64_t moves = 0;
    Bytes moved;
    Bytes verified;
  };
  [[nodiscard]] Counters counters() const;
  /// Throws InvariantError unless all taken slots belong to entries. Nothing may move.
  void check_invariants() const;

 private:
  /// Slots of one medium, with the number of entries and moves that hold each.
  struct Places {
    /// Number of the first slot: host memory and CXL memory are one buffer.
    std::int32_t first = 0;
    std::vector<std::uint16_t> uses;
    FreeSlots free;
    /// Expected checksums, [slot][layer]; empty if moves are not verified.
    std::vector<std::uint64_t> checksums;
    [[nodiscard]] std::uint16_t& uses_of(std::int32_t slot) {
      return uses[static_cast<std::size_t>(slot - first)];
    }
    /// Checksums of a slot, by layer.
    [[nodiscard]] std::uint64_t* checksums_of(std::int32_t slot, std::int64_t layers) {
      return checksums.data() + (slot - first) * layers;
    }
  };
  /// Slots of an entry's tokens from its first on.
  using List = std::vector<std::int32_t>;
  using Entry = std::array<List, kMedia>;
  /// A copy of a block.
  struct Block {
    std::vector<std::int32_t> slots;
    /// Slots that its transfer, which has not begun, will read.
    Medium from = Medium::hbm;
    std::vector<std::int32_t> source{};
    /// Behind HBM: its transfer has ended.
    bool has_arrived = false;
  };
  /// A stream, and the position of the block's first token.
  using BlockName = std::pair<EntryKey, std::int64_t>;
  /// A block that a transfer brings before it is added, or after it was removed.
  struct Arrival {
    Medium medium;
    BlockName name;
    Block block;
    /// The cookie of the transfer, if it has begun.
    std::uint64_t cookie = 0;
  };
  struct Request {
    std::vector<KvPiece> context;
    std::vector<std::int32_t> slots{};
    /// Tokens whose KV is computed or loaded.
    std::int64_t computed = 0;
    bool is_released = false;
  };

  [[nodiscard]] Places& places(Medium medium) { return places_[static_cast<std::size_t>(medium)]; }
  /// Takes free slots, behind the last of `list` if possible.
  [[nodiscard]] std::vector<std::int32_t> take(Medium medium, std::int64_t count,
                                               std::span<const std::int32_t> list = {});
  void give_back(Medium medium, std::span<const std::int32_t> slots);
  /// Fills slots of HBM with NaN.
  void fill_with_nan(std::span<const std::int32_t> slots) const;
  void hold(Medium medium, std::span<const std::int32_t> slots);
  void inherit_checksums(const KvMove& move);
  /// Frees all but the first `tokens`.
  void shorten(Medium medium, EntryKey key, std::int64_t tokens);
  /// Adds a token in HBM, a copy of the last one.
  void repeat_last(List& list);
  /// Fills in the pieces and slots of a move of entries.
  void begin_entries(const TransferCommand& command, KvMove& move);
  /// The slots of resident tokens.
  [[nodiscard]] std::span<const std::int32_t> slots_of(Medium medium, const KvPiece& piece) const;
  [[nodiscard]] std::vector<std::int32_t> take_for(Medium medium, const KvPiece& piece);
  void set_head(EntryKey turn, EntryKey head);
  void forget_if_empty(EntryKey key);
  /// The stream has blocks of one token. The blocks of the dropped tokens were removed before.
  void cut_blocks(EntryKey key, std::int64_t kept, std::int64_t dropped);

  [[nodiscard]] bool has_blocks() const { return block_of(Medium::hbm) > 0; }
  [[nodiscard]] std::int64_t block_of(Medium medium) const {
    return block_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] std::map<BlockName, std::vector<Block>>& blocks(Medium medium) {
    return blocks_[static_cast<std::size_t>(medium)];
  }
  /// Calls visit(name) for the blocks of the piece.
  template <class Visit>
  void for_each_block(Medium medium, const KvPiece& piece, Visit visit) const;
  /// Slots of tokens of blocks. Those that are not in HBM are the request's, if there is one.
  [[nodiscard]] std::vector<std::int32_t> slots_of_blocks(Medium medium, const KvPiece& piece,
                                                          Request* request = nullptr);
  /// A block of the arrivals whose transfer has begun, or not; the end if there is none.
  [[nodiscard]] std::vector<Arrival>::iterator arrival_of(Medium medium, const BlockName& name,
                                                          bool has_begun);
  /// Room for the first `tokens` tokens of the request.
  void lengthen(Request& request, std::int64_t tokens);
  /// Slots for `added` tokens that are computed behind `past` ones, and for those before them.
  [[nodiscard]] std::vector<std::int32_t> extend_request(Request& request, std::int64_t past,
                                                         std::int64_t added);
  /// Fills in the pieces and slots of a move of blocks. Returns slots that were kept for the move,
  /// and are now kept by it.
  [[nodiscard]] std::vector<std::int32_t> begin_blocks(const TransferCommand& command,
                                                       KvMove& move);
  void end_blocks(const KvMove& move);
  [[nodiscard]] bool is_used(const Block& block, std::int64_t first) const;

  /// Number of entries that hold each slot.
  [[nodiscard]] std::vector<std::uint16_t> uses_by_entries(std::size_t medium) const;
  /// A row is the KV of one slot in one layer.
  struct Layout {
    /// Null for the file.
    std::byte* memory = nullptr;
    Bytes slot_pitch;
    Bytes layer_pitch;
    [[nodiscard]] Bytes offset(std::int32_t slot, std::int64_t layer) const {
      return slot * slot_pitch + layer * layer_pitch;
    }
    [[nodiscard]] std::byte* at(std::int32_t slot, std::int64_t layer) const {
      return memory + offset(slot, layer).value;
    }
  };
  /// Slots of a memory.
  struct Place {
    Layout layout;
    std::span<const std::int32_t> slots;
  };
  [[nodiscard]] Bytes bytes_of(const KvMove& move) const {
    return std::ssize(move.to_slots) * (move.last_layer - move.first_layer) * row_;
  }
  struct Layers {
    std::int64_t first;
    std::int64_t last;
  };
  [[nodiscard]] Place in_hbm(std::span<const std::int32_t> slots) const {
    return {{hbm_.layer(0), row_, hbm_.layer_bytes()}, slots};
  }
  /// Slots of any medium but the drive.
  [[nodiscard]] Place rows_in(Medium medium, std::span<const std::int32_t> slots) const {
    return medium == Medium::hbm ? in_hbm(slots) : Place{on_host_, slots};
  }
  /// Places for `count` tokens in the lane's scratch memory.
  [[nodiscard]] Place in_scratch(const MoveLane& lane, std::size_t count) const;
  [[nodiscard]] Layout layout(std::byte* memory, std::int64_t slots) const;
  /// Copies of these rows. Tokens that are neighbours on both sides are one piece, or one piece for
  /// each layer.
  [[nodiscard]] std::vector<CopyPiece> pieces_of(const Place& from, const Place& to,
                                                 Layers layers) const;
  void queue_rows(const Place& from, const Place& to, Layers layers, Stream& stream) const;
  /// Requests for runs of neighbours, of each layer or of whole tokens. Waits only if the queue is
  /// full.
  void submit(IoKind kind, std::span<const std::int32_t> on_drive, const Place& in_memory,
              Layers layers, std::size_t part, PartRequests& requests) const;
  void read_or_write(IoKind kind, std::span<const std::int32_t> on_drive, const Place& in_memory,
                     StorageEngine& engine) const;
  /// Writes through the lane's scratch memory.
  void write_from_hbm(const KvMove& move, const MoveLane& lane) const;
  /// Writes the whole file, as a calibration does.
  void fill_file(const std::function<void()>& check);
  /// Compares the move's tokens from number `begin` on, which this place holds.
  void compare(const KvMove& move, std::size_t begin, const Place& place);
  /// Calls work(begin, place) for parts of `count` tokens that fit in the lane's scratch memory.
  template <class Work>
  void by_scratch(std::size_t count, const MoveLane& lane, Work work) const;

  Device& device_;
  DecoderShape shape_;
  Bytes row_;
  Bytes token_;
  bool verify_;
  KvPool hbm_;
  /// Copies inside of HBM.
  std::unique_ptr<Stream> stream_;
  /// A token of NaN; only if moves are verified.
  Buffer nan_;
  /// Host memory, then CXL memory, then the scratch memory of each lane.
  Buffer host_;
  /// Whether host memory and the file are [layers][slots][K, V], as HBM is, so that neighbours in a
  /// layer are one request of the drive. If the drive cannot read single layers, they are
  /// [slots][layers][K, V].
  bool by_layers_ = true;
  Layout on_host_;
  Layout on_drive_;
  std::unique_ptr<ScratchFile> file_;
  std::function<std::unique_ptr<StorageEngine>(const StorageOptions&)> open_storage_;
  std::byte* scratch_ = nullptr;
  /// Scratch memory of each lane.
  Bytes scratch_bytes_;
  /// 0, 1, ...: the slots of scratch memory.
  std::vector<std::int32_t> scratch_slots_;

  mutable std::mutex mutex_;
  std::array<Places, kMedia> places_;
  std::array<std::int64_t, kMedia> block_;
  /// Copies of blocks by medium, the earliest first. Only HBM has several.
  std::array<std::map<BlockName, std::vector<Block>>, kMedia> blocks_;
  std::map<EntryKey, Request> requests_;
  std::vector<Arrival> arrivals_;
  std::map<EntryKey, Entry> entries_;
  /// The shared prompts of contexts, by turn.
  std::map<EntryKey, EntryKey> heads_;
  Counters counters_;
};

}  // namespace kvtier
