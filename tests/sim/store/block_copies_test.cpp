/// Copies of blocks to slower pools that take time.

#include <algorithm>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/streams.hpp"
#include "sim/store/blocks/stores.hpp"
#include "sim/store/reference/reference_store.hpp"

namespace kvtier {
namespace {

/// Requests in HBM, a cache in host memory and one on drives, with blocks of one token.
StoreRules three_tiers(std::int64_t dram, std::int64_t ssd) {
  StoreRules rules;
  rules.requests_in_first = true;
  rules.publication = Publication::computed;
  rules.pools = {{.name = "hbm", .capacity = 100, .block = Tokens(1)},
                 {.name = "dram", .capacity = dram, .block = Tokens(1), .touch = Touch::lookup},
                 {.name = "ssd", .capacity = ssd, .block = Tokens(1), .touch = Touch::lookup}};
  rules.edges = {{.timed = true, .responses = Responses::computed},
                 {.timed = true, .responses = Responses::computed}};
  return rules;
}

class BlockCopies : public testing::TestWithParam<bool> {
 protected:
  void open(const StoreRules& rules) {
    const PolicyRegistry registry = builtin_policies();
    store_ = GetParam() ? make_reference_store(rules, streams_, registry)
                        : make_store(rules, streams_, registry);
  }
  [[nodiscard]] RequestId acquire(const Context& prompt) {
    Match match;
    const auto id = store_->acquire(prompt, prompt.tokens, match);
    EXPECT_TRUE(id);
    return id.value_or(RequestId{});
  }
  RequestId compute(const Context& prompt) {
    const RequestId id = acquire(prompt);
    store_->computed(id, prompt.tokens);
    return id;
  }
  /// All copies that take time arrive, and those that follow them.
  void arrive() {
    for (std::vector<Copy> copies = store_->take_copies(); !copies.empty();
         copies = store_->take_copies()) {
      for (const Copy& copy : copies) {
        if (!copy.waits) {
          store_->copied(copy.id);
        }
      }
    }
  }
  [[nodiscard]] std::vector<std::uint32_t> awaited() {
    std::vector<std::uint32_t> ids;
    for (const Copy& copy : store_->take_awaited()) {
      ids.push_back(copy.id);
    }
    return ids;
  }
  Context stream(std::int64_t tokens) { return {streams_.open(), Tokens(tokens)}; }
  [[nodiscard]] std::int64_t resident(std::size_t pool, StreamId stream) const {
    const std::vector<Stretch> blocks = store_->contents(pool);
    return std::ranges::count(blocks, stream, &Stretch::stream);
  }

  Streams streams_;
  std::unique_ptr<Store> store_;
};
INSTANTIATE_TEST_SUITE_P(, BlockCopies, testing::Bool(),
                         [](const auto& one) { return one.param ? "Plain" : "Extents"; });

// Three contexts of 4 blocks. The first one is on the drive alone.
TEST_P(BlockCopies, BlocksOnADriveStayWhileARequestLoadsThem) {
  for (const bool exclusive : {false, true}) {
    StoreRules rules = three_tiers(8, 12);
    rules.pools[0].capacity = 8;
    rules.pools[2].eviction = "fifo";
    rules.edges[1].exclusive = exclusive;
    rules.edges[1].write = exclusive ? Write::on_evict : Write::on_create;
    rules.edges[1].stalls = exclusive;
    open(rules);
    const Context first = stream(4);
    for (const Context& context : {first, stream(4), stream(4)}) {
      store_->release(compute(context));
      arrive();
    }
    ASSERT_EQ(store_->match(first).by_pool[2], Tokens(4)) << exclusive;
    const RequestId loads = acquire(first);
    // Other blocks take the place of the oldest ones that may leave.
    for (int i = 0; i < 2; ++i) {
      const RequestId other = compute(stream(2));
      arrive();
      store_->release(other);
    }
    EXPECT_EQ(resident(2, first.stream), 4) << exclusive;
    store_->loaded(loads);
    EXPECT_EQ(resident(2, first.stream), exclusive ? 0 : 4);
    store_->check_invariants();
  }
}

// HBM has 8 blocks. The third context takes the memory of the first one, which is being copied.
TEST_P(BlockCopies, ACopyIsAwaitedWhenItsSourceLeavesHbm) {
  StoreRules rules = three_tiers(16, 8);
  rules.pools[0].capacity = 8;
  rules.pools[1].block = rules.pools[2].block = Tokens(2);
  open(rules);
  std::vector<Copy> copies;
  for (int i = 0; i < 2; ++i) {
    store_->release(compute(stream(4)));
    for (const Copy& copy : store_->take_copies()) {
      copies.push_back(copy);
    }
    EXPECT_EQ(awaited(), std::vector<std::uint32_t>());
  }
  ASSERT_EQ(copies.size(), 2U);
  store_->release(compute(stream(1)));
  EXPECT_EQ(awaited(), std::vector{copies[0].id});
  store_->release(compute(stream(3)));
  EXPECT_EQ(awaited(), std::vector<std::uint32_t>()) << "it is told once";
  store_->copied(copies[0].id);
  store_->copied(copies[1].id);
  store_->release(compute(stream(4)));
  EXPECT_EQ(awaited(), std::vector<std::uint32_t>()) << "it has arrived";
}

// A request of 4 blocks ends before they are in host memory, while another one of 2 blocks runs.
TEST_P(BlockCopies, MemoryThatIsFreeAtTheEndOfARequestAwaitsItsCopies) {
  StoreRules rules = three_tiers(16, 8);
  rules.publication = Publication::never;
  open(rules);
  const Context first = stream(4);
  const RequestId ends = compute(first);
  compute(stream(2));
  const std::vector<Copy> copies = store_->take_copies();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].blocks, 6);
  EXPECT_EQ(awaited(), std::vector<std::uint32_t>());
  store_->release(ends);
  EXPECT_EQ(store_->free_blocks().empty, 98);
  const std::vector<Copy> awaited = store_->take_awaited();
  ASSERT_EQ(awaited.size(), 1U);
  EXPECT_EQ(awaited[0].id, copies[0].id);
  EXPECT_EQ(awaited[0].blocks, 4);
  store_->copied(copies[0].id);
  EXPECT_EQ(store_->match(first).by_pool, (std::vector{Tokens(0), Tokens(4), Tokens(0)}));
  const RequestId again = acquire(first);
  store_->release(again);
  EXPECT_EQ(this->awaited(), std::vector<std::uint32_t>()) << "host memory has it already";
}

