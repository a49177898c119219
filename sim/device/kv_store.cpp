#include "sim/device/kv_store.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "hw/profile.hpp"
#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

/// The least that a lane's scratch slots hold beside kRingBytes.
constexpr std::int64_t kScratchTokens = 2 * kMoveDepth;

/// No entry's.
constexpr EntryKey kNoKey{UINT64_MAX};

std::size_t index_of(Medium medium) { return static_cast<std::size_t>(medium); }

/// Multiplies and rotates words of 8 bytes, four at a time; every bit of the input counts.
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
      to_hbm_(setup.to_hbm),
      from_hbm_(setup.from_hbm),
      verify_(setup.verify),
      hbm_(*setup.device, setup.shape, setup.slots[index_of(Medium::hbm)]),
      scratch_slots_(std::max(kScratchTokens, kRingBytes / token_.value)) {
  const std::int64_t dram = setup.slots[index_of(Medium::dram)];
  const std::int64_t cxl = setup.slots[index_of(Medium::cxl)];
  const std::int64_t ssd = setup.slots[index_of(Medium::ssd)];
  const std::int64_t scratch = setup.lanes * scratch_slots_;
  host_ = Buffer(device_, MemoryKind::pinned, (dram + cxl + scratch) * token_);
  scratch_.resize(static_cast<std::size_t>(scratch));
  std::iota(scratch_.begin(), scratch_.end(), static_cast<std::int32_t>(dram + cxl));
  if (verify_) {
    // All bits set are NaN in every element type.
    nan_ = Buffer(device_, MemoryKind::pinned, row_);
    std::memset(nan_.data(), 0xff, static_cast<std::size_t>(row_.value));
    nan_stream_ = device_.make_stream();
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
    places(medium) = {.first = static_cast<std::int32_t>(medium == Medium::cxl ? dram : 0),
                      .uses = std::vector<std::uint16_t>(static_cast<std::size_t>(slots)),
                      .next = 0,
                      .free = slots,
                      .checksums = std::vector<std::uint64_t>(
                          static_cast<std::size_t>(verify_ ? slots * shape_.layers : 0))};
  }
}

KvStore::~KvStore() = default;

void KvStore::fill_file(const std::function<void()>& check) {
  // What drives could leave out or press together would be faster to read.
  std::byte* const block = host(scratch_.front());
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::uint64_t));
  for (std::int64_t i = 0; i < kDriveRequestBytes / kWord; ++i) {
    const std::uint64_t bits = random_bits_at(0, static_cast<std::uint64_t>(i));
    std::memcpy(block + i * kWord, &bits, kWord);
  }
  write_whole(
      *open_engine(), file_->size(), [block](std::int64_t) { return block; }, check);
}

std::span<const std::int32_t> KvStore::scratch(std::int64_t lane) const {
  return std::span(scratch_).subspan(static_cast<std::size_t>(lane * scratch_slots_),
                                     static_cast<std::size_t>(scratch_slots_));
}

std::unique_ptr<StorageEngine> KvStore::open_engine() const {
  if (!open_storage_) {
    return nullptr;
  }
  // Each lane has an engine, too many for a kernel thread that submits for each.
  return open_storage_({.queue_depth = kMoveDepth,
                        .memory = {host_.data(), static_cast<std::size_t>(host_.size().value)},
                        .completion_polling = has_processors_for_polling()});
}

// ---- Slots ----

/// Neighbours where there are any, as they move in one piece.
std::vector<std::int32_t> KvStore::take(Medium medium, std::int64_t count) {
  Places& p = places(medium);
  if (p.free < count) {
    throw DeviceError(fmt::format("{}: room for {} more tokens is needed, and for {} of {} is left",
                                  to_string(medium), count, p.free, p.uses.size()));
  }
  p.free -= count;
  std::vector<std::int32_t> slots;
  slots.reserve(static_cast<std::size_t>(count));
  while (std::ssize(slots) < count) {
    if (p.next == p.uses.size()) {
      p.next = 0;
    }
    if (p.uses[p.next] == 0) {
      p.uses[p.next] = 1;
      slots.push_back(p.first + static_cast<std::int32_t>(p.next));
    }
    ++p.next;
  }
  if (verify_ && medium == Medium::hbm) {
    fill_with_nan(slots);
  }
  return slots;
}

