#include "sim/device/kv_store.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "hw/profile/profile.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

/// Least size of a lane's scratch memory beside kRingBytes.
constexpr std::int64_t kScratchTokens = 2 * kMoveDepth;
constexpr std::int64_t kRingPartBytes = kRingBytes / static_cast<std::int64_t>(kRingParts);

/// Key of the turn's own copy of its shared prompt.
EntryKey own_head(EntryKey turn) { return {turn.value | std::uint64_t{1} << 62}; }

/// Rounded up to blocks of the drive.
Bytes whole_blocks(Bytes bytes) {
  return (bytes.value + kStorageAlignment - 1) / kStorageAlignment * Bytes(kStorageAlignment);
}

std::size_t index_of(Medium medium) { return static_cast<std::size_t>(medium); }

void append(std::vector<std::int32_t>& slots, std::span<const std::int32_t> more) {
  slots.insert(slots.end(), more.begin(), more.end());
}

/// Hash of all bytes: multiplies and shifts words of 8 bytes, in four lanes.
std::uint64_t hash_bytes(const std::byte* data, std::int64_t size) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  std::uint64_t sums[4] = {1, 2, 3, 4};
  constexpr std::int64_t kWord = sizeof(std::uint64_t);
  std::int64_t at = 0;
  for (; at + 4 * kWord <= size; at += 4 * kWord) {
    for (int i = 0; i < 4; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + at + i * kWord, kWord);
      sums[i] = (sums[i] ^ word) * kOdd;
      sums[i] ^= sums[i] >> 29;
    }
  }
  for (; at < size; ++at) {
    sums[0] = (sums[0] ^ static_cast<std::uint64_t>(data[at])) * kOdd;
  }
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) {
    all = (all ^ sum) * kOdd;
    all ^= all >> 32;
  }
  return all;
}

