#include "sim/device/kv_store.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "hw/device/storage.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "tests/hw/device/forwarding_device.hpp"

namespace kvtier::test {
namespace {

/// A drive in memory whose requests end in any order, one or a few at a time.
class DisorderlyEngine final : public StorageEngine {
 public:
  struct Drive {
    std::vector<std::byte> bytes;
    std::int64_t deepest = 0;
    /// Bytes of each request.
    std::vector<std::int64_t> requests;
    /// Requests end one by one, in order.
    bool in_order = false;
    /// How often the last request in flight ended.
    std::int64_t idle = 0;
  };
  DisorderlyEngine(Drive& drive, std::int64_t depth) : drive_(drive), depth_(depth) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t in_flight() const override { return std::ssize(waiting_); }
  void submit(std::span<const IoRequest> requests) override {
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    for (const IoRequest& request : requests) {
      drive_.requests.push_back(request.bytes.value);
    }
    EXPECT_LE(in_flight(), depth_);
    drive_.deepest = std::max(drive_.deepest, in_flight());
  }
  std::vector<IoCompletion> wait() override {
    std::vector<IoCompletion> ended;
    for (std::int64_t left = drive_.in_order ? 1 : 1 + random_.index(3);
         left > 0 && !waiting_.empty(); --left) {
      const auto next = waiting_.begin() + (drive_.in_order ? 0 : random_.index(in_flight()));
      const IoRequest request = *next;
      waiting_.erase(next);
      std::byte* const there = &drive_.bytes.at(static_cast<std::size_t>(request.offset));
      const auto size = static_cast<std::size_t>(request.bytes.value);
      if (request.kind == IoKind::read) {
        std::memcpy(request.data, there, size);
      } else {
        std::memcpy(there, request.data, size);
      }
      ended.push_back({.tag = request.tag, .at_ns = 0});
    }
    drive_.idle += waiting_.empty() ? 1 : 0;
    return ended;
  }
  void flush() override {}

 private:
  Drive& drive_;
  std::int64_t depth_;
  std::string name_ = "disorderly";
  std::vector<IoRequest> waiting_;
  RandomStream random_{1, "tests/disorderly_engine"};
};

TransferCommand transfer(Medium from, Medium to, EntryKey key, std::int64_t first,
                         std::int64_t end) {
  return {
      .from = from, .to = to, .bytes = {}, .key = key, .first = Tokens(first), .end = Tokens(end)};
}

/// The host, whose copies begin late: their sources may not be overwritten until they have ended.
class SlowCopies final : public ForwardingDevice {
 public:
  explicit SlowCopies(Device& host) : ForwardingDevice(host), host_(host) {}
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    constexpr double kLate = 2e-4;
    host_.busy(kLate, stream);
    host_.copy_pieces(pieces, stream);
  }

 private:
  Device& host_;
};

/// Keeps the tokens of one entry in HBM, host memory and a drive in memory, and verifies moves.
class OneEntry {
 public:
  OneEntry(Device& device, const DecoderShape& shape, std::int64_t tokens)
      : shape_(shape),
        tokens_(tokens),
        store({.device = &device,
               .shape = shape,
               .slots = {tokens, tokens, 0, tokens},
               .directory = {},
               .open_storage =
                   [this](const StorageOptions& options) {
                     return std::make_unique<DisorderlyEngine>(drive, options.queue_depth);
                   },
               .verify = true}),
        stream_(device.make_stream()) {
    drive.bytes.resize(static_cast<std::size_t>((tokens * store.token_bytes()).value));
    const std::vector<std::int32_t> slots = store.extend(kKey, 0, tokens);
    RandomStream random(2, "tests/kv_store");
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (const std::int32_t slot : slots) {
        std::vector<float> row(static_cast<std::size_t>(store.hbm().row_bytes().value) /
                               sizeof(float));
        row.front() = static_cast<float>(random.uniform());
        computed_.push_back(row.front());
        std::memcpy(store.hbm().row(layer, slot), row.data(), row.size() * sizeof(float));
      }
    }
    store.note_computed(slots, lane_);
  }

