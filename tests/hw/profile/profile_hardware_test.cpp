#include "hw/profile/profile_hardware.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/tiny_profile.hpp"

namespace kvtier {
namespace {

using test::add_table;
using test::cell;
using test::tiny_profile;

TEST(MeasuredHardware, IsNothingWithoutCopiesAndDrives) {
  EXPECT_EQ(measured_hardware(tiny_profile()), Json::object());
}

TEST(MeasuredHardware, TakesTheBestRateOfEachWay) {
  Profile profile = tiny_profile();
  using enum OperationId;
  // 1,000 B in 0.5 s are 2 kB/s, 4,000 in 1 s 4 kB/s. Both ways together 2 + 3 = 5 kB/s.
  add_table(profile, copy_duplex, "to_device", {cell({1000}, 0.5), cell({4000}, 1)});
  add_table(profile, copy_duplex, "to_host", {cell({4000}, 2)});
  add_table(profile, copy_duplex, "to_device_of_both", {cell({4000}, 2)});
  add_table(profile, copy_duplex, "to_host_of_both", {cell({6000}, 2)});
  // copy_h2d is not used if copy_duplex was measured.
  add_table(profile, copy_h2d, "pinned", {cell({9000, 1}, 1)});
  add_table(profile, call_overhead, "event", {cell({}, 3e-6)});
  // A block of 100 B every 0.01 s with 4 in flight; of writes the sustained rate counts.
  add_table(profile, drive_read, "random", {cell({100, 1}, 0.02), cell({100, 4}, 0.01)});
  add_table(profile, drive_write, "burst", {cell({100, 4}, 0.01)});
  add_table(profile, drive_write, "sustained", {cell({100, 4}, 0.04)});
  // All reads is no mix; a mix slower than reading alone counts as that.
  add_table(profile, drive_mix, "random", {cell({100, 4, 100}, 0.001), cell({100, 4, 50}, 0.02)});
  add_table(profile, control_step, "scheduler_step", {cell({8}, 2e-6), cell({1}, 1e-6)});
  EXPECT_EQ(measured_hardware(profile),
            Json::parse(R"({"links": {"pcie": {"to_device": {"rate": "4kB/s", "latency": "3us"},
                                               "to_host": {"rate": "2kB/s", "latency": "3us"},
                                               "both": "5kB/s", "of": "gpu"}},
                            "ssd": {"bandwidth": {"read": {"rate": "10kB/s", "latency": "20ms"},
                                                  "write": {"rate": "2.5kB/s", "latency": "20ms"},
                                                  "both": "10kB/s"},
                                    "block": "100B"},
                            "efficiency": {"iteration_overhead": "2us"}})"));
}

TEST(MeasuredHardware, TakesOneWayAloneFromPlainCopies) {
  Profile profile = tiny_profile();
  add_table(profile, OperationId::copy_h2d, "pinned", {cell({9000, 1}, 1)});
  add_table(profile, OperationId::copy_d2h, "pageable", {cell({8000, 1}, 1)});
  EXPECT_EQ(measured_hardware(profile),
            Json::parse(R"({"links": {"pcie": {"to_device": "9kB/s", "to_host": "8kB/s",
                                               "of": "gpu"}}})"));
  // A whole server needs both ways.
  add_table(profile, OperationId::drive_read, "random", {cell({400, 4}, 0.04)});
  add_table(profile, OperationId::drive_write, "burst", {cell({400, 4}, 0.1)});
  profile.storage =
      ProfileStorage{.file_system = "f", .engine = "e", .file = Bytes(1), .capacity = Bytes(4096)};
  const Json server = described_hardware(profile);
  EXPECT_EQ(server["links"]["pcie"]["both"], "17kB/s");
  EXPECT_EQ(server["ssd"]["bandwidth"]["both"], "10kB/s");
}