/// Whether one of the elements is NaN.
bool has_nan(const std::byte* data, Bytes size, ElementType type) {
  const auto any = [&](auto word, auto exponent) {
    using Word = decltype(word);
    const auto magnitude = static_cast<Word>(std::numeric_limits<Word>::max() >> 1);
    for (std::int64_t at = 0; at < size.value; at += static_cast<std::int64_t>(sizeof(Word))) {
      std::memcpy(&word, data + at, sizeof(Word));
      if ((word & magnitude) > exponent) {
        return true;
      }
    }
    return false;
  };
  switch (type) {
    case ElementType::float32:
      return any(std::uint32_t{}, std::uint32_t{0x7f80'0000});
    case ElementType::bfloat16:
      return any(std::uint16_t{}, std::uint16_t{0x7f80});
    case ElementType::float16:
      return any(std::uint16_t{}, std::uint16_t{0x7c00});
  }
  return false;
}

/// The i-th token of a move: its entry and number.
std::pair<EntryKey, std::int64_t> token_of(const KvMove& move, std::int64_t i) {
  auto piece = move.pieces.begin();
  for (; i >= piece->count.value; ++piece) {
    i -= piece->count.value;
  }
  return {piece->key, piece->first.value + i};
}

}  // namespace

KvStore::KvStore(const Setup& setup)
    : device_(*setup.device),
      shape_(setup.shape),
      row_(kv_row_bytes(setup.shape, setup.device->info().element)),
      token_(kv_bytes_per_token(setup.shape, setup.device->info().element)),
      verify_(setup.verify),
      hbm_(*setup.device, setup.shape, setup.slots[index_of(Medium::hbm)]),
      stream_(setup.device->make_stream()),
      scratch_bytes_(whole_blocks(std::max(kScratchTokens * token_, Bytes(kRingBytes)))),
      scratch_slots_(static_cast<std::size_t>(scratch_bytes_ / row_)),
      block_(setup.block) {
  const std::int64_t dram = setup.slots[index_of(Medium::dram)];
  const std::int64_t cxl = setup.slots[index_of(Medium::cxl)];
  const std::int64_t ssd = setup.slots[index_of(Medium::ssd)];
  const std::int64_t on_host = dram + cxl;
  host_ = Buffer(device_, MemoryKind::pinned, on_host * token_ + setup.lanes * scratch_bytes_);
  by_layers_ = ssd == 0 || reads_layers();
  on_host_ = layout(host_.data(), on_host);
  on_drive_ = layout(nullptr, ssd);
  scratch_ = host_.data() + (on_host * token_).value;
  std::iota(scratch_slots_.begin(), scratch_slots_.end(), 0);
  if (verify_) {
    // All bits set are NaN in every element type.
    nan_ = Buffer(device_, MemoryKind::pinned, token_);
    std::memset(nan_.data(), 0xff, static_cast<std::size_t>(token_.value));
  }
  if (ssd > 0) {
    if (token_.value % kStorageAlignment != 0) {
      throw DeviceError(
          fmt::format("a token's KV takes {} bytes, which a drive with blocks of {} bytes cannot "
                      "hold by itself",
                      token_.value, kStorageAlignment));
    }
    open_storage_ = setup.open_storage;
    if (!open_storage_) {
      file_ = std::make_unique<ScratchFile>(setup.directory, ssd * token_);
      open_storage_ = [this](const StorageOptions& options) {
        return open_storage_engine(file_->descriptor(), options);
      };
      fill_file(setup.check);
    }
  }
  for (const Medium medium : {Medium::hbm, Medium::dram, Medium::cxl, Medium::ssd}) {
    const std::int64_t slots = setup.slots[index_of(medium)];
    const auto first = static_cast<std::int32_t>(medium == Medium::cxl ? dram : 0);
    places(medium) = {.first = first,
                      .uses = std::vector<std::uint16_t>(static_cast<std::size_t>(slots)),
                      .free = FreeSlots(first, slots),
                      .checksums = std::vector<std::uint64_t>(
                          static_cast<std::size_t>(verify_ ? slots * shape_.layers : 0))};
  }
}

KvStore::~KvStore() = default;

void KvStore::fill_file(const std::function<void()>& check) {
  // Random data, because drives read data that they can skip or compress faster.
  std::byte* const block = scratch(0).data();
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::uint64_t));
  for (std::int64_t i = 0; i < kDriveRequestBytes / kWord; ++i) {
    const std::uint64_t bits = random_bits_at(0, static_cast<std::uint64_t>(i));
    std::memcpy(block + i * kWord, &bits, kWord);
  }
  write_whole(
      *open_engine(), file_->size(), [block](std::int64_t) { return block; }, check);
}

std::span<std::byte> KvStore::scratch(std::int64_t lane) const {
  return {scratch_ + (lane * scratch_bytes_).value, static_cast<std::size_t>(scratch_bytes_.value)};
}

std::unique_ptr<StorageEngine> KvStore::open_engine() const {
  if (!open_storage_) {
    return nullptr;
  }
  // Each lane has an engine, so kernel threads for submission would be too many.
  return open_storage_({.queue_depth = kMoveDepth,
                        .memory = {host_.data(), static_cast<std::size_t>(host_.size().value)},
                        .completion_polling = has_processors_for_polling()});
}

// ---- Slots ----

std::vector<std::int32_t> KvStore::take(Medium medium, std::int64_t count,
                                        std::span<const std::int32_t> list) {
  Places& p = places(medium);
  if (p.free.count() < count) {
    throw DeviceError(fmt::format("{}: expected room for {} more tokens, got room for {} of {}",
                                  to_string(medium), count, p.free.count(), p.uses.size()));
  }
  std::vector<std::int32_t> slots =
      p.free.take(count, list.empty() ? FreeSlots::kNone : list.back());
  hold(medium, slots);
  if (verify_ && medium == Medium::hbm) {
    fill_with_nan(slots);
  }
  return slots;
}

