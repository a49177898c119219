#include "sim/store/sessions/pool.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/serving/store_rules.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// A pool of 10 bytes, HBM of 100 or what a test says; entry n has the key n.
struct Memory {
  explicit Memory(TierConfig used = tier(), KvShares shares = {.capacity = Bytes(10)},
                  Medium medium = Medium::dram)
      : tier_config(std::move(used)),
        pool({.medium = medium,
              .registry = &registry,
              .tier = &tier_config,
              .facts = tier_facts(store_facts(config), medium),
              .shares = shares,
              .key_of = [](EntryId id) { return EntryKey{id.value}; }}) {}

  /// Stores an entry, which may leave unless it is pinned.
  void store(std::uint32_t entry, std::int64_t bytes, bool pinned = false) {
    const SimTime now(++time);
    pool.charge_stored(Bytes(bytes), now);
    pool.policy()->on_insert(
        {.id = EntryId{entry}, .key = EntryKey{entry}, .place = entry, .bytes = Bytes(bytes)}, now);
    if (!pinned) {
      pool.offer(EntryId{entry}, Bytes(bytes), now);
    }
  }
  /// The entries that leave for a newcomer of so many bytes, or nothing.
  std::optional<std::vector<std::uint32_t>> choose(std::int64_t bytes, Demand demand = Demand::save,
                                                   std::uint32_t newcomer = 99) {
    if (!pool.choose_for(EntryId{newcomer}, {.now = SimTime(++time), .demand = demand},
                         Bytes(bytes) - pool.free_to_come())) {
      return std::nullopt;
    }
    std::vector<std::uint32_t> entries;
    for (const Victim& victim : pool.victims()) {
      entries.push_back(victim.entry.value);
    }
    return entries;
  }

  RunConfig config = tiny_config();
  PolicyRegistry registry = builtin_policies();
  TierConfig tier_config;
  std::int64_t time = 0;
  Pool pool;
};

using Entries = std::vector<std::uint32_t>;

TEST(Pool, ChoosesAWholeSetOrNothing) {
  Memory m;
  m.store(1, 5);
  m.store(2, 3);
  m.store(3, 2, true);
  EXPECT_EQ(m.choose(10), std::nullopt) << "2 of 10 bytes are pinned";
  EXPECT_EQ(m.pool.available(), Bytes(8));
  EXPECT_TRUE(m.pool.offers(EntryId{1}));
  EXPECT_TRUE(m.pool.offers(EntryId{2}));
  EXPECT_EQ(m.choose(6), Entries({1, 2}));
  EXPECT_EQ(m.pool.available(), Bytes(0)) << "what leaves is not offered any more";
}

TEST(Pool, ChoosesNoMoreThanWillNotBeFree) {
  Memory m;
  m.store(1, 2);
  m.store(2, 4);
  EXPECT_EQ(m.pool.free_to_come(), Bytes(4));
  m.pool.promise(Bytes(3));
  EXPECT_EQ(m.choose(3), Entries({1}));  // 1 is free, 2 leave
  m.pool.policy()->on_remove(EntryId{1}, SimTime(9));
  m.pool.leave(Bytes(2));
  EXPECT_EQ(m.pool.free_to_come(), Bytes(3));
  EXPECT_EQ(m.pool.free(), Bytes(4)) << "what leaves stays charged";
}

TEST(Pool, ChoosesTheAvailableEntriesInTheBackground) {
  Memory m;
  m.store(1, 4);
  m.store(2, 6, true);
  EXPECT_EQ(m.choose(8), std::nullopt);
  EXPECT_EQ(m.choose(8, Demand::background), Entries({1}));
}

TEST(Pool, AsksItsAdmissionPolicyForNewcomersAndVictims) {
  TierConfig used = tier();
  used.admission = {.name = "frequency_sketch", .parameters = {}};
  Memory m(used);
  ASSERT_TRUE(m.pool.filters());
  m.store(1, 10);
  for (int use = 0; use < 3; ++use) {
    m.pool.tell_admission(EntryKey{1});
  }
  m.pool.tell_admission(EntryKey{2});
  EXPECT_EQ(m.choose(5, Demand::save, 2), std::nullopt) << "it is used less often";
  EXPECT_TRUE(m.pool.refused());
  EXPECT_TRUE(m.pool.offers(EntryId{1}));
  EXPECT_EQ(m.choose(5, Demand::prefetch, 2), Entries({1})) << "a fetch is not filtered";
}

TEST(Pool, AdmitsEverythingWithoutAnAdmissionPolicy) {
  const Memory m;
  EXPECT_FALSE(m.pool.filters());
  EXPECT_TRUE(m.pool.admits(EntryKey{7}));
}