TEST(MeasuredHardware, TakesTheHostLinkFromPiecesOfTheKvsSize) {
  Profile profile = tiny_profile();
  using enum OperationId;
  add_table(profile, copy_duplex, "to_device", {cell({4000}, 0.25)});  // 16 kB/s
  add_table(profile, copy_duplex, "to_host", {cell({4000}, 0.5)});     // 8 kB/s
  add_table(profile, copy_duplex, "to_device_of_both", {cell({4000}, 0.4)});
  add_table(profile, copy_duplex, "to_host_of_both",
            {cell({4000}, 0.5)});  // together 18 of 24 kB/s
  // Pieces of 10 B at 1 kB/s at best, of 40 B at 4, of 100 B at 20.
  add_table(profile, copy_h2d, "pinned",
            {cell({100, 10}, 0.2), cell({1000, 100}, 1), cell({5000, 1}, 0.0001)});
  add_table(profile, copy_h2d, "pinned",
            {cell({100, 10}, 0.3), cell({400, 10}, 0.1), cell({1000, 10}, 0.05)});
  add_table(profile, copy_d2h, "pinned", {cell({100, 10}, 0.05)});  // 2 kB/s
  for (ProfileTable& table : profile.tables) {
    table.method = kCopyEngine;
  }
  // A GPU cannot access pageable memory.
  add_table(profile, copy_h2d, "pageable", {cell({100, 10}, 1e-6)});
  const auto link = [&](std::int64_t piece) {
    return measured_hardware(profile, Bytes(piece))["links"]["pcie"];
  };
  EXPECT_EQ(link(10), Json::parse(R"({"to_device": "1kB/s", "to_host": "2kB/s", "both":
                                      "2250B/s", "of": "gpu"})"));
  // In logarithms, 20 is half way from 10 to 40. Beyond the measured sizes the nearest counts.
  // Rates never exceed those of whole copies.
  EXPECT_EQ(link(20)["to_device"], "2kB/s");
  EXPECT_EQ(link(40)["to_device"], "4kB/s");
  EXPECT_EQ(link(1)["to_device"], "1kB/s");
  EXPECT_EQ(link(500)["to_device"], "16kB/s");
  EXPECT_EQ(measured_hardware(profile)["links"]["pcie"]["to_device"], "16kB/s");
}

TEST(MeasuredHardware, TakesLatenciesAndOverheadsFromWaitingThreads) {
  Profile profile = tiny_profile();
  using enum OperationId;
  add_table(profile, copy_h2d, "pinned", {cell({9000, 1}, 1)});
  add_table(profile, call_overhead, "event", {cell({}, 3e-6)});
  add_table(profile, drive_read, "random", {cell({100, 1}, 0.02), cell({100, 4}, 0.01)});
  add_table(profile, drive_read, kAfterIdle, {cell({200, 1}, 0.05)});
  const auto latency = [&] {
    return measured_hardware(profile)["links"]["pcie"]["to_device"]["latency"];
  };
  EXPECT_EQ(latency(), "3us");
  EXPECT_EQ(measured_hardware(profile)["ssd"],
            Json::parse(R"({"bandwidth": {"read": {"rate": "10kB/s", "latency": "50ms"}},
                            "block": "100B"})"));
  EXPECT_FALSE(measured_hardware(profile).contains("efficiency"));
  add_table(profile, call_overhead, "transfer", {cell({}, 7e-6)});
  add_table(profile, call_overhead, "hand_over", {cell({}, 4e-6)});
  EXPECT_EQ(latency(), "7us");
  EXPECT_EQ(measured_hardware(profile)["efficiency"],
            Json::parse(R"({"command_overhead": "8us"})"));
}

TEST(MeasuredHardware, TakesQueueDepthOneFromTheLargestBlockAfterIdleTime) {
  Profile profile = tiny_profile();
  using enum OperationId;
  add_table(profile, drive_read, "random", {cell({400, 4}, 0.004)});  // 100 kB/s
  add_table(profile, drive_write, "burst", {cell({400, 4}, 0.01)});   // 40 kB/s
  const auto bandwidth = [&] { return measured_hardware(profile)["ssd"]["bandwidth"]; };
  EXPECT_EQ(bandwidth(), Json::parse(R"({"read": "100kB/s", "write": "40kB/s"})"));
  // The latency is that of the smallest read; 400 bytes took 0.25 and 0.5 s more.
  add_table(profile, drive_read, kAfterIdle, {cell({100, 1}, 0.5), cell({400, 1}, 0.75)});
  add_table(profile, drive_write, kAfterIdle, {cell({100, 1}, 0.875), cell({400, 1}, 1)});
  EXPECT_EQ(bandwidth()["read"],
            Json::parse(R"({"rate": "100kB/s", "latency": "500ms", "alone": "1.6kB/s",
                            "depth": "400B"})"));
  EXPECT_EQ(bandwidth()["write"],
            Json::parse(R"({"rate": "40kB/s", "latency": "500ms", "alone": "800B/s",
                            "depth": "400B"})"));
  // One block is never faster than many.
  for (const double seconds : {0.501, 0.4}) {
    profile.tables.back().cells.back() = cell({400, 1}, seconds);
    EXPECT_EQ(bandwidth()["write"], Json::parse(R"({"rate": "40kB/s", "latency": "500ms"})"));
  }
}

