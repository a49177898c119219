#include "sim/backend/topology.hpp"

#include <gtest/gtest.h>

#include "sim/backend/shared_links.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

DuplexLimits duplex(double gb) {
  const BytesPerSecond rate(gb * 1e9);
  return {.forward = rate, .backward = rate, .both = rate * 2};
}

/// Two servers' memories, a pool in the network and an archive behind it.
enum : std::uint8_t { kHbm0, kDram0, kHbm1, kDram1, kPool, kArchive };

Topology two_servers() {
  Topology topology({"hbm0", "dram0", "hbm1", "dram1", "pool", "archive"});
  // A link to the host and a network card each, a switch, the pool's memory, the archive's network
  // and its drives.
  for (const double gb : {32.0, 32.0, 12.0, 12.0, 20.0, 16.0, 4.0, 2.0}) {
    topology.links.push_back(
        {.name = "link" + std::to_string(topology.links.size()), .limits = duplex(gb)});
  }
  topology.links[6].forward_start.latency = for_ms(1);
  topology.links[7].forward_start.latency = for_ms(10);
  const auto connect = [&](int from, int to, std::vector<LinkUse> uses) {
    topology.connect(static_cast<Medium>(from), static_cast<Medium>(to), std::move(uses));
  };
  connect(kDram0, kHbm0, {{0, true}});
  connect(kDram1, kHbm1, {{1, true}});
  connect(kPool, kHbm0, {{0, true}, {2, true}, {4, true}, {5, true}});
  connect(kPool, kHbm1, {{1, true}, {3, true}, {4, true}, {5, true}});
  connect(kPool, kDram0, {{2, true}, {4, true}, {5, true}});
  connect(kArchive, kPool, {{5, false}, {6, true}, {7, true}});
  connect(kPool, kArchive, {{5, true}, {6, false}, {7, false}});
  return topology;
}

std::size_t path(const Topology& topology, int from, int to) {
  return topology.find_edge(static_cast<Medium>(from), static_cast<Medium>(to));
}

