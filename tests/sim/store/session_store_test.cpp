#include "sim/store/sessions/session_store.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/serving/support.hpp"
#include "tests/sim/store/session_store_support.hpp"

namespace kvtier::test {
namespace {

constexpr SessionSlot kA = 1;
constexpr SessionSlot kB = 2;
constexpr SessionSlot kC = 3;
constexpr SessionSlot kD = 4;
constexpr SessionSlot kE = 5;

// ---- Saving and finding ----

TEST(SessionStore, FindsASavedEntryInDram) {
  Store s(dram_only(100));
  s.turn(kA, 0, 10);
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.drain();
  EXPECT_EQ(s.backend.now(), at_ms(10));  // 10 tokens at 1 token/ms
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  // The account is taken when the save begins: 10,000 B x 10 ms.
  EXPECT_DOUBLE_EQ(static_cast<double>(s.tiers.counters(0).occupancy_byte_ns), 10000.0 * 1e7);
  EXPECT_EQ(s.written(0), 10);

  const Lookup found = s.admit(kA, 10);
  expect_found(found, 10, Medium::dram);
  EXPECT_EQ(found.cause, LossCause::none);
  EXPECT_EQ(s.read(0), 10);
  // The running turn's KV is in HBM: DRAM's account is free again.
  EXPECT_EQ(s.used(0), 0);
}

TEST(SessionStore, WithoutTiersStoresNothing) {
  Store s(tiny_config());
  EXPECT_FALSE(s.tiers.stores_anything());
  EXPECT_EQ(s.admit(kA, 0).cause, LossCause::none);
  s.save(kA, 10);
  expect_lost(s.admit(kA, 10), LossCause::not_stored);
  EXPECT_FALSE(s.backend.pending());
}

TEST(SessionStore, KeepsNoMoreThanIsStoredOfALongerHistory) {
  Store s(dram_only(100));
  s.store(kA, 10);
  const Lookup found = s.admit(kA, 25);
  expect_found(found, 10, Medium::dram);
  EXPECT_EQ(found.cause, LossCause::capacity);
}

TEST(SessionStore, ChargesWholeBlocksAndMovesActualBytes) {
  TierConfig dram = tier();
  dram.block_size = Tokens(16);
  Store s(dram_only(100, dram));
  s.store(kA, 17);
  EXPECT_EQ(s.used(0), 32);  // ceil(17 / 16) = 2 blocks
  EXPECT_EQ(s.written(0), 17);
}

TEST(SessionStore, ChargesAWholeWindowWhereReservedButMovesActualBytes) {
  RunConfig config = dram_only(250);
  config.model.context_window = Tokens(100);
  config.serving.kv_reservation = Reservation::context_window;
  Store s(config);
  s.store(kA, 1);
  s.store(kB, 1);
  EXPECT_EQ(s.used(0), 200);
  EXPECT_EQ(s.written(0), 2);
  s.store(kC, 1);  // a third window does not fit in 250
  EXPECT_EQ(s.used(0), 200);
  expect_lost(s.admit(kA, 1), LossCause::capacity);

  config.serving.kv_reservation = Reservation::exact;
  Store exact(config);
  for (const SessionSlot slot : {kA, kB, kC}) {
    exact.store(slot, 1);
  }
  EXPECT_EQ(exact.used(0), 3);
}

TEST(SessionStore, AHitInTheWriteBufferIsAnHbmHitAndEndsTheSave) {
  Store s(dram_only(100));
  s.turn(kA, 0, 10);
  s.until(at_ms(5));
  expect_found(s.admit(kA, 10), 10, Medium::hbm);
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  EXPECT_EQ(s.used(0), 0);
  s.drain();
}

TEST(SessionStore, ACancelledSavesLateCompletionDoesNotEndTheNextSave) {
  Store s(dram_only(100));
  s.turn(kA, 0, 10);
  s.until(at_ms(5));
  // The first transfer has 5 tokens to go; alone until 6 ms, then both at half rate: the first ends
  // at 6 + 4 x 2 = 14 ms, the second (12 tokens, 4 of them moved by then) at 14 + 8 = 22 ms.
  s.admit(kA, 10);
  s.until(at_ms(6));
  s.save(kA, 12);
  s.until(at_ms(15));
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.until(SimTime(22000000 - 10));
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.until(SimTime(22000000 + 10));
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  expect_found(s.admit(kA, 12), 12, Medium::dram);
  EXPECT_EQ(s.written(0), 22);  // the cancelled bytes were on their way
}

TEST(SessionStore, SavesThePromptWhileTheTurnRuns) {
  RunConfig config = dram_only(100);
  config.system.save.write_buffer = kv(5);
  Store s(config);
  s.admit(kA, 0);
  s.tiers.begin_save(kA, EntryKey{kA}, Tokens(8));
  s.until(at_ms(10));  // the prompt's 8 tokens are out
  s.save(kA, 12);
  EXPECT_EQ(s.tiers.hbm().write_buffer_excess(), Bytes(0));  // 4 are left, 5 fit the buffer
  s.until(at_ms(14));
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  EXPECT_EQ(s.written(0), 12);
}

TEST(SessionStore, BytesBeyondTheWriteBufferAreItsExcessUntilTheSaveIsDone) {
  RunConfig config = dram_only(100);
  config.system.save.write_buffer = kv(6);
  Store s(config);
  s.turn(kA, 0, 10);
  EXPECT_EQ(s.tiers.hbm().write_buffer_excess(), kv(4));
  s.drain();
  EXPECT_EQ(s.tiers.hbm().write_buffer_excess(), Bytes(0));
}

TEST(SessionStore, AnEntryLargerThanTheTierIsDroppedAndLaterMissedForThatCause) {
  Store s(dram_only(5));
  s.turn(kA, 0, 10);
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  EXPECT_EQ(s.tiers.live_entries(), 0U);
  s.drain();
  expect_lost(s.admit(kA, 10), LossCause::larger_than_tier);
  s.save(kA, 4);  // and it can be stored when it is small enough
  s.drain();
  expect_found(s.admit(kA, 4), 4, Medium::dram);
}

TEST(SessionStore, AnEntryLargerThanTheSsdIsMissedForThatCause) {
  Store s(two_tiers(30, 10));
  s.store(kA, 20);
  s.store(kB, 20);
  expect_lost(s.admit(kA, 20), LossCause::larger_than_tier);
}

// ---- Admission ----

TierConfig filtered(const char* admission, TierConfig config = tier()) {
  config.admission.name = admission;
  return config;
}

TEST(SessionStore, ATierThatAdmitsOnTheSecondHitStoresFromTheSecondTurnOn) {
  Store s(dram_only(100, filtered("second_hit")));
  s.store(kA, 10);
  EXPECT_EQ(s.tiers.live_entries(), 0U);
  expect_lost(s.turn(kA, 10, 12), LossCause::not_admitted);
  s.drain();
  expect_found(s.turn(kA, 12, 14), 12, Medium::dram);
  s.drain();
  expect_found(s.admit(kA, 14), 14, Medium::dram);
}

TEST(SessionStore, AnEntryThatTheSsdDoesNotAdmitIsLostWithoutAWrite) {
  Store s(two_tiers(10, 100, tier(), filtered("second_hit", tier("lru", true))));
  s.store(kA, 10);
  s.store(kB, 10);  // A leaves DRAM, used once
  EXPECT_EQ(s.written(1), 0);
  expect_lost(s.turn(kA, 10, 10), LossCause::not_admitted);
  s.drain();  // B left, used once
  EXPECT_EQ(s.written(1), 0);
  s.store(kC, 10);  // A leaves, used twice
  EXPECT_EQ(s.written(1), 10);
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
}

TEST(SessionStore, AWriteThroughNeedsAdmissionToo) {
  TierConfig ssd = filtered("second_hit", tier("lru", true));
  ssd.write = WriteMoment::on_create;
  Store s(two_tiers(100, 100, tier(), ssd));
  s.store(kA, 10);
  EXPECT_EQ(s.written(1), 0);
  s.turn(kA, 10, 12);
  s.drain();
  EXPECT_EQ(s.written(1), 12);
  expect_found(s.admit(kA, 12), 12, Medium::dram);
}

TEST(SessionStore, ANewcomerUsedLessOftenThanTheVictimStaysOut) {
  Store s(dram_only(20, filtered("frequency_sketch")));
  s.store(kA, 10);
  s.turn(kA, 10, 10);
  s.drain();
  s.store(kB, 10);  // there is room
  s.turn(kB, 10, 10);
  s.drain();
  s.store(kC, 10);  // used once, A twice
  expect_lost(s.turn(kC, 10, 10), LossCause::capacity);
  s.drain();  // twice is not more often
  expect_lost(s.turn(kC, 10, 10), LossCause::capacity);
  s.drain();  // and now it is
  expect_lost(s.admit(kA, 10), LossCause::capacity);
  expect_found(s.admit(kB, 10), 10, Medium::dram);
  expect_found(s.admit(kC, 10), 10, Medium::dram);
}

TEST(SessionStore, ANewcomerThatDoesNotFitBesideMovesEvictsNothing) {
  // C wants 10 tokens. 8 could leave, and 2 are about to be loaded.
  Store s(dram_only(10));
  s.store(kA, 8);
  s.store(kB, 2);
  ASSERT_TRUE(s.tiers.begin_preload(kB));
  s.store(kC, 10);
  EXPECT_EQ(s.tiers.counters(0).evictions, 0);
  expect_lost(s.admit(kC, 10), LossCause::capacity);
  expect_found(s.admit(kA, 8), 8, Medium::dram);
}

TEST(SessionStore, ANewcomerThatMayReplaceOnlyOneOfItsVictimsEvictsNone) {
  // C is used twice, A once and B three times.
  Store s(dram_only(20, filtered("frequency_sketch")));
  s.store(kA, 10);
  s.store(kB, 10);
  for (int i = 0; i < 2; ++i) {
    s.turn(kB, 10, 10);
    s.drain();
    s.store(kC, 20);
  }
  EXPECT_EQ(s.tiers.counters(0).evictions, 0);
  s.store(kD, 5);  // used once: may not replace A
  expect_found(s.admit(kA, 10), 10, Medium::dram);
  expect_found(s.admit(kB, 10), 10, Medium::dram);
}

// ---- Between the tiers ----

TEST(SessionStore, AVictimOfDramGoesToTheSsdAndIsFoundThere) {
  Store s(two_tiers(20, 100));
  s.store(kA, 10);
  s.store(kB, 10);
  s.store(kC, 10);
  EXPECT_EQ(s.tiers.counters(0).evictions, 1);
  EXPECT_EQ(s.written(1), 10);
  EXPECT_EQ(s.used(0), 20);
  EXPECT_EQ(s.used(1), 10);
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
  expect_found(s.admit(kB, 10), 10, Medium::dram);
  EXPECT_EQ(s.read(1), 10);
}

TEST(SessionStore, ASaveWaitsUntilItsVictimIsWritten) {
  RunConfig config = two_tiers(10, 100);
  config.system.save.write_buffer = Bytes(0);
  Store s(config);
  s.store(kA, 10);  // at 10 ms
  // B's transfer and A's way to the SSD both take from 10 to 20 ms; B is in HBM until then.
  s.turn(kB, 0, 10);
  s.until(at_ms(19));
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  EXPECT_EQ(s.tiers.hbm().write_buffer_excess(), kv(10));
  s.until(SimTime(20000010));
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
  expect_found(s.admit(kB, 10), 10, Medium::dram);
}

TEST(SessionStore, AFullSsdDropsTheLeastRecentlyUsed) {
  Store s(two_tiers(10, 20));
  for (const SessionSlot slot : {kA, kB, kC, kD}) {
    s.store(slot, 10);
  }
  EXPECT_EQ(s.tiers.counters(1).evictions, 1);
  expect_lost(s.admit(kA, 10), LossCause::capacity);
  expect_found(s.admit(kB, 10), 10, Medium::ssd);
  expect_found(s.admit(kC, 10), 10, Medium::ssd);
  expect_found(s.admit(kD, 10), 10, Medium::dram);
}

/// A is stored, pushed out, found on the SSD, grows to 17 tokens and is pushed out again.
void push_out_twice(Store& s) {
  s.store(kA, 10);
  s.store(kB, 20);  // takes all of DRAM
  expect_found(s.turn(kA, 10, 17), 10, Medium::ssd);
  s.drain();
  s.store(kC, 20);
}

TEST(SessionStore, AnInclusiveSsdIsWrittenOnlyTheNewBlocks) {
  TierConfig ssd = tier("lru", true);
  ssd.block_size = Tokens(4);
  Store s(two_tiers(20, 1000, tier(), ssd));
  push_out_twice(s);
  // A: ceil(10/4) = 3 blocks, then ceil(17/4) - floor(10/4) = 5 - 2 = 3 more; B: 5 blocks.
  EXPECT_EQ(s.written(1), 4 * (3 + 3 + 5));
  EXPECT_EQ(s.used(1), 4 * (5 + 5));
}

TEST(SessionStore, AnExclusiveSsdIsWrittenTheWholeEntryAgain) {
  TierConfig ssd = tier("lru", false);
  ssd.block_size = Tokens(4);
  Store s(two_tiers(20, 1000, tier(), ssd));
  push_out_twice(s);
  EXPECT_EQ(s.written(1), 4 * (3 + 5 + 5));
  EXPECT_EQ(s.used(1), 4 * (5 + 5));
}

TEST(SessionStore, AnExclusiveSsdDropsAnEntryThatMovesUp) {
  for (const bool inclusive : {false, true}) {
    Store s(two_tiers(10, 100, tier(), tier("lru", inclusive)));
    s.store(kA, 10);
    s.store(kB, 10);
    EXPECT_EQ(s.used(1), 10);
    s.admit(kA, 10);
    EXPECT_EQ(s.used(1), 10) << "until the load is done";
    s.tiers.end_load(kA);
    EXPECT_EQ(s.used(1), inclusive ? 10 : 0);
  }
}

TEST(SessionStore, WriteOnCreateCopiesToTheSsdAtOnceSoThatEvictionMovesNothing) {
  TierConfig ssd = tier("lru", true);
  ssd.write = WriteMoment::on_create;
  Store s(two_tiers(10, 100, tier(), ssd));
  s.store(kA, 10);
  EXPECT_EQ(s.used(0), 10);
  EXPECT_EQ(s.used(1), 10);
  EXPECT_EQ(s.written(1), 10);
  s.turn(kB, 0, 10);
  EXPECT_EQ(s.tiers.counters(0).evictions, 1);
  s.until(s.backend.now() + for_ms(11));  // no wait for A's way down
  EXPECT_EQ(s.tiers.saves_in_progress(), 0);
  s.drain();
  EXPECT_EQ(s.written(1), 20);  // A and B, once each
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
}

TEST(SessionStore, AnSsdAloneTakesSavesItself) {
  RunConfig config = tiny_config();
  config.hardware.ssd->capacity = kv(20);
  config.system.tiers.ssd = tier();
  Store s(config);
  s.store(kA, 10);
  EXPECT_EQ(s.written(0), 10);
  expect_found(s.turn(kA, 10, 15), 10, Medium::ssd);
  s.drain();
  EXPECT_EQ(s.used(0), 15);
}

TEST(SessionStore, AHitOnAnEntryOnItsWayOutRescuesIt) {
  for (const bool inclusive : {false, true}) {
    RunConfig config = two_tiers(20, 100, tier(), tier("lru", inclusive));
    Store s(config);
    s.store(kA, 10);
    s.store(kB, 10);
    s.turn(kC, 0, 10);  // A is on its way to the SSD for 10 ms
    s.until(s.backend.now() + for_ms(5));
    expect_found(s.admit(kA, 10), 10, Medium::dram);
    s.drain();
    s.save(kA, 10);  // B goes for it
    s.drain();
    // The written part of A is kept only in an inclusive tier.
    EXPECT_EQ(s.used(1), inclusive ? 20 : 10);
    expect_found(s.admit(kA, 10), 10, Medium::dram);
    expect_found(s.admit(kB, 10), 10, Medium::ssd);
    expect_found(s.admit(kC, 10), 10, Medium::dram);
  }
}

TEST(SessionStore, ARescuedEntryThatWasTruncatedOnItsWayOutIsChargedForWhatIsLeft) {
  Store s(two_tiers(20, 100, tier("lru", true)));
  s.store(kA, 10);
  s.store(kB, 10);
  s.turn(kC, 0, 15);  // A is being written, B waits behind it
  s.until(s.backend.now() + for_ms(2));
  s.tiers.truncate(kA, cut(6));
  s.tiers.truncate(kB, cut(6));
  expect_found(s.admit(kA, 4), 4, Medium::dram);
  expect_found(s.admit(kB, 4), 4, Medium::dram);
  s.tiers.check_invariants();
  s.drain();
}

TEST(SessionStore, AnEntryRescuedTwiceFromOneSlowWriteIsUnpinnedOnce) {
  TierConfig dram = tier();
  dram.free_buffer = kv(15);
  RunConfig config = two_tiers(30, 100, dram);
  set_rates(config.hardware.ssd->bandwidth, limits(1e5, 1e5, 2e5));
  Store s(config);
  s.store(kA, 10);
  // 30 - 20 < 15: A leaves, and its write takes 100 ms.
  s.turn(kB, 0, 10);
  s.until(at_ms(30));
  expect_found(s.turn(kA, 10, 10), 10, Medium::dram);
  s.until(at_ms(50));
  expect_found(s.turn(kA, 10, 10), 10, Medium::dram);
  s.drain();
  s.tiers.check_invariants();
}

TEST(SessionStore, AnEarlierDemotionLeavesNoCopyUnderAnExclusiveTier) {
  TierConfig dram = tier();
  dram.free_buffer = kv(15);
  RunConfig config = two_tiers(30, 100, dram, tier("lru", false));
  set_rates(config.hardware.ssd->bandwidth, limits(1e5, 1e5, 2e5));
  Store s(config);
  s.store(kA, 10);
  s.turn(kB, 0, 10);  // A leaves, from 10 to 110 ms
  s.until(at_ms(30));
  s.turn(kA, 10, 10);  // rescued; B leaves next
  s.until(at_ms(45));
  s.turn(kC, 0, 10);  // A leaves again, behind B
  s.until(at_ms(150));
  EXPECT_EQ(s.used(1), 20);  // A's first way down is over, B's is not
  expect_found(s.turn(kA, 10, 10), 10, Medium::dram);
  s.drain();
  s.tiers.check_invariants();
  EXPECT_EQ(s.used(0) + s.used(1), 30);
}

TEST(SessionStore, RestoresTheFreeBufferInTheBackground) {
  TierConfig dram = tier();
  dram.free_buffer = kv(15);
  Store s(two_tiers(40, 100, dram));
  s.store(kA, 10);
  s.store(kB, 10);
  EXPECT_EQ(s.tiers.counters(0).evictions, 0);  // 20 free
  s.store(kC, 10);                              // 10 free: A goes
  EXPECT_EQ(s.tiers.counters(0).evictions, 1);
  EXPECT_EQ(s.used(0), 20);
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
}

// ---- An inclusive fastest tier ----

TEST(SessionStore, AnInclusiveDramKeepsItsCopyAndIsWrittenOnlyNewTokens) {
  Store s(dram_only(100, tier("lru", true)));
  s.store(kA, 10);
  expect_found(s.admit(kA, 10), 10, Medium::dram);
  EXPECT_EQ(s.used(0), 10);
  s.tiers.begin_save(kA, EntryKey{kA}, Tokens(12));
  s.save(kA, 15);
  s.drain();
  EXPECT_EQ(s.used(0), 15);
  EXPECT_EQ(s.written(0), 15);
}

TEST(SessionStore, ACopyLostDuringTheTurnIsMovedAgain) {
  Store s(dram_only(20, tier("lru", true)));
  s.store(kA, 10);
  s.admit(kA, 10);
  s.tiers.begin_save(kA, EntryKey{kA}, Tokens(12));  // 2 tokens beyond the copy
  s.turn(kB, 0, 15);                                 // A's copy has to go
  s.drain();
  s.save(kA, 15);  // 3 more, and the 10 that the copy held
  s.drain();
  EXPECT_EQ(s.written(0), 10 + 2 + 15 + 13);
  expect_found(s.admit(kA, 15), 15, Medium::dram);
}

TEST(SessionStore, ACopyOnItsWayOutWhenItsTurnEndsDoesNotStopTheSave) {
  Store s(two_tiers(40, 100, tier("fifo", true)));
  s.store(kA, 10);
  s.store(kD, 15);
  s.admit(kA, 10);
  s.turn(kB, 0, 20);  // A's copy, the first in, is on its way out for 10 ms
  EXPECT_EQ(s.tiers.counters(0).evictions, 1);
  s.until(s.backend.now() + for_ms(2));
  s.save(kA, 12);  // D makes room for it
  s.drain();
  EXPECT_EQ(s.used(0), 32);
  expect_found(s.admit(kA, 12), 12, Medium::dram);
  expect_found(s.admit(kB, 20), 20, Medium::dram);
  expect_found(s.admit(kD, 15), 15, Medium::ssd);
}

// ---- Time to live ----

TEST(SessionStore, AnEntryNotUsedForLongerThanItsTimeToLiveIsGone) {
  TierConfig dram = tier();
  dram.ttl = for_ms(50);
  for (const std::int64_t at : {50, 51}) {
    Store s(dram_only(100, dram));
    s.turn(kA, 0, 10);  // last used at 0
    s.until(at_ms(at));
    const Lookup found = s.admit(kA, 10);
    if (at == 50) {
      expect_found(found, 10, Medium::dram);
    } else {
      expect_lost(found, LossCause::ttl);
    }
  }
}

TEST(SessionStore, ATiersTimeToLiveIsItsOwn) {
  TierConfig ssd = tier("lru", true);
  ssd.ttl = for_ms(60);
  Store s(two_tiers(10, 100, tier(), ssd));
  s.store(kA, 10);
  s.store(kB, 10);  // A is on the SSD at 20 ms
  s.until(at_ms(100));
  expect_lost(s.admit(kA, 10), LossCause::ttl);
  expect_found(s.admit(kB, 10), 10, Medium::dram);
}

TEST(SessionStore, AnExpiredEntryIsNotBroughtNearer) {
  TierConfig ssd = tier("lru", true);
  ssd.ttl = for_ms(60);
  RunConfig config = two_tiers(20, 100, tier(), ssd);
  config.system.prefetch.name = "look_ahead";
  Store s(config);
  s.store(kA, 10);
  s.store(kB, 20);
  s.until(at_ms(200));
  s.enqueue(kA);
  EXPECT_FALSE(s.backend.pending());
  s.dequeue();
  expect_lost(s.admit(kA, 10), LossCause::ttl);
}

TEST(SessionStore, AnExpiredEntryIsNotPreloaded) {
  TierConfig dram = tier();
  dram.ttl = for_ms(60);
  Store s(dram_only(20, dram));
  s.store(kA, 10);
  s.until(at_ms(200));
  s.enqueue(kA);
  EXPECT_FALSE(s.tiers.begin_preload(kA).has_value());
}

// ---- Truncation ----

TEST(SessionStore, TruncationShrinksTheAccounts) {
  TierConfig ssd = tier("lru", true);
  ssd.write = WriteMoment::on_create;
  Store s(two_tiers(100, 100, tier(), ssd));
  s.store(kA, 20);
  s.tiers.truncate(kA, cut(12));
  EXPECT_EQ(s.used(0), 8);
  EXPECT_EQ(s.used(1), 8);
  s.tiers.check_invariants();
  expect_found(s.admit(kA, 8), 8, Medium::dram);
}

TEST(SessionStore, TruncationKeepsTheFirstTokens) {
  Store s(dram_only(100));
  s.store(kA, 10);
  // The history was 30, of which 10 are stored: tokens 5..16 go, so what is left of the stored
  // prefix is its first 5.
  s.tiers.truncate(kA, cut(12, 5));
  EXPECT_EQ(s.used(0), 5);
  expect_found(s.admit(kA, 18), 5, Medium::dram);
}

TEST(SessionStore, TruncationToNothingIsALossByOverflow) {
  Store s(dram_only(100));
  s.store(kA, 10);
  s.tiers.truncate(kA, cut(12));
  EXPECT_EQ(s.used(0), 0);
  EXPECT_EQ(s.tiers.live_entries(), 0U);
  expect_lost(s.admit(kA, 5), LossCause::overflow);
}

TEST(SessionStore, TruncationDuringASaveEndsInTheSmallerEntry) {
  Store s(dram_only(100));
  s.turn(kA, 0, 20);
  s.until(at_ms(5));
  s.tiers.truncate(kA, cut(12));
  s.drain();
  EXPECT_EQ(s.used(0), 8);
  expect_found(s.admit(kA, 8), 8, Medium::dram);
}

TEST(SessionStore, TruncationOfAnEntryWaitingForRoomAsksForLess) {
  Store s(two_tiers(20, 100));
  s.store(kA, 20);
  s.turn(kB, 0, 20);  // waits for A's room
  s.until(s.backend.now() + for_ms(5));
  s.tiers.truncate(kB, cut(15));
  s.drain();
  EXPECT_EQ(s.used(0), 5);
  s.store(kC, 15);  // fits beside it
  EXPECT_EQ(s.tiers.counters(0).evictions, 1);
}

TEST(SessionStore, TruncationOfAnEntryOnItsWayDownReachesTheSsd) {
  Store s(two_tiers(20, 100));
  s.store(kA, 20);
  s.turn(kB, 0, 20);
  s.until(s.backend.now() + for_ms(5));
  s.tiers.truncate(kA, cut(12));
  s.drain();
  EXPECT_EQ(s.used(1), 8);
  expect_found(s.admit(kA, 8), 8, Medium::ssd);
}

TEST(SessionStore, TruncationDuringAWriteThroughSettlesBothAccounts) {
  TierConfig ssd = tier("lru", true);
  ssd.write = WriteMoment::on_create;
  for (const std::int64_t dropped : {12, 20}) {
    Store s(two_tiers(100, 100, tier(), ssd));
    s.turn(kA, 0, 20);
    s.until(at_ms(25));  // in DRAM since 20 ms, on its way to the SSD until 40 ms
    s.tiers.truncate(kA, cut(dropped));
    s.drain();
    EXPECT_EQ(s.used(0), 20 - dropped);
    EXPECT_EQ(s.used(1), 20 - dropped);
    EXPECT_EQ(s.tiers.live_entries(), dropped == 20 ? 0U : 1U);
  }
}

TEST(SessionStore, ACopyTruncatedWhileItGrewIsChargedRightIfTheSaveIsCancelled) {
  Store s(dram_only(100, tier("lru", true)));
  s.store(kA, 10);
  expect_found(s.turn(kA, 10, 30), 10, Medium::dram);  // 20 more on their way
  s.until(s.backend.now() + for_ms(5));
  s.tiers.truncate(kA, cut(6));
  expect_found(s.admit(kA, 24), 24, Medium::hbm);
  EXPECT_EQ(s.used(0), 4);
  s.drain();
}

TEST(SessionStore, ACopyTruncatedWhileItGrewInVainIsChargedRight) {
  Store s(two_tiers(20, 100, tier("lru", true)));
  s.store(kB, 10);
  s.store(kA, 10);
  s.turn(kA, 10, 20);  // waits until B's way out is over
  s.until(s.backend.now() + for_ms(5));
  EXPECT_EQ(s.tiers.saves_in_progress(), 1);
  s.tiers.truncate(kA, cut(6));
  expect_found(s.admit(kA, 14), 14, Medium::hbm);
  s.tiers.check_invariants();
  s.drain();
  EXPECT_EQ(s.used(0), 4);
}

// ---- Invalidation ----

TEST(SessionStore, InvalidationLeavesNothingBehindInAnyState) {
  TierConfig through = tier("lru", true);
  through.write = WriteMoment::on_create;
  for (const std::int64_t at : {5, 15, 25, 40}) {
    // A is saved from 0 to 10 ms and written through from 10 to 20 ms.
    Store s(two_tiers(100, 100, tier(), through));
    s.turn(kA, 0, 10);
    s.until(at_ms(at));
    s.tiers.invalidate(kA, LossCause::overflow);
    expect_lost(s.admit(kA, 10), LossCause::overflow);
    s.save(kA, 3);
    s.drain();
    EXPECT_EQ(s.used(0), 3) << at;
    EXPECT_EQ(s.used(1), 3) << at;
    EXPECT_EQ(s.tiers.live_entries(), 1U) << at;
  }
}

TEST(SessionStore, InvalidationOfAnEntryOnItsWayDownOrWaitingForRoomLetsTheOthersGoOn) {
  for (const SessionSlot invalidated : {kA, kB, kC}) {
    Store s(two_tiers(20, 100));
    s.store(kA, 20);
    s.turn(kB, 0, 10);  // A goes down; B and C wait
    s.turn(kC, 0, 10);
    s.until(s.backend.now() + for_ms(5));
    s.tiers.invalidate(invalidated, LossCause::overflow);
    s.drain();
    for (const SessionSlot slot : {kA, kB, kC}) {
      EXPECT_EQ(s.admit(slot, 10).reused.value, slot == invalidated ? 0 : 10)
          << invalidated << " " << slot;
    }
  }
}

// ---- Fetching ----

/// A is on the SSD; DRAM has room for 20 tokens, and B fills 5 of them.
RunConfig fetching_config() {
  RunConfig config = two_tiers(20, 100);
  config.system.prefetch.name = "look_ahead";
  return config;
}
void put_on_ssd(Store& s) {
  s.store(kA, 10);
  s.store(kB, 20);
  s.tiers.truncate(kB, cut(15));
}

TEST(SessionStore, AWaitingRequestsEntryIsFetchedToDram) {
  Store s(fetching_config());
  put_on_ssd(s);
  const SimTime begin = s.backend.now();
  s.enqueue(kA);
  s.drain();
  EXPECT_EQ(s.backend.now(), begin + for_ms(10));
  EXPECT_EQ(s.used(0), 15);
  EXPECT_EQ(s.used(1), 10);  // inclusive
  s.dequeue();
  expect_found(s.admit(kA, 10), 10, Medium::dram);
}

TEST(SessionStore, AFetchInFlightIsALateHitWithANoticeAtItsEnd) {
  Store s(fetching_config());
  put_on_ssd(s);
  const SimTime begin = s.backend.now();
  const double read_before = s.read(0);
  s.enqueue(kA);
  s.until(begin + for_ms(4));
  s.dequeue();
  const Lookup found = s.admit(kA, 10);
  EXPECT_EQ(found.reused.value, 10);
  EXPECT_EQ(found.medium, Medium::dram);
  EXPECT_TRUE(found.late);
  EXPECT_TRUE(s.ready.empty());
  s.drain();
  ASSERT_EQ(s.ready.size(), 1U);
  EXPECT_EQ(s.ready[0], (std::pair{kA, Medium::dram}));
  EXPECT_EQ(s.ready_at[0], begin + for_ms(10));
  // Fetched by way of DRAM: read there too, on its way to HBM.
  EXPECT_EQ(s.read(1), 10);
  EXPECT_EQ(s.read(0) - read_before, 10);
  EXPECT_EQ(s.used(0), 5);
}

TEST(SessionStore, AnEntryInvalidatedWhileItIsFetchedLeavesNothingBehind) {
  Store s(fetching_config());
  put_on_ssd(s);
  s.enqueue(kA);
  s.until(s.backend.now() + for_ms(4));
  s.dequeue();
  s.tiers.invalidate(kA, LossCause::overflow);
  expect_lost(s.admit(kA, 10), LossCause::overflow);
  s.drain();
  EXPECT_TRUE(s.ready.empty());
  EXPECT_EQ(s.used(0), 5);
  EXPECT_EQ(s.used(1), 0);
}

TEST(SessionStore, AnEntryInvalidatedWhileItsFetchWaitsForRoomTakesNone) {
  RunConfig config = two_tiers(20, 100);
  config.system.prefetch.name = "look_ahead";
  Store s(config);
  s.store(kA, 10);
  s.store(kB, 20);  // A to the SSD
  s.enqueue(kA);    // waits until B has gone down
  s.until(s.backend.now() + for_ms(4));
  s.dequeue();
  s.tiers.invalidate(kA, LossCause::overflow);
  s.drain();
  EXPECT_EQ(s.used(1), 20) << "B alone";
  expect_lost(s.admit(kA, 10), LossCause::overflow);
  expect_found(s.admit(kB, 20), 20, Medium::ssd);
}

TEST(SessionStore, AFetchThatWaitsForRoomIsLoadedOnDemandInstead) {
  RunConfig config = two_tiers(20, 100);
  config.system.prefetch.name = "look_ahead";
  set_rates(config.hardware.ssd->bandwidth, limits(1e6, 1e5, 1e6));
  Store s(config);
  s.store(kA, 10);
  s.store(kB, 20);  // B fills DRAM; its way out takes 200 ms
  s.enqueue(kA);
  s.until(s.backend.now() + for_ms(5));
  s.dequeue();
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
  s.tiers.end_load(kA);
  s.drain();
}

TEST(SessionStore, AFetchedEntryEvictedUnchangedIsNotWrittenAgain) {
  Store s(fetching_config());
  put_on_ssd(s);
  s.enqueue(kA);
  s.drain();
  const double before = s.written(1);
  s.dequeue();  // left the queue without being admitted
  s.store(kC, 20);
  EXPECT_EQ(s.written(1), before + 5);  // only B's 5 tokens
  expect_found(s.admit(kA, 10), 10, Medium::ssd);
}

/// A's 10 tokens take 10 ms: it is used 10 ms after that (on time), 11 ms after (early), or leaves
/// DRAM 3 ms after (unused). 10 tokens idle for 10 ms are 10,000 bytes x 0.01 s = 100 byte-seconds.
TEST(SessionStore, CountsTheOutcomesOfItsFetches) {
  const auto fetched = [](Store& s, std::int64_t idle_ms) {
    put_on_ssd(s);
    s.enqueue(kA);
    s.until(s.backend.now() + for_ms(10 + idle_ms));
    s.dequeue();
    EXPECT_EQ(s.tiers.prefetches().begun, 1);
  };
  const auto idle_byte_seconds = [](const Store& s) {
    return static_cast<double>(s.tiers.prefetches().idle_byte_ns) * 1e-9;
  };
  {
    Store s(fetching_config());
    fetched(s, 10);
    s.admit(kA, 10);
    EXPECT_EQ(s.tiers.prefetches().on_time, 1);
    EXPECT_DOUBLE_EQ(idle_byte_seconds(s), 100);
  }
  {
    Store s(fetching_config());
    fetched(s, 11);
    s.admit(kA, 10);
    EXPECT_EQ(s.tiers.prefetches().early, 1);
    EXPECT_DOUBLE_EQ(idle_byte_seconds(s), 110);
  }
  {
    Store s(fetching_config());
    fetched(s, 3);
    s.tiers.invalidate(kA, LossCause::overflow);
    EXPECT_EQ(s.tiers.prefetches().unused, 1);
    EXPECT_DOUBLE_EQ(idle_byte_seconds(s), 30);
  }
  {
    Store s(fetching_config());
    fetched(s, -4);
    s.admit(kA, 10);
    s.drain();
    EXPECT_EQ(s.tiers.prefetches().late, 1);
    EXPECT_DOUBLE_EQ(idle_byte_seconds(s), 0);
  }
}

/// The running request's first token was out at 0; 100 tokens of 1 ms are predicted. Fetching A
/// takes 10 ms, so it begins 90 ms after the start and ends with it.
TEST(SessionStore, ATimedFetchBeginsByATimerWhenNothingElseHappens) {
  RunConfig config = fetching_config();
  config.system.prefetch.name = "deadline";
  Store s(config);
  put_on_ssd(s);
  s.running.first_token = s.backend.now();
  s.running.predicted = Tokens(100);
  s.running.time_per_token = for_ms(1);
  const SimTime begin = s.backend.now();
  s.enqueue(kA);
  s.until(begin + for_ms(89));
  EXPECT_EQ(s.tiers.prefetches().begun, 0);
  s.until(begin + for_ms(91));
  EXPECT_EQ(s.tiers.prefetches().begun, 1);
  s.until(begin + for_ms(101));
  s.dequeue();
  const Lookup found = s.admit(kA, 10);
  expect_found(found, 10, Medium::dram);
  EXPECT_FALSE(found.late);
}

/// DRAM has 50 and keeps 10 free; B holds 20, and C what a truncation by `dropped` leaves of 20.
/// A's 10 come in where the free buffer stays: 20 + 10 + 10 + 10 = 50. With one token more of C,
/// the fetch would only drive others out.
TEST(SessionStore, AFetchDoesNotTakeTheFreeBuffer) {
  TierConfig dram = tier("scheduler_aware");
  dram.free_buffer = kv(10);
  RunConfig config = two_tiers(50, 100, dram);
  config.system.prefetch.name = "look_ahead";
  const auto fetches = [&](std::int64_t dropped) {
    Store s(config);
    s.store(kA, 10);
    s.store(kB, 20);
    s.store(kC, 20);  // A to the SSD
    s.tiers.truncate(kC, cut(dropped));
    for (const SessionSlot slot : {kB, kC, kA}) {
      s.enqueue(slot);
    }
    s.drain();
    return s.tiers.prefetches().begun;
  };
  EXPECT_EQ(fetches(10), 1);
  EXPECT_EQ(fetches(9), 0);
}

TEST(SessionStore, GivesThePlacementOfAnEntry) {
  Store s(two_tiers(20, 100));
  EXPECT_EQ(s.tiers.placement(kA), Placement::none);
  s.save(kA, 10);
  EXPECT_EQ(s.tiers.placement(kA), Placement::fastest) << "still in HBM";
  s.drain();
  EXPECT_EQ(s.tiers.placement(kA), Placement::fastest);
  s.store(kB, 20);  // A to the SSD
  EXPECT_EQ(s.tiers.placement(kA), Placement::slower);
  s.tiers.invalidate(kA, LossCause::overflow);
  EXPECT_EQ(s.tiers.placement(kA), Placement::none);
}

/// AttentionStore, Fig. 9, in whole jobs: host memory holds jobs 2 and 4, the full disk
/// holds 3, 9 and others, the eviction window is (2 + 4) / 1 = six jobs. Job 3 is fetched, job 4
/// (last in the queue of the two in memory) goes to disk, job 9 (last in the queue on disk) leaves
/// the system.
TEST(SessionStore, FollowsFigure9OfAttentionStore) {
  RunConfig config = two_tiers(20, 40, tier("scheduler_aware"), tier("scheduler_aware", true));
  config.system.prefetch.name = "look_ahead";  // window: 20 / 10 = two jobs
  Store s(config);
  for (const SessionSlot job : {3, 9, 6, 5, 2, 4}) {
    s.store(job, 10);
  }
  // Two jobs without an entry keep the look-ahead window away until the whole queue stands.
  for (const SessionSlot job : {20, 21, 2, 3, 4, 5, 6, 7, 8, 9}) {
    s.enqueue(job);
  }
  EXPECT_FALSE(s.backend.pending());
  s.log.lines.clear();
  s.dequeue();
  s.dequeue();
  s.enqueue(22);
  s.drain();
  EXPECT_EQ(s.log.lines, (std::vector<std::string>{"demote dram 4", "prefetch ssd 3", "evict ssd 9",
                                                   "insert ssd 4", "insert dram 3"}));
  expect_found(s.admit(2, 10), 10, Medium::dram);
  expect_found(s.admit(3, 10), 10, Medium::dram);
  expect_found(s.admit(4, 10), 10, Medium::ssd);
  expect_lost(s.admit(9, 10), LossCause::capacity);
}

// ---- Preloading ----

TEST(SessionStore, APreloadedEntryIsNotEvictedBeforeItsTurn) {
  Store s(dram_only(20));
  s.store(kA, 10);
  s.store(kB, 10);
  s.enqueue(kA);
  EXPECT_EQ(s.tiers.begin_preload(kA), Medium::dram);
  EXPECT_EQ(s.tiers.stored_tokens(kA), Tokens(10));
  EXPECT_FALSE(s.tiers.begin_preload(kA).has_value()) << "once";
  s.store(kC, 10);  // B goes, although A was used longer ago
  s.dequeue();
  expect_found(s.admit(kA, 10), 10, Medium::dram);
  expect_lost(s.admit(kB, 10), LossCause::capacity);
}

TEST(SessionStore, AnEntryThatIsNotWholeInTheFastestTierIsNotPreloaded) {
  Store s(two_tiers(20, 100));
  s.store(kA, 10);
  s.store(kB, 20);
  EXPECT_FALSE(s.tiers.begin_preload(kA).has_value()) << "on the SSD";
  s.turn(kC, 0, 10);
  EXPECT_FALSE(s.tiers.begin_preload(kC).has_value()) << "being saved";
  EXPECT_FALSE(s.tiers.begin_preload(kB).has_value()) << "on its way out";
  EXPECT_FALSE(s.tiers.begin_preload(kD).has_value()) << "never stored";
}

// ---- Sessions ----

TEST(SessionStore, TheTimeOfInsertionIsForgottenWhenTheLastCopyIsEvicted) {
  for (const char* policy : {"fifo", "session_fifo"}) {
    Store s(dram_only(20, tier(policy)));
    s.store(kA, 10);
    s.store(kB, 10);
    s.store(kC, 10);  // A is first in, first out
    expect_lost(s.turn(kA, 10, 10), LossCause::capacity);
    s.drain();        // B goes for A
    s.store(kD, 10);  // A was inserted after C, and its session began before
    const bool by_session = std::string(policy) == "session_fifo";
    const SessionSlot gone = by_session ? kA : kC;
    expect_lost(s.admit(gone, 10), LossCause::capacity);
    expect_lost(s.admit(kB, 10), LossCause::capacity);
    expect_found(s.admit(by_session ? kC : kA, 10), 10, Medium::dram);
    expect_found(s.admit(kD, 10), 10, Medium::dram);
  }
}

TEST(SessionStore, TheTimeOfInsertionIsKeptWhileATurnUsesTheEntryOrAnotherTierHoldsIt) {
  for (const bool by_ssd : {false, true}) {
    Store s(by_ssd ? two_tiers(20, 10, tier("fifo"), tier("fifo")) : dram_only(20, tier("fifo")));
    s.store(kA, 10);
    s.store(kB, 10);
    if (by_ssd) {
      s.store(kC, 10);                                    // A goes to the SSD
      expect_found(s.turn(kA, 10, 10), 10, Medium::ssd);  // and B there, for A
    } else {
      expect_found(s.turn(kA, 10, 10), 10, Medium::dram);
    }
    s.drain();
    s.store(kD, 10);  // A was inserted before all others
    const EntryId a = s.tiers.entry_of(kA);
    EXPECT_EQ(a.valid(), by_ssd);
    EXPECT_EQ(s.tiers.placement(kA), by_ssd ? Placement::slower : Placement::none);
    EXPECT_EQ(s.tiers.placement(by_ssd ? kC : kB), Placement::fastest);
  }
}

TEST(SessionStore, TheTimeOfInsertionIsThatOfTheSaveNotOfTheTurn) {
  // A's turn begins before B's and is saved after it.
  Store s(dram_only(20, tier("fifo")));
  s.admit(kA, 0);
  s.store(kB, 10);
  s.save(kA, 10);
  s.drain();
  s.store(kC, 10);
  expect_lost(s.admit(kB, 10), LossCause::capacity);
  expect_found(s.admit(kA, 10), 10, Medium::dram);
}

TEST(SessionStore, ANewSessionInAnEndedOnesPlaceInheritsNothing) {
  Store s(dram_only(20, tier("session_fifo")));
  s.store(kA, 10);
  s.tiers.forget(kA);
  s.store(kB, 10);
  // Another session under A's number: A's entry stays in the tier, but is not found.
  EXPECT_FALSE(s.tiers.entry_of(kA).valid());
  expect_lost(s.tiers.admit(kA, EntryKey{100}, Tokens(0)), LossCause::none);
  EXPECT_EQ(s.used(0), 20);
  s.tiers.save(kA, EntryKey{100}, Tokens(10));  // A's old entry, first in, goes
  s.drain();
  s.store(kC, 10);  // B goes: the new session's first insertion is its own
  expect_lost(s.admit(kB, 10), LossCause::capacity);
  expect_found(s.tiers.admit(kA, EntryKey{100}, Tokens(10)), 10, Medium::dram);
}

TEST(SessionStore, ASessionThatEndsDuringItsSaveIsStillStored) {
  Store s(dram_only(20));
  s.turn(kA, 0, 10);
  s.tiers.forget(kA);
  s.turn(kA, 0, 5);
  s.drain();
  EXPECT_EQ(s.used(0), 15);
  EXPECT_EQ(s.tiers.live_entries(), 2U);
}

// ---- A tier in HBM ----

HbmTierConfig hbm_tier(std::int64_t tokens, const std::string& eviction = "lru") {
  HbmTierConfig config;
  static_cast<TierConfig&>(config) = tier(eviction);
  config.capacity = kv(tokens);
  return config;
}

RunConfig hbm_and_dram(std::int64_t hbm_tokens, std::int64_t dram_tokens) {
  RunConfig config = dram_only(dram_tokens);
  config.system.tiers.hbm = hbm_tier(hbm_tokens);
  return config;
}

TEST(SessionStore, AnEntryThatStaysInHbmIsNeitherSavedNorLoaded) {
  RunConfig config = tiny_config();
  config.system.tiers.hbm = hbm_tier(20);
  Store s(config);
  s.turn(kA, 0, 10);
  EXPECT_FALSE(s.backend.pending());
  EXPECT_EQ(s.used(0), 10);
  expect_found(s.admit(kA, 10), 10, Medium::hbm);
  EXPECT_EQ(s.used(0), 0);  // the running turn's account has it
  s.save(kA, 12);
  EXPECT_EQ(s.used(0), 12);
  EXPECT_EQ(s.written(0), 0);
  EXPECT_EQ(s.read(0), 0);
  s.turn(kB, 0, 10);  // nothing behind HBM: A is dropped at once
  expect_lost(s.admit(kA, 12), LossCause::capacity);
}

TEST(SessionStore, AVictimOfHbmGoesToDramAndIsFoundThere) {
  Store s(hbm_and_dram(20, 100));
  s.store(kA, 10);
  s.store(kB, 10);
  const SimTime begin = s.backend.now();
  s.turn(kC, 0, 10);
  EXPECT_EQ(s.tiers.saves_in_progress(), 1) << "C waits in the write buffer for A's room";
  s.drain();
  EXPECT_EQ(s.backend.now(), begin + for_ms(10));
  EXPECT_EQ(s.used(0), 20);
  EXPECT_EQ(s.used(1), 10);
  EXPECT_EQ(s.read(0), 10);
  EXPECT_EQ(s.written(1), 10);
  expect_found(s.turn(kA, 10, 10), 10, Medium::dram);
  EXPECT_EQ(s.read(1), 10);
  expect_found(s.admit(kC, 10), 10, Medium::hbm);
}

TEST(SessionStore, AnEntryGoesDownThreeTiersAStepAtATime) {
  RunConfig config = hbm_and_dram(10, 10);
  config.hardware.ssd->capacity = kv(10);
  config.system.tiers.ssd = tier("lru");
  Store s(config);
  s.store(kA, 10);
  s.store(kB, 10);  // A to DRAM
  s.store(kC, 10);  // A to the SSD, B to DRAM
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(s.used(i), 10) << i;
  }
  s.store(kD, 10);  // A is lost, B on the SSD, C in DRAM
  expect_found(s.turn(kB, 10, 10), 10, Medium::ssd);
  s.drain();
  expect_lost(s.admit(kA, 10), LossCause::capacity);
  // B came up and displaced D to DRAM, which displaced C to the SSD that B had left.
  expect_found(s.admit(kD, 10), 10, Medium::dram);
  expect_found(s.admit(kC, 10), 10, Medium::ssd);
  expect_found(s.admit(kB, 10), 10, Medium::hbm);
}

TEST(SessionStore, BehindATierInHbmRequestsArePreloadedFromDram) {
  Store s(hbm_and_dram(10, 100));
  s.store(kA, 10);
  s.store(kB, 10);  // A to DRAM
  EXPECT_EQ(s.tiers.begin_preload(kA), Medium::dram);
  EXPECT_EQ(s.tiers.begin_preload(kB), std::nullopt) << "in HBM already";
  expect_found(s.admit(kA, 10), 10, Medium::dram);
  s.tiers.end_load(kA);
  s.save(kA, 10);
  s.drain();
  expect_found(s.admit(kA, 10), 10, Medium::hbm);
}

TEST(SessionStore, AWaitingRequestsEntryIsFetchedFromDramToHbm) {
  RunConfig config = hbm_and_dram(25, 100);
  config.system.prefetch.name = "look_ahead";
  Store s(config);
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.store(slot, 10);
  }
  s.turn(kC, 10, 5);  // leaves room for A
  s.drain();
  const SimTime begin = s.backend.now();
  s.enqueue(kA);
  s.until(begin + for_ms(4));
  s.dequeue();
  const Lookup found = s.admit(kA, 10);
  EXPECT_EQ(found.reused.value, 10);
  EXPECT_EQ(found.medium, Medium::hbm);
  EXPECT_TRUE(found.late);
  s.drain();
  ASSERT_EQ(s.ready.size(), 1U);
  EXPECT_EQ(s.ready[0], (std::pair{kA, Medium::hbm}));
  EXPECT_EQ(s.written(0), 10);
}