void KvStore::fill_with_nan(std::span<const std::int32_t> slots) const {
  std::vector<CopyPiece> pieces;
  for (const std::int32_t slot : slots) {
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      pieces.push_back({hbm_.row(layer, slot), nan_.data(), row_});
    }
  }
  device_.copy_pieces(pieces, to_hbm_, *nan_stream_);
  nan_stream_->synchronize();
}

void KvStore::give_back(Medium medium, std::span<const std::int32_t> slots) {
  Places& p = places(medium);
  for (const std::int32_t slot : slots) {
    std::uint16_t& uses = p.uses_of(slot);
    KVTIER_ASSERT(uses > 0, "a slot is given back as often as it was taken");
    p.free += --uses == 0 ? 1 : 0;
  }
}

void KvStore::hold(Medium medium, std::span<const std::int32_t> slots) {
  for (const std::int32_t slot : slots) {
    ++places(medium).uses_of(slot);
  }
}

void KvStore::forget_if_empty(EntryKey key) {
  const auto found = entries_.find(key);
  if (found != entries_.end() &&
      std::ranges::all_of(found->second, [](const List& list) { return list.slots.empty(); })) {
    entries_.erase(found);
  }
}

std::int64_t KvStore::tokens(Medium medium, EntryKey key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? 0 : found->second[index_of(medium)].end();
}

void KvStore::keep(Medium medium, EntryKey key, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second[index_of(medium)].slots.empty()) {
    KVTIER_ASSERT(tokens == 0, "a medium keeps what was moved there");
    return;
  }
  List& list = found->second[index_of(medium)];
  KVTIER_ASSERT(tokens == 0 || (list.first < tokens && tokens <= list.end()),
                "a medium keeps what was moved there");
  const std::int64_t left = std::max<std::int64_t>(0, tokens - list.first);
  freed_.push_back(
      {medium, key, {list.first + left, {list.slots.begin() + left, list.slots.end()}}});
  list.slots.resize(static_cast<std::size_t>(left));
  list.first = left > 0 ? list.first : 0;
  forget_if_empty(key);
}

void KvStore::settle() {
  const std::lock_guard lock(mutex_);
  for (const Freed& freed : freed_) {
    give_back(freed.medium, freed.list.slots);
  }
  freed_.clear();
}

void KvStore::cut(EntryKey key, std::int64_t kept, std::int64_t dropped) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return;
  }
  for (std::size_t medium = 0; medium < kMedia; ++medium) {
    List& list = found->second[medium];
    const std::int64_t count = std::ssize(list.slots);
    const auto from = list.slots.begin() + std::clamp<std::int64_t>(kept - list.first, 0, count);
    const auto to =
        list.slots.begin() + std::clamp<std::int64_t>(kept + dropped - list.first, 0, count);
    freed_.push_back({static_cast<Medium>(medium), kNoKey, {kept, {from, to}}});
    list.slots.erase(from, to);
    list.first = list.slots.empty()   ? 0
                 : list.first <= kept ? list.first
                                      : std::max(kept, list.first - dropped);
  }
  forget_if_empty(key);
}

std::vector<std::int32_t> KvStore::extend(EntryKey key, std::int64_t past, std::int64_t added) {
  const std::lock_guard lock(mutex_);
  List& list = entries_[key][index_of(Medium::hbm)];
  std::vector<std::int32_t>& slots = list.slots;
  KVTIER_ASSERT(list.first == 0 && past <= std::ssize(slots), "past tokens are in HBM");
  give_back(Medium::hbm, std::span(slots).subspan(static_cast<std::size_t>(past)));
  slots.resize(static_cast<std::size_t>(past));
  const std::vector<std::int32_t> more = take(Medium::hbm, added);
  slots.insert(slots.end(), more.begin(), more.end());
  const auto head = heads_.find(key);
  if (head == heads_.end()) {
    return slots;
  }
  std::vector<std::int32_t> context = head->second;
  context.insert(context.end(), slots.begin(), slots.end());
  return context;
}