TEST(Pool, ExpiresOfferedEntriesUnusedForLong) {
  TierConfig used = tier();
  used.ttl = SimDuration(10);
  Memory m(used);
  m.store(1, 2);  // at 1
  m.store(2, 2);  // at 2
  EXPECT_EQ(m.pool.next_expired(SimTime(11)), kNoEntry) << "10 is not longer than 10";
  EXPECT_EQ(m.pool.next_expired(SimTime(12)), EntryId{1});
  m.pool.use(EntryId{1}, SimTime(12));
  EXPECT_EQ(m.pool.next_expired(SimTime(12)), kNoEntry);
  EXPECT_EQ(m.pool.next_expired(SimTime(13)), EntryId{2});
  m.pool.withdraw(EntryId{2});
  EXPECT_EQ(m.pool.next_expired(SimTime(20)), kNoEntry) << "what is in use does not expire";
  EXPECT_TRUE(m.pool.expired(SimTime(2), SimTime(13)));
  m.pool.offer(EntryId{2}, Bytes(2), SimTime(15));
  m.pool.offer(EntryId{2}, Bytes(1), SimTime(19));  // smaller, not used
  EXPECT_EQ(m.pool.next_expired(SimTime(23)), EntryId{1});
  m.pool.withdraw(EntryId{1});
  EXPECT_EQ(m.pool.next_expired(SimTime(26)), EntryId{2});
}

TEST(Pool, NothingExpiresWithoutATimeToLive) {
  Memory m;
  m.store(1, 2);
  EXPECT_FALSE(m.pool.expired(SimTime(0), SimTime(1000000)));
  EXPECT_EQ(m.pool.next_expired(SimTime(1000000)), kNoEntry);
}

TEST(Pool, IntegratesStoredBytesOverTime) {
  Memory m;
  m.pool.charge_stored(Bytes(6), SimTime(10));
  m.pool.charge_stored(Bytes(-2), SimTime(15));
  const TierCounters counters = m.pool.counters(SimTime(20));
  EXPECT_EQ(counters.occupancy_byte_ns, Int128(6 * 5 + 4 * 5));
  EXPECT_EQ(counters.occupancy_peak, Bytes(6));
}

/// 100 bytes: 30 are for stored KV, 10 and 20 for the buffers, so 40 for running requests.
constexpr KvShares kShares{.capacity = Bytes(100),
                           .stored = Bytes(30),
                           .read_buffer = Bytes(10),
                           .write_buffer = Bytes(20)};

TEST(Pool, RunningRequestsLeaveTheReserveFree) {
  Memory m(tier(), kShares, Medium::hbm);
  EXPECT_EQ(m.pool.capacity(), Bytes(30));
  EXPECT_EQ(m.pool.free_to_run(), Bytes(40));
  m.pool.charge(Account::running, Bytes(40));
  m.pool.charge(Account::read_buffer, Bytes(10));
  m.pool.charge_stored(Bytes(30), SimTime(1));
  m.pool.note_shared(Bytes(12));
  EXPECT_EQ(m.pool.free_to_run(), Bytes(0));
  EXPECT_EQ(m.pool.free(), Bytes(0));
  EXPECT_EQ(m.pool.total_capacity() - m.pool.total(), Bytes(20));
  EXPECT_EQ(m.pool.used(Account::stored), Bytes(18));
  EXPECT_EQ(m.pool.used(Account::shared_prefixes), Bytes(12));
  EXPECT_EQ(m.pool.total(), Bytes(80));
  EXPECT_THROW(m.pool.charge_stored(Bytes(1), SimTime(1)), InvariantError);
}

TEST(Pool, AnEndedTurnsKvMovesToTheWriteBufferBeyondItsSize) {
  Memory m(tier(), kShares, Medium::hbm);
  m.pool.charge_stored(Bytes(30), SimTime(1));
  m.pool.charge(Account::read_buffer, Bytes(10));
  m.pool.charge(Account::running, Bytes(40));
  m.pool.charge(Account::write_buffer, Bytes(20));
  EXPECT_EQ(m.pool.total_capacity() - m.pool.total(), Bytes(0));
  EXPECT_THROW(m.pool.charge(Account::write_buffer, Bytes(1)), InvariantError);
  m.pool.charge(Account::write_buffer, Bytes(-1));
  m.pool.charge(Account::running, Bytes(-25));
  m.pool.charge(Account::write_buffer, Bytes(25));
  EXPECT_EQ(m.pool.write_buffer_excess(), Bytes(24));
  EXPECT_EQ(m.pool.free_to_run(), Bytes(1)) << "the excess takes what the turn has left";
  EXPECT_EQ(m.pool.total_capacity() - m.pool.total(), Bytes(1));
}

TEST(Pool, ItsAccountsEqualThoseOfTheStore) {
  Memory m(tier(), kShares, Medium::hbm);
  m.store(1, 8);
  m.pool.charge(Account::running, Bytes(5));
  Pool::Sums sums{.offered = Bytes(8)};
  sums[Account::stored] = Bytes(8);
  sums[Account::running] = Bytes(5);
  const auto known = [](const Pool::Visit& visit) {
    visit({.id = EntryId{1}, .key = EntryKey{1}, .place = 1, .bytes = Bytes(8)});
  };
  EXPECT_NO_THROW(m.pool.check_invariants(sums, known));
  EXPECT_THROW(m.pool.check_invariants(sums, [](const Pool::Visit&) {}), InvariantError);
  sums[Account::running] = Bytes(4);
  EXPECT_THROW(m.pool.check_invariants(sums, known), InvariantError);
}

}  // namespace
}  // namespace kvtier::test
