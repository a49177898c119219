/// Hits of caches of several sizes on the sample of mooncake_conversation, compared with the counts
/// of tests/data/count_hits.py.

#include <gtest/gtest.h>

#include "sim/study/engines/replays.hpp"
#include "tests/sim/store/test_data.hpp"

namespace kvtier {
namespace {

struct Hits {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
  std::int64_t in_first = 0;
};

class Mooncake : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    trace_ = read_hash_trace(sample_data() / "mooncake_conversation.jsonl.gz");
  }

  static Hits replay(const StoreKind& kind, const std::vector<std::int64_t>& capacities,
                     const std::string& eviction, const EdgeRules& edge = {}) {
    StoreRules rules;
    rules.hit_cap = HitCap::none;
    for (const std::int64_t capacity : capacities) {
      rules.pools.push_back({.capacity = capacity, .block = kTraceBlock, .eviction = eviction});
    }
    rules.edges.assign(capacities.size() - 1, edge);
    const auto store = kind.make(rules, trace_->streams, {});
    Hits hits;
    for (const HashRequest& request : trace_->requests) {
      const Match match = replay_cache(*store, request.whole_blocks()).match;
      hits.blocks += match.tokens.value / kTraceBlock.value;
      hits.tokens += std::min(match.tokens, request.prompt).value;
      hits.in_first += match.by_pool.front().value / kTraceBlock.value;
    }
    store->check_invariants();
    return hits;
  }

  static inline std::optional<HashTrace> trace_;
};

TEST_F(Mooncake, HasAsManyBlocksAndTokensAsCounted) {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
  for (const HashRequest& request : trace_->requests) {
    blocks += request.blocks;
    tokens += request.prompt.value;
  }
  EXPECT_EQ(blocks, 14'162);
  EXPECT_EQ(tokens, 7'124'855);
}

TEST_F(Mooncake, LruAndFifoGiveTheCountedHits) {
  struct Count {
    std::int64_t capacity;
    std::int64_t lru;
    std::int64_t lru_tokens;
    std::int64_t fifo;
  };
  for (const StoreKind& kind : store_kinds()) {
    for (const Count& count :
         {Count{1'000, 499, 255'488, 499}, Count{2'000, 575, 293'833, 575},
          Count{3'000, 782, 399'817, 781}, Count{4'000, 970, 496'073, 967},
          Count{6'000, 1'583, 809'391, 1'600}, Count{9'000, 2'202, 1'126'117, 2'231},
          Count{1'000'000, 2'283, 1'167'589, 2'283}}) {
      const Hits lru = replay(kind, {count.capacity}, "lru");
      EXPECT_EQ(lru.blocks, count.lru) << kind.name << " " << count.capacity;
      EXPECT_EQ(lru.tokens, count.lru_tokens) << kind.name << " " << count.capacity;
      EXPECT_EQ(replay(kind, {count.capacity}, "fifo").blocks, count.fifo)
          << kind.name << " " << count.capacity;
    }
  }
}

// The hits of an LRU tier of 3,000 blocks do not depend on a second tier. With a second tier that
// holds the same blocks, the larger tier's 6,000 count; with one that holds others, the sum counts.
TEST_F(Mooncake, TwoTiersGiveTheCountedHits) {
  const EdgeRules inclusive{.write = Write::on_create};
  const EdgeRules exclusive{.write = Write::on_evict, .exclusive = true};
  for (const StoreKind& kind : store_kinds()) {
    const Hits both = replay(kind, {3'000, 6'000}, "lru", inclusive);
    EXPECT_EQ(both.in_first, 782) << kind.name;
    EXPECT_EQ(both.blocks, 1'583) << kind.name;
    const Hits apart = replay(kind, {3'000, 6'000}, "lru", exclusive);
    EXPECT_EQ(apart.in_first, 782) << kind.name;
    EXPECT_EQ(apart.blocks, 2'202) << kind.name;
    EXPECT_EQ(replay(kind, {3'000, 1'000}, "lru", exclusive).blocks, 970) << kind.name;
  }
}

}  // namespace
}  // namespace kvtier
