#include "policies/prefetch/look_ahead.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

using test::TestPrefetch;
using test::TestQueue;

/// Requests for entries 0 .. count-1 wait in this order, and all lie in the slow tier.
void enqueue(TestQueue& queue, TestPrefetch& prefetch, std::uint32_t count) {
  for (std::uint32_t entry = 0; entry < count; ++entry) {
    queue.push(EntryId{entry});
    prefetch.slow.insert(EntryId{entry});
  }
}

std::vector<std::uint32_t> fetch_all(TestQueue& queue, TestPrefetch& prefetch) {
  std::vector<std::uint32_t> order;
  for (EntryId entry = prefetch.fetch(queue); entry.valid(); entry = prefetch.fetch(queue)) {
    order.push_back(entry.value);
  }
  return order;
}

using Order = std::vector<std::uint32_t>;

TEST(LookAheadPrefetch, FetchesInTheOrderOfTheQueue) {
  TestQueue queue(100);
  TestPrefetch prefetch("look_ahead");
  for (const std::uint32_t entry : {7U, 2U, 5U}) {
    queue.push(EntryId{entry});
    prefetch.slow.insert(EntryId{entry});
  }
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{7, 2, 5}));
}

TEST(LookAheadPrefetch, RepeatsItsAnswerUntilTheFetchHasStarted) {
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  enqueue(queue, prefetch, 2);
  EXPECT_EQ(prefetch.next(queue), EntryId{0});
  EXPECT_EQ(prefetch.next(queue), EntryId{0});
  prefetch.slow.erase(EntryId{0});
  EXPECT_EQ(prefetch.next(queue), EntryId{1});
}

TEST(LookAheadPrefetch, FetchesNothingForAnEmptyQueue) {
  TestQueue queue(50);
  TestPrefetch prefetch("look_ahead");
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
  // And is not stuck afterwards.
  prefetch.slow = {EntryId{3}};
  queue.push(EntryId{3});
  EXPECT_EQ(prefetch.next(queue), EntryId{3});
}

TEST(LookAheadPrefetch, SkipsEntriesThatNeedNoFetchAndRequestsWithoutOne) {
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  queue.push(EntryId{0});  // in memory already
  queue.push(kNoEntry);    // a first turn
  queue.push(EntryId{2});
  queue.push(EntryId{3});
  prefetch.slow = {EntryId{2}, EntryId{3}};
  queue.leave(QueuePosition{2});  // left out of turn
  EXPECT_EQ(fetch_all(queue, prefetch), Order{3});
}

TEST(LookAheadPrefetch, LooksNoFurtherThanItsWindow) {
  TestQueue queue(10);
  TestPrefetch prefetch("look_ahead", {{"window", 2}});
  enqueue(queue, prefetch, 5);
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{0, 1}));
  queue.leave(QueuePosition{10});
  EXPECT_EQ(fetch_all(queue, prefetch), Order{2});
  queue.leave(QueuePosition{11});
  queue.leave(QueuePosition{12});
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{3, 4}));
}

TEST(LookAheadPrefetch, AWindowOfZeroFetchesNothing) {
  TestQueue queue;
  TestPrefetch prefetch("look_ahead", {{"window", 0}});
  enqueue(queue, prefetch, 3);
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
}

TEST(LookAheadPrefetch, TheAutomaticWindowIsWhatFitsIntoMemory) {
  // floor(10 GB / 3 GB) = 3 requests.
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  prefetch.memory = Bytes(10'000'000'000);
  prefetch.mean_entry = Bytes(3'000'000'000);
  enqueue(queue, prefetch, 6);
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{0, 1, 2}));
  // The mean falls to 2 GB: 5 requests.
  prefetch.mean_entry = Bytes(2'000'000'000);
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{3, 4}));
}

TEST(LookAheadPrefetch, TheAutomaticWindowIsEmptyWithoutMemoryOrEntries) {
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  enqueue(queue, prefetch, 3);
  prefetch.memory = Bytes(0);
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
  prefetch.memory = Bytes(1'000);
  prefetch.mean_entry = Bytes(0);
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
  prefetch.mean_entry = Bytes(1'001);  // not even one fits
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
  prefetch.mean_entry = Bytes(1'000);
  EXPECT_EQ(prefetch.next(queue), EntryId{0});
}

TEST(LookAheadPrefetch, GoesBackForAnEntryThatWasDemotedBehindIt) {
  TestQueue queue(20);
  TestPrefetch prefetch("look_ahead");
  enqueue(queue, prefetch, 4);
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{0, 1, 2, 3}));
  prefetch.demote(EntryId{3}, QueuePosition{23});
  prefetch.demote(EntryId{1}, QueuePosition{21});
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{1, 3}));
}

TEST(LookAheadPrefetch, ADemotionAheadDoesNotMakeItSkipAnything) {
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  enqueue(queue, prefetch, 4);
  EXPECT_EQ(prefetch.fetch(queue), EntryId{0});
  prefetch.demote(EntryId{3}, QueuePosition{3});
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{1, 2, 3}));
}

TEST(LookAheadPrefetch, ADemotionOfARequestThatHasLeftIsForgotten) {
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  enqueue(queue, prefetch, 3);
  EXPECT_EQ(fetch_all(queue, prefetch), (Order{0, 1, 2}));
  prefetch.demote(EntryId{0}, QueuePosition{0});
  queue.leave(QueuePosition{0});
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
}

TEST(LookAheadPrefetch, LooksAtEachPositionAFewTimesOverALongRun) {
  // 100,000 requests pass through a queue of 1,000 that all lie in the window; after every change
  // the policy is asked until it has no answer. Each position is passed once, each fetch looks once
  // more (the entry is named, then passed), and each demotion of one of the 10 positions before the
  // cursor's end costs at most 10 looks, once in 100 requests: 2.1 looks per request. A scan of the
  // queue would need 1,000.
  constexpr std::uint32_t kRequests = 100'000;
  constexpr std::uint64_t kWaiting = 1'000;
  TestQueue queue;
  TestPrefetch prefetch("look_ahead");
  RandomStream stream(1, "look ahead");
  std::int64_t fetches = 0;
  for (std::uint32_t entry = 0; entry < kRequests; ++entry) {
    const QueuePosition position = queue.push(EntryId{entry});
    prefetch.slow.insert(EntryId{entry});
    if (position.value >= kWaiting) {
      queue.leave(QueuePosition{position.value - kWaiting});
    }
    if (entry % 100 == 99) {
      const auto back = static_cast<std::uint32_t>(1 + stream.index(9));
      prefetch.demote(EntryId{entry - back}, QueuePosition{position.value - back});
    }
    while (prefetch.fetch(queue).valid()) {
      ++fetches;
    }
    ASSERT_TRUE(prefetch.slow.empty());
  }
  EXPECT_EQ(fetches, kRequests + kRequests / 100);
  EXPECT_LE(queue.looks(), static_cast<std::int64_t>(2.2 * kRequests));
}

}  // namespace
}  // namespace kvtier
