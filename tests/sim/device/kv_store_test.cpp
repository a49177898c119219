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
  };
  DisorderlyEngine(Drive& drive, std::int64_t depth) : drive_(drive), depth_(depth) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t in_flight() const override { return std::ssize(waiting_); }
  void submit(std::span<const IoRequest> requests) override {
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    EXPECT_LE(in_flight(), depth_);
    drive_.deepest = std::max(drive_.deepest, in_flight());
  }
  std::vector<IoCompletion> wait() override {
    std::vector<IoCompletion> ended;
    for (std::int64_t left = 1 + random_.index(3); left > 0 && !waiting_.empty(); --left) {
      std::swap(waiting_[static_cast<std::size_t>(random_.index(in_flight()))], waiting_.back());
      const IoRequest request = waiting_.back();
      waiting_.pop_back();
      std::byte* const there = &drive_.bytes.at(static_cast<std::size_t>(request.offset));
      const auto size = static_cast<std::size_t>(request.bytes.value);
      if (request.kind == IoKind::read) {
        std::memcpy(request.data, there, size);
      } else {
        std::memcpy(there, request.data, size);
      }
      ended.push_back({.tag = request.tag, .at_ns = 0});
    }
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
  void copy_pieces(std::span<const CopyPiece> pieces, CopyMethod method, Stream& stream) override {
    constexpr double kLate = 2e-4;
    methods.push_back(method);
    host_.busy(kLate, stream);
    host_.copy_pieces(pieces, method, stream);
  }

  std::vector<CopyMethod> methods;

 private:
  Device& host_;
};

/// Computes this many tokens, takes them to the drive and back to HBM, whole or a layer at a time.
void go_to_the_drive_and_back(std::int64_t tokens, std::int64_t head_dim, bool by_layers) {
  const std::unique_ptr<Device> host = make_cpu_device(1);
  SlowCopies device(*host);
  const DecoderShape shape{.layers = 2, .kv_heads = 2, .head_dim = head_dim};
  DisorderlyEngine::Drive drive;
  KvStore store({.device = &device,
                 .shape = shape,
                 .slots = {tokens, tokens, 0, tokens},
                 .directory = {},
                 .lanes = 1,
                 .open_storage =
                     [&drive](const StorageOptions& options) {
                       return std::make_unique<DisorderlyEngine>(drive, options.queue_depth);
                     },
                 .to_hbm = CopyMethod::kernel,
                 .verify = true});
  drive.bytes.resize(static_cast<std::size_t>((tokens * store.token_bytes()).value));
  ASSERT_EQ(store.reads_layers(), by_layers);
  const std::unique_ptr<Stream> stream = device.make_stream();
  const std::unique_ptr<StorageEngine> engine = store.open_engine();
  const MoveLane lane{.stream = stream.get(), .storage = engine.get(), .scratch = store.scratch(0)};
  // More parts than are in flight at a time, and a last one that is not full.
  ASSERT_GT(tokens, 2 * std::ssize(lane.scratch));

  const EntryKey key{1};
  const std::vector<std::int32_t> slots = store.extend(key, 0, tokens);
  RandomStream random(2, "tests/kv_store");
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const std::int32_t slot : slots) {
      std::vector<float> row(static_cast<std::size_t>(store.token_bytes().value / shape.layers) /
                             sizeof(float));
      row.front() = static_cast<float>(random.uniform());
      std::memcpy(store.hbm().row(layer, slot), row.data(), row.size() * sizeof(float));
    }
  }
  store.note_computed(slots, lane);
  const auto move = [&](Medium from, Medium to) {
    const KvMove moving = store.begin(transfer(from, to, key, 0, tokens));
    if (by_layers && from == Medium::ssd) {
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        store.load_from_drive(moving, layer, layer + 1, lane);
      }
      stream->synchronize();
      store.verify(moving, lane);
    } else {
      store.move(moving, lane);
    }
    store.end(moving);
    store.set_resident_prefix(from, key, 0);
  };
  device.methods.clear();
  move(Medium::hbm, Medium::dram);
  EXPECT_EQ(std::ranges::count(device.methods, CopyMethod::kernel), 0);
  std::memset(store.hbm().layer(0), 0,
              static_cast<std::size_t>((shape.layers * store.hbm().layer_bytes()).value));
  move(Medium::dram, Medium::ssd);
  drive.deepest = 0;
  device.methods.clear();
  move(Medium::ssd, Medium::hbm);  // throws if a byte is wrong
  EXPECT_GT(std::ranges::count(device.methods, CopyMethod::kernel), 0);
  EXPECT_GE(drive.deepest, 4);  // parts, or tokens where layers are read
  EXPECT_EQ(store.counters().verified, 3 * tokens * store.token_bytes());
  store.check_invariants();
}

/// The host. Notes the pieces of its copies; the copy engine of a GPU moves each in one call.
class PieceLog final : public ForwardingDevice {
 public:
  explicit PieceLog(Device& host) : ForwardingDevice(host), host_(host) {}
  void copy_pieces(std::span<const CopyPiece> copied, CopyMethod method, Stream& stream) override {
    pieces.insert(pieces.end(), copied.begin(), copied.end());
    host_.copy_pieces(copied, method, stream);
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
  store.load_from_drive(move, 0, 2, lane);
  stream->synchronize();
  const auto* const words = reinterpret_cast<const std::uint64_t*>(store.hbm().row(0, 0));
  EXPECT_EQ(std::count(words, words + 32, 0U), 0);
}

TEST(KvStore, LoadsPartsThatArriveInAnyOrder) {
  go_to_the_drive_and_back(1700, 128, false);  // 2 KiB a layer, half a block of the drive
}

TEST(KvStore, LoadsLayersThatArriveInAnyOrder) { go_to_the_drive_and_back(850, 256, true); }

}  // namespace
}  // namespace kvtier::test
