#include "hw/timing/layer_pipeline.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

using namespace literals;

LayerPipeline pipeline(std::int64_t layers, std::int64_t load, std::int64_t compute,
                       std::int64_t ahead = 0) {
  return {.layers = layers,
          .load = SimDuration(load),
          .compute = SimDuration(compute),
          .loaded_ahead = SimDuration(ahead)};
}

/// Times at which one layer is loaded and computed. A layer (or a part of one) that was loaded
/// ahead begins and ends its load at 0.
struct LayerInterval {
  SimDuration load_begin;
  SimDuration load_end;
  SimDuration compute_begin;
  SimDuration compute_end;
};

/// The recurrence: layer i computes once layer i-1 is done and its own KV is loaded.
std::vector<LayerInterval> intervals_of(const LayerPipeline& p) {
  std::vector<LayerInterval> layers(static_cast<std::size_t>(p.layers));
  SimDuration loaded;
  SimDuration computed;
  for (std::int64_t i = 0; i < p.layers; ++i) {
    LayerInterval& layer = layers[static_cast<std::size_t>(i)];
    layer.load_begin = loaded;
    loaded = std::max(SimDuration(0), p.load * (i + 1) - p.loaded_ahead);
    layer.load_end = loaded;
    layer.compute_begin = std::max(computed, loaded);
    computed = layer.compute_begin + p.compute;
    layer.compute_end = computed;
  }
  return layers;
}

/// Loads and computes of any size against each other, with buffers from none to more than all.
LayerPipeline random_pipeline(RandomStream& stream) {
  LayerPipeline p = pipeline(1 + stream.index(40), stream.index(1000), stream.index(1000));
  p.loaded_ahead = stream.uniform() < 0.5 ? p.load * stream.index(p.layers + 2)
                                          : SimDuration(stream.index(p.load.ns * p.layers + 100));
  return p;
}

TEST(LayerPipeline, WithoutABufferWaitsForTheFirstLayerIfComputeIsSlower) {
  // Loads end at 2, 4, 6; computes run 2-5, 5-8, 8-11.
  const LayerPipeline p = pipeline(3, 2, 3);
  const auto layers = intervals_of(p);
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(layers[0].load_begin, 0_ns);
  EXPECT_EQ(layers[0].load_end, 2_ns);
  EXPECT_EQ(layers[0].compute_begin, 2_ns);
  EXPECT_EQ(layers[1].load_begin, 2_ns);
  EXPECT_EQ(layers[1].load_end, 4_ns);
  EXPECT_EQ(layers[1].compute_begin, 5_ns);
  EXPECT_EQ(layers[2].compute_end, 11_ns);
  EXPECT_EQ(pipelined_finish(p), 11_ns);
  EXPECT_EQ(pipeline_stall(p), 2_ns);
}

TEST(LayerPipeline, WithoutABufferWaitsForEachLayerIfLoadingIsSlower) {
  // Loads end at 5, 10, 15; computes run 5-7, 10-12, 15-17.
  const LayerPipeline p = pipeline(3, 5, 2);
  EXPECT_EQ(intervals_of(p)[1].compute_begin, 10_ns);
  EXPECT_EQ(pipelined_finish(p), 17_ns);
  EXPECT_EQ(pipeline_stall(p), 11_ns);
}

TEST(LayerPipeline, ComputesBufferedLayersAtOnce) {
  // Two of four layers are there. Loads end at 5 and 10; computes run 0-2, 2-4, 5-7, 10-12.
  const LayerPipeline p = pipeline(4, 5, 2, 2 * 5);
  const auto layers = intervals_of(p);
  EXPECT_EQ(layers[1].load_end, 0_ns);
  EXPECT_EQ(layers[1].compute_end, 4_ns);
  EXPECT_EQ(layers[2].load_begin, 0_ns);
  EXPECT_EQ(layers[2].compute_begin, 5_ns);
  EXPECT_EQ(pipelined_finish(p), 12_ns);
}

