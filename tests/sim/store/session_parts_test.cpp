#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/store/sessions/session_store.hpp"
#include "tests/sim/serving/support.hpp"
#include "tests/sim/store/session_store_support.hpp"

// Entries that leave in parts, in HBM that running requests share. A token moves in 1 ms.
namespace kvtier::test {
namespace {

constexpr SessionSlot kA = 0;
constexpr SessionSlot kB = 1;
constexpr SessionSlot kC = 2;

/// HBM of 16 tokens, with DRAM of so many behind it unless that is 0.
RunConfig parts_config(std::int64_t dram_tokens, std::int64_t block_size = 1,
                       const std::string& in_hbm = "tokens_times_idle") {
  RunConfig config = tiny_config(Tokens(16));
  const auto parts_tier = [&](const std::string& eviction) {
    TierConfig made = tier(eviction);
    made.block_size = Tokens(block_size);
    return made;
  };
  config.system.batching = Batching::unified;
  config.system.paging = PagingConfig{.block_size = Tokens(block_size)};
  config.serving.kv_memory = kv(16);
  HbmTierConfig hbm;
  static_cast<TierConfig&>(hbm) = parts_tier(in_hbm);
  config.system.tiers.hbm = hbm;
  if (dram_tokens > 0) {
    config.system.tiers.dram = parts_tier("tokens_times_idle");
    config.hardware.dram->capacity = kv(dram_tokens);
  }
  return config;
}

RunConfig three_tiers(std::int64_t dram_tokens, std::int64_t ssd_tokens) {
  RunConfig config = parts_config(dram_tokens);
  config.system.tiers.ssd = tier("tokens_times_idle");
  config.hardware.ssd->capacity = kv(ssd_tokens);
  return config;
}

/// Does what a batcher does.
struct PartsStore : Store {
  explicit PartsStore(RunConfig run_config) : Store(std::move(run_config)) {}

  /// A turn begins that takes HBM of `tokens` tokens and finds `history` tokens or less.
  Lookup take(SessionSlot slot, std::int64_t tokens, std::int64_t history) {
    const Bytes taken = kv(tokens);
    EXPECT_GE(tiers.available_to(slot), taken);
    const Lookup found = tiers.admit(slot, EntryKey{slot}, Tokens(history), taken);
    tiers.check_invariants(of_running(taken));
    return found;
  }
  /// It ends, and `kept` tokens stay.
  void give_back(SessionSlot slot, std::int64_t tokens, std::int64_t kept) {
    grow(-tokens);
    save(slot, kept);
    tiers.check_invariants(of_running());
  }
  /// A turn of so many tokens begins and ends at once.
  void keep(SessionSlot slot, std::int64_t tokens) {
    take(slot, tokens, tiers.stored_tokens(slot).value);
    tiers.end_load(slot);
    give_back(slot, tokens, tokens);
  }
  /// A keeps 8 tokens at 0 ms, B 4 at 10 ms; then it is 20 ms.
  void keep_two();
  void grow(std::int64_t tokens) {
    running_ += kv(tokens);
    tiers.charge_running(kv(tokens));
  }
  void wait_until(std::int64_t ms) {
    until(at_ms(ms));
    tiers.check_invariants(of_running());
  }
  /// Makes HBM of `tokens` tokens available as far as possible; the times at which moves ended.
  std::vector<std::int64_t> make_room(std::int64_t tokens) {
    std::vector<std::int64_t> times;
    tiers.want(kv(tokens));
    static_cast<void>(tiers.make_room());
    while (backend.pending()) {
      tell(backend.wait());
      tiers.check_invariants(of_running());
      times.push_back(backend.now().ns / 1000000);
      static_cast<void>(tiers.make_room());
    }
    tiers.check_invariants(of_running());
    tiers.want(Bytes(0));
    return times;
  }
  /// A turn would find these tokens now: those in HBM, those only in DRAM, and those only on the
  /// SSD.
  void expect_held(SessionSlot slot, std::int64_t hbm, std::int64_t dram, std::int64_t ssd = 0) {
    const Tokens here = backend.held(EntryKey{slot}, Medium::hbm);
    const Tokens in_dram = std::max(here, backend.held(EntryKey{slot}, Medium::dram));
    const Tokens on_ssd = std::max(in_dram, backend.held(EntryKey{slot}, Medium::ssd));
    EXPECT_EQ(here, Tokens(hbm)) << "session " << slot;
    EXPECT_EQ(in_dram - here, Tokens(dram)) << "session " << slot;
    EXPECT_EQ(on_ssd - in_dram, Tokens(ssd)) << "session " << slot;
    EXPECT_EQ(tiers.findable(slot, Tokens(1000)), Tokens(hbm + dram + ssd)) << "session " << slot;
  }
  [[nodiscard]] std::int64_t available() const { return tiers.available() / kTokenBytes; }