  /// Throws if a byte is wrong.
  void move(Medium from, Medium to) {
    drive.requests.clear();
    drive.deepest = drive.idle = 0;
    const KvMove moving = store.begin(transfer(from, to, kKey, 0, tokens_));
    store.move(moving, lane_);
    store.end(moving);
    store.set_resident_prefix(from, kKey, 0);
    if (from == Medium::hbm) {
      std::memset(store.hbm().layer(0), 0,
                  static_cast<std::size_t>((shape_.layers * store.hbm().layer_bytes()).value));
    }
  }

  /// Loads the entry from the drive. Expects that all rows of a layer have arrived when the copies
  /// before its report have ended.
  void load_by_layers() {
    const KvMove moving = store.begin(transfer(Medium::ssd, Medium::hbm, kKey, 0, tokens_));
    std::int64_t reported = 0;
    store.load_from_drive(moving, lane_, [&](std::int64_t layer) {
      EXPECT_EQ(layer, reported++);
      stream_->synchronize();
      for (std::int64_t i = 0; i < tokens_; ++i) {
        float first = 0;
        std::memcpy(&first, store.hbm().row(layer, moving.to_slots[static_cast<std::size_t>(i)]),
                    sizeof first);
        ASSERT_EQ(first, computed_[static_cast<std::size_t>(layer * tokens_ + i)]);
      }
    });
    EXPECT_EQ(reported, shape_.layers);
    store.verify(moving, lane_);
    store.end(moving);
    store.set_resident_prefix(Medium::ssd, kKey, 0);
  }

 private:
  static constexpr EntryKey kKey{1};
  DecoderShape shape_;
  std::int64_t tokens_;
  /// The first number of each row, by layer and token.
  std::vector<float> computed_;

 public:
  DisorderlyEngine::Drive drive;
  KvStore store;

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<StorageEngine> engine_ = store.open_engine();
  MoveLane lane_{.stream = stream_.get(), .storage = engine_.get(), .scratch = store.scratch(0)};
};

/// Computes this many tokens, takes them to the drive and back to HBM, and again, with a look at
/// each layer.
void go_to_the_drive_and_back(std::int64_t tokens, std::int64_t head_dim, bool by_layers) {
  const std::unique_ptr<Device> host = make_cpu_device(1);
  SlowCopies device(*host);
  OneEntry entry(device, {.layers = 2, .kv_heads = 2, .head_dim = head_dim}, tokens);
  ASSERT_EQ(entry.store.reads_layers(), by_layers);
  // More parts than are in flight at a time, and a last one that is not full.
  ASSERT_GT(tokens * entry.store.token_bytes(), Bytes(2 * kRingBytes));
  entry.move(Medium::hbm, Medium::dram);
  entry.move(Medium::dram, Medium::ssd);
  entry.move(Medium::ssd, Medium::hbm);
  EXPECT_GE(entry.drive.deepest, 4);
  entry.move(Medium::hbm, Medium::ssd);
  entry.load_by_layers();
  EXPECT_EQ(entry.store.counters().verified, 5 * tokens * entry.store.token_bytes());
  entry.store.check_invariants();
}

/// The host. Notes the pieces of its copies; the copy engine of a GPU moves each in one call.
class PieceLog final : public ForwardingDevice {
 public:
  explicit PieceLog(Device& host) : ForwardingDevice(host), host_(host) {}
  void copy_pieces(std::span<const CopyPiece> copied, Stream& stream) override {
    pieces.insert(pieces.end(), copied.begin(), copied.end());
    host_.copy_pieces(copied, stream);
  }

  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  void set_pitch_max(Bytes pitch) { info_.pitch_max = pitch; }

