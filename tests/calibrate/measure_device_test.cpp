/// The measurements on the host: their plans give a valid profile, and every kind of sample runs
/// and verifies its work.

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include "calibrate/calibrate.hpp"
#include "calibrate/measure.hpp"
#include "hw/device/cpu_device.hpp"
#include "sim/core/errors.hpp"
#include "tests/calibrate/support.hpp"
#include "tests/hw/device/forwarding_device.hpp"

namespace kvtier::calibrate {
namespace {

constexpr Bytes kFile(std::int64_t{16} << 20);

/// A drive in memory that takes a fixed time for each request, one after another, or a little
/// longer under other load.
class ThrottledEngine final : public StorageEngine {
 public:
  struct Behaviour {
    double seconds = 0;
    /// Changes the last byte of each read.
    bool damages = false;
    /// Writes from this offset on find the drive full.
    std::int64_t full_at = INT64_MAX;
  };
  using File = std::vector<std::byte>;
  explicit ThrottledEngine(Behaviour behaviour,
                           std::shared_ptr<File> file = std::make_shared<File>(kFile.value))
      : behaviour_(behaviour), file_(std::move(file)) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t in_flight() const override {
    return static_cast<std::int64_t>(waiting_.size());
  }
  void submit(std::span<const IoRequest> requests) override {
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    deepest = std::max(deepest, waiting_.size());
  }
  std::vector<IoCompletion> wait() override {
    const IoRequest request = waiting_.front();
    waiting_.pop_front();
    const std::int64_t begin = steady_clock().now_ns();
    const std::int64_t end = begin + static_cast<std::int64_t>(behaviour_.seconds * 1e9);
    const auto size = static_cast<std::size_t>(request.bytes.value);
    if (request.kind == IoKind::write) {
      ++writes;
      if (request.offset >= behaviour_.full_at) {
        waiting_.clear();
        throw DeviceError("pwrite: No space left on device (-28)");
      }
      std::memcpy(&file_->at(static_cast<std::size_t>(request.offset)), request.data, size);
    } else {
      ++reads;
      std::memcpy(request.data, &file_->at(static_cast<std::size_t>(request.offset)), size);
      if (behaviour_.damages) {
        request.data[size - 1] ^= std::byte{1};
      }
    }
    while (steady_clock().now_ns() < end) {
    }
    took.push_back(static_cast<double>(steady_clock().now_ns() - begin) * 1e-9);
    return {{request.tag, end}};
  }
  void flush() override { ++flushes; }

  int reads = 0;
  int writes = 0;
  int flushes = 0;
  std::size_t deepest = 0;
  /// Seconds that each request really took.
  std::vector<double> took;

 private:
  Behaviour behaviour_;
  std::string name_ = "throttled";
  std::shared_ptr<File> file_;
  std::deque<IoRequest> waiting_;
};

const PlannedCell& find(const std::vector<PlannedTable>& plan, OperationId operation,
                        const std::string& variant, std::vector<std::int64_t> at) {
  for (const PlannedTable& table : plan) {
    for (const PlannedCell& cell : table.cells) {
      if (table.table.operation == operation && table.table.variant == variant && cell.at == at) {
        return cell;
      }
    }
  }
  throw std::runtime_error("no such cell");
}

class StorageMeasures : public testing::Test {
 protected:
  std::vector<PlannedTable> plan(ThrottledEngine::Behaviour behaviour) {
    bench_ = make_storage_bench(
        [this, behaviour,
         file = std::make_shared<ThrottledEngine::File>(kFile.value)](const StorageOptions&) {
          auto engine = std::make_unique<ThrottledEngine>(behaviour, file);
          engine_ = engine.get();
          return engine;
        },
        kFile);
    return plan_storage(target_, bench_);
  }