 private:
  [[nodiscard]] Pool::Sums of_running(Bytes more = Bytes(0)) {
    running_ += more;
    Pool::Sums sums;
    sums[Account::running] = running_;
    return sums;
  }

  Bytes running_;
};

using Times = std::vector<std::int64_t>;

void PartsStore::keep_two() {
  keep(kA, 8);
  wait_until(10);
  keep(kB, 4);
  wait_until(20);
}

TEST(SessionParts, ThePolicyInHbmKeepsWhatATurnUses) {
  PartsStore s(parts_config(0, 1, "told"));
  s.keep(kA, 8);
  s.keep(kA, 9);
  s.take(kA, 10, 9);
  EXPECT_EQ(s.tiers.hbm().stored(), Bytes(0));
  s.make_room(16);  // nothing can leave
  s.give_back(kA, 10, 10);
  s.tiers.invalidate(kA, LossCause::overflow);
  EXPECT_EQ(s.lives, (LifeLog{"insert 0", "hit 0", "release 0 with 9", "hit 0", "release 0 with 10",
                              "remove 0"}));
  EXPECT_EQ(s.tiers.live_entries(), 0U);
}

TEST(SessionParts, AnEntryThatIsWholeInDramHasLeftThePolicyInHbm) {
  PartsStore s(parts_config(100, 1, "told"));
  s.keep(kA, 8);
  s.make_room(16);
  EXPECT_EQ(s.lives, (LifeLog{"insert 0", "remove 0"}));
  s.keep(kA, 9);
  EXPECT_EQ(s.lives.back(), "insert 0");
}

TEST(SessionParts, TheTrailingHalfOfTheHighestScoreIsSavedAndScoresAreTakenAgain) {
  PartsStore s(parts_config(100));
  s.keep_two();
  // At 20: A 8 x 20 = 160, B 4 x 10 = 40: A keeps 4, done at 24.
  // At 24: A 4 x 24 = 96, B 4 x 14 = 56: A keeps 2, done at 26.
  // At 26: A 2 x 26 = 52, B 4 x 16 = 64: B keeps 2, done at 28.
  // At 28: A 2 x 28 = 56, B 2 x 18 = 36: A keeps 1, done at 29.
  // At 29: A 1 x 29 = 29, B 2 x 19 = 38: B keeps 1, done at 30. 16 - 2 = 14 are available.
  EXPECT_EQ(s.make_room(14), (Times{24, 26, 28, 29, 30}));
  EXPECT_EQ(s.available(), 14);
  // Until their room is taken the tokens are found in HBM.
  expect_found(s.take(kA, 9, 8), 8, Medium::hbm);
  EXPECT_TRUE(s.tiers.parts_to_load().empty());
  s.expect_held(kB, 4, 0);
}

TEST(SessionParts, RoomOfSavedTokensIsTakenTheLongestSavedFirstFromTheEnd) {
  PartsStore s(parts_config(100));
  s.keep_two();
  s.make_room(14);
  // 4 are free, so 5 of 9 come from A, whose end was saved first.
  s.take(kC, 9, 0);
  s.expect_held(kA, 3, 5);
  s.expect_held(kB, 4, 0);
  // A has 2 left that are saved; then B.
  s.grow(4);
  s.expect_held(kA, 1, 7);
  s.expect_held(kB, 2, 2);
  s.wait_until(40);
}

TEST(SessionParts, DramDropsTailsByTheSameRule) {
  PartsStore s(parts_config(6));
  s.keep_two();
  // As above A's 4 and 2 fill DRAM at 26. B's 2 need room: A's 6 there are the only ones, 6 x 26,
  // and keep 3. At 28 A's last but one needs none. At 29 B's needs one: A 4 x 29, B 2 x 19: A keeps
  // 2.
  EXPECT_EQ(s.make_room(14), (Times{24, 26, 28, 29, 30}));
  s.take(kC, 14, 0);
  // A has a head of 1, a middle of 2, and a dropped tail of 5.
  s.expect_held(kA, 1, 2);
  s.expect_held(kB, 1, 3);
}

TEST(SessionParts, WithoutDramTheTailIsDroppedAtOnceAndOnlyAsNeeded) {
  PartsStore s(parts_config(0));
  s.keep(kA, 8);
  s.keep(kB, 8);
  s.wait_until(10);
  EXPECT_TRUE(s.make_room(3).empty());
  // A and B have the same score; A has the lower number.
  s.expect_held(kA, 4, 0);
  s.expect_held(kB, 8, 0);
  EXPECT_EQ(s.available(), 4);
}

TEST(SessionParts, SavesAheadWhileLessThanTheShareIsAvailable) {
  RunConfig config = parts_config(100);
  config.system.paging->swap_out_below = 0.5;
  PartsStore s(config);
  s.keep(kA, 8);
  EXPECT_TRUE(s.make_room(0).empty()) << "8 of 16 are available";
  EXPECT_EQ(s.tiers.available_before_saving(), Bytes(0));
  s.wait_until(10);
  s.keep(kB, 2);
  // 6 are left: A keeps 4 (8 x 10 against 0), which is enough.
  EXPECT_EQ(s.make_room(0), Times{14});
  s.expect_held(kA, 8, 0);
  EXPECT_EQ(s.available(), 10);
  EXPECT_EQ(s.tiers.available_before_saving(), kv(2));
}

TEST(SessionParts, SavesWaitForLoads) {
  PartsStore s(parts_config(100));
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.take(kB, 14, 0);
  s.expect_held(kA, 2, 6);
  s.give_back(kB, 14, 10);
  const Lookup found = s.take(kA, 6, 5);
  EXPECT_EQ(found.in_hbm(), Tokens(2));
  EXPECT_EQ(found.there(), Tokens(3));
  s.wait_until(30);
  EXPECT_TRUE(s.make_room(5).empty()) << "a load is in flight";
  // DRAM has all of A until its load is done.
  EXPECT_EQ(s.tiers.counters(1).occupancy_peak, kv(6));
  EXPECT_EQ(s.used(1), 6);
  s.tiers.end_load(kA);
  EXPECT_EQ(s.used(1), 0);
  EXPECT_EQ(s.make_room(5).size(), 1U);
}

TEST(SessionParts, AnEntryUsedWhileItIsSavedLeavesNothingBehind) {
  PartsStore s(parts_config(100));
  s.keep(kA, 8);
  s.wait_until(10);
  s.tiers.want(kv(16));
  EXPECT_TRUE(s.tiers.make_room());
  EXPECT_TRUE(s.backend.pending());
  expect_found(s.take(kA, 9, 8), 8, Medium::hbm);
  s.tiers.want(Bytes(0));
  // The save goes on, and has its room in DRAM until it ends.
  EXPECT_EQ(s.used(1), 4);
  EXPECT_TRUE(s.backend.pending());
  s.wait_until(20);
  EXPECT_FALSE(s.backend.pending());
  EXPECT_EQ(s.used(1), 0);
  EXPECT_EQ(s.tiers.hbm().stored(), Bytes(0));
  EXPECT_EQ(s.available(), 7);
}

TEST(SessionParts, WholeBlocksAreEvictedAndTheLastMayBePartlyFull) {
  PartsStore s(parts_config(400, 4));
  s.grow(16);
  s.tiers.admit(kA, EntryKey{kA}, Tokens(0));
  s.give_back(kA, 16, 15);  // all 4 blocks
  s.wait_until(10);
  // Half of 15 is 7, a block and a part: 4 are kept.
  EXPECT_EQ(s.make_room(4), Times{21});
  EXPECT_EQ(s.available(), 12);
  s.grow(4);
  // The last block goes: 12 are left in HBM.
  s.expect_held(kA, 12, 3);
}

TEST(SessionParts, TruncationKeepsTheFirstTokens) {
  PartsStore s(parts_config(100));
  s.keep(kA, 8);
  s.tiers.truncate(kA, cut(5, 2));
  s.expect_held(kA, 3, 0);
  // Only the kept ones are left.
  s.tiers.truncate(kA, cut(5, 2));
  s.expect_held(kA, 2, 0);
  s.tiers.check_invariants();
}

TEST(SessionParts, TruncationCutsTheHeadOfWhatIsStored) {
  PartsStore s(parts_config(100));
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(12);
  s.take(kB, 12, 0);
  s.expect_held(kA, 4, 4);
  s.tiers.truncate(kA, cut(3));
  s.expect_held(kA, 1, 4);
  s.tiers.truncate(kA, cut(3));
  s.expect_held(kA, 0, 2);
  s.wait_until(20);
  s.tiers.invalidate(kA, LossCause::overflow);
  s.expect_held(kA, 0, 0);
  expect_lost(s.take(kA, 3, 2), LossCause::overflow);
}

TEST(SessionParts, AHeadTruncatedToNothingWhileItIsSavedLeavesTheDramCopy) {
  PartsStore s(parts_config(100));
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.take(kB, 14, 0);
  s.expect_held(kA, 2, 6);
  s.give_back(kB, 14, 1);
  s.wait_until(20);
  s.tiers.want(kv(14));
  EXPECT_TRUE(s.tiers.make_room());
  s.tiers.want(Bytes(0));
  EXPECT_TRUE(s.backend.pending()) << "token 1 is on its way";
  s.tiers.truncate(kA, cut(3));
  s.tiers.check_invariants({});
  s.wait_until(30);
  s.expect_held(kA, 0, 5);
}

// ---- More tiers than DRAM ----

TEST(SessionParts, ATailGoesDownThreeTiersAndATurnFindsItInAll) {
  PartsStore s(three_tiers(6, 100));
  s.keep_two();
  // As above A's 4 and 2 fill DRAM at 26. For B's 2 there A keeps 3 of 6: its tokens 5 to 7 go to
  // the SSD by 29, and B's come by 31. A 2 x 31, B 2 x 21: A keeps 1, and DRAM has a place for the
  // other, 32. A 1 x 32, B 2 x 22: B keeps 1; in DRAM A 4 x 32, B 2 x 22: A keeps 2, so 2 more go
  // to the SSD by 34, and B's token comes by 35.
  EXPECT_EQ(s.make_room(14), (Times{24, 26, 29, 31, 32, 34, 35}));
  s.take(kC, 14, 0);
  s.expect_held(kA, 1, 2, 5);
  s.expect_held(kB, 1, 3);
  EXPECT_EQ(s.used(1), 5);
  EXPECT_EQ(s.used(2), 5);
  s.give_back(kC, 14, 1);
  const Lookup found = s.take(kA, 9, 8);
  EXPECT_EQ(found.reused, Tokens(8));
  EXPECT_EQ(found.medium, Medium::ssd);
  EXPECT_EQ(found.in_hbm(), Tokens(1));
  EXPECT_EQ(found.nearer[1], Tokens(2));
  EXPECT_EQ(found.there(), Tokens(5));
  const auto& parts = s.tiers.parts_to_load();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].from, Medium::dram);
  EXPECT_EQ(parts[0].first, Tokens(1));
  EXPECT_EQ(parts[0].count, Tokens(2));
  EXPECT_EQ(parts[1].from, Medium::ssd);
  EXPECT_EQ(parts[1].first, Tokens(3));
  EXPECT_EQ(parts[1].count, Tokens(5));
  s.tiers.end_load(kA);
  EXPECT_EQ(s.used(1), 3);
  EXPECT_EQ(s.used(2), 0);
}