  std::vector<CopyPiece> pieces;

 private:
  Device& host_;
  DeviceInfo info_ = host_.info();
};

/// A store for 32 layers of 128 bytes a token, with a drive or without one.
class CopyCalls : public testing::TestWithParam<bool> {
 protected:
  static constexpr std::int64_t kLayers = 32;

  /// Saves tokens of the entry to host memory; returns the calls.
  std::int64_t save(EntryKey key, std::int64_t first, std::int64_t count) {
    const KvMove move =
        store_.begin(transfer(Medium::hbm, Medium::dram, key, first, first + count));
    device_.pieces.clear();
    store_.queue_layers(move, 0, kLayers, *stream_);
    stream_->synchronize();
    store_.end(move);
    return std::ssize(device_.pieces);
  }
  /// Loads all tokens of the entry one layer after another; returns the calls.
  std::int64_t load_by_layers(EntryKey key, std::int64_t count) {
    store_.set_resident_prefix(Medium::hbm, key, 0);
    return load(transfer(Medium::dram, Medium::hbm, key, 0, count));
  }
  std::int64_t load(const TransferCommand& command) {
    const KvMove move = store_.begin(command);
    device_.pieces.clear();
    for (std::int64_t layer = move.first_layer; layer < move.last_layer; ++layer) {
      store_.queue_layers(move, layer, layer + 1, *stream_);
    }
    stream_->synchronize();
    store_.verify(move, lane_);
    store_.end(move);
    return layers_queued();
  }
  /// Computes tokens behind those that the entry has.
  void compute(EntryKey key, std::int64_t past, std::int64_t added) {
    const std::vector<std::int32_t> context = store_.extend(key, past, added);
    for (auto slot = context.end() - added; slot != context.end(); ++slot) {
      for (std::int64_t layer = 0; layer < kLayers; ++layer) {
        auto* const row = reinterpret_cast<float*>(store_.hbm().row(layer, *slot));
        std::fill_n(row, store_.hbm().row_bytes().value / std::int64_t{sizeof(float)},
                    static_cast<float>(++computed_));
      }
    }
    store_.note_computed(std::span(context).last(static_cast<std::size_t>(added)), lane_);
  }

  const std::unique_ptr<Device> host_ = make_cpu_device(1);
  PieceLog device_{*host_};
  DisorderlyEngine::Drive drive_;
  const bool drive_is_there_ = GetParam();
  KvStore store_{{.device = &device_,
                  .shape = {.layers = kLayers, .kv_heads = 1, .head_dim = 16},
                  .slots = {4000, 4000, 0, drive_is_there_ ? 4000 : 0},
                  .directory = {},
                  .open_storage =
                      [this](const StorageOptions& options) {
                        return std::make_unique<DisorderlyEngine>(drive_, options.queue_depth);
                      },
                  .verify = true}};
  const std::unique_ptr<Stream> stream_ = device_.make_stream();
  const MoveLane lane_{.stream = stream_.get(), .storage = nullptr, .scratch = store_.scratch(0)};

 private:
  /// Copies of the load, which go to HBM. Copies for verification do not count.
  [[nodiscard]] std::int64_t layers_queued() const {
    return std::ranges::count_if(device_.pieces, [this](const CopyPiece& piece) {
      const auto* const to = static_cast<const std::byte*>(piece.to);
      return to >= store_.hbm().layer(0) &&
             to < store_.hbm().layer(kLayers - 1) + store_.hbm().layer_bytes().value;
    });
  }

  int computed_ = 0;
};

INSTANTIATE_TEST_SUITE_P(KvStore, CopyCalls, testing::Bool(), [](const auto& with) {
  return with.param ? "BesideADrive" : "WithoutADrive";
});