// ---- Prompts that sessions share ----

constexpr EntryKey kPrompt = prompt_key(7);

RunConfig sharing_config(std::int64_t hbm_tokens, const std::string& prefetch = "none") {
  RunConfig config = hbm_and_dram(hbm_tokens, 100);
  config.system.sharing = Sharing::prompts;
  config.system.prefetch.name = prefetch;
  return config;
}

/// HBM of so many tokens and DRAM behind it; A, B and C begin with a prompt of 30 tokens.
struct PromptStore : Store {
  explicit PromptStore(std::int64_t hbm_tokens, const std::string& prefetch = "none")
      : PromptStore(sharing_config(hbm_tokens, prefetch)) {}
  explicit PromptStore(RunConfig run_config) : Store(std::move(run_config)) {
    for (const SessionSlot slot : {kA, kB, kC}) {
      tiers.join_prompt(slot, kPrompt, Tokens(30));
    }
  }
  /// A turn begins: its prompt, and `history` tokens of its own.
  Lookup begin(SessionSlot slot, std::int64_t history = 0) {
    const Lookup prompt = tiers.admit_prompt(slot);
    const Lookup found = combine(prompt, admit(slot, history));
    if (found.there().value > 0 && found.medium != Medium::hbm) {
      tiers.end_load(slot);
    }
    tiers.end_prefill(slot);
    return found;
  }
  /// And ends with `tokens` of its own.
  void end(SessionSlot slot, std::int64_t tokens) {
    tiers.release_prompt(slot);
    save(slot, tokens);
    drain();
  }
};