  std::unique_ptr<Device> device_ = make_cpu_device(1);
  Target target_{
      .device = *device_, .model = test::small_model(), .memory = Bytes(std::int64_t{1} << 30)};
  std::shared_ptr<StorageBench> bench_;
  /// The last one that was opened.
  ThrottledEngine* engine_ = nullptr;
};

// A drive that takes 200 us for a block at any queue depth, and reports how much longer it took. A
// sample is the mean of all blocks except those with which the queue fills and empties. Other load
// can only lengthen a sample, so the shortest of many gives the instrument's overhead.
TEST_F(StorageMeasures, MeasureAThrottledDrive) {
  constexpr double kTruth = 200e-6;
  constexpr double kAdded = 1.05;
  constexpr int kMostSamples = 100;
  const auto tables = plan({.seconds = kTruth});
  for (const std::ptrdiff_t depth : {1, 4}) {
    const Sample sample =
        find(tables, OperationId::drive_read, "random", {1 << 16, depth}).prepare();
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kMostSamples && least >= kAdded; ++i) {
      engine_->took.clear();
      const double seconds = sample();
      const double truth =
          std::accumulate(engine_->took.begin() + depth, engine_->took.end() - depth, 0.0) /
          static_cast<double>(engine_->took.size() - 2 * depth);
      ASSERT_GE(truth, kTruth);
      ASSERT_GE(seconds, truth);
      least = std::min(least, seconds / truth);
    }
    EXPECT_LT(least, kAdded) << "depth " << depth;
  }
  EXPECT_GE(engine_->deepest, 4U);
}

// The file is written once, in blocks of 1 MiB, with one flush; then 1,024 blocks are read.
TEST_F(StorageMeasures, FillTheFileOnceAndReadFromIt) {
  const auto tables = plan({});
  const PlannedCell& cell = find(tables, OperationId::drive_read, "random", {4096, 4});
  (void)cell.prepare()();
  (void)cell.prepare()();
  EXPECT_EQ(engine_->writes, 16);
  EXPECT_EQ(engine_->flushes, 1);
  EXPECT_EQ(engine_->reads, 2048);
}

TEST_F(StorageMeasures, ReadOneBlockAfterAPause) {
  const auto tables = plan({});
  const Sample sample = find(tables, OperationId::drive_read, kAfterIdle, {4096, 1}).prepare();
  const std::int64_t begin = steady_clock().now_ns();
  const double seconds = sample();
  EXPECT_GE(static_cast<double>(steady_clock().now_ns() - begin) * 1e-9,
            std::chrono::duration<double>(kPause).count() + seconds);
  EXPECT_EQ(engine_->reads, 1);
}

// 4 MiB in parts of 256 KiB, by an engine of its own, which takes 100 us for each.
TEST_F(StorageMeasures, LoadThroughARingAfterAPause) {
  const auto tables = plan({.seconds = 1e-4});
  // The other one is opened by a thread of its own, while this one goes on.
  ThrottledEngine* const writer = engine_;
  const Sample sample = find(tables, OperationId::drive_to_device, kAfterIdle, {4 << 20}).prepare();
  EXPECT_EQ(writer->writes, 16);
  const std::int64_t begin = steady_clock().now_ns();
  const double seconds = sample();
  EXPECT_GE(static_cast<double>(steady_clock().now_ns() - begin) * 1e-9,
            std::chrono::duration<double>(kLongPause).count() + seconds);
  EXPECT_GE(seconds, 16 * 1e-4);
  EXPECT_NE(engine_, writer);
  EXPECT_EQ(engine_->reads, 16);
  EXPECT_EQ(engine_->deepest, 8U);
}

TEST_F(StorageMeasures, NoticeALoadThatDidNotArrive) {
  class Forgetful final : public kvtier::test::ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    void copy_pieces(std::span<const CopyPiece>, Stream&) override {}
  } device(*device_);
  (void)plan({});
  const Target target{.device = device, .model = target_.model, .memory = target_.memory};
  const auto tables = plan_storage(target, bench_);
  const Sample sample = find(tables, OperationId::drive_to_device, kAfterIdle, {1 << 16}).prepare();
  EXPECT_THROW((void)sample(), DeviceError);
}

TEST_F(StorageMeasures, WriteUpToTheLargestRequestAfterAPause) {
  const auto tables = plan({});
  const Sample sample =
      find(tables, OperationId::drive_write, kAfterIdle, {kDriveRequestBytes, 1}).prepare();
  const std::int64_t writes = engine_->writes;
  (void)sample();
  EXPECT_EQ(engine_->writes, writes + 1);
  EXPECT_EQ(engine_->reads, 0);
}