void KvStore::share_head(EntryKey turn, EntryKey prompt, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  const List& list = entries_[prompt][index_of(Medium::hbm)];
  KVTIER_ASSERT(list.first == 0 && std::ssize(list.slots) == tokens, "a shared prompt is in HBM");
  hold(Medium::hbm, list.slots);
  const bool is_new = heads_.try_emplace(turn, list.slots).second;
  KVTIER_ASSERT(is_new, "a turn begins with one prompt");
}

void KvStore::take_head(EntryKey turn, std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  static_cast<void>(take_for_head(turn, tokens));
}

std::vector<std::int32_t> KvStore::take_for_head(EntryKey turn, std::int64_t tokens) {
  const auto [head, is_new] = heads_.try_emplace(turn, take(Medium::hbm, tokens));
  KVTIER_ASSERT(is_new, "a turn begins with one prompt");
  return head->second;
}

std::vector<std::int32_t> KvStore::head(EntryKey turn) const {
  const std::lock_guard lock(mutex_);
  return heads_.at(turn);
}

void KvStore::drop_head(EntryKey turn) {
  const std::lock_guard lock(mutex_);
  if (const auto head = heads_.find(turn); head != heads_.end()) {
    give_back(Medium::hbm, head->second);
    heads_.erase(head);
  }
}

// ---- Bytes ----

std::uint64_t KvStore::checksum(std::int32_t host_slot, std::int64_t layer) const {
  return hash_bytes(host(host_slot) + (layer * row_).value, row_.value);
}

template <class Work>
void KvStore::by_scratch(std::size_t count, const MoveLane& lane, Work work) {
  KVTIER_ASSERT(!lane.scratch.empty(), "the lane has scratch slots");
  for (std::size_t begin = 0; begin < count; begin += lane.scratch.size()) {
    work(begin, lane.scratch.first(std::min(lane.scratch.size(), count - begin)));
  }
}

void KvStore::note_computed(std::span<const std::int32_t> slots, const MoveLane& lane) {
  if (!verify_) {
    return;
  }
  by_scratch(slots.size(), lane, [&](std::size_t begin, std::span<const std::int32_t> in_memory) {
    const std::span<const std::int32_t> here = slots.subspan(begin, in_memory.size());
    queue_rows(Medium::hbm, here, in_memory, 0, shape_.layers, *lane.stream);
    lane.stream->synchronize();
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
        if (has_nan(host(in_memory[i]) + (layer * row_).value, row_, device_.info().element_type)) {
          throw DeviceError(fmt::format(
              "the KV computed in layer {} is not a number: what it was computed from was not "
              "there yet, or any more",
              layer));
        }
        places(Medium::hbm).checksums_of(here[i], shape_.layers)[layer] =
            checksum(in_memory[i], layer);
      }
    }
  });
}

void KvStore::queue_rows(Medium from, std::span<const std::int32_t> from_slots,
                         std::span<const std::int32_t> to_slots, std::int64_t first,
                         std::int64_t last, Stream& stream) const {
  const bool from_hbm = from == Medium::hbm;
  const std::span<const std::int32_t> on_device = from_hbm ? from_slots : to_slots;
  const std::span<const std::int32_t> in_memory = from_hbm ? to_slots : from_slots;
  std::vector<CopyPiece> pieces;
  pieces.reserve(on_device.size());
  for (std::int64_t layer = first; layer < last; ++layer) {
    pieces.clear();
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      std::byte* const device = hbm_.row(layer, on_device[i]);
      std::byte* const memory = host(in_memory[i]) + (layer * row_).value;
      pieces.push_back(from_hbm ? CopyPiece{memory, device, row_}
                                : CopyPiece{device, memory, row_});
    }
    device_.copy_pieces(pieces, from_hbm ? from_hbm_ : to_hbm_, stream);
  }
}