TEST(Topology, IsAnyGraph) {
  SharedLinks links(two_servers());
  const Topology& topology = links.topology();
  const auto start = [&](int from, int to) {
    links.start(path(topology, from, to), Bytes(1'000'000'000), 0, SimTime());
  };
  const auto rate = [&](int from, int to) { return links.rate(path(topology, from, to)) / 1e9; };
  // By itself the network card's 12.
  start(kPool, kHbm0);
  EXPECT_DOUBLE_EQ(rate(kPool, kHbm0), 12);
  // The pool's memory is shared by two: 8 each.
  start(kPool, kHbm1);
  EXPECT_DOUBLE_EQ(rate(kPool, kHbm0), 8);
  EXPECT_DOUBLE_EQ(rate(kPool, kHbm1), 8);
  // By three, of which two share a card: 16 / 3 each is less than the card's 12 / 2.
  start(kPool, kDram0);
  EXPECT_DOUBLE_EQ(rate(kPool, kHbm1), 16.0 / 3);
  // The drives give 2 to the archive's transfer, which leaves 16 - 2 to the others; the other way
  // takes nothing from them but what both ways together may have: 32.
  start(kPool, kArchive);
  EXPECT_DOUBLE_EQ(rate(kPool, kArchive), 2);
  EXPECT_DOUBLE_EQ(rate(kPool, kHbm0), 14.0 / 3);
  start(kArchive, kPool);
  EXPECT_DOUBLE_EQ(rate(kArchive, kPool), 2);
  EXPECT_DOUBLE_EQ(rate(kPool, kHbm0), 14.0 / 3);
  // Another's link to the host: 32 less what comes from the pool.
  start(kDram0, kHbm0);
  EXPECT_DOUBLE_EQ(rate(kDram0, kHbm0), 32 - 14.0 / 3);
}

TEST(Topology, HasAnyNumberOfEdges) {
  // Each server reads from its own host memory, and over network cards from that of all others.
  constexpr std::size_t kServers = 64;
  Topology topology(std::vector<std::string>(2 * kServers));
  const auto hbm = [](std::size_t server) { return static_cast<Medium>(2 * server); };
  const auto dram = [](std::size_t server) { return static_cast<Medium>(2 * server + 1); };
  for (std::size_t i = 0; i < kServers; ++i) {
    topology.links.push_back({.name = "host", .limits = duplex(32)});
    topology.links.push_back({.name = "network", .limits = duplex(12.6)});
  }
  for (std::size_t i = 0; i < kServers; ++i) {
    for (std::size_t j = 0; j < kServers; ++j) {
      topology.connect(
          dram(i), hbm(j),
          i == j ? std::vector<LinkUse>{{2 * j, true}}
                 : std::vector<LinkUse>{{2 * i + 1, false}, {2 * j + 1, true}, {2 * j, true}});
    }
  }
  SharedLinks links(topology);
  const auto start = [&](std::size_t from, std::size_t to) {
    links.start(topology.find_edge(dram(from), hbm(to)), Bytes(1'000'000), 0, SimTime());
  };
  const auto rate = [&](std::size_t from, std::size_t to) {
    return links.rate(topology.find_edge(dram(from), hbm(to))) / 1e9;
  };
  // All others read from the last server: 12.6 / 63 each. Each reads from its own memory too, and
  // gets what is left of the link to the host.
  for (std::size_t i = 0; i + 1 < kServers; ++i) {
    start(kServers - 1, i);
    start(i, i);
  }
  EXPECT_NEAR(rate(kServers - 1, 5), 0.2, 1e-9);
  EXPECT_NEAR(rate(5, 5), 31.8, 1e-9);
  // A second transfer on the same path: 12.6 / 64 each.
  start(kServers - 1, 5);
  EXPECT_NEAR(rate(kServers - 1, 5), 12.6 / 64, 1e-9);
  EXPECT_NEAR(rate(5, 5), 32 - 2 * 12.6 / 64, 1e-9);
  // 1 MB at 31.8 GB/s in 31,447 ns; the network card is in use until the last of 64 MB has left.
  EXPECT_EQ(links.in_flight(), 2 * kServers - 1);
  SimTime last;
  while (links.in_flight() > 0) {
    last = links.next_completion();
    links.finish_next();
  }
  EXPECT_NEAR(static_cast<double>(last.ns), 64e6 / 12.6, 2);
  EXPECT_EQ(links.counters(2 * kServers - 1, last).busy, last - SimTime());
  EXPECT_EQ(links.counters(2 * kServers - 1, last).backward, Bytes(64'000'000));
  EXPECT_EQ(links.counters(2 * kServers - 2, last).busy, SimDuration());
}

TEST(Topology, RefusesEdgesBetweenUnknownMediaAndASecondOne) {
  Topology topology = two_servers();
  EXPECT_THROW(topology.connect(Medium{kPool}, Medium{6}, {{0, true}}), InvariantError);
  EXPECT_THROW(topology.connect(Medium{kDram0}, Medium{kHbm0}, {{0, true}}), InvariantError);
  EXPECT_THROW(topology.connect(Medium{kHbm0}, Medium{kDram0}, {}), InvariantError);
}

TEST(Topology, GivesTheTimeOfASingleTransfer) {
  const Topology topology = two_servers();
  const auto time = [&](int from, int to) {
    return topology.idle_time(static_cast<Medium>(from), static_cast<Medium>(to),
                              Bytes(24'000'000));
  };
  EXPECT_EQ(time(kPool, kHbm0), for_ms(2));
  EXPECT_EQ(time(kArchive, kPool), for_ms(23));
  EXPECT_EQ(path(topology, kHbm0, kHbm1), Topology::kNoEdge);
}

// 2,000 bytes at 1 MB/s alone instead of 2 or 4: the slowest start counts, and the curve of its own
// way.
TEST(Topology, TakesTheSlowestStartOfTheLinksOfAnEdge) {
  HardwareConfig hardware = tiny_hardware();
  set_rates(hardware.links.pcie, limits(4e6, 4e6, 8e6));
  set_rates(hardware.ssd->bandwidth, limits(4e6, 4e6, 8e6));
  set_alone(hardware.links.pcie.forward, 2e6, 9000);
  set_alone(hardware.ssd->bandwidth.forward, 1e6, 2000);
  const Topology topology = server_topology(hardware);
  const auto time = [&](Medium from, Medium to) {
    return topology.idle_time(from, to, Bytes(4000));
  };
  EXPECT_EQ(time(Medium::dram, Medium::hbm), for_ms(2));
  EXPECT_EQ(time(Medium::ssd, Medium::dram), SimDuration(2'500'000));
  EXPECT_EQ(time(Medium::ssd, Medium::hbm), SimDuration(2'500'000));
  EXPECT_EQ(time(Medium::hbm, Medium::ssd), for_ms(1));
  // 9,000 bytes all move at 2 MB/s over the host link, which takes longer than the drive's start.
  EXPECT_EQ(topology.idle_time(Medium::ssd, Medium::hbm, Bytes(9000)), SimDuration(4'500'000));
  // Four GPUs have four host links: four times the rates and bytes.
  hardware.gpus = 4;
  EXPECT_EQ(server_topology(hardware).idle_time(Medium::dram, Medium::hbm, Bytes(16000)),
            for_ms(2));
}

TEST(Topology, MultipliesTheSharesThatOtherWorkLeaves) {
  HardwareConfig hardware = tiny_hardware();
  using enum ContendedWay;
  hardware.contention = {{ssd_read, ContendingWork::compute, 0.5},
                         {ssd_read, ContendingWork::pcie, 0.25},
                         {ssd_write, ContendingWork::pcie, 0.5}};
  const Topology topology = server_topology(hardware);
  const std::size_t drive = *topology.find_link("ssd");
  const DuplexLimits alone = topology.links[drive].limits;
  const auto beside = [&](bool computing, bool copying) {
    return topology.limits_beside(drive, computing, [copying](std::size_t) { return copying; });
  };
  EXPECT_EQ(beside(false, false), alone);
  EXPECT_EQ(beside(true, false).forward, alone.forward * 0.5);
  EXPECT_EQ(beside(true, true).forward, alone.forward * 0.125);
  EXPECT_EQ(beside(true, true).backward, alone.backward * 0.5);
  // Computing leaves all of the writes, and copies half of them.
  EXPECT_EQ(beside(true, false).both, alone.both);
  EXPECT_EQ(beside(true, true).both, alone.both * 0.5);
  hardware.ssd.reset();
  EXPECT_TRUE(server_topology(hardware).interference.empty());
}

TEST(Topology, AServerHasTheInstalledMediaAndLinks) {
  HardwareConfig hardware = tiny_hardware();
  hardware.cxl.reset();
  hardware.ssd.reset();
  EXPECT_EQ(server_topology(hardware).edges.size(), 2U);
  hardware = tiny_hardware();
  set_latency(hardware.ssd->bandwidth, for_ms(3));
  const Topology topology = server_topology(hardware);
  // The way that the simulated backend takes, to the nanosecond.
  for (const Edge& edge : topology.edges) {
    SharedLinks links(topology);
    links.start(topology.find_edge(edge.from, edge.to), Bytes(12345), 0, SimTime());
    EXPECT_EQ(links.next_completion() + edge.beginning(Bytes(12345)) - SimTime(),
              topology.idle_time(edge.from, edge.to, Bytes(12345)))
        << to_string(edge.from) << " to " << to_string(edge.to);
  }
}

}  // namespace
}  // namespace kvtier::test