void KvStore::fill_with_nan(std::span<const std::int32_t> slots) const {
  std::vector<CopyPiece> pieces;
  for (const std::int32_t slot : slots) {
    pieces.push_back({.to = hbm_.row(0, slot),
                      .from = nan_.data(),
                      .bytes = row_,
                      .rows = shape_.layers,
                      .to_pitch = hbm_.layer_bytes(),
                      .from_pitch = row_});
  }
  device_.copy_pieces(pieces, *stream_);
  stream_->synchronize();
}

void KvStore::give_back(Medium medium, std::span<const std::int32_t> slots) {
  Places& p = places(medium);
  std::int64_t first = 0;  // start of the run that became free
  std::int64_t end = 0;
  for (const std::int32_t slot : slots) {
    std::uint16_t& uses = p.uses_of(slot);
    KVTIER_ASSERT(uses > 0, "a slot is given back as often as it was taken");
    if (--uses > 0) {
      continue;
    }
    if (slot != end) {
      p.free.give_back(first, end);
      first = slot;
    }
    end = slot + 1;
  }
  p.free.give_back(first, end);
}

void KvStore::hold(Medium medium, std::span<const std::int32_t> slots) {
  for (const std::int32_t slot : slots) {
    ++places(medium).uses_of(slot);
  }
}

void KvStore::forget_if_empty(EntryKey key) {
  const auto found = entries_.find(key);
  if (found != entries_.end() &&
      std::ranges::all_of(found->second, [](const List& list) { return list.empty(); })) {
    entries_.erase(found);
  }
}

std::int64_t KvStore::tokens(Medium medium, EntryKey key) const {
  const std::lock_guard lock(mutex_);
  if (const auto request = requests_.find(key); request != requests_.end()) {
    return medium == Medium::hbm ? request->second.computed : 0;
  }
  const auto found = entries_.find(key);
  return found == entries_.end() ? 0 : std::ssize(found->second[index_of(medium)]);
}

void KvStore::set_resident_prefix(Medium medium, EntryKey key, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  if (tokens > 0) {
    List& list = entries_[key][index_of(medium)];
    if (medium == Medium::hbm && tokens == std::ssize(list) + 1) {
      repeat_last(list);
    }
    KVTIER_ASSERT(tokens <= std::ssize(list), "a medium keeps what was moved there");
  }
  shorten(medium, key, tokens);
  forget_if_empty(key);
}

void KvStore::shorten(Medium medium, EntryKey key, std::int64_t tokens) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return;
  }
  List& list = found->second[index_of(medium)];
  const auto left = static_cast<std::size_t>(std::min<std::int64_t>(tokens, std::ssize(list)));
  give_back(medium, std::span(list).subspan(left));
  list.resize(left);
}

void KvStore::repeat_last(List& list) {
  KVTIER_ASSERT(!list.empty(), "there is a last token");
  const KvMove last{
      .pieces = {}, .from_slots = {list.back()}, .to_slots = take(Medium::hbm, 1, list)};
  list.push_back(last.to_slots.front());
  inherit_checksums(last);
  queue_rows(in_hbm(last.from_slots), in_hbm(last.to_slots), {0, shape_.layers}, *stream_);
  stream_->synchronize();
}

void KvStore::cut(EntryKey key, std::int64_t kept, std::int64_t dropped) {
  const std::lock_guard lock(mutex_);
  if (has_blocks()) {
    cut_blocks(key, kept, dropped);
    return;
  }
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return;
  }
  for (std::size_t medium = 0; medium < kMedia; ++medium) {
    List& list = found->second[medium];
    const std::int64_t count = std::ssize(list);
    const auto from = list.begin() + std::min(kept, count);
    const auto to = list.begin() + std::min(kept + dropped, count);
    give_back(static_cast<Medium>(medium), {from, to});
    list.erase(from, to);
  }
  forget_if_empty(key);
}