TEST_F(StorageMeasures, FlushOnlySustainedWrites) {
  const auto tables = plan({});
  (void)find(tables, OperationId::drive_write, "burst", {65536, 4}).prepare()();
  EXPECT_EQ(engine_->flushes, 1);
  (void)find(tables, OperationId::drive_write, "sustained", {65536, 4}).prepare()();
  EXPECT_EQ(engine_->flushes, 2);
  EXPECT_EQ(engine_->reads, 0);
}

// About 30 % of 512 blocks are read: the standard deviation is sqrt(512 x 0.3 x 0.7) = 10.4.
TEST_F(StorageMeasures, MixReadsAndWrites) {
  const auto tables = plan({});
  (void)find(tables, OperationId::drive_mix, "random", {65536, 16, 30}).prepare()();
  EXPECT_EQ(engine_->reads + engine_->writes, 16 + 512);
  EXPECT_NEAR(engine_->reads, 154, 5 * 10.4);
}

TEST_F(StorageMeasures, NoticeDamagedData) {
  const auto tables = plan({.damages = true});
  const Sample sample = find(tables, OperationId::drive_read, "random", {4096, 4}).prepare();
  try {
    (void)sample();
    FAIL();
  } catch (const DeviceError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("the drive gave other data than were written, at ")) << message;
  }
}

TEST_F(StorageMeasures, EndWithTheErrorOfAFullDrive) {
  const auto tables = plan({.full_at = std::int64_t{8} << 20});
  try {
    (void)find(tables, OperationId::drive_read, "random", {4096, 1}).prepare();
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "pwrite: No space left on device (-28)");
  }
}

TEST_F(StorageMeasures, RefuseAFileThatIsTooSmall) {
  try {
    (void)make_storage_bench(
        [](const StorageOptions&) {
          return std::make_unique<ThrottledEngine>(ThrottledEngine::Behaviour{});
        },
        Bytes(1 << 20));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "the test file needs at least 16 MiB");
  }
}

TEST_F(StorageMeasures, RunEveryKindOfSample) {
  for (const PlannedTable& table : plan({})) {
    ASSERT_FALSE(table.cells.empty());
    SCOPED_TRACE(std::string(to_string(table.table.operation)) + " " + table.table.variant);
    EXPECT_GT(table.cells.front().prepare()(), 0);
  }
}

class Measures : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device(2);
  /// Enough for rows of elementwise that exceed any cache.
  Target target_{
      .device = *device_,
      .model = test::small_model(),
      .memory = std::max(Bytes(std::int64_t{1} << 30), 4 * device_->info().limits.cache)};
};

TEST_F(Measures, CoverEveryOperationAndMakeAValidProfile) {
  const auto bench = make_storage_bench(
      [](const StorageOptions&) {
        return std::make_unique<ThrottledEngine>(ThrottledEngine::Behaviour{});
      },
      kFile);
  for (const bool full : {false, true}) {
    target_.full = full;
    Profile profile;
    std::set<OperationId> operations;
    for (const PlannedTable& planned : plan_all(target_, bench)) {
      operations.insert(planned.table.operation);
      ProfileTable table = planned.table;
      for (const PlannedCell& cell : planned.cells) {
        EXPECT_GE(cell.limit_seconds, 0);
        table.cells.push_back({.at = cell.at,
                               .p25_seconds = 1,
                               .median_seconds = 1,
                               .p75_seconds = 1,
                               .n = 1,
                               .parts = cell.parts});
      }
      profile.tables.push_back(std::move(table));
    }
    Problems problems;
    check_profile(profile, problems);
    EXPECT_EQ(problems.lines(), std::vector<std::string>{});
    // The operations from gemm_grid on are only imported from tables, except for idle_pass.
    EXPECT_EQ(operations.size(), static_cast<std::size_t>(OperationId::gemm_grid) + 1);
    EXPECT_TRUE(operations.contains(OperationId::idle_pass));
  }
}

TEST_F(Measures, RunEveryKindOfSample) {
  for (const PlannedTable& table : plan_all(target_, nullptr)) {
    SCOPED_TRACE(std::string(to_string(table.table.operation)) + " " + table.table.variant);
    ASSERT_FALSE(table.cells.empty());
    const PlannedCell& cell = table.cells.front();
    EXPECT_LE(cell.memory, target_.memory);
    const Sample sample = cell.prepare();
    EXPECT_GT(sample(), 0);
    EXPECT_GT(sample(), cell.limit_seconds);
  }
}