TEST(SessionParts, AFullDramMakesRoomForMoreOfTheEntryThatFillsIt) {
  PartsStore s(three_tiers(6, 100));
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.take(kB, 14, 0);
  s.expect_held(kA, 2, 6);
  s.give_back(kB, 14, 1);
  s.wait_until(20);
  // For token 1 DRAM keeps 3 of 6: 3 go to the SSD by 23, and it comes by 24.
  EXPECT_EQ(s.make_room(14), (Times{23, 24}));
  s.take(kC, 14, 0);
  s.expect_held(kA, 1, 4, 3);
}

// ---- Fetches ----

TEST(SessionParts, AWaitingRequestsTailIsFetchedToHbm) {
  RunConfig config = parts_config(100);
  config.system.prefetch.name = "look_ahead";
  PartsStore s(config);
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.take(kB, 14, 0);
  s.give_back(kB, 14, 2);
  s.expect_held(kA, 2, 6);
  s.wait_until(100);
  s.enqueue(kA);
  s.wait_until(105);
  EXPECT_TRUE(s.backend.pending());
  s.wait_until(106);
  // 6 tokens in 6 ms.
  EXPECT_FALSE(s.backend.pending());
  s.expect_held(kA, 8, 0);
  EXPECT_EQ(s.used(1), 0);
  s.dequeue();
  const Lookup found = s.take(kA, 9, 8);
  expect_found(found, 8, Medium::hbm);
  EXPECT_TRUE(s.tiers.parts_to_load().empty());
  EXPECT_EQ(s.tiers.prefetches().on_time, 1);
}