TEST(MeasuredHardware, TakesTheStartOfLoadsFromTheSmallestAndTheLargestAfterIdleTime) {
  Profile profile = tiny_profile();
  using enum OperationId;
  add_table(profile, drive_read, "random", {cell({400, 4}, 0.004)});
  add_table(profile, drive_to_device, "read_to_device", {cell({100}, 9), cell({400}, 9)});
  const auto bandwidth = [&] { return measured_hardware(profile)["ssd"]["bandwidth"]; };
  EXPECT_FALSE(bandwidth().contains("load"));
  // Other methods do not count. 300 bytes more take 1.5 s, and the first 100 half a second of 0.75.
  add_table(profile, drive_to_device, kAfterIdle, {cell({100}, 0.5), cell({400}, 0.625)});
  profile.tables.back().method = "all processors";
  EXPECT_FALSE(bandwidth().contains("load"));
  add_table(profile, drive_to_device, kAfterIdle, {cell({100}, 0.75), cell({400}, 2.25)});
  profile.tables.back().method = kCopyEngine;
  EXPECT_EQ(bandwidth()["load"],
            Json::parse(R"({"latency": "250ms", "alone": "200B/s", "depth": "400B"})"));
  // A small one that takes next to no time, and one that takes no longer than a larger one.
  profile.tables.back().cells.front() = cell({100}, 0.25);
  EXPECT_EQ(bandwidth()["load"]["latency"], "0ns");
  profile.tables.back().cells.front() = cell({100}, 2.25);
  EXPECT_FALSE(bandwidth().contains("load"));
  profile.tables.back().cells.pop_back();
  EXPECT_FALSE(bandwidth().contains("load"));
}

TEST(MeasuredHardware, TakesTheShareOfADriveThatCopiesLeave) {
  Profile profile = tiny_profile();
  using enum OperationId;
  constexpr std::int64_t kBlock = kDriveRequestBytes;
  // A block in 4 ms at best; another size is faster, but not what drive_beside_copies moves.
  add_table(profile, drive_read, "random",
            {cell({kBlock, 1}, 0.005), cell({kBlock, 4}, 0.004), cell({2 * kBlock, 4}, 0.004)});
  add_table(profile, drive_write, "burst", {cell({kBlock, 4}, 0.006)});
  add_table(profile, drive_write, "sustained", {cell({kBlock, 4}, 0.02)});
  // 16 blocks in 160 ms, 10 ms each: 0.4. Writes in 96 ms, 6 ms each.
  add_table(profile, drive_beside_copies, "read", {cell({16 * kBlock}, 0.16)});
  const auto contention = [&] { return measured_hardware(profile)["contention"]; };
  EXPECT_EQ(contention(), Json::parse(R"([{"on": "ssd_read", "while": "pcie", "left": 0.4}])"));
  add_table(profile, drive_beside_copies, "write", {cell({16 * kBlock}, 0.096)});
  EXPECT_EQ(contention(), Json::parse(R"([{"on": "ssd_read", "while": "pcie", "left": 0.4},
                                          {"on": "ssd_write", "while": "pcie", "left": 1.0}])"));
  // A share is at most 1.
  profile.tables.back().cells = {cell({16 * kBlock}, 0.08)};
  EXPECT_EQ(contention()[1]["left"], 1.0);
  profile.tables.back().cells = {cell({16 * kBlock}, 0.288)};
  EXPECT_EQ(contention()[1]["left"], 0.333);
}

