#include "sim/policy/entry_heap.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

std::vector<std::uint32_t> drain(EntryHeap& heap) {
  std::vector<std::uint32_t> entries;
  while (!heap.empty()) {
    entries.push_back(heap.top().value);
    heap.remove(heap.top());
  }
  return entries;
}

using Entries = std::vector<std::uint32_t>;

TEST(EntryHeap, IsEmptyAtFirst) {
  const EntryHeap heap;
  EXPECT_TRUE(heap.empty());
  EXPECT_EQ(heap.size(), 0U);
  EXPECT_FALSE(heap.contains(EntryId{0}));
  EXPECT_FALSE(heap.contains(kNoEntry));
}

TEST(EntryHeap, HasTheSmallestKeyOnTop) {
  EntryHeap heap;
  heap.insert(EntryId{0}, 30);
  heap.insert(EntryId{1}, 10);
  heap.insert(EntryId{2}, 20);
  EXPECT_EQ(heap.top(), EntryId{1});
  EXPECT_EQ(heap.top_key(), 10U);
  EXPECT_EQ(drain(heap), (Entries{1, 2, 0}));
}

TEST(EntryHeap, OrdersEqualKeysByEntryNumberHoweverTheyCame) {
  EntryHeap heap;
  for (const std::uint32_t entry : {4U, 1U, 3U, 0U, 2U}) {
    heap.insert(EntryId{entry}, 7);
  }
  EXPECT_EQ(drain(heap), (Entries{0, 1, 2, 3, 4}));
}

TEST(EntryHeap, HoldsTheLargestAndTheSmallestKey) {
  EntryHeap heap;
  heap.insert(EntryId{0}, UINT64_MAX);
  heap.insert(EntryId{1}, 0);
  EXPECT_EQ(heap.top_key(), 0U);
  heap.remove(EntryId{1});
  EXPECT_EQ(heap.top_key(), UINT64_MAX);
}

/// Four children each: 0 above 10 1 2 3; 11 12 13 14 below 10; 4 below 1. Entry n has the n-th key.
EntryHeap two_levels() {
  EntryHeap heap;
  std::uint32_t entry = 0;
  for (const std::uint64_t key : {0, 10, 1, 2, 3, 11, 12, 13, 14, 4}) {
    heap.insert(EntryId{entry++}, key);
  }
  return heap;
}

TEST(EntryHeap, AnEntryThatReplacesARemovedOneMayRise) {
  // 4 takes the place of 11, below 10.
  EntryHeap heap = two_levels();
  heap.remove(EntryId{5});
  EXPECT_FALSE(heap.contains(EntryId{5}));
  heap.insert(EntryId{10}, 20);
  EXPECT_EQ(drain(heap), (Entries{0, 2, 3, 4, 9, 1, 6, 7, 8, 10}));
}

TEST(EntryHeap, AnEntryThatReplacesARemovedOneMaySink) {
  // 14 takes the place of 10, above 11 12 13, once 4 is gone.
  EntryHeap heap = two_levels();
  heap.remove(EntryId{9});
  heap.remove(EntryId{1});
  EXPECT_EQ(drain(heap), (Entries{0, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(EntryHeap, RefusesAnEntryTwiceAndOneItDoesNotHold) {
  EntryHeap heap;
  heap.insert(EntryId{1}, 5);
  EXPECT_THROW(heap.insert(EntryId{1}, 6), InvariantError);
  EXPECT_THROW(heap.remove(EntryId{0}), InvariantError);
  EXPECT_THROW(heap.remove(EntryId{7}), InvariantError);
  EXPECT_EQ(heap.top_key(), 5U);
}

TEST(EntryHeap, AgreesWithASortedSetOnRandomOperations) {
  RandomStream stream(1, "entry heap");
  EntryHeap heap;
  std::set<std::pair<std::uint64_t, std::uint32_t>> model;
  std::vector<std::optional<std::uint64_t>> keys(200);
  for (int step = 0; step < 50'000; ++step) {
    const auto entry = static_cast<std::uint32_t>(stream.index(200));
    std::optional<std::uint64_t>& key = keys[entry];
    ASSERT_EQ(heap.contains(EntryId{entry}), key.has_value());
    if (key) {
      heap.remove(EntryId{entry});
      model.erase({*key, entry});
      key.reset();
    } else {
      key = static_cast<std::uint64_t>(stream.index(50));  // many ties
      heap.insert(EntryId{entry}, *key);
      model.emplace(*key, entry);
    }
    ASSERT_EQ(heap.size(), model.size());
    ASSERT_EQ(heap.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(heap.top_key(), model.begin()->first) << "after step " << step;
      ASSERT_EQ(heap.top().value, model.begin()->second) << "after step " << step;
    }
  }
}

}  // namespace
}  // namespace kvtier