TEST(SessionParts, ATurnThatComesDuringTheFetchOfATailWaitsForIt) {
  RunConfig config = parts_config(100);
  config.system.prefetch.name = "look_ahead";
  PartsStore s(config);
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.take(kB, 14, 0);
  s.give_back(kB, 14, 2);
  s.wait_until(100);
  s.enqueue(kA);
  s.wait_until(104);
  s.dequeue();
  const Lookup found = s.tiers.admit(kA, EntryKey{kA}, Tokens(8));
  EXPECT_TRUE(found.late);
  EXPECT_EQ(found.reused, Tokens(8));
  EXPECT_EQ(found.medium, Medium::hbm);
  EXPECT_EQ(found.fetched_from, Medium::dram);
  EXPECT_TRUE(s.tiers.parts_to_load().empty());
  s.wait_until(110);
  ASSERT_EQ(s.ready.size(), 1U);
  EXPECT_EQ(s.ready[0], (std::pair{kA, Medium::hbm}));
  EXPECT_EQ(s.ready_at[0], at_ms(106));
  EXPECT_EQ(s.used(1), 0);
}

// ---- Time to live, admission ----

TEST(SessionParts, APartNotUsedForLongerThanItsTiersTimeToLiveIsGone) {
  RunConfig config = parts_config(100);
  config.system.tiers.dram->ttl = for_ms(50);
  config.system.tiers.hbm->ttl = for_ms(80);
  PartsStore s(config);
  s.keep(kA, 8);
  s.wait_until(10);
  s.make_room(14);
  s.take(kB, 14, 0);
  s.expect_held(kA, 2, 6);
  s.give_back(kB, 14, 2);
  s.wait_until(51);
  const Lookup found = s.take(kA, 9, 8);
  expect_found(found, 2, Medium::hbm);
  EXPECT_EQ(found.cause, LossCause::ttl);
  EXPECT_EQ(s.used(1), 0);
  s.give_back(kA, 9, 9);
  s.wait_until(140);
  expect_lost(s.take(kA, 10, 9), LossCause::ttl);
}