// Host memory of 8 blocks. The third context takes the room of the first one, which is written to
// the drive meanwhile.
TEST_P(BlockCopies, AVictimLeavesAtOnceAndIsFoundWhenItIsWritten) {
  for (const bool exclusive : {false, true}) {
    StoreRules rules = three_tiers(8, 12);
    rules.publication = Publication::never;
    rules.edges[1].write = Write::on_evict;
    rules.edges[1].exclusive = exclusive;
    open(rules);
    const Context first = stream(4);
    store_->release(compute(first));
    EXPECT_TRUE(store_->match(first).waits) << "it is written to host memory";
    arrive();
    EXPECT_FALSE(store_->match(first).waits);
    store_->release(compute(stream(4)));
    arrive();
    const Context third = stream(4);
    store_->release(compute(third));
    EXPECT_EQ(resident(1, first.stream), 0);
    EXPECT_EQ(resident(1, third.stream), 4);
    EXPECT_EQ(store_->counters(1).demoted, 4);
    const std::vector<Copy> copies = store_->take_copies();
    ASSERT_EQ(copies.size(), 2U);
    EXPECT_EQ(copies[1].pool, 2U);
    EXPECT_EQ(copies[1].blocks, 4);
    EXPECT_FALSE(copies[1].waits);
    const std::vector<Copy> awaited = store_->take_awaited();
    const auto buffered = std::ranges::find(awaited, std::size_t{2}, &Copy::pool);
    ASSERT_NE(buffered, awaited.end());
    EXPECT_EQ(buffered->blocks, 4);
    EXPECT_EQ(store_->match(first).tokens, Tokens(0));
    EXPECT_TRUE(store_->match(first).waits);
    for (const Copy& copy : copies) {
      store_->copied(copy.id);
    }
    EXPECT_EQ(store_->match(first).by_pool[2], Tokens(4));
    EXPECT_FALSE(store_->match(first).waits);
    store_->check_invariants();
  }
}

/// vLLM's offload, behind which a block is written to the drive at its second use.
StoreRules offload() {
  StoreRules rules = three_tiers(4, 8);
  rules.pools[1].touch = rules.pools[2].touch = Touch::end;
  rules.edges[1].write = Write::after_uses;
  rules.edges[1].uses = 2;
  return rules;
}

TEST_P(BlockCopies, ABlockThatIsWrittenAnewIsNotWrittenOnBeforeItHasArrived) {
  open(offload());
  const Context first = stream(4);
  const RequestId uses = compute(first);
  const auto offer = [&](RequestId id) { EXPECT_TRUE(store_->offer(id, Tokens(4))); };
  const RequestId writes = compute(first);
  offer(writes);
  arrive();
  offer(uses);  // a reuse
  // Others take the memory, and the first context comes again.
  for (const Context& context : {stream(4), first}) {
    const RequestId id = compute(context);
    offer(id);
    if (context.stream != first.stream) {
      arrive();
    }
  }
  store_->release(uses);
  store_->end(uses);
  for (const Copy& copy : store_->take_copies()) {
    EXPECT_EQ(copy.pool, 1U);
  }
  EXPECT_EQ(resident(1, first.stream), 4);
  EXPECT_EQ(resident(2, first.stream), 0);
}