TEST(SharedPrompts, AreStoredOnceHoweverManyTurnsUseThem) {
  PromptStore s(100);
  expect_lost(s.begin(kA), LossCause::not_stored);
  EXPECT_TRUE(s.tiers.shares_prompt(kA));
  EXPECT_EQ(s.used(0), 30);
  for (const SessionSlot slot : {kB, kC}) {
    expect_found(s.begin(slot), 30, Medium::hbm);
    EXPECT_TRUE(s.tiers.shares_prompt(slot));
  }
  EXPECT_EQ(s.used(0), 30);
  EXPECT_EQ(s.tiers.live_entries(), 4U);
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.end(slot, 5);
  }
  EXPECT_EQ(s.used(0), 45);
  // A's next turn needs both, and finds both.
  expect_found(s.begin(kA, 5), 35, Medium::hbm);
  EXPECT_EQ(s.used(0), 40) << "A's own 5 are in use";
  s.end(kA, 9);
}

TEST(SharedPrompts, StayWhileATurnUsesThemAndAreFreedAfterTheLast) {
  PromptStore s(40);
  s.begin(kA);
  s.begin(kB);
  s.store(kD, 20);  // no room beside the prompt, which is in use: saved to DRAM
  EXPECT_EQ(s.used(0), 30);
  EXPECT_EQ(s.used(1), 20);
  s.tiers.release_prompt(kA);
  expect_found(s.turn(kD, 20, 20), 20, Medium::dram);  // B still uses it
  s.drain();
  EXPECT_EQ(s.used(0), 30);
  EXPECT_EQ(s.used(1), 20);
  s.tiers.release_prompt(kB);
  expect_found(s.turn(kD, 20, 20), 20, Medium::dram);
  s.drain();
  EXPECT_EQ(s.used(0), 20);
  EXPECT_EQ(s.used(1), 30);
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.save(slot, 1);
    s.tiers.forget(slot);
  }
  s.drain();
}