TEST(SessionParts, APartThatDramDoesNotAdmitIsDropped) {
  RunConfig config = parts_config(100);
  config.system.tiers.dram->admission.name = "second_hit";
  PartsStore s(config);
  s.keep(kA, 8);
  s.wait_until(10);
  EXPECT_TRUE(s.make_room(14).empty()) << "A was used once";
  s.expect_held(kA, 2, 0);
  const Lookup found = s.take(kA, 9, 8);
  EXPECT_EQ(found.reused, Tokens(2));
  EXPECT_EQ(found.cause, LossCause::not_admitted);
  s.give_back(kA, 9, 8);
  s.wait_until(20);
  // At 20 A keeps 4 of 8, then 2.
  EXPECT_EQ(s.make_room(14), (Times{24, 26}));
  s.expect_held(kA, 8, 0);
}

TEST(SessionParts, AnEntryThatHbmDoesNotAdmitGoesToDramIfThereIsAny) {
  for (const std::int64_t dram_tokens : {0, 100}) {
    RunConfig config = parts_config(dram_tokens);
    config.system.tiers.hbm->admission.name = "second_hit";
    PartsStore s(config);
    s.keep(kA, 8);
    EXPECT_EQ(s.tiers.hbm().stored(), Bytes(0));
    s.wait_until(8);
    EXPECT_EQ(s.tiers.saves_in_progress(), 0);
    EXPECT_EQ(s.available(), 16);
    const Lookup found = s.take(kA, 9, 8);
    if (dram_tokens > 0) {
      expect_found(found, 8, Medium::dram);
    } else {
      expect_lost(found, LossCause::not_admitted);
    }
    s.tiers.end_load(kA);
    s.give_back(kA, 9, 9);
    s.expect_held(kA, 9, 0);
  }
}