// A drive of 8 blocks is relieved of half of them from 4 on. Two contexts are computed before the
// first one has arrived in host memory.
TEST_P(BlockCopies, ATierMakesRoomWhenWhatIsWrittenOnHasArrived) {
  StoreRules rules = three_tiers(16, 8);
  rules.pools[2].relief = Relief{.from = 0.5, .share = 0.5};
  open(rules);
  compute(stream(4));
  compute(stream(4));
  EXPECT_EQ(store_->counters(2).evicted, 0);
  const std::vector<Copy> to_host = store_->take_copies();
  ASSERT_EQ(to_host.size(), 1U);
  store_->copied(to_host.front().id);
  arrive();
  ASSERT_EQ(store_->resident_blocks(2), 8);
  const RequestId third = compute(stream(4));
  EXPECT_EQ(store_->counters(2).evicted, 0);
  const std::vector<Copy> next = store_->take_copies();
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(store_->counters(2).evicted, 0) << "nothing is written there yet";
  store_->copied(next.front().id);
  EXPECT_EQ(store_->counters(2).evicted, 4);
  store_->release(third);
}

/// Sequences in HBM, of which those that no request uses take 6 blocks, before host memory that has
/// what leaves HBM.
StoreRules little_idle_kv() {
  StoreRules rules;
  rules.requests_in_first = true;
  rules.loads_alone = false;
  rules.publication = Publication::end;
  rules.pools = {
      {.name = "hbm",
       .capacity = 100,
       .block = Tokens(1),
       .unit = EvictionUnit::sequence,
       .idle = 6},
      {.name = "dram", .capacity = 100, .block = Tokens(1), .unit = EvictionUnit::sequence}};
  rules.edges = {{.write = Write::on_evict, .exclusive = true, .timed = true}};
  return rules;
}

TEST_P(BlockCopies, KvThatNoRequestUsesLeavesHbmBeyondItsLimit) {
  open(little_idle_kv());
  const Context first = stream(6);
  const Context second = stream(6);
  store_->advance(SimTime(1));
  store_->release(acquire(first));
  store_->advance(SimTime(2));
  EXPECT_EQ(resident(0, first.stream), 6);
  const RequestId runs = acquire(second);
  store_->advance(SimTime(3));
  EXPECT_EQ(resident(0, first.stream), 6) << "what runs does not count";
  store_->release(runs);
  store_->advance(SimTime(4));
  EXPECT_EQ(resident(0, first.stream), 0);
  EXPECT_EQ(resident(0, second.stream), 6);
  const Context next{first.stream, Tokens(7)};
  EXPECT_EQ(store_->match(next).tokens, Tokens(0)) << "it is on its way";
  const std::vector<Copy> copies = store_->take_copies();
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_FALSE(copies[0].waits);
  EXPECT_EQ(awaited(), std::vector<std::uint32_t>{copies[0].id});
  store_->copied(copies[0].id);
  EXPECT_EQ(store_->match(next).by_pool[1], Tokens(6));
}

TEST_P(BlockCopies, KvThatComesEarlyReplacesOtherThatNoRequestUses) {
  open(little_idle_kv());
  const Context first = stream(6);
  const Context second = stream(6);
  for (const Context& context : {first, second}) {
    store_->release(acquire(context));
    store_->advance(SimTime(context.stream.value + 1));
    arrive();
  }
  Match match;
  const Context next{first.stream, Tokens(7)};
  ASSERT_EQ(store_->match(next).by_pool[1], Tokens(6));
  const auto id =
      store_->acquire(next, {.taken = Tokens(6), .needed = Tokens(6), .comes_early = true}, match);
  ASSERT_TRUE(id);
  EXPECT_EQ(store_->free_blocks().available, store_->free_blocks().empty) << "none is idle";
  store_->loaded(*id);
  store_->release(*id);
  store_->advance(SimTime(9));
  EXPECT_EQ(resident(0, first.stream), 6);
  EXPECT_EQ(resident(0, second.stream), 0);
}

// 4 blocks are reserved for a stream in HBM, where it has 2, and 40 in host memory.
TEST_P(BlockCopies, StreamsTakeWhatIsReservedForThem) {
  StoreRules rules = little_idle_kv();
  rules.pools[0].idle = 8;
  rules.pools[0].reserved = 4;
  rules.pools[1].reserved = 40;
  open(rules);
  std::vector<Context> contexts;
  for (int i = 0; i < 5; ++i) {
    contexts.push_back(stream(2));
    store_->release(acquire(contexts.back()));
    store_->advance(SimTime(i + 1));
    arrive();
  }
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    EXPECT_EQ(resident(0, contexts[i].stream), i < 3 ? 0 : 2) << i;
    EXPECT_EQ(resident(1, contexts[i].stream), i == 1 || i == 2 ? 2 : 0) << i;
  }
  store_->check_invariants();
}

}  // namespace
}  // namespace kvtier
