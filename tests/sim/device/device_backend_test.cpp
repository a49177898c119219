#include "sim/device/device_backend.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "sim/core/errors.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/hw/device/forwarding_device.hpp"
#include "tests/hw/tiny_profile.hpp"
#include "tests/sim/device/support.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// Turns follow each other at once, so that a run takes no longer than its work.
RunConfig in_a_hurry(RunConfig config) {
  config.workload.arrival_rate = PerSecond(1000);
  config.workload.think_time.mean = SimDuration(1000000);
  return config;
}

TEST(DeviceBackend, MovesEveryByteOfRandomSystems) {
  const auto device = make_cpu_device(1);
  const PolicyRegistry registry = builtin_policies();
  Bytes verified;
  TransferLog transfers;
  int observed = 0;
  const std::int64_t ran = for_device_configs(12, [&](const RunConfig& drawn) {
    const RunConfig config = in_a_hurry(drawn);
    DeviceBackend backend({.config = &config,
                           .device = device.get(),
                           .directory = KVTIER_SOURCE_DIR,
                           .verify = true,
                           .spare_contexts = 200});
    // Watched or not, the work is the same.
    const bool watched = observed++ % 2 == 0;
    const Json result =
        run_on(backend, config, registry, {.observer = watched ? &transfers : nullptr});
    backend.finish();
    expect_within_tiers(backend.store(), config);
    EXPECT_GT(result["metrics"]["ttft_seconds"]["mean"].get<double>(), 0);
    verified += backend.store().counters().verified;
  });
  EXPECT_GT(ran, 0);
  EXPECT_GT(verified.value, 0);
  EXPECT_GT(transfers.count, 0);
}

TEST(DeviceBackend, MovesEveryByteOfSharedPrompts) {
  const auto device = make_cpu_device(1);
  const PolicyRegistry registry = builtin_policies();
  const RunConfig config = crowded_car_config(4);
  DeviceBackend backend({.config = &config, .device = device.get(), .verify = true});
  const Json result = run_on(backend, config, registry);
  backend.finish();
  expect_within_tiers(backend.store(), config);
  EXPECT_GT(result["metrics"]["hit_rate"]["all_turns"]["total"].get<double>(), 0);
  EXPECT_GT(backend.store().counters().verified.value, 0);
}

TEST(DeviceBackend, CountsPassesSinceTheLastIdleTime) {
  const auto device = make_cpu_device(1);
  const PolicyRegistry registry = builtin_policies();
  const RunConfig config = crowded_config(Medium::dram, Medium::ssd);
  for (const SimDuration gap : {SimDuration(0), SimDuration(3'600'000'000'000)}) {
    DeviceBackend backend({.config = &config,
                           .device = device.get(),
                           .directory = KVTIER_SOURCE_DIR,
                           .idle_gap = gap,
                           .spare_contexts = 200});
    (void)run_on(backend, config, registry);
    backend.finish();
    std::int64_t passes = 0;
    for (const ComputedWork& work : backend.computed()) {
      ASSERT_EQ(work.passes_before, gap.ns > 0 ? passes : 0);
      passes += work.iterations;
    }
    EXPECT_GT(passes, std::ssize(backend.computed())) << "some work has several iterations";
  }
}

/// Says that it is a GPU, and keeps the numbers of tokens of its matrices.
class GpuInName final : public ForwardingDevice {
 public:
  explicit GpuInName(Device& host) : ForwardingDevice(host), info_(host.info()) {
    info_.kind = "cuda";
  }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  void gemm(const GemmWork& work, Stream& stream) override {
    tokens.insert(work.m);
    ForwardingDevice::gemm(work, stream);
  }
  std::set<std::int64_t> tokens;

 private:
  DeviceInfo info_;
};