void KvStore::submit(IoKind kind, std::span<const std::int32_t> on_drive,
                     std::span<const std::int32_t> in_memory, Layers layers, std::size_t part,
                     PartRequests& requests) const {
  const Bytes before = layers.first * row_;
  const Bytes of_token = (layers.last - layers.first) * row_;
  const bool whole = of_token == token_;
  const auto follows = [&](std::size_t i) {
    return whole && on_drive[i] == on_drive[i - 1] + 1 && in_memory[i] == in_memory[i - 1] + 1;
  };
  for (std::size_t i = 0; i < on_drive.size();) {
    std::size_t end = i + 1;
    while (end < on_drive.size() && follows(end) &&
           static_cast<std::int64_t>(end + 1 - i) * token_.value <= kDriveRequestBytes) {
      ++end;
    }
    requests.submit({.kind = kind,
                     .offset = (on_drive[i] * token_ + before).value,
                     .data = host(in_memory[i]) + before.value,
                     .bytes = static_cast<std::int64_t>(end - i) * of_token},
                    part);
    i = end;
  }
}

void KvStore::read_or_write(IoKind kind, std::span<const std::int32_t> on_drive,
                            std::span<const std::int32_t> in_memory, StorageEngine& engine) const {
  PartRequests requests(engine, 1);
  submit(kind, on_drive, in_memory, {0, shape_.layers}, 0, requests);
  requests.wait_for(0);
}

void KvStore::load_from_drive(const KvMove& move, std::int64_t first, std::int64_t last,
                              const MoveLane& lane) const {
  KVTIER_ASSERT(lane.storage != nullptr && lane.scratch.size() >= kRingParts,
                "the lane reaches the drive");
  const std::size_t size = lane.scratch.size() / kRingParts;
  const std::size_t count = move.from_slots.size();
  const std::size_t parts = (count + size - 1) / size;
  const auto in_memory = [&](std::size_t part) {
    return lane.scratch.subspan(part % kRingParts * size, std::min(size, count - part * size));
  };
  const auto slots_of = [&](const std::vector<std::int32_t>& slots, std::size_t part) {
    return std::span(slots).subspan(part * size, std::min(size, count - part * size));
  };
  load_through_ring(*lane.storage, {.parts = parts,
                                    .read =
                                        [&](std::size_t part, PartRequests& requests) {
                                          submit(IoKind::read, slots_of(move.from_slots, part),
                                                 in_memory(part), {first, last}, part, requests);
                                        },
                                    .copy =
                                        [&](std::size_t part) {
                                          queue_rows(Medium::dram, in_memory(part),
                                                     slots_of(move.to_slots, part), first, last,
                                                     *lane.stream);
                                        },
                                    .synchronize = [&] { lane.stream->synchronize(); }});
}

void KvStore::write_from_hbm(const KvMove& move, const MoveLane& lane) const {
  by_scratch(move.from_slots.size(), lane,
             [&](std::size_t begin, std::span<const std::int32_t> in_memory) {
               queue_rows(Medium::hbm, std::span(move.from_slots).subspan(begin, in_memory.size()),
                          in_memory, 0, shape_.layers, *lane.stream);
               lane.stream->synchronize();
               read_or_write(IoKind::write,
                             std::span(move.to_slots).subspan(begin, in_memory.size()), in_memory,
                             *lane.storage);
             });
}

// ---- Moves ----