TEST(SharedPrompts, AreFoundAfterTheSessionsThatStoredThemHaveEnded) {
  PromptStore s(100);
  s.begin(kA);
  s.end(kA, 5);
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.tiers.forget(slot);
  }
  s.tiers.check_invariants();
  s.tiers.join_prompt(kD, kPrompt, Tokens(30));
  expect_found(s.begin(kD), 30, Medium::hbm);
  s.end(kD, 5);
}

TEST(SharedPrompts, AreForgottenWithTheirLastSessionIfNothingIsStored) {
  PromptStore s(20);  // no room for the prompt at all
  expect_lost(s.begin(kA), LossCause::not_stored);
  EXPECT_FALSE(s.tiers.shares_prompt(kA));
  s.end(kA, 5);
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.tiers.forget(slot);
  }
  // The number is used again, for a prompt of another length.
  s.tiers.join_prompt(kA, prompt_key(8), Tokens(10));
  expect_lost(s.begin(kA), LossCause::not_stored);
  EXPECT_TRUE(s.tiers.shares_prompt(kA));
  s.end(kA, 5);
}

TEST(SharedPrompts, AreLoadedOnceFromTheTierBehindHbm) {
  PromptStore s(40);
  s.begin(kA);
  s.end(kA, 1);
  s.store(kD, 40);  // all others to DRAM
  EXPECT_EQ(s.used(1), 31);
  s.tiers.invalidate(kD, LossCause::overflow);
  EXPECT_EQ(s.tiers.placement(kB), Placement::slower);
  expect_found(s.begin(kB), 30, Medium::dram);
  EXPECT_EQ(s.read(1), 30);
  EXPECT_EQ(s.tiers.placement(kC), Placement::fastest);
  expect_found(s.begin(kC), 30, Medium::hbm);
  EXPECT_EQ(s.used(0), 30);
  EXPECT_EQ(s.used(1), 1);  // A's own
  // A has its own token in DRAM and the prompt in HBM.
  const Lookup found = s.begin(kA, 1);
  EXPECT_EQ(found.reused, Tokens(31));
  EXPECT_EQ(found.medium, Medium::dram);
  EXPECT_EQ(found.in_hbm(), Tokens(30));
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.end(slot, 1);
  }
}