// Host memory is [layers][slots], as HBM is, or [slots][layers] beside a drive. Rows of the first
// are joined: one call for all layers. The second takes a call a layer, or one a token if that is
// less.
TEST_P(CopyCalls, AreOneForNeighboursOrOneALayer) {
  const EntryKey key{1};
  compute(key, 0, 1000);
  EXPECT_EQ(save(key, 0, 1000), drive_is_there_ ? kLayers : 1);
  compute(key, 1000, 5);
  EXPECT_EQ(save(key, 1000, 5), drive_is_there_ ? 5 : 1);
  EXPECT_EQ(load_by_layers(key, 1005), kLayers);
}

// Layers of HBM are 4,000 rows apart, tokens beside a drive 32.
TEST_P(CopyCalls, AreOneALayerIfLayersAreTooFarApart) {
  device_.set_pitch_max(kLayers * store_.hbm().row_bytes());
  const EntryKey key{1};
  compute(key, 0, 5);
  EXPECT_EQ(save(key, 0, 5), drive_is_there_ ? kLayers : 1);  // one piece of as many calls
}

// Responses of two requests grow a token at a time, in turns.
TEST_P(CopyCalls, AreAsManyForResponsesOfABatch) {
  const EntryKey first{1};
  const EntryKey second{2};
  compute(first, 0, 300);
  compute(second, 0, 300);
  for (std::int64_t past = 300; past < 400; ++past) {
    compute(first, past, 1);
    compute(second, past, 1);
  }
  EXPECT_EQ(save(first, 0, 400), drive_is_there_ ? kLayers : 1);
  EXPECT_EQ(save(second, 0, 400), drive_is_there_ ? kLayers : 1);
}

// A load ahead of a turn moves the first layers, the turn's own load the others.
TEST_P(CopyCalls, ALoadInTwoTransfersHasOneCallForEachLayer) {
  const EntryKey key{1};
  compute(key, 0, 100);
  save(key, 0, 100);
  store_.set_resident_prefix(Medium::hbm, key, 0);
  TransferCommand ahead = transfer(Medium::dram, Medium::hbm, key, 0, 100);
  ahead.open = true;
  ahead.layer = 20;
  EXPECT_EQ(load(ahead), 20);
  EXPECT_EQ(load(rest_of(ahead, Tokens(0), Tokens(100))), kLayers - 20);
  EXPECT_EQ(store_.tokens(Medium::hbm, key), 100);
  store_.check_invariants();
}

TEST_P(CopyCalls, SaveTheTokenThatATurnEndsWith) {
  const EntryKey key{1};
  compute(key, 0, 100);
  save(key, 0, 101);
  EXPECT_EQ(store_.tokens(Medium::hbm, key), 101);
  EXPECT_EQ(store_.tokens(Medium::dram, key), 101);
  store_.set_resident_prefix(Medium::hbm, key, 101);
  EXPECT_THROW(store_.set_resident_prefix(Medium::hbm, key, 103), InvariantError);
}

// The medium has the tokens before the first moved one, and none after it.
TEST_P(CopyCalls, ATransferReplacesTheTokensAfterItsFirst) {
  const EntryKey key{1};
  compute(key, 0, 100);
  save(key, 0, 100);
  save(key, 60, 30);
  EXPECT_EQ(store_.tokens(Medium::dram, key), 90);
  EXPECT_EQ(store_.held(Medium::dram), 90);
  store_.check_invariants();
}

TEST_P(CopyCalls, AreOneForEachRun) {
  const EntryKey key{1};
  compute(key, 0, 300);
  store_.cut(key, 100, 50);  // tokens 150 to 299 follow the first 100, 50 slots apart
  EXPECT_EQ(save(key, 0, 250), 2 * (drive_is_there_ ? kLayers : 1));
  EXPECT_EQ(load_by_layers(key, 250), kLayers);  // they are neighbours on the host
}

