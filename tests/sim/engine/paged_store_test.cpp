#include "sim/engine/paged_store.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/engine/support.hpp"

namespace kvtier::test {
namespace {

constexpr SessionSlot kA = 0;
constexpr SessionSlot kB = 1;
constexpr SessionSlot kC = 2;

/// 16 blocks of a token in HBM; a token is copied in 1 ms.
class Store {
 public:
  explicit Store(std::int64_t host_blocks, double copied_below = 0, std::int64_t block_size = 1,
                 const std::string& in_hbm = "tokens_times_idle")
      : config_(make_config(host_blocks, copied_below, block_size, in_hbm)),
        timing_(kMillisecond, kMillisecond),
        backend_(config_.hardware, kLayers, timing_, DecodeStepping::closed_form),
        store({.config = &config_,
               .registry = &registry_,
               .backend = &backend_,
               .decisions = nullptr,
               .cookie = 1}) {}

  /// A turn of `tokens` tokens begins and ends at once.
  void keep(SessionSlot session, std::int64_t tokens) {
    store.take(session, Tokens(tokens), Tokens(0));
    store.give_back(session, {session}, Tokens(tokens), Tokens(tokens));
  }
  void wait_until(std::int64_t ms) {
    backend_.set_timer(at_ms(ms), 0);
    while (backend_.wait().kind != CompletionKind::timer) {
      store.on_copied();
      store.check_invariants();
    }
  }
  /// Makes room for `blocks` as far as possible; the times at which copies were done.
  std::vector<std::int64_t> make_room(std::int64_t blocks) {
    std::vector<std::int64_t> times;
    store.want(blocks);
    static_cast<void>(store.make_room());
    while (store.copying()) {
      static_cast<void>(backend_.wait());
      store.on_copied();
      store.check_invariants();
      times.push_back(backend_.now().ns / 1000000);
      static_cast<void>(store.make_room());
    }
    store.check_invariants();
    return times;
  }
  /// Tokens in HBM and in host memory.
  void expect_held(SessionSlot session, std::int64_t hbm, std::int64_t host) {
    const PagedStore::Held held = store.held(session, Tokens(1000));
    EXPECT_EQ(held.hbm, Tokens(hbm)) << "session " << session;
    EXPECT_EQ(held.host, Tokens(host)) << "session " << session;
  }

 private:
  static RunConfig make_config(std::int64_t host_blocks, double copied_below,
                               std::int64_t block_size, const std::string& in_hbm) {
    RunConfig config = tiny_config(Tokens(16));
    config.system.batching = Batching::unified;
    config.system.paging =
        PagingConfig{.block_size = Tokens(block_size), .swap_out_below = copied_below};
    config.serving.kv_memory = kv(16);
    HbmTierConfig hbm;
    static_cast<TierConfig&>(hbm) = tier(in_hbm);
    config.system.tiers.hbm = hbm;
    if (host_blocks > 0) {
      config.system.tiers.dram = tier("tokens_times_idle");
      config.hardware.dram->capacity = kv(host_blocks * block_size);
    }
    return config;
  }

  RunConfig config_;
  LifeLog lives_;
  PolicyRegistry registry_ = policies_and_told(lives_, "tokens_times_idle");
  ConstantTiming timing_;
  SimulatedBackend backend_;