TEST(LayerPipeline, WithoutPreLoadingAddsLoadsAndComputes) {
  EXPECT_EQ(unpipelined_finish(pipeline(3, 5, 2, 10)), 21_ns);
}

TEST(LayerPipeline, ClosedFormIsTheRecurrence) {
  RandomStream stream(1, "tests/layer_pipeline");
  for (int i = 0; i < 20000; ++i) {
    const LayerPipeline p = random_pipeline(stream);
    const auto layers = intervals_of(p);
    ASSERT_EQ(pipelined_finish(p), layers.back().compute_end)
        << p.layers << " layers, load " << p.load.ns << ", compute " << p.compute.ns << ", ahead "
        << p.loaded_ahead.ns;
    SimDuration waited = layers.front().compute_begin;
    for (std::size_t j = 1; j < layers.size(); ++j) {
      waited += layers[j].compute_begin - layers[j - 1].compute_end;
    }
    ASSERT_EQ(pipeline_stall(p), waited);
  }
}

TEST(LayerPipeline, ScheduleLoadsAllThatWasNotLoadedAheadAndOverlapsNoCompute) {
  RandomStream stream(2, "tests/layer_pipeline");
  for (int i = 0; i < 2000; ++i) {
    const LayerPipeline p = random_pipeline(stream);
    SimDuration loaded;
    SimDuration computed_until;
    for (const LayerInterval& layer : intervals_of(p)) {
      loaded += layer.load_end - layer.load_begin;
      ASSERT_GE(layer.compute_begin, layer.load_end);
      ASSERT_GE(layer.compute_begin, computed_until);
      ASSERT_EQ(layer.compute_end - layer.compute_begin, p.compute);
      computed_until = layer.compute_end;
    }
    ASSERT_EQ(loaded, std::max(SimDuration(0), p.load * p.layers - p.loaded_ahead));
  }
}

TEST(ReadBuffer, HidesLoadingWithWholeLayersButNotWithOneLess) {
  RandomStream stream(3, "tests/layer_pipeline");
  for (int i = 0; i < 20000; ++i) {
    LayerPipeline p = random_pipeline(stream);
    p.load = SimDuration(1 + p.load.ns);
    const std::int64_t buffered = layers_to_hide_loading(p);
    ASSERT_GE(buffered, 1);
    ASSERT_LE(buffered, p.layers);
    p.loaded_ahead = p.load * buffered;
    ASSERT_EQ(pipeline_stall(p), 0_ns);
    p.loaded_ahead = p.load * (buffered - 1);
    ASSERT_GT(pipeline_stall(p), 0_ns);
  }
  EXPECT_EQ(layers_to_hide_loading(pipeline(3, 0, 5)), 0);
}

TEST(ReadBuffer, HidesLoadingOfUnequalLayersButNotWithOneLess) {
  // 1 GB/s: a byte takes 1 ns.
  const BytesPerSecond bandwidth(1e9);
  RandomStream stream(6, "tests/layer_pipeline");
  for (int i = 0; i < 20000; ++i) {
    std::vector<Bytes> up_to(static_cast<std::size_t>(1 + stream.index(40)));
    Bytes sum;
    for (Bytes& layer : up_to) {
      sum += Bytes(1 + stream.index(1000));
      layer = sum;
    }
    const SimDuration compute(stream.index(1000));
    const auto buffered =
        static_cast<std::size_t>(layers_to_hide_loading(up_to, bandwidth, compute));
    ASSERT_GE(buffered, 1U);
    ASSERT_LE(buffered, up_to.size());
    const auto waits_with = [&](std::size_t layers) {
      const Bytes there = layers == 0 ? Bytes(0) : up_to[layers - 1];
      for (std::size_t j = layers; j < up_to.size(); ++j) {
        if ((up_to[j] - there).value > compute.ns * static_cast<std::int64_t>(j)) {
          return true;
        }
      }
      return false;
    };
    ASSERT_FALSE(waits_with(buffered));
    ASSERT_TRUE(waits_with(buffered - 1));
  }
}