void KvStore::repeat_last(EntryKey key, Stream& stream) {
  const std::lock_guard lock(mutex_);
  std::vector<std::int32_t>& slots = entries_[key][index_of(Medium::hbm)].slots;
  KVTIER_ASSERT(!slots.empty(), "there is a last token");
  const KvMove last{.from = Medium::hbm,
                    .to = Medium::hbm,
                    .pieces = {},
                    .from_slots = {slots.back()},
                    .to_slots = take(Medium::hbm, 1)};
  slots.push_back(last.to_slots.front());
  inherit_checksums(last);
  std::vector<CopyPiece> rows;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    rows.push_back(
        {hbm_.row(layer, last.to_slots.front()), hbm_.row(layer, last.from_slots.front()), row_});
  }
  device_.copy_pieces(rows, CopyMethod::kernel, stream);
  stream.synchronize();
}

KvMove KvStore::begin(Medium from, Medium to, std::span<const KvPiece> pieces, EntryKey turn) {
  const std::lock_guard lock(mutex_);
  KvMove move{.from = from,
              .to = to,
              .pieces = {pieces.begin(), pieces.end()},
              .from_slots = {},
              .to_slots = {}};
  for (const KvPiece& piece : pieces) {
    add_source(move, piece);
    if (piece.for_turn) {
      const std::vector<std::int32_t> slots = take_for_head(turn, piece.count.value);
      move.to_slots.insert(move.to_slots.end(), slots.begin(), slots.end());
    } else {
      add_target(move, piece);
    }
  }
  hold(from, move.from_slots);
  hold(to, move.to_slots);
  inherit_checksums(move);
  ++counters_.moves;
  counters_.moved += std::ssize(move.to_slots) * token_;
  return move;
}

/// Some of it may have been freed a moment ago.
void KvStore::add_source(KvMove& move, const KvPiece& piece) const {
  constexpr std::int32_t kNowhere = -1;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(piece.count.value), kNowhere);
  const auto look_in = [&](const List& list) {
    const std::int64_t first = std::max(list.first, piece.first.value);
    const std::int64_t end = std::min(list.end(), (piece.first + piece.count).value);
    for (std::int64_t i = first; i < end; ++i) {
      slots[static_cast<std::size_t>(i - piece.first.value)] =
          list.slots[static_cast<std::size_t>(i - list.first)];
    }
  };
  for (const Freed& freed : freed_) {
    if (freed.medium == move.from && freed.key == piece.key) {
      look_in(freed.list);
    }
  }
  if (const auto found = entries_.find(piece.key); found != entries_.end()) {
    look_in(found->second[index_of(move.from)]);
  }
  KVTIER_ASSERT(std::ranges::count(slots, kNowhere) == 0, "only what is there can be moved");
  move.from_slots.insert(move.from_slots.end(), slots.begin(), slots.end());
}

void KvStore::add_target(KvMove& move, const KvPiece& piece) {
  List& list = entries_[piece.key][index_of(move.to)];
  const std::int64_t first = piece.first.value;
  const bool before = !list.slots.empty() && first + piece.count.value == list.first;
  KVTIER_ASSERT(before || list.slots.empty() || first == list.end(),
                "what arrives lies right before or behind what is there");
  const std::vector<std::int32_t> slots = take(move.to, piece.count.value);
  if (before || list.slots.empty()) {
    list.first = first;
  }
  list.slots.insert(before ? list.slots.begin() : list.slots.end(), slots.begin(), slots.end());
  move.to_slots.insert(move.to_slots.end(), slots.begin(), slots.end());
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
  give_back(move.from, move.from_slots);
  give_back(move.to, move.to_slots);
}

void KvStore::queue_layers(const KvMove& move, std::int64_t first, std::int64_t last,
                           Stream& stream) {
  queue_rows(move.from, move.from_slots, move.to_slots, first, last, stream);
}