std::vector<std::int32_t> KvStore::extend(EntryKey key, std::int64_t past, std::int64_t added) {
  const std::lock_guard lock(mutex_);
  if (has_blocks()) {
    return extend_request(requests_.at(key), past, added);
  }
  List& slots = entries_[key][index_of(Medium::hbm)];
  KVTIER_ASSERT(past <= std::ssize(slots), "past tokens are in HBM");
  give_back(Medium::hbm, std::span(slots).subspan(static_cast<std::size_t>(past)));
  slots.resize(static_cast<std::size_t>(past));
  const std::vector<std::int32_t> more = take(Medium::hbm, added, slots);
  slots.insert(slots.end(), more.begin(), more.end());
  const auto head = heads_.find(key);
  if (head == heads_.end()) {
    return slots;
  }
  std::vector<std::int32_t> context = entries_.at(head->second)[index_of(Medium::hbm)];
  context.insert(context.end(), slots.begin(), slots.end());
  return context;
}

void KvStore::share_head(EntryKey turn, EntryKey prompt, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  const List& list = entries_[prompt][index_of(Medium::hbm)];
  KVTIER_ASSERT(std::ssize(list) == tokens, "a shared prompt is in HBM");
  set_head(turn, prompt);
}

void KvStore::take_head(EntryKey turn, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  set_head(turn, own_head(turn));
  entries_[own_head(turn)][index_of(Medium::hbm)] = take(Medium::hbm, tokens);
}

void KvStore::set_head(EntryKey turn, EntryKey head) {
  const bool is_new = heads_.try_emplace(turn, head).second;
  KVTIER_ASSERT(is_new, "a turn begins with one prompt");
}

std::vector<std::int32_t> KvStore::head(EntryKey turn) const {
  const std::lock_guard lock(mutex_);
  return entries_.at(heads_.at(turn))[index_of(Medium::hbm)];
}

void KvStore::drop_head(EntryKey turn) {
  const std::lock_guard lock(mutex_);
  heads_.erase(turn);
  if (const auto own = entries_.find(own_head(turn)); own != entries_.end()) {
    give_back(Medium::hbm, own->second[index_of(Medium::hbm)]);
    entries_.erase(own);
  }
}

// ---- Bytes ----

KvStore::Layout KvStore::layout(std::byte* memory, std::int64_t slots) const {
  return by_layers_ ? Layout{memory, row_, slots * row_} : Layout{memory, token_, row_};
}

KvStore::Place KvStore::in_scratch(const MoveLane& lane, std::size_t count) const {
  return {layout(lane.scratch.data(), static_cast<std::int64_t>(count)),
          std::span(scratch_slots_).first(count)};
}

template <class Work>
void KvStore::by_scratch(std::size_t count, const MoveLane& lane, Work work) const {
  const auto room = static_cast<std::size_t>(std::ssize(lane.scratch) / token_.value);
  KVTIER_ASSERT(room > 0, "the lane has scratch memory");
  for (std::size_t begin = 0; begin < count; begin += room) {
    work(begin, in_scratch(lane, std::min(room, count - begin)));
  }
}

void KvStore::note_computed(std::span<const std::int32_t> slots, const MoveLane& lane) {
  if (!verify_) {
    return;
  }
  by_scratch(slots.size(), lane, [&](std::size_t begin, const Place& copy) {
    const std::span<const std::int32_t> here = slots.subspan(begin, copy.slots.size());
    queue_rows(in_hbm(here), copy, {0, shape_.layers}, *lane.stream);
    lane.stream->synchronize();
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
        if (has_nan(copy.layout.at(copy.slots[i], layer), row_, device_.info().element_type)) {
          throw DeviceError(
              fmt::format("the KV computed in layer {} is not a number: its input KV was missing "
                          "or overwritten",
                          layer));
        }
        places(Medium::hbm).checksums_of(here[i], shape_.layers)[layer] =
            hash_bytes(copy.layout.at(copy.slots[i], layer), row_.value);
      }
    }
  });
}