TEST(KvStore, VerifiedSlotsHoldNanUntilTheyAreWritten) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const DecoderShape shape{.layers = 2, .kv_heads = 1, .head_dim = 4};
  KvStore store({.device = device.get(),
                 .shape = shape,
                 .slots = {4, 0, 0, 0},
                 .directory = {},
                 .lanes = 1,
                 .open_storage = {},
                 .verify = true});
  const std::unique_ptr<Stream> stream = device->make_stream();
  const MoveLane lane{.stream = stream.get(), .storage = nullptr, .scratch = store.scratch(0)};
  constexpr std::size_t kRow = 8;
  const auto is_nan = [&](std::int64_t layer, std::int32_t slot) {
    std::array<float, kRow> row{};
    std::memcpy(row.data(), store.hbm().row(layer, slot), sizeof row);
    return std::ranges::all_of(row, [](float number) { return std::isnan(number); });
  };
  const auto write = [&](std::int64_t layer, std::int32_t slot, float last) {
    std::array<float, kRow> row{};
    row.back() = last;
    std::memcpy(store.hbm().row(layer, slot), row.data(), sizeof row);
  };
  const EntryKey key{1};
  const std::vector<std::int32_t> slots = store.extend(key, 0, 4);
  for (const std::int32_t slot : slots) {
    EXPECT_TRUE(is_nan(0, slot) && is_nan(1, slot));
    write(0, slot, 1);
    write(1, slot, -std::numeric_limits<float>::infinity());
  }
  EXPECT_NO_THROW(store.note_computed(slots, lane));
  write(1, slots[2], std::numeric_limits<float>::quiet_NaN());
  try {
    store.note_computed(slots, lane);
    ADD_FAILURE() << "NaN was taken for KV";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "the KV computed in layer 1 is not a number: its input KV was missing or "
                 "overwritten");
  }
  store.set_resident_prefix(Medium::hbm, key, 0);
  for (const std::int32_t slot : store.extend(EntryKey{2}, 0, 4)) {
    EXPECT_TRUE(is_nan(0, slot) && is_nan(1, slot));
  }
}

TEST(KvStore, WritesTheWholeFileBeforeItIsUsed) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  constexpr std::int64_t kTokens = 700;  // no whole number of requests
  try {
    const ScratchFile file(testing::TempDir(), Bytes(kStorageAlignment));
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();  // in memory, or without O_DIRECT
  }
  std::int64_t checks = 0;
  KvStore store({.device = device.get(),
                 .shape = {.layers = 2, .kv_heads = 2, .head_dim = 128},
                 .slots = {1, 1, 0, kTokens},
                 .directory = testing::TempDir(),
                 .check = [&checks] { ++checks; }});
  EXPECT_GE(checks, 1);
  const std::unique_ptr<StorageEngine> engine = store.open_engine();
  const EntryKey key{1};
  static_cast<void>(store.extend(key, 0, 1));
  const std::unique_ptr<Stream> stream = device->make_stream();
  const MoveLane lane{.stream = stream.get(), .storage = engine.get(), .scratch = store.scratch(0)};
  // The last place of the file, as it was found.
  KvMove move = store.begin(transfer(Medium::hbm, Medium::ssd, key, 0, 1));
  store.end(move);
  move.from = Medium::ssd;
  move.to = Medium::hbm;
  move.from_slots = {kTokens - 1};
  move.to_slots = {0};
  store.load_from_drive(move, lane, [](std::int64_t) {});
  stream->synchronize();
  const auto* const words = reinterpret_cast<const std::uint64_t*>(store.hbm().row(0, 0));
  EXPECT_EQ(std::count(words, words + 32, 0U), 0);
}

TEST(KvStore, LoadsPartsThatArriveInAnyOrder) {
  go_to_the_drive_and_back(1700, 128, false);  // 2 KiB a layer, half a block of the drive
}

TEST(KvStore, LoadsLayersThatArriveInAnyOrder) { go_to_the_drive_and_back(850, 256, true); }