TEST(DeviceBackend, WarmsUpAGpuBeforeTheRun) {
  const auto host = make_cpu_device(1);
  GpuInName gpu(*host);
  RunConfig config = crowded_config(Medium::dram, Medium::ssd);
  const std::int64_t window = config.model.context_window.value;
  ASSERT_GE(window, 64);
  const DeviceBackend backend(
      {.config = &config, .device = &gpu, .directory = KVTIER_SOURCE_DIR, .verify = true});
  for (const std::int64_t size : {1, 2, 3, 15, 16, 32, 64}) {
    EXPECT_TRUE(gpu.tokens.contains(size)) << size;
  }
  EXPECT_GT(*gpu.tokens.rbegin(), window - 64);
  EXPECT_LE(*gpu.tokens.rbegin(), window);
}

/// A drive in memory that can do wrong.
class FakeDrive {
 public:
  std::atomic<std::int64_t> fails_after = INT64_MAX;
  std::atomic<std::int64_t> reads_fail_after = INT64_MAX;
  std::atomic<bool> flips_a_bit = false;

  std::unique_ptr<StorageEngine> open(const StorageOptions& options) {
    class Calls final : public FileCalls {
     public:
      explicit Calls(FakeDrive& drive) : drive_(drive) {}
      std::int64_t read(std::byte* data, std::int64_t bytes, std::int64_t offset) override {
        const std::lock_guard lock(drive_.mutex_);
        if (--drive_.reads_fail_after < 0) {
          errno = EIO;
          return -1;
        }
        std::memcpy(data, drive_.at(offset, bytes), static_cast<std::size_t>(bytes));
        if (drive_.flips_a_bit) {
          data[bytes / 2] ^= std::byte{1};
        }
        return bytes;
      }
      std::int64_t write(const std::byte* data, std::int64_t bytes, std::int64_t offset) override {
        const std::lock_guard lock(drive_.mutex_);
        if (--drive_.fails_after < 0) {
          errno = ENOSPC;
          return -1;
        }
        std::memcpy(drive_.at(offset, bytes), data, static_cast<std::size_t>(bytes));
        return bytes;
      }
      int sync() override { return 0; }

     private:
      FakeDrive& drive_;
    };
    return make_thread_engine(std::make_unique<Calls>(*this), options.queue_depth, "fake");
  }

 private:
  std::byte* at(std::int64_t offset, std::int64_t bytes) {
    bytes_.resize(std::max(bytes_.size(), static_cast<std::size_t>(offset + bytes)));
    return bytes_.data() + offset;
  }
  std::mutex mutex_;
  std::vector<std::byte> bytes_;
};

class Faults : public testing::Test {
 protected:
  Faults() {
    std::uint64_t seed = 1;
    do {
      config_ = in_a_hurry(random_device_config(seed++));
    } while (!config_.system.tiers.ssd || config_.system.tiers.cxl);
    config_.workload.think_time.mean = SimDuration(30000000);
    // Host memory holds two sessions at most, so that the drive is written, and read for turns.
    SystemConfig& system = config_.system;
    system.tiers.dram = tier("lru");
    system.tiers.ssd = tier("lru");
    system.prefetch = {.name = "none", .parameters = {}};
    config_.serving.kv_reservation = Reservation::exact;
    const Bytes context = kv_bytes_per_token(config_.model) * config_.model.context_window.value;
    config_.hardware.dram->capacity = 2 * context;
    config_.hardware.ssd->capacity = 100 * context;
  }

  Json run(bool verify) { return run(verify, *device_); }
  Json run(bool verify, Device& device) {
    DeviceBackend backend(
        {.config = &config_,
         .device = &device,
         .verify = verify,
         .open_storage = [this](const StorageOptions& options) { return drive_.open(options); },
         .spare_contexts = 200});
    Json result = run_on(backend, config_, registry_);
    backend.finish();
    return result;
  }

  std::unique_ptr<Device> device_ = make_cpu_device(1);
  PolicyRegistry registry_ = builtin_policies();
  RunConfig config_;
  FakeDrive drive_;
};

TEST_F(Faults, ARunWithoutAFaultSucceeds) {
  const Json result = run(true);
  EXPECT_GT(result["metrics"]["hit_rate"]["all_turns"]["ssd"].get<double>(), 0.1);
}