TEST(SharedPrompts, GoDownThreeTiersAndAreLoadedOnce) {
  RunConfig config = sharing_config(40);
  config.hardware.dram->capacity = kv(40);
  config.system.tiers.ssd = tier();
  PromptStore s(config);
  s.begin(kA);
  s.end(kA, 1);
  s.store(kD, 40);  // all others to DRAM
  EXPECT_EQ(s.used(1), 31);
  s.store(kE, 40);  // and to the SSD
  EXPECT_EQ(s.used(1), 40);
  EXPECT_EQ(s.used(2), 31);
  s.tiers.invalidate(kE, LossCause::overflow);
  EXPECT_EQ(s.tiers.placement(kB), Placement::slower);
  expect_found(s.begin(kB), 30, Medium::ssd);
  EXPECT_EQ(s.read(2), 30);
  expect_found(s.begin(kC), 30, Medium::hbm);
  EXPECT_EQ(s.used(0), 30);
  EXPECT_EQ(s.used(2), 1);  // A's own
  const Lookup found = s.begin(kA, 1);
  EXPECT_EQ(found.reused, Tokens(31));
  EXPECT_EQ(found.medium, Medium::ssd);
  EXPECT_EQ(found.in_hbm(), Tokens(30));
  for (const SessionSlot slot : {kA, kB, kC}) {
    s.end(slot, 1);
  }
}