std::vector<CopyPiece> KvStore::pieces_of(const Place& from, const Place& to, Layers layers) const {
  /// A loop over tokens or over layers.
  struct Loop {
    std::int64_t count;
    Bytes to_pitch;
    Bytes from_pitch;
  };
  const auto& [source, from_slots] = from;
  const auto& [target, to_slots] = to;
  const auto contiguous = [this](const Loop& loop) {
    return loop.to_pitch == row_ && loop.from_pitch == row_;
  };
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < to_slots.size();) {
    std::size_t end = i + 1;
    while (end < to_slots.size() && from_slots[end] == from_slots[end - 1] + 1 &&
           to_slots[end] == to_slots[end - 1] + 1) {
      ++end;
    }
    Loop inner{static_cast<std::int64_t>(end - i), target.slot_pitch, source.slot_pitch};
    Loop outer{layers.last - layers.first, target.layer_pitch, source.layer_pitch};
    const bool far = std::max(outer.to_pitch, outer.from_pitch) > device_.info().pitch_max;
    if (contiguous(outer) || (!contiguous(inner) && inner.count < outer.count && !far)) {
      std::swap(inner, outer);
    }
    Bytes bytes = row_;
    if (contiguous(inner)) {
      bytes = inner.count * row_;
      inner = std::exchange(outer, {.count = 1, .to_pitch = {}, .from_pitch = {}});
    }
    for (std::int64_t j = 0; j < outer.count; ++j) {
      pieces.push_back(
          {.to = target.at(to_slots[i], layers.first) + (j * outer.to_pitch).value,
           .from = source.at(from_slots[i], layers.first) + (j * outer.from_pitch).value,
           .bytes = bytes,
           .rows = inner.count,
           .to_pitch = inner.to_pitch,
           .from_pitch = inner.from_pitch});
    }
    i = end;
  }
  return pieces;
}

void KvStore::queue_rows(const Place& from, const Place& to, Layers layers, Stream& stream) const {
  device_.copy_pieces(pieces_of(from, to, layers), stream);
}

void KvStore::submit(IoKind kind, std::span<const std::int32_t> on_drive, const Place& in_memory,
                     Layers layers, std::size_t part, PartRequests& requests) const {
  const auto& [memory, slots] = in_memory;
  const std::int64_t step = reads_layers() ? 1 : shape_.layers;
  const Bytes unit = step * row_;
  const std::int64_t longest = std::max<std::int64_t>(1, kDriveRequestBytes / unit.value);
  for (std::int64_t layer = layers.first; layer < layers.last; layer += step) {
    for (std::size_t i = 0; i < on_drive.size();) {
      std::size_t end = i + 1;
      while (end < on_drive.size() && static_cast<std::int64_t>(end - i) < longest &&
             on_drive[end] == on_drive[end - 1] + 1 && slots[end] == slots[end - 1] + 1) {
        ++end;
      }
      requests.submit({.kind = kind,
                       .offset = on_drive_.offset(on_drive[i], layer).value,
                       .data = memory.at(slots[i], layer),
                       .bytes = static_cast<std::int64_t>(end - i) * unit},
                      part);
      i = end;
    }
  }
}

void KvStore::read_or_write(IoKind kind, std::span<const std::int32_t> on_drive,
                            const Place& in_memory, StorageEngine& engine) const {
  PartRequests requests(engine, 1);
  submit(kind, on_drive, in_memory, {0, shape_.layers}, 0, requests);
  requests.wait_for(0);
}