// 2 m n k operations, or the bytes of weights, input and output. qkv of the small model: n = 4 x 16
// + 2 x 2 x 16 = 128, k = 64.
TEST_F(Measures, GateMatricesByOperationsAndBytes) {
  const DeviceLimits& limits = device_->info().limits;
  const std::vector<PlannedTable> plan = plan_compute(target_);
  ASSERT_EQ(plan[0].table.variant, "qkv");
  EXPECT_EQ(plan[0].table.shape.at("n"), 128);
  for (const PlannedCell& cell : plan[0].cells) {
    const auto m = static_cast<double>(cell.at[0]);
    const double flops = 2 * m * 128 * 64;
    const double bytes = 4 * (128 * 64 + m * (128 + 64));
    EXPECT_DOUBLE_EQ(cell.limit_seconds, std::max(flops / limits.flops_per_second,
                                                  bytes / limits.memory_bytes_per_second));
  }
}

/// The host, except that one kind of work is skipped.
class IdleDevice final : public kvtier::test::ForwardingDevice {
 public:
  enum class Idle { gemm, attention, row_function, copy };
  IdleDevice(Device& host, Idle idle) : ForwardingDevice(host), idle_(idle) {}

  void copy(void* to, const void* from, Bytes bytes, Stream& stream) override {
    if (idle_ != Idle::copy || bytes < Bytes(4096)) {
      ForwardingDevice::copy(to, from, bytes, stream);
    }
  }
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    if (idle_ != Idle::copy) {
      ForwardingDevice::copy_pieces(pieces, stream);
    }
  }
  void gemm(const GemmWork& work, Stream& stream) override {
    if (idle_ != Idle::gemm) {
      ForwardingDevice::gemm(work, stream);
    }
  }
  void attention(const AttentionWork& work, Stream& stream) override {
    if (idle_ != Idle::attention) {
      ForwardingDevice::attention(work, stream);
    }
  }
  void row_function(const RowFunctionWork& work, Stream& stream) override {
    if (idle_ != Idle::row_function) {
      ForwardingDevice::row_function(work, stream);
    }
  }

 private:
  Idle idle_;
};

/// The host, which counts what a decoder does once for each time it runs.
class CountingDevice final : public kvtier::test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void gemm(const GemmWork& work, Stream& stream) override {
    ++gemms;
    ForwardingDevice::gemm(work, stream);
  }
  void read_elements(std::span<float> values, const void* from) override {
    ++reads;
    ForwardingDevice::read_elements(values, from);
  }
  std::int64_t gemms = 0;
  std::int64_t reads = 0;
};

// The query, the output, the keys and the values are each read in one piece.
TEST_F(Measures, ReadAContextsKeysAtOnceToVerifyAttention) {
  CountingDevice device(*device_);
  const Target target{
      .device = device, .model = target_.model, .memory = target_.memory, .seed = 1};
  bool found = false;
  for (const PlannedTable& table : plan_compute(target)) {
    for (const PlannedCell& cell : table.cells) {
      const bool long_context = cell.at.size() == 2 && cell.at[0] == 1 && cell.at[1] >= 1024;
      if (table.table.operation == OperationId::prefill_attention && long_context && !found) {
        found = true;
        (void)cell.prepare();
        EXPECT_EQ(device.reads, 4);
      }
    }
  }
  EXPECT_TRUE(found);
}