TEST(SharedPrompts, WithoutRoomInHbmATurnLoadsACopyOfItsOwn) {
  PromptStore s(40);
  s.begin(kA);
  s.end(kA, 1);
  s.store(kD, 40);
  expect_found(s.begin(kB), 30, Medium::dram);  // D fills HBM and has to be written first
  EXPECT_FALSE(s.tiers.shares_prompt(kB));
  EXPECT_EQ(s.used(1), 71) << "the prompt stays, and D comes";
  s.end(kB, 1);
}

TEST(SharedPrompts, AreFetchedForAWaitingRequestAndOneFetchServesItLate) {
  PromptStore s(40, "look_ahead");
  s.begin(kA);
  s.end(kA, 1);
  s.store(kD, 40);
  s.tiers.invalidate(kD, LossCause::overflow);
  const SimTime begin = s.backend.now();
  s.enqueue(kB);
  s.enqueue(kC);
  s.until(begin + for_ms(10));
  s.dequeue();
  const Lookup found = s.tiers.admit_prompt(kB);
  EXPECT_TRUE(found.late);
  EXPECT_EQ(found.medium, Medium::hbm);
  s.admit(kB, 0);
  s.until(begin + for_ms(31));
  ASSERT_EQ(s.ready.size(), 1U);
  EXPECT_EQ(s.ready[0], (std::pair{kB, Medium::hbm}));
  EXPECT_EQ(s.ready_at[0], begin + for_ms(30));
  s.dequeue();
  expect_found(s.begin(kC), 30, Medium::hbm);
  EXPECT_EQ(s.tiers.prefetches().late, 1);
  s.end(kB, 1);
  s.end(kC, 1);
}

