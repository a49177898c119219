#include "hw/timing/layer_schedule.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kLayers = 4;

/// A layer computes when the layer before it is done and its KV has arrived.
SimDuration one_by_one(const PassTime& pass, const std::vector<SimDuration>& arrivals) {
  SimDuration time = pass.before;
  for (const SimDuration arrival : arrivals) {
    time = std::max(time, arrival) + pass.layer_of_pass();
  }
  return time + pass.outside_layers() + pass.after;
}

/// Half of the passes are warm: their layers take less than `layer`.
PassTime random_pass(RandomStream& random) {
  const SimDuration layer(1 + random.index(1000));
  const SimDuration saved(random.index(2) == 0 ? 0 : random.index(layer.ns));
  const SimDuration outside(saved.ns > 0 ? 0 : random.index(300));
  return {.layers = kLayers,
          .before = SimDuration(random.index(500)),
          .total = (layer - saved) * kLayers + outside,
          .layer = layer,
          .after = SimDuration(random.index(500))};
}

TEST(LayerSchedule, EqualLayersEndAsComputedOneByOne) {
  RandomStream random(1, "tests/layer_schedule");
  for (int trial = 0; trial < 500; ++trial) {
    const PassTime pass = random_pass(random);
    const LayerSchedule schedule{.ready = random.index(kLayers)};
    const SimDuration latency(random.index(2000));
    const SimDuration each(1 + random.index(1000));
    std::vector<SimDuration> arrivals;
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::int64_t loaded = i + 1 - schedule.ready;
      arrivals.push_back(loaded > 0 ? latency + each * loaded : SimDuration(0));
    }
    const LoadTime load{.total = arrivals.back(), .latency = latency};
    ASSERT_EQ(schedule.end(pass, load), one_by_one(pass, arrivals)) << schedule.ready << " ready";
  }
}

// The sizes of the layers are 4, 3, 2 and 1 of 10.
TEST(LayerSchedule, UnequalLayersEndAsComputedOneByOne) {
  RandomStream random(2, "tests/layer_schedule");
  const std::vector<Bytes> sizes{Bytes(4), Bytes(7), Bytes(9), Bytes(10)};
  for (int trial = 0; trial < 500; ++trial) {
    const PassTime pass = random_pass(random);
    const LayerSchedule schedule{.ready = random.index(kLayers), .sizes = sizes};
    const SimDuration latency(random.index(2000));
    const SimDuration unit(1 + random.index(300));
    const auto first = static_cast<std::size_t>(schedule.ready);
    const Bytes there = first > 0 ? sizes[first - 1] : Bytes(0);
    std::vector<SimDuration> arrivals(first);
    for (std::size_t i = first; i < sizes.size(); ++i) {
      arrivals.push_back(latency + unit * (sizes[i] - there).value);
    }
    const LoadTime load{.total = arrivals.back(), .latency = latency};
    ASSERT_EQ(schedule.end(pass, load), one_by_one(pass, arrivals)) << schedule.ready << " ready";
  }
}

TEST(LayerSchedule, WaitsForAllLayersIfToldTo) {
  const PassTime pass{.layers = kLayers,
                      .before = SimDuration(5),
                      .total = SimDuration(50),
                      .layer = SimDuration(10),
                      .after = SimDuration(7)};
  const LayerSchedule schedule{.whole = true};
  EXPECT_EQ(schedule.end(pass, {.total = SimDuration(30), .latency = {}}), SimDuration(87));
  EXPECT_EQ(schedule.end(pass, {.total = SimDuration(3), .latency = {}}), SimDuration(62));
}

}  // namespace
}  // namespace kvtier