void KvStore::load_from_drive(const KvMove& move, const MoveLane& lane,
                              const std::function<void(std::int64_t layer)>& on_layer) const {
  KVTIER_ASSERT(lane.storage != nullptr && std::ssize(lane.scratch) >= scratch_bytes_.value,
                "the lane reaches the drive");
  // The ring moves units: rows of one layer after another, or tokens of all layers. A part may end
  // one layer and begin the next, so that requests stay in flight.
  const std::int64_t step = reads_layers() ? 1 : shape_.layers;
  const Bytes unit = step * row_;
  const auto count = static_cast<std::int64_t>(move.from_slots.size());
  const std::int64_t units = (move.last_layer - move.first_layer) / step * count;
  const std::int64_t size = reads_layers()
                                ? std::max<std::int64_t>(1, kRingPartBytes / row_.value)
                                : scratch_bytes_ / token_ / static_cast<std::int64_t>(kRingParts);
  const auto tell = [&](Layers layers) {
    for (std::int64_t layer = layers.first; layer < layers.last; ++layer) {
      on_layer(layer);
    }
  };
  /// Units of a part that belong to the same layers.
  struct Piece {
    Layers layers;
    std::span<const std::int32_t> from_slots;
    std::span<const std::int32_t> to_slots;
    Place in_memory;
    bool is_last;
  };
  const auto for_pieces = [&](std::size_t part, const auto& work) {
    std::int64_t begin = static_cast<std::int64_t>(part) * size;
    const std::int64_t end = std::min(units, begin + size);
    std::byte* memory =
        lane.scratch.data() + (static_cast<std::int64_t>(part % kRingParts) * size * unit).value;
    while (begin < end) {
      const std::int64_t first = move.first_layer + begin / count * step;
      const auto token = static_cast<std::size_t>(begin % count);
      const std::int64_t here = std::min(count - begin % count, end - begin);
      const auto here_size = static_cast<std::size_t>(here);
      work(Piece{.layers = {first, first + step},
                 .from_slots = std::span(move.from_slots).subspan(token, here_size),
                 .to_slots = std::span(move.to_slots).subspan(token, here_size),
                 .in_memory = {{memory, unit, reads_layers() ? Bytes(0) : row_},
                               std::span(scratch_slots_).first(here_size)},
                 .is_last = begin % count + here == count});
      begin += here;
      memory += (here * unit).value;
    }
  };
  load_through_ring(*lane.storage, {.parts = static_cast<std::size_t>((units + size - 1) / size),
                                    .read =
                                        [&](std::size_t part, PartRequests& requests) {
                                          for_pieces(part, [&](const Piece& piece) {
                                            submit(IoKind::read, piece.from_slots, piece.in_memory,
                                                   piece.layers, part, requests);
                                          });
                                        },
                                    .copy =
                                        [&](std::size_t part) {
                                          for_pieces(part, [&](const Piece& piece) {
                                            queue_rows(piece.in_memory, in_hbm(piece.to_slots),
                                                       piece.layers, *lane.stream);
                                            if (piece.is_last) {
                                              tell(piece.layers);
                                            }
                                          });
                                        },
                                    .synchronize = [&] { lane.stream->synchronize(); }});
  if (units == 0) {
    tell({move.first_layer, move.last_layer});
  }
}

void KvStore::write_from_hbm(const KvMove& move, const MoveLane& lane) const {
  by_scratch(move.from_slots.size(), lane, [&](std::size_t begin, const Place& copy) {
    queue_rows(in_hbm(std::span(move.from_slots).subspan(begin, copy.slots.size())), copy,
               {0, shape_.layers}, *lane.stream);
    lane.stream->synchronize();
    read_or_write(IoKind::write, std::span(move.to_slots).subspan(begin, copy.slots.size()), copy,
                  *lane.storage);
  });
}

// ---- Moves ----

KvMove KvStore::begin(const TransferCommand& command) {
  const std::lock_guard lock(mutex_);
  KvMove move{.from = command.from,
              .to = command.to,
              .first_layer = command.open ? 0 : command.layer,
              .last_layer = command.open && command.layer > 0 ? command.layer : shape_.layers,
              .pieces = {},
              .from_slots = {},
              .to_slots = {}};
  std::vector<std::int32_t> kept;
  if (has_blocks()) {
    kept = begin_blocks(command, move);
  } else {
    begin_entries(command, move);
  }
  if (move.from == Medium::ssd && !reads_layers()) {
    move.first_layer = move.first_layer > 0 ? shape_.layers : 0;
    move.last_layer = shape_.layers;
  }
  hold(move.from, move.from_slots);
  hold(move.to, move.to_slots);
  give_back(move.from, kept);
  inherit_checksums(move);
  ++counters_.moves;
  counters_.moved += bytes_of(move);
  return move;
}