TEST_F(Measures, TimePrefillsAfterPausesAndInRunsAndIterationsInRuns) {
  CountingDevice device(*device_);
  const Target target{
      .device = device, .model = target_.model, .memory = target_.memory, .seed = 1};
  const std::vector<PlannedTable> tables = plan_steps(target);
  struct Seen {
    std::int64_t gemms = 0;
    double seconds = 0;  // as it says
    double passed = 0;
  };
  const auto seen = [&](const char* variant, const std::vector<std::int64_t>& at,
                        OperationId operation = OperationId::model_step) {
    const Sample sample = find(tables, operation, variant, at).prepare();
    const std::int64_t gemms = device.gemms;
    const std::int64_t begin = steady_clock().now_ns();
    const double seconds = sample();
    return Seen{.gemms = device.gemms - gemms,
                .seconds = seconds,
                .passed = static_cast<double>(steady_clock().now_ns() - begin) * 1e-9};
  };
  const Seen prefill = seen(kCold, {1, 8, 0});
  EXPECT_GE(prefill.passed, std::chrono::duration<double>(kLongPause).count() + prefill.seconds);
  // The time excludes the pass before it.
  const Seen second = seen(kSecond, {1, 8, 0});
  EXPECT_EQ(second.gemms, 2 * prefill.gemms);
  EXPECT_GT(second.passed, std::chrono::duration<double>(kLongPause).count() + second.seconds);
  // Three passes before the idle time, and one after it.
  const Seen idle = seen("prefill", {1000}, OperationId::idle_pass);
  EXPECT_EQ(idle.gemms, 4 * prefill.gemms);
  EXPECT_GT(idle.passed, 0.001 + idle.seconds);
  // One pass says how many take 20 ms, at most 8. A prefill precedes the decode iterations.
  const auto expect_run = [&prefill](const Seen& run, std::int64_t before) {
    EXPECT_EQ(run.gemms % prefill.gemms, 0);
    const std::int64_t times = run.gemms / prefill.gemms - before;
    EXPECT_GE(times, 1);
    EXPECT_LE(times, 8);
    EXPECT_LE(run.seconds * static_cast<double>(times), run.passed);
  };
  expect_run(seen(kWarm, {1, 8, 0}), 1);
  expect_run(seen(kDecodeWarm, {1, 1, 127}), 2);
}

/// A device with the kernels of another library.
class LibraryDevice final : public kvtier::test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  [[nodiscard]] bool has_attention(AttentionLibrary,
                                   const kernels::PagedAttentionShape&) const override {
    return true;
  }
  void plan_attention(std::unique_ptr<AttentionPlan>&, AttentionLibrary library,
                      const kernels::PagedAttentionShape&, std::span<const std::int64_t>,
                      std::span<const std::int64_t>, Stream&) override {
    used.insert(library);
  }
  std::set<AttentionLibrary> used;
};

TEST_F(Measures, AttentionOfALibraryInPlaceOfTheOwnKernels) {
  LibraryDevice device(*device_);
  Target target{.device = device, .model = target_.model, .memory = target_.memory, .seed = 1};
  const auto variants = [&] {
    std::vector<std::string> found;
    for (const PlannedTable& table : plan_all(target, nullptr)) {
      const OperationId operation = table.table.operation;
      if (operation == OperationId::prefill_attention || operation == OperationId::model_step) {
        found.push_back(table.table.variant);
      }
    }
    return found;
  };
  EXPECT_EQ(variants(), (std::vector<std::string>{"random_slots", "rotated", "flashinfer", kCold,
                                                  kSecond, kWarm, kDecodeWarm}));
  target.attention = AttentionLibrary::flashinfer;
  EXPECT_EQ(variants(),
            (std::vector<std::string>{std::string("flashinfer"), std::string("rotated")}));
  for (const PlannedTable& table : plan_all(target, nullptr)) {
    if (table.table.variant == "flashinfer") {
      (void)table.cells.front().prepare()();
    }
  }
  EXPECT_EQ(device.used, std::set{AttentionLibrary::flashinfer});
}

TEST_F(Measures, NoticeWorkThatWasNotDone) {
  using Idle = IdleDevice::Idle;
  const std::map<Idle, std::pair<OperationId, std::string>> cases{
      {Idle::gemm, {OperationId::gemm, "64 x 128: the device computed 0, "}},
      {Idle::attention, {OperationId::prefill_attention, "attention: the device computed 0, "}},
      {Idle::row_function, {OperationId::elementwise, "row function: the device computed "}},
      {Idle::copy, {OperationId::copy_h2d, "a copy of 4096 bytes to_device did not arrive"}}};
  for (const auto& [idle, expected] : cases) {
    IdleDevice device(*device_, idle);
    const Target target{.device = device, .model = target_.model, .memory = target_.memory};
    bool noticed = false;
    for (const PlannedTable& table : plan_all(target, nullptr)) {
      if (table.table.operation != expected.first || noticed) {
        continue;
      }
      try {
        (void)table.cells.front().prepare()();
        ADD_FAILURE() << expected.second;
      } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find(expected.second), std::string::npos)
            << error.what();
      }
      noticed = true;
    }
    EXPECT_TRUE(noticed);
  }
}

}  // namespace
}  // namespace kvtier::calibrate
