#include "sim/store/curves/prefix_stack.hpp"

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "sim/study/engines/replays.hpp"
#include "tests/sim/store/test_data.hpp"

namespace kvtier {
namespace {

/// LRU in one pool, a replay for each capacity.
std::int64_t replayed_hits(const Streams& streams, const std::vector<Context>& requests,
                           std::int64_t capacity, Tokens block) {
  StoreRules rules;
  rules.hit_cap = HitCap::none;
  rules.pools = {{.capacity = capacity, .block = block}};
  std::int64_t hits = 0;
  const auto store = store_kinds().front().make(rules, streams, {});
  for (const Context& request : requests) {
    hits += replay_cache(*store, request).match.tokens.value / block.value;
  }
  return hits;
}

TEST(PrefixStack, GivesTheHitsOfAReplayAtEachCapacity) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RandomStream random(seed, "prefix stack");
    const Tokens block(1 + random.index(5));
    Streams streams;
    std::vector<Context> requests;
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < 200; ++i) {
      // A stream that grows or is cut, or one that forks from another anywhere.
      StreamId stream = kNoStream;
      if (!lengths.empty() && random.index(4) > 0) {
        stream = StreamId{
            static_cast<std::uint32_t>(random.index(static_cast<std::int64_t>(lengths.size())))};
        const std::int64_t begin = streams.first_of(stream);
        if (random.index(3) == 0) {
          const std::int64_t fork = begin + random.index(lengths[stream.value] - begin + 1);
          stream = streams.open(stream, Tokens(fork));
          lengths.push_back(fork);
        }
      } else {
        stream = streams.open();
        lengths.push_back(0);
      }
      const std::int64_t begin = streams.first_of(stream);
      const std::int64_t tokens = begin + random.index(lengths[stream.value] - begin + 20);
      lengths[stream.value] = std::max(lengths[stream.value], tokens);
      requests.push_back({stream, Tokens(tokens)});
    }
    PrefixStack stack(streams, block);
    HitCurve curve;
    for (const Context& request : requests) {
      stack.look_up(request, curve);
      stack.use(request);
    }
    const std::vector<std::int64_t> capacities{1, 2, 3, 5, 10, 20, 50, 200, 100'000};
    const std::vector<std::int64_t> hits = curve.hits_at(capacities);
    for (std::size_t i = 0; i < capacities.size(); ++i) {
      ASSERT_EQ(hits[i], replayed_hits(streams, requests, capacities[i], block))
          << "seed " << seed << ", capacity " << capacities[i];
    }
  }
}

TEST(PrefixStack, HasTheWholeCurveOfMooncakeInOnePass) {
  const HashTrace trace = read_hash_trace(sample_data() / "mooncake_conversation.jsonl.gz");
  PrefixStack stack(trace.streams, kTraceBlock);
  HitCurve curve;
  for (const HashRequest& request : trace.requests) {
    stack.look_up(request.whole_blocks(), curve);
    stack.use(request.whole_blocks());
  }
  // As tests/data/count_hits.py counts them.
  EXPECT_EQ(curve.hits_at({1'000, 2'000, 3'000, 4'000, 6'000, 9'000, 1'000'000}),
            (std::vector<std::int64_t>{499, 575, 782, 970, 1'583, 2'202, 2'283}));
  EXPECT_LT(curve.last_bend(), 14'162);
}

}  // namespace
}  // namespace kvtier