void KvStore::begin_entries(const TransferCommand& command, KvMove& move) {
  move.pieces = {command.pieces.begin(), command.pieces.end()};
  if (move.pieces.empty() && command.first < command.end) {
    move.pieces = {
        {.key = command.key, .first = command.first, .count = command.end - command.first}};
    if (move.first_layer == 0) {
      shorten(move.to, command.key, command.first.value);
    }
    if (List& source = entries_[command.key][index_of(move.from)];
        move.from == Medium::hbm && std::ssize(source) + 1 == command.end.value) {
      repeat_last(source);
    }
  }
  for (KvPiece piece : move.pieces) {
    append(move.from_slots, slots_of(move.from, piece));
    if (piece.turn) {
      piece.key = own_head(*piece.turn);
      set_head(*piece.turn, piece.key);
    }
    if (move.first_layer > 0) {
      append(move.to_slots, slots_of(move.to, piece));
    } else {
      append(move.to_slots, take_for(move.to, piece));
    }
  }
}

std::span<const std::int32_t> KvStore::slots_of(Medium medium, const KvPiece& piece) const {
  const auto found = entries_.find(piece.key);
  KVTIER_ASSERT(found != entries_.end(), "only what is there can be moved");
  const List& list = found->second[index_of(medium)];
  KVTIER_ASSERT((piece.first + piece.count).value <= std::ssize(list),
                "only what is there can be moved");
  return std::span(list).subspan(static_cast<std::size_t>(piece.first.value),
                                 static_cast<std::size_t>(piece.count.value));
}

std::vector<std::int32_t> KvStore::take_for(Medium medium, const KvPiece& piece) {
  List& list = entries_[piece.key][index_of(medium)];
  KVTIER_ASSERT(piece.first.value == std::ssize(list), "what arrives lies behind what is there");
  const std::vector<std::int32_t> slots = take(medium, piece.count.value, list);
  append(list, slots);
  return slots;
}

void KvStore::inherit_checksums(const KvMove& move) {
  if (!verify_) {
    return;
  }
  const std::int64_t layers = shape_.layers;
  for (std::size_t i = 0; i < move.to_slots.size(); ++i) {
    std::copy_n(places(move.from).checksums_of(move.from_slots[i], layers), layers,
                places(move.to).checksums_of(move.to_slots[i], layers));
  }
}

void KvStore::end(const KvMove& move) {
  const std::lock_guard lock(mutex_);
  end_blocks(move);
  give_back(move.from, move.from_slots);
  give_back(move.to, move.to_slots);
}

void KvStore::queue_layers(const KvMove& move, std::int64_t first, std::int64_t last,
                           Stream& stream) {
  queue_rows(rows_in(move.from, move.from_slots), rows_in(move.to, move.to_slots), {first, last},
             stream);
}