/// The prompt is needed where the first of its sessions waits, and that moves on.
TEST(SharedPrompts, WaitWhereTheFirstOfTheirSessionsWaits) {
  RunConfig config = sharing_config(40);
  config.system.tiers.hbm->eviction.name = "scheduler_aware";
  const auto victim = [&](const std::vector<SessionSlot>& queue, std::size_t dequeued) {
    Store s(config);
    for (const SessionSlot slot : {kA, kB}) {
      s.tiers.join_prompt(slot, kPrompt, Tokens(10));
    }
    s.tiers.admit_prompt(kA);
    s.admit(kA, 0);
    s.tiers.end_prefill(kA);
    s.tiers.release_prompt(kA);
    s.save(kA, 10);
    s.store(kC, 10);
    for (const SessionSlot slot : queue) {
      s.enqueue(slot);
    }
    for (std::size_t i = 0; i < dequeued; ++i) {
      s.dequeue();
    }
    s.log.lines.clear();
    s.store(kD, 20);
    return s.log.lines.empty() ? std::string() : s.log.lines.front();
  };
  const auto demoted = [](std::uint64_t key) { return fmt::format("demote hbm {}", key); };
  // A's own 10, the prompt's 10 and C's 10 are 30 of 40: one has to go for D's 20.
  EXPECT_EQ(victim({kA, kC, kB}, 0), demoted(kC)) << "the prompt is needed first, with A";
  EXPECT_EQ(victim({kC, kB, kA}, 0), demoted(kA)) << "the prompt is needed at 1, A's own at 2";
  EXPECT_EQ(victim({kC, kA, kB}, 2), demoted(kC)) << "B alone waits, which needs the prompt";
  EXPECT_EQ(victim({kC}, 0), demoted(kPrompt.value)) << "the longest unused of what may go";
}