TEST(MeasuredHardware, GivesNoShareOfADriveWhoseBlockWasNotMeasuredAlone) {
  Profile profile = tiny_profile();
  add_table(profile, OperationId::drive_read, "random", {cell({4096, 1}, 0.001)});
  add_table(profile, OperationId::drive_beside_copies, "read", {cell({1 << 24}, 1)});
  EXPECT_FALSE(measured_hardware(profile).contains("contention"));
}

TEST(MeasuredHardware, TakesTheShareOfTheHostLinkThatComputingLeaves) {
  Profile profile = tiny_profile();
  using enum OperationId;
  const auto contention = [&] { return measured_hardware(profile)["contention"]; };
  // Ratios of sizes measured both ways: 0.5, 0.8 and 0.9.
  add_table(profile, copy_beside_compute, "to_device",
            {cell({1000}, 2), cell({2000}, 2.5), cell({3000}, 3), cell({4000}, 99)});
  add_table(profile, copy_h2d, "pageable", {cell({1000, 1}, 0.1)});
  add_table(profile, copy_h2d, "pinned",
            {cell({1000, 1}, 1), cell({1000, 10}, 9), cell({2000, 1}, 2), cell({3000, 1}, 2.7)});
  EXPECT_EQ(contention(),
            Json::parse(R"([{"on": "pcie_to_device", "while": "compute", "left": 0.8}])"));
  // copy_h2d is not used if copy_duplex was measured. The lower of two shares counts, and a share
  // is at most 1.
  add_table(profile, copy_duplex, "to_device", {cell({1000}, 0.4), cell({2000}, 1)});
  add_table(profile, copy_duplex, "to_host", {cell({1000}, 1)});
  add_table(profile, copy_beside_compute, "to_host", {cell({1000}, 0.9)});
  EXPECT_EQ(contention(), Json::parse(R"([{"on": "pcie_to_device", "while": "compute", "left": 0.2},
                            {"on": "pcie_to_host", "while": "compute", "left": 1.0}])"));
}

TEST(DescribedHardware, IsAServerOfOneDeviceWithoutPrices) {
  Profile profile = tiny_profile();
  profile.device.peak = FlopsPerSecond(1e9);
  profile.device.memory_bandwidth = BytesPerSecond(1e9);
  using enum OperationId;
  for (const char* variant : {"to_device", "to_host", "to_device_of_both", "to_host_of_both"}) {
    add_table(profile, copy_duplex, variant, {cell({1000000}, 1)});
  }
  add_table(profile, drive_read, "random", {cell({100, 4}, 0.1)});
  add_table(profile, drive_read, "random", {cell({kDriveRequestBytes, 4}, 2048)});
  add_table(profile, drive_beside_copies, "read", {cell({kDriveRequestBytes}, 4096)});
  profile.host = ProfileHost{.cpu = "c", .cores = 1, .memory = Bytes(2048)};
  Problems problems;
  HardwareConfig hardware;
  // Without a storage the drive's rates describe nothing.
  read_value(hardware, described_hardware(profile), "", problems);
  EXPECT_EQ(problems.lines(), std::vector<std::string>{});
  EXPECT_EQ(hardware.name, "tiny-profile");
  EXPECT_EQ(hardware.hbm.capacity, profile.device.memory);
  EXPECT_EQ(hardware.gpu.price.value, 0);
  EXPECT_EQ(hardware.dram->capacity, Bytes(2048));
  EXPECT_EQ(hardware.links.pcie.both.value, 2e6);
  EXPECT_EQ(hardware.links.pcie.of, HostLinkOf::gpu);
  EXPECT_FALSE(hardware.ssd);
  profile.storage =
      ProfileStorage{.file_system = "f", .engine = "e", .file = Bytes(1), .capacity = Bytes(4096)};
  EXPECT_EQ(described_hardware(profile)["ssd"]["capacity"], "4KiB");
  EXPECT_EQ(described_hardware(profile)["ssd"]["bandwidth"]["read"], "1kB/s");
  EXPECT_EQ(described_hardware(profile)["contention"].size(), 1U);
}

}  // namespace
}  // namespace kvtier