/// Copies begin late, and no stream waits for them.
class WithoutWaits final : public ForwardingDevice {
 public:
  explicit WithoutWaits(Device& host) : ForwardingDevice(host), host_(host) {}
  void wait(Stream&, Event&) override {}
  void copy_pieces(std::span<const CopyPiece> pieces, Stream& stream) override {
    host_.busy(2e-3, stream);
    host_.copy_pieces(pieces, stream);
  }

 private:
  Device& host_;
};

TEST_F(Faults, ComputingBeforeALoadHasArrivedIsDetected) {
  config_.hardware.dram->capacity = config_.hardware.ssd->capacity;
  config_.system.load = {.discipline = LoadDiscipline::layer_overlapped, .buffers = 0};
  config_.system.positions = KeyPositions::decoupled;
  WithoutWaits device(*device_);
  try {
    (void)run(true, device);
    ADD_FAILURE() << "KV was used that was not there";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("is not a number"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW((void)run(true));
}

TEST_F(Faults, AFullDriveEndsTheRun) {
  drive_.fails_after = 5;
  try {
    run(false);
    ADD_FAILURE() << "the drive is full";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos)
        << error.what();
  }
}

TEST_F(Faults, ADriveThatCannotBeReadEndsTheRunAtOnce) {
  // Loads for turns read it, too: a prefill waits for KV that never arrives. Each of the first
  // reads is the one that fails.
  for (std::int64_t good = 0; good < 10; ++good) {
    drive_.reads_fail_after = good;
    try {
      run(false);
      ADD_FAILURE() << "the drive cannot be read";
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("Input/output error"), std::string::npos)
          << error.what();
    }
  }
}

TEST_F(Faults, AWrongByteIsNamed) {
  drive_.flips_a_bit = true;
  try {
    run(true);
    ADD_FAILURE() << "a byte is wrong";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the KV of token "), std::string::npos) << text;
    EXPECT_NE(text.find(" is wrong in layer "), std::string::npos) << text;
    EXPECT_NE(text.find("ssd"), std::string::npos) << text;
  }
}

/// The host, with memory for so many allocations.
class FullDevice final : public ForwardingDevice {
 public:
  FullDevice(Device& host, int allocations) : ForwardingDevice(host), left_(allocations) {}

 private:
  void before_allocation(MemoryKind, Bytes) override {
    if (left_-- == 0) {
      throw DeviceError("no memory is left");
    }
  }
  int left_;
};

// If any allocation fails, the run does not begin, and all earlier allocations are freed.
TEST_F(Faults, ADeviceWithTooLittleMemoryRunsNothing) {
  int refused = 0;
  for (bool ran = false; !ran;) {
    FullDevice device(*device_, refused);
    try {
      DeviceBackend backend(
          {.config = &config_,
           .device = &device,
           .open_storage = [this](const StorageOptions& options) { return drive_.open(options); },
           .spare_contexts = 200});
      (void)run_on(backend, config_, registry_);
      backend.finish();
      ran = true;
    } catch (const DeviceError& error) {
      EXPECT_STREQ(error.what(), "no memory is left");
      ++refused;
    }
    EXPECT_EQ(device.allocations(), 0U);
    ASSERT_LT(refused, 1000);
  }
  EXPECT_GT(refused, 5);  // weights, both pools and the decoder's buffers
}

TEST(DeviceConfigs, AreRefusedWithAllReasons) {
  const auto device = make_cpu_device(1);
  RunConfig config = random_device_config(1);
  config.cluster.instances = 2;
  config.system.positions = KeyPositions::embedded;
  config.model.kv_bytes_per_element = 2;
  try {
    check_runs_on_device(config, *device);
    ADD_FAILURE() << "a device cannot run it";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems(),
              (std::vector<std::string>{
                  "/cluster: a device is one instance, got 2",
                  "/system/positions: a device keeps keys without positions",
                  "/model/kv_bytes_per_element: cpu computes in numbers of 4 bytes, so that a "
                  "token's KV takes 4096 bytes; the model says 2048"}));
  }
}

}  // namespace
}  // namespace kvtier::test
