/// Blocks of mooncake_conversation that caches of several sizes hit, counted by others.

#include <gtest/gtest.h>

#include "tests/sim/store/replays.hpp"

namespace kvtier {
namespace {

struct Hits {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;
  std::int64_t in_first = 0;
};

class Mooncake : public testing::Test {
 protected:
  static void SetUpTestSuite() { trace_ = read_hash_trace("mooncake_conversation"); }
  void SetUp() override {
    if (!trace_) {
      GTEST_SKIP() << "there is no ../shared/data";
    }
  }

  static Hits replay(const StoreKind& kind, const std::vector<std::int64_t>& capacities,
                     const std::string& eviction, const EdgeRules& edge = {}) {
    StoreRules rules;
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
  EXPECT_EQ(blocks, 288'500);
  EXPECT_EQ(tokens, 144'793'823);
}

TEST_F(Mooncake, LruAndFifoHitWhatWasCounted) {
  struct Count {
    std::int64_t capacity;
    std::int64_t lru;
    std::int64_t lru_tokens;
    std::int64_t fifo;
  };
  constexpr std::int64_t kAll = 1'000'000;
  for (const StoreKind& kind : store_kinds()) {
    for (const Count& count :
         {Count{1'000, 12'847, 6'575'459, 12'840}, Count{5'000, 32'260, 16'505'817, 30'698},
          Count{10'000, 61'046, 31'238'981, 52'514}, Count{30'000, 93'978, 48'093'740, 85'101},
          Count{50'000, 102'290, 52'347'371, 96'231}, Count{kAll, 105'710, 54'098'411, 105'710}}) {
      const Hits lru = replay(kind, {count.capacity}, "lru");
      EXPECT_EQ(lru.blocks, count.lru) << kind.name << " " << count.capacity;
      EXPECT_EQ(lru.tokens, count.lru_tokens) << kind.name << " " << count.capacity;
      EXPECT_EQ(replay(kind, {count.capacity}, "fifo").blocks, count.fifo)
          << kind.name << " " << count.capacity;
    }
  }
}

TEST_F(Mooncake, TwoTiersHitWhatWasCounted) {
  const EdgeRules inclusive{.write = Write::with_compute};
  const EdgeRules exclusive{.write = Write::on_eviction, .exclusive = true};
  for (const StoreKind& kind : store_kinds()) {
    const Hits both = replay(kind, {6'000, 12'000}, "lru", inclusive);
    EXPECT_EQ(both.in_first, 40'183) << kind.name;
    EXPECT_EQ(both.blocks, 66'428) << kind.name;
    const Hits apart = replay(kind, {6'000, 12'000}, "lru", exclusive);
    EXPECT_EQ(apart.in_first, 40'183) << kind.name;
    EXPECT_EQ(apart.blocks, 79'628) << kind.name;
    EXPECT_EQ(replay(kind, {6'000, 3'000}, "lru", exclusive).blocks, 56'158) << kind.name;
  }
}

}  // namespace
}  // namespace kvtier