 public:
  PagedStore store;
  /// Of the policy "told" in HBM.
  [[nodiscard]] const LifeLog& lives() const { return lives_; }
};

TEST(PagedStore, ThePolicyInHbmKeepsWhatARequestUses) {
  Store s(0, 0, 1, "told");
  s.keep(kA, 8);
  s.keep(kA, 9);
  s.store.take(kA, Tokens(10), Tokens(9));
  s.store.check_invariants();
  EXPECT_EQ(s.store.stored_entries(), 0U);
  s.make_room(16);  // nothing can leave
  s.store.give_back(kA, {kA}, Tokens(10), Tokens(0));
  EXPECT_EQ(s.lives(), (LifeLog{"insert 0", "hit 0", "release 0 with 9", "hit 0", "remove 0"}));
  s.store.check_invariants();
}

TEST(PagedStore, WhatIsAllInHostMemoryHasLeftThePolicyInHbm) {
  Store s(100, 0, 1, "told");
  s.keep(kA, 8);
  s.make_room(16);
  EXPECT_EQ(s.lives(), (LifeLog{"insert 0", "remove 0"}));
  s.keep(kA, 9);
  EXPECT_EQ(s.lives().back(), "insert 0");
}

TEST(PagedStore, TheTrailingHalfOfTheHighestScoreIsCopiedAndScoresAreTakenAgain) {
  Store s(100);
  s.keep(kA, 8);
  s.wait_until(10);
  s.keep(kB, 4);
  s.wait_until(20);
  // At 20: A 8 x 20 = 160, B 4 x 10 = 40: A keeps 4, done at 24.
  // At 24: A 4 x 24 = 96, B 4 x 14 = 56: A keeps 2, done at 26.
  // At 26: A 2 x 26 = 52, B 4 x 16 = 64: B keeps 2, done at 28.
  // At 28: A 2 x 28 = 56, B 2 x 18 = 36: A keeps 1, done at 29.
  // At 29: A 1 x 29 = 29, B 2 x 19 = 38: B keeps 1, done at 30. 16 - 2 = 14 are available.
  EXPECT_EQ(s.make_room(14), (std::vector<std::int64_t>{24, 26, 28, 29, 30}));
  EXPECT_EQ(s.store.available(), 14);
  // Until their blocks are taken the tokens are found in HBM.
  s.expect_held(kA, 8, 0);
  s.expect_held(kB, 4, 0);
}

TEST(PagedStore, BlocksWithACopyAreTakenTheLongestCopiedFirstFromTheEnd) {
  Store s(100);
  s.keep(kA, 8);
  s.wait_until(10);
  s.keep(kB, 4);
  s.wait_until(20);
  s.make_room(14);
  // 4 are free, so 5 of 9 come from A, whose end was copied first.
  s.store.take(kC, Tokens(9), Tokens(0));
  s.expect_held(kA, 3, 5);
  s.expect_held(kB, 4, 0);
  // A has 2 left with a copy; then B.
  s.store.grow(4);
  s.expect_held(kA, 1, 7);
  s.expect_held(kB, 2, 2);
  s.store.check_invariants();
}

TEST(PagedStore, HostMemoryDropsTailsByTheSameRule) {
  Store s(6);
  s.keep(kA, 8);
  s.wait_until(10);
  s.keep(kB, 4);
  s.wait_until(20);
  // As above A's 4 and 2 fill the host's 6 blocks at 26. B's 2 need room: A's 6 there are the only
  // ones, 6 x 26, and keep 3. At 28 A's last but one needs none. At 29 B's needs one: A 4 x 29,
  // B 2 x 19: A keeps 2.
  s.make_room(14);
  s.store.take(kC, Tokens(14), Tokens(0));
  // Of A a head of 1, a middle of 2, and a tail of 5 that was dropped.
  s.expect_held(kA, 1, 2);
  s.expect_held(kB, 1, 3);
}

TEST(PagedStore, WithoutHostMemoryTheTailIsDroppedAtOnceAndOnlyForWhatIsWanted) {
  Store s(0);
  s.keep(kA, 8);
  s.keep(kB, 8);
  s.wait_until(10);
  EXPECT_TRUE(s.make_room(3).empty());
  // A and B have the same score; A has the lower number.
  s.expect_held(kA, 4, 0);
  s.expect_held(kB, 8, 0);
  EXPECT_EQ(s.store.available(), 4);
}

TEST(PagedStore, CopiesAheadOfTimeWhileLessThanTheShareIsAvailable) {
  Store s(100, 0.5);
  s.keep(kA, 8);
  EXPECT_TRUE(s.make_room(0).empty()) << "8 of 16 are available";
  ASSERT_TRUE(s.store.blocks_before_copying());
  EXPECT_EQ(*s.store.blocks_before_copying(), 0);
  s.wait_until(10);
  s.keep(kB, 2);
  // 6 are left: A keeps 4 (8 x 10 against 0), which is enough.
  EXPECT_EQ(s.make_room(0), (std::vector<std::int64_t>{14}));
  s.expect_held(kA, 8, 0);
  EXPECT_EQ(s.store.available(), 10);
  EXPECT_EQ(*s.store.blocks_before_copying(), 2);
}

TEST(PagedStore, CopiesWaitForLoads) {
  Store s(100);
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.store.take(kB, Tokens(14), Tokens(0));
  s.expect_held(kA, 2, 6);
  s.store.give_back(kB, {kB}, Tokens(14), Tokens(10));
  const PagedStore::Held found = s.store.take(kA, Tokens(6), Tokens(5));
  EXPECT_EQ(found.hbm, Tokens(2));
  EXPECT_EQ(found.host, Tokens(3));
  s.wait_until(30);
  EXPECT_TRUE(s.make_room(5).empty()) << "a load is in flight";
  s.store.end_load();
  EXPECT_EQ(s.make_room(5).size(), 1U);
}

TEST(PagedStore, AnEntryTakenWhileItIsCopiedLeavesNothingBehind) {
  Store s(100);
  s.keep(kA, 8);
  s.wait_until(10);
  s.store.want(16);
  EXPECT_TRUE(s.store.make_room());
  EXPECT_TRUE(s.store.copying());
  const PagedStore::Held found = s.store.take(kA, Tokens(9), Tokens(8));
  EXPECT_EQ(found.hbm, Tokens(8));
  EXPECT_TRUE(s.store.copying()) << "the copy goes on";
  s.wait_until(20);
  s.store.want(0);
  EXPECT_FALSE(s.store.copying());
  EXPECT_EQ(s.store.stored_entries(), 0U);
  EXPECT_EQ(s.store.available(), 7);
}

TEST(PagedStore, WholeBlocksAreEvictedAndTheLastMayBePartlyFull) {
  Store s(100, 0, 4);
  s.keep(kA, 15);  // all 4 blocks
  s.wait_until(10);
  // Half of 15 is 7, a block and a part: 4 are kept.
  EXPECT_EQ(s.make_room(1), (std::vector<std::int64_t>{21}));
  EXPECT_EQ(s.store.available(), 3);
  s.store.grow(1);
  // The last block goes: 12 are left in HBM.
  s.expect_held(kA, 12, 3);
}

TEST(PagedStore, TruncationKeepsTheFirstTokens) {
  Store s(100);
  s.keep(kA, 8);
  s.store.truncate(kA, cut(5, 2));
  s.expect_held(kA, 3, 0);
  // Only the kept ones are left.
  s.store.truncate(kA, cut(5, 2));
  s.expect_held(kA, 2, 0);
  s.store.check_invariants();
}

TEST(PagedStore, TruncationCutsTheHeadOfWhatIsStored) {
  Store s(100);
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(12);
  s.store.take(kB, Tokens(12), Tokens(0));
  s.expect_held(kA, 4, 4);
  s.store.truncate(kA, cut(3));
  s.expect_held(kA, 1, 4);
  s.store.truncate(kA, cut(3));
  s.expect_held(kA, 0, 2);
  s.store.check_invariants();
  s.store.invalidate(kA, LossCause::overflow);
  s.expect_held(kA, 0, 0);
  EXPECT_EQ(s.store.loss(kA), LossCause::overflow);
  s.store.check_invariants();
}

}  // namespace
}  // namespace kvtier::test