// ---- Calls of policies ----

TEST(PolicyLife, ATierThatGivesTheTurnItsRoomKeepsTheEntryInUse) {
  Store s(dram_only(40, tier("told")));
  s.store(kA, 10);
  s.admit(kA, 10);
  s.store(kB, 40);  // the account is free, and there is no victim but B later
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "insert 2"}));
  s.tiers.check_invariants();
  s.save(kA, 12);
  s.drain();
  s.turn(kA, 12, 15);
  s.drain();
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "insert 2", "remove 2", "release 1 with 12",
                              "hit 1", "release 1 with 15"}));
}

TEST(PolicyLife, InHbmItIsTheSame) {
  RunConfig config = tiny_config();
  config.system.tiers.hbm = hbm_tier(20, "told");
  Store s(config);
  s.turn(kA, 0, 10);
  s.turn(kA, 10, 12);
  s.turn(kB, 0, 20);
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "release 1 with 12", "remove 1", "insert 2"}));
}

TEST(PolicyLife, ATierThatKeepsItsCopyHasTheUseBehindItAtOnce) {
  Store s(dram_only(40, tier("told", true)));
  s.store(kA, 10);
  s.admit(kA, 10);
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "release 1 with 10"}));
  s.save(kA, 12);
  s.drain();
  EXPECT_EQ(s.lives.size(), 3U);
  s.store(kB, 40);
  EXPECT_EQ(s.lives.at(3), "remove 1");
}

TEST(PolicyLife, ATurnThatFindsTheEntryOnItsWayBackIsAHit) {
  Store s(dram_only(40, tier("told")));
  s.store(kA, 10);
  s.turn(kA, 10, 12);
  s.turn(kA, 12, 14);  // the save of 12 tokens is in flight
  s.drain();
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "hit 1", "release 1 with 14"}));
}

TEST(PolicyLife, AnEntryThatDoesNotReturnFromItsTurnIsRemoved) {
  const auto lives = [](const auto& end) {
    Store s(dram_only(20, tier("told")));
    s.store(kA, 10);
    s.admit(kA, 10);
    end(s);
    s.drain();
    EXPECT_EQ(s.lives.size(), 3U);
    return s.lives.back();
  };
  const std::string removed = "remove 1";
  EXPECT_EQ(lives([](Store& s) { s.save(kA, 21); }), removed) << "larger than the tier";
  EXPECT_EQ(lives([](Store& s) {
              s.save(kA, 15);
              s.tiers.truncate(kA, cut(15));
            }),
            removed);
  EXPECT_EQ(lives([](Store& s) {
              s.save(kA, 15);
              s.tiers.invalidate(kA, LossCause::overflow);
            }),
            removed);
}

TEST(PolicyLife, AnEntryThatIsNotAdmittedAgainIsRemoved) {
  Store s(dram_only(20, filtered("second_hit", tier("told"))));
  s.turn(kA, 0, 10);
  s.turn(kA, 0, 10);
  s.drain();
  ASSERT_EQ(s.lives, LifeLog{"insert 1"});
}

TEST(PolicyLife, AnExclusiveSlowerTierGivesTheEntryToTheFastest) {
  RunConfig config = two_tiers(10, 100, tier(), tier("told"));
  Store s(config);
  s.store(kA, 10);
  s.store(kB, 10);  // A goes to the SSD
  s.turn(kA, 10, 10);
  s.drain();  // and B for A
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "release 1 with 10", "remove 1", "insert 2"}));
}

TEST(PolicyLife, ALateHitIsOneOfTheTierThatItIsFetchedTo) {
  RunConfig config = fetching_config();
  config.system.tiers.dram->eviction.name = "told";
  Store s(config);
  put_on_ssd(s);
  s.lives.clear();
  s.enqueue(kA);
  s.until(s.backend.now() + for_ms(4));
  s.dequeue();
  EXPECT_TRUE(s.admit(kA, 10).late);
  s.drain();
  s.save(kA, 11);
  s.drain();
  EXPECT_EQ(s.lives, (LifeLog{"insert 1", "hit 1", "release 1 with 11"}));
}

TEST(PolicyLife, EveryTurnThatSharesAPromptIsAHit) {
  RunConfig config = sharing_config(100);
  config.system.tiers.hbm = hbm_tier(100, "told");
  Store s(config);
  for (const SessionSlot slot : {kA, kB}) {
    s.tiers.join_prompt(slot, kPrompt, Tokens(30));
    s.tiers.admit_prompt(slot);
    s.admit(slot, 0);
    s.tiers.end_prefill(slot);
  }
  const std::string key = std::to_string(kPrompt.value);
  EXPECT_EQ(s.lives, (LifeLog{"insert " + key, "hit " + key}));
  s.tiers.release_prompt(kA);
  s.tiers.release_prompt(kB);
  EXPECT_EQ(s.lives.size(), 4U);
  EXPECT_EQ(s.lives.back(), "release " + key + " with 30");
  for (const SessionSlot slot : {kA, kB}) {
    s.save(slot, 1);
  }
  s.drain();
}

}  // namespace
}  // namespace kvtier::test
