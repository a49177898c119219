#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "hw/timing/roofline.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

ModelConfig windowed(RandomStream& random) {
  ModelConfig model;
  model.layers = 1 + random.index(12);
  model.hidden_size = 64;
  model.attention_heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.intermediate_size = 128;
  model.vocabulary_size = 100;
  model.context_window = Tokens(4000);
  model.attention = {AttentionKind::window};
  if (random.index(2) == 0 && model.layers > 1) {
    model.attention.push_back(AttentionKind::full);
  }
  model.window = Tokens(1 + random.index(3000));
  if (random.index(2) == 0 && model.attention.size() > 1) {
    model.sparse =
        SparseConfig{.top_k = Tokens(1 + random.index(3000)), .index_heads = 2, .index_dim = 8};
  }
  if (random.index(2) == 0) {
    model.experts = ExpertsConfig{.routed = 16, .active = 2, .intermediate_size = 32};
  }
  return model;
}

HardwareConfig hardware() {
  HardwareConfig result;
  result.gpu.peak = FlopsPerSecond(1e9);
  result.hbm.bandwidth = BytesPerSecond(1e8);
  result.links.pcie.forward.rate = BytesPerSecond(1e6);
  result.links.pcie.backward.rate = BytesPerSecond(1e6);
  result.links.pcie.both = BytesPerSecond(1e6);
  result.efficiency.iteration_overhead = SimDuration(1000);
  return result;
}

TEST(WindowDecode, SumsToTheTimesOfItsIterations) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RandomStream random(seed, "window decode");
    const ModelConfig model = windowed(random);
    const RooflineTiming timing(model, hardware(), 8);
    std::vector<Tokens> contexts(static_cast<std::size_t>(1 + random.index(8)));
    Tokens total;
    for (Tokens& context : contexts) {
      context = Tokens(1 + random.index(3000));
      total += context;
    }
    const std::int64_t batch = std::ssize(contexts);
    const std::int64_t iterations = 1 + random.index(1000);
    std::int64_t one_by_one = 0;
    std::vector<Tokens> now = contexts;
    Tokens sum = total;
    for (std::int64_t i = 0; i < iterations; ++i) {
      one_by_one += piece_at(timing.decode(batch), sum).at(sum);
      for (std::size_t w = 0; w < timing.windows().size(); ++w) {
        one_by_one +=
            timing.window_slopes(batch)[w] * tokens_within(now, timing.windows()[w]).value;
      }
      for (Tokens& context : now) {
        context += Tokens(1);
      }
      sum += Tokens(batch);
    }
    ASSERT_EQ(sum_decode_ticks(timing.decode(batch), batch, total, iterations) +
                  sum_window_ticks(timing, contexts, iterations),
              one_by_one)
        << "seed " << seed;
  }
}

/// When a decode ends, and after how many iterations, if it is asked to stop at `stop`.
std::pair<SimTime, std::int64_t> stopped(const TimingModel& timing, DecodeStepping stepping,
                                         const std::vector<Tokens>& contexts, SimTime stop) {
  SimulatedBackend backend(hardware(), 4, timing, stepping);
  EXPECT_TRUE(backend.wants_contexts());
  Tokens total;
  for (const Tokens context : contexts) {
    total += context;
  }
  backend.decode_contexts(contexts);
  backend.start_decode({.batch = std::ssize(contexts), .context = total, .iterations = 500});
  backend.set_timer(stop, 0);
  std::pair<SimTime, std::int64_t> result;
  while (backend.pending()) {
    const Completion completion = backend.wait();
    if (completion.kind == CompletionKind::decode) {
      result = {backend.now(), static_cast<std::int64_t>(completion.payload)};
    } else if (result.second == 0) {
      backend.stop_decode();
    }
  }
  return result;
}

TEST(WindowDecode, StopsAfterTheSameIterationInBothSteppings) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    RandomStream random(seed, "window stops");
    const ModelConfig model = windowed(random);
    const RooflineTiming timing(model, hardware(), 4);
    std::vector<Tokens> contexts(static_cast<std::size_t>(1 + random.index(4)));
    for (Tokens& context : contexts) {
      context = Tokens(1 + random.index(3000));
    }
    const SimTime end =
        stopped(timing, DecodeStepping::closed_form, contexts, SimTime(INT64_MAX / 4)).first;
    for (int i = 0; i < 5; ++i) {
      const SimTime stop(random.index(end.ns + 1));
      ASSERT_EQ(stopped(timing, DecodeStepping::closed_form, contexts, stop),
                stopped(timing, DecodeStepping::per_iteration, contexts, stop))
          << "seed " << seed;
    }
  }
}

TEST(WindowDecode, EqualContextsGiveTheTimingModelsTime) {
  RandomStream random(7, "equal");
  const ModelConfig model = windowed(random);
  const RooflineTiming timing(model, hardware(), 3);
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    sum += timing.decode_ticks(3, Tokens(100 + 3 * i));
  }
  EXPECT_EQ(sum_equal_decode_ticks(timing, 3, Tokens(100), 50), sum);
}

TEST(WindowDecode, MixedIterationsTakeTheContextOfEachRequest) {
  RandomStream random(3, "mixed");
  ModelConfig model = windowed(random);
  model.window = Tokens(100);
  model.sparse.reset();
  const RooflineTiming timing(model, hardware(), 2);
  const PrefillPart part{.added = Tokens(1), .past = Tokens(0)};
  // Within 100 tokens lie 100 + 10 of these, and 100 + 100 of equal ones.
  const std::vector<Tokens> unequal{Tokens(390), Tokens(10)};
  EXPECT_LT(timing.iteration_of({&part, 1}, unequal).total,
            timing.iteration({&part, 1}, 2, Tokens(400)).total);
  const std::vector<Tokens> equal{Tokens(200), Tokens(200)};
  EXPECT_EQ(timing.iteration_of({&part, 1}, equal).total,
            timing.iteration({&part, 1}, 2, Tokens(400)).total);
}

}  // namespace
}  // namespace kvtier