// Parts of 64 rows have rows of many layers.
TEST(KvStore, LoadsLayersOfFewTokensThatArriveInAnyOrder) {
  const std::unique_ptr<Device> host = make_cpu_device(1);
  SlowCopies device(*host);
  for (const std::int64_t tokens : {1, 3, 64}) {
    OneEntry entry(device, {.layers = 50, .kv_heads = 2, .head_dim = 256}, tokens);
    entry.move(Medium::hbm, Medium::ssd);
    entry.load_by_layers();
    EXPECT_LE(entry.drive.deepest, kMoveDepth);
  }
}

TEST(KvStore, ReadsTheNextLayerBeforeTheLastOneHasArrived) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  for (const std::int64_t tokens : {10, 100, 300}) {
    OneEntry entry(*device, {.layers = 20, .kv_heads = 2, .head_dim = 256}, tokens);
    entry.drive.in_order = true;
    entry.move(Medium::hbm, Medium::ssd);
    entry.move(Medium::ssd, Medium::hbm);
    EXPECT_EQ(entry.drive.idle, 1) << tokens << " tokens: only the end leaves nothing in flight";
    EXPECT_GE(entry.drive.deepest, 8);
  }
}

// Rows of 4 KiB: 300 of them are 256, one MiB, and 44.
TEST(KvStore, MovesNeighboursOfALayerInOneRequest) {
  const std::unique_ptr<Device> host = make_cpu_device(1);
  PieceLog device(*host);
  using Sizes = std::vector<std::int64_t>;
  constexpr std::int64_t kRow = 4096;
  OneEntry entry(device, {.layers = 2, .kv_heads = 2, .head_dim = 256}, 300);
  device.pieces.clear();
  entry.move(Medium::hbm, Medium::dram);
  EXPECT_EQ(device.pieces.size(), 1U);
  entry.move(Medium::dram, Medium::ssd);
  const Sizes whole{256 * kRow, 44 * kRow, 256 * kRow, 44 * kRow};
  // The requests after these read the tokens back, to verify them.
  ASSERT_GE(entry.drive.requests.size(), whole.size());
  entry.drive.requests.resize(whole.size());
  EXPECT_EQ(entry.drive.requests, whole);
  entry.move(Medium::ssd, Medium::dram);
  EXPECT_EQ(entry.drive.requests, whole);
  entry.move(Medium::dram, Medium::ssd);
  entry.move(Medium::ssd, Medium::hbm);  // parts of 64 rows; the fifth has rows of both layers
  EXPECT_EQ(entry.drive.requests,
            (Sizes{64 * kRow, 64 * kRow, 64 * kRow, 64 * kRow, 44 * kRow, 20 * kRow, 64 * kRow,
                   64 * kRow, 64 * kRow, 64 * kRow, 24 * kRow}));
}

// Rows of 2 KiB, tokens of 8 KiB: 128 tokens are one MiB.
TEST(KvStore, MovesNeighboursWithAllLayersIfRowsAreNoBlocks) {
  const std::unique_ptr<Device> device = make_cpu_device(1);
  using Sizes = std::vector<std::int64_t>;
  constexpr std::int64_t kToken = 8192;
  OneEntry entry(*device, {.layers = 4, .kv_heads = 2, .head_dim = 128}, 200);
  entry.move(Medium::hbm, Medium::dram);
  entry.move(Medium::dram, Medium::ssd);
  entry.move(Medium::ssd, Medium::dram);
  EXPECT_EQ(entry.drive.requests, (Sizes{128 * kToken, 72 * kToken}));
  entry.move(Medium::dram, Medium::ssd);
  entry.move(Medium::ssd, Medium::hbm);
  EXPECT_EQ(entry.drive.requests, (Sizes{32 * kToken, 32 * kToken, 32 * kToken, 32 * kToken,
                                         32 * kToken, 32 * kToken, 8 * kToken}));
}

}  // namespace
}  // namespace kvtier::test