TEST(ReadBuffer, IsTheSameForLayersOfOneSizeHoweverTheyAreGiven) {
  RandomStream stream(7, "tests/layer_pipeline");
  for (int i = 0; i < 20000; ++i) {
    LayerPipeline p = random_pipeline(stream);
    p.load = SimDuration(1 + p.load.ns);
    std::vector<Bytes> up_to;
    for (std::int64_t layer = 1; layer <= p.layers; ++layer) {
      up_to.emplace_back(layer * p.load.ns);
    }
    ASSERT_EQ(layers_to_hide_loading(up_to, BytesPerSecond(1e9), p.compute),
              layers_to_hide_loading(p));
  }
}

TEST(ReadBuffer, ChecksOnlyTwoOfEqualLayers) {
  RandomStream stream(8, "tests/layer_pipeline");
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t bytes = 1 + stream.index(1'000'000);
    std::vector<Bytes> up_to;
    for (std::int64_t layer = 1; layer <= 1 + i % 80; ++layer) {
      up_to.emplace_back(layer * bytes);
    }
    // Half of the time a layer computes about as long as it loads.
    const BytesPerSecond bandwidth(static_cast<double>(bytes) * stream.uniform() * 1e9);
    const double loads_in_ns = static_cast<double>(bytes) / bandwidth.value * 1e9;
    const SimDuration compute(i % 2 == 0 ? static_cast<std::int64_t>(loads_in_ns) + i % 3
                                         : stream.index(1'000));
    ASSERT_EQ(layers_to_hide_loading(up_to, bandwidth, compute, true),
              layers_to_hide_loading(up_to, bandwidth, compute));
  }
}

TEST(ReadBuffer, IsTheSmallestThatHidesLoading) {
  // 1 GB/s: a byte takes 1 ns.
  const BytesPerSecond bandwidth(1e9);
  RandomStream stream(4, "tests/layer_pipeline");
  for (int i = 0; i < 20000; ++i) {
    LayerPipeline p = random_pipeline(stream);
    p.load = SimDuration(1 + p.load.ns);
    const Bytes bytes = read_buffer_to_hide_loading(bandwidth, p);
    p.loaded_ahead = SimDuration(bytes.value);
    ASSERT_EQ(pipeline_stall(p), 0_ns);
    p.loaded_ahead -= 1_ns;
    ASSERT_EQ(pipeline_stall(p), 1_ns);
  }
}

TEST(ReadBuffer, FollowsThePapersEquation) {
  // 26 GB/s x (0.5 s - 0.2 s).
  EXPECT_EQ(attentionstore_read_buffer(BytesPerSecond(26e9), 500_ms, 200_ms), 7800000000_B);
  EXPECT_EQ(attentionstore_read_buffer(BytesPerSecond(26e9), 200_ms, 500_ms), 0_B);
}

TEST(ReadBuffer, LeavesTheComputeOfOneLayerByThePapersEquation) {
  const BytesPerSecond bandwidth(1e9);
  RandomStream stream(5, "tests/layer_pipeline");
  for (int i = 0; i < 2000; ++i) {
    LayerPipeline p = random_pipeline(stream);
    p.load += p.compute;  // loading is what there is to hide
    const Bytes paper =
        attentionstore_read_buffer(bandwidth, p.load * p.layers, p.compute * p.layers);
    p.loaded_ahead = SimDuration(paper.value);
    ASSERT_EQ(pipeline_stall(p), p.compute);
    // One layer more is enough, as it takes longer to load than to compute.
    p.loaded_ahead += p.load;
    ASSERT_EQ(pipeline_stall(p), 0_ns);
    // And that is the exact figure within a layer.
    const Bytes exact = read_buffer_to_hide_loading(bandwidth, p);
    ASSERT_GE(exact, paper);
    ASSERT_LE(exact, paper + Bytes(p.load.ns));
  }
}

}  // namespace
}  // namespace kvtier