void KvStore::move(const KvMove& move, const MoveLane& lane) {
  if (bytes_of(move).value == 0) {
    return;
  }
  const bool reads = move.from == Medium::ssd;
  const bool writes = move.to == Medium::ssd;
  KVTIER_ASSERT(!(reads || writes) || lane.storage != nullptr, "the lane reaches the drive");
  if (reads && move.to == Medium::hbm) {
    load_from_drive(move, lane, [](std::int64_t) {});
    lane.stream->synchronize();
  } else if (reads) {
    read_or_write(IoKind::read, move.from_slots, rows_in(move.to, move.to_slots), *lane.storage);
  } else if (writes && move.from == Medium::hbm) {
    write_from_hbm(move, lane);
  } else if (writes) {
    read_or_write(IoKind::write, move.to_slots, rows_in(move.from, move.from_slots), *lane.storage);
  } else if (move.from == Medium::hbm || move.to == Medium::hbm) {
    queue_layers(move, move.first_layer, move.last_layer, *lane.stream);
    lane.stream->synchronize();
  } else {
    for (const CopyPiece& piece : pieces_of(rows_in(move.from, move.from_slots),
                                            rows_in(move.to, move.to_slots), {0, shape_.layers})) {
      for_each_row(piece, [&piece](void* to, const void* from) {
        std::memcpy(to, from, static_cast<std::size_t>(piece.bytes.value));
      });
    }
  }
  verify(move, lane);
}

void KvStore::compare(const KvMove& move, std::size_t begin, const Place& place) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < place.slots.size(); ++i) {
    const std::int32_t slot = move.to_slots[begin + i];
    for (std::int64_t layer = move.first_layer; layer < move.last_layer; ++layer) {
      if (hash_bytes(place.layout.at(place.slots[i], layer), row_.value) !=
          places(move.to).checksums_of(slot, shape_.layers)[layer]) {
        const auto [key, token] = token_of(move, static_cast<std::int64_t>(begin + i));
        throw DeviceError(fmt::format(
            "the KV of token {} of entry {} is wrong in layer {}, after it was moved from {} to {}",
            token, key.value, layer, to_string(move.from), to_string(move.to)));
      }
    }
  }
  counters_.verified += std::ssize(place.slots) * (move.last_layer - move.first_layer) * row_;
}

void KvStore::verify(const KvMove& move, const MoveLane& lane) {
  if (!verify_) {
    return;
  }
  const std::span<const std::int32_t> slots(move.to_slots);
  if (move.to == Medium::dram || move.to == Medium::cxl) {
    compare(move, 0, rows_in(move.to, slots));
    return;
  }
  by_scratch(slots.size(), lane, [&](std::size_t begin, const Place& copy) {
    const std::span<const std::int32_t> here = slots.subspan(begin, copy.slots.size());
    if (move.to == Medium::ssd) {
      read_or_write(IoKind::read, here, copy, *lane.storage);
    } else {
      queue_rows(in_hbm(here), copy, {move.first_layer, move.last_layer}, *lane.stream);
      lane.stream->synchronize();
    }
    compare(move, begin, copy);
  });
}

std::int64_t KvStore::held(Medium medium) const {
  const std::lock_guard lock(mutex_);
  const std::vector<std::uint16_t> uses = uses_by_entries(index_of(medium));
  return std::ssize(uses) - std::ranges::count(uses, 0);
}

KvStore::Counters KvStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::vector<std::uint16_t> KvStore::uses_by_entries(std::size_t medium) const {
  const Places& p = places_[medium];
  std::vector<std::uint16_t> uses(p.uses.size());
  const auto add = [&](std::span<const std::int32_t> slots) {
    for (const std::int32_t slot : slots) {
      ++uses[static_cast<std::size_t>(slot - p.first)];
    }
  };
  for (const auto& [key, entry] : entries_) {
    add(entry[medium]);
  }
  for (const auto& [name, copies] : blocks_[medium]) {
    for (const Block& block : copies) {
      add(block.slots);
    }
  }
  for (const auto& [key, request] : requests_) {
    if (medium == index_of(Medium::hbm)) {
      add(request.slots);
    }
  }
  return uses;
}

void KvStore::check_invariants() const {
  const std::lock_guard lock(mutex_);
  for (std::size_t medium = 0; medium < kMedia; ++medium) {
    const Places& p = places_[medium];
    KVTIER_ASSERT(uses_by_entries(medium) == p.uses, "slots are taken for entries alone");
    KVTIER_ASSERT(p.free.count() == std::ranges::count(p.uses, 0), "slots without uses are free");
  }
}

}  // namespace kvtier