// ---- Without a tier in HBM, or with one of its own size ----

TEST(SessionParts, WithoutATierInHbmTurnsSaveToDramWhichKeepsParts) {
  RunConfig config = parts_config(12);
  config.system.tiers.hbm.reset();
  config.serving.kv_memory.reset();
  PartsStore s(config);
  s.keep(kA, 8);
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.wait_until(10);
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  EXPECT_EQ(s.used(0), 8);
  s.keep(kB, 8);  // 4 are missing: A keeps 4 of 8
  s.wait_until(20);
  EXPECT_EQ(s.used(0), 12);
  const Lookup found = s.take(kA, 9, 8);
  expect_found(found, 4, Medium::dram);
  EXPECT_EQ(found.cause, LossCause::capacity);
  ASSERT_EQ(s.tiers.parts_to_load().size(), 1U);
  EXPECT_EQ(s.tiers.parts_to_load()[0].count, Tokens(4));
}

TEST(SessionParts, BehindHbmOfItsOwnSizeThePartThatLeavesGoesToDram) {
  RunConfig config = parts_config(100);
  config.system.tiers.hbm->capacity = kv(12);
  config.serving.kv_memory.reset();
  PartsStore s(config);
  s.keep(kA, 8);
  s.wait_until(10);
  s.keep(kB, 8);  // 4 are missing: A keeps 4 of 8, and B waits in the write buffer until 14
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.wait_until(13);
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.wait_until(14);
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  s.expect_held(kA, 4, 4);
  s.expect_held(kB, 8, 0);
  EXPECT_EQ(s.used(0), 12);
  EXPECT_EQ(s.used(1), 4);
}

}  // namespace
}  // namespace kvtier::test