void KvStore::move(const KvMove& move, const MoveLane& lane) {
  const bool reads = move.from == Medium::ssd;
  const bool writes = move.to == Medium::ssd;
  KVTIER_ASSERT(!(reads || writes) || lane.storage != nullptr, "the lane reaches the drive");
  if (reads && move.to == Medium::hbm) {
    load_from_drive(move, 0, shape_.layers, lane);
    lane.stream->synchronize();
  } else if (reads) {
    read_or_write(IoKind::read, move.from_slots, move.to_slots, *lane.storage);
  } else if (writes && move.from == Medium::hbm) {
    write_from_hbm(move, lane);
  } else if (writes) {
    read_or_write(IoKind::write, move.to_slots, move.from_slots, *lane.storage);
  } else if (move.from == Medium::hbm || move.to == Medium::hbm) {
    queue_layers(move, 0, shape_.layers, *lane.stream);
    lane.stream->synchronize();
  } else {
    for (std::size_t i = 0; i < move.to_slots.size(); ++i) {
      std::memcpy(host(move.to_slots[i]), host(move.from_slots[i]),
                  static_cast<std::size_t>(token_.value));
    }
  }
  verify(move, lane);
}

void KvStore::compare(const KvMove& move, std::size_t begin,
                      std::span<const std::int32_t> in_memory) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < in_memory.size(); ++i) {
    const std::int32_t slot = move.to_slots[begin + i];
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      if (checksum(in_memory[i], layer) !=
          places(move.to).checksums_of(slot, shape_.layers)[layer]) {
        const auto [key, token] = token_of(move, static_cast<std::int64_t>(begin + i));
        throw DeviceError(fmt::format(
            "the KV of token {} of entry {} is wrong in layer {}, after it was moved from {} to {}",
            token, key.value, layer, to_string(move.from), to_string(move.to)));
      }
    }
  }
  counters_.verified += std::ssize(in_memory) * token_;
}

void KvStore::verify(const KvMove& move, const MoveLane& lane) {
  if (!verify_) {
    return;
  }
  const std::span<const std::int32_t> slots(move.to_slots);
  if (move.to == Medium::dram || move.to == Medium::cxl) {
    compare(move, 0, slots);
    return;
  }
  by_scratch(slots.size(), lane, [&](std::size_t begin, std::span<const std::int32_t> in_memory) {
    const std::span<const std::int32_t> here = slots.subspan(begin, in_memory.size());
    if (move.to == Medium::ssd) {
      read_or_write(IoKind::read, here, in_memory, *lane.storage);
    } else {
      queue_rows(Medium::hbm, here, in_memory, 0, shape_.layers, *lane.stream);
      lane.stream->synchronize();
    }
    compare(move, begin, in_memory);
  });
}

std::int64_t KvStore::taken(Medium medium) const {
  const std::lock_guard lock(mutex_);
  const Places& p = places_[index_of(medium)];
  return std::ssize(p.uses) - p.free;
}

KvStore::Counters KvStore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::vector<std::uint16_t> KvStore::uses_by_entries(std::size_t medium) const {
  const Places& p = places_[medium];
  std::vector<std::uint16_t> uses(p.uses.size());
  for (const auto& [key, entry] : entries_) {
    for (const std::int32_t slot : entry[medium].slots) {
      ++uses[static_cast<std::size_t>(slot - p.first)];
    }
  }
  if (static_cast<Medium>(medium) == Medium::hbm) {
    for (const auto& [turn, head] : heads_) {
      for (const std::int32_t slot : head) {
        ++uses[static_cast<std::size_t>(slot)];
      }
    }
  }
  return uses;
}

std::int64_t KvStore::taken_by_moves(Medium medium) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count(uses_by_entries(index_of(medium)), 0) - places_[index_of(medium)].free;
}

void KvStore::check_invariants() const {
  const std::lock_guard lock(mutex_);
  for (std::size_t medium = 0; medium < kMedia; ++medium) {
    const Places& p = places_[medium];
    KVTIER_ASSERT(uses_by_entries(medium) == p.uses,
                  "slots are taken for entries and for heads of turns alone");
    KVTIER_ASSERT(p.free == std::ranges::count(p.uses, 0), "free slots are counted");
  }
}

}  // namespace kvtier
