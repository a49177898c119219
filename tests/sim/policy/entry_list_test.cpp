#include "sim/policy/entry_list.hpp"

#include <algorithm>
#include <cstdint>
#include <list>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

std::vector<std::uint32_t> contents(const EntryList& list) {
  std::vector<std::uint32_t> entries;
  for (EntryId entry = list.front(); entry.valid(); entry = list.next(entry)) {
    entries.push_back(entry.value);
  }
  return entries;
}

using Entries = std::vector<std::uint32_t>;

TEST(EntryList, IsEmptyAtFirst) {
  const EntryList list;
  EXPECT_EQ(list.size(), 0U);
  EXPECT_FALSE(list.front().valid());
  EXPECT_FALSE(list.contains(EntryId{0}));
  EXPECT_FALSE(list.contains(kNoEntry));
}

TEST(EntryList, KeepsTheOrderOfPushing) {
  EntryList list;
  for (const std::uint32_t entry : {5U, 0U, 9U}) {
    list.push_back(EntryId{entry});
  }
  EXPECT_EQ(contents(list), (Entries{5, 0, 9}));
  EXPECT_EQ(list.size(), 3U);
  EXPECT_TRUE(list.contains(EntryId{9}));
  EXPECT_FALSE(list.contains(EntryId{1}));
}

TEST(EntryList, RemovesFromTheFrontTheMiddleAndTheBack) {
  EntryList list;
  for (std::uint32_t entry = 0; entry < 5; ++entry) {
    list.push_back(EntryId{entry});
  }
  list.remove(EntryId{2});
  EXPECT_EQ(contents(list), (Entries{0, 1, 3, 4}));
  list.remove(EntryId{0});
  EXPECT_EQ(contents(list), (Entries{1, 3, 4}));
  list.remove(EntryId{4});
  EXPECT_EQ(contents(list), (Entries{1, 3}));
  list.push_back(EntryId{2});
  EXPECT_EQ(contents(list), (Entries{1, 3, 2}));
}

TEST(EntryList, CanBeEmptiedAndFilledAgain) {
  EntryList list;
  list.push_back(EntryId{3});
  list.remove(EntryId{3});
  EXPECT_FALSE(list.front().valid());
  EXPECT_FALSE(list.contains(EntryId{3}));
  list.push_back(EntryId{3});
  EXPECT_EQ(contents(list), Entries{3});
}

TEST(EntryList, MovesAnEntryToTheBack) {
  EntryList list;
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    list.push_back(EntryId{entry});
  }
  list.move_to_back(EntryId{0});
  EXPECT_EQ(contents(list), (Entries{1, 2, 0}));
  list.move_to_back(EntryId{0});
  EXPECT_EQ(contents(list), (Entries{1, 2, 0}));
  EXPECT_EQ(list.size(), 3U);
}

TEST(EntryList, RefusesAnEntryTwiceAndOneItDoesNotHold) {
  EntryList list;
  list.push_back(EntryId{1});
  EXPECT_THROW(list.push_back(EntryId{1}), InvariantError);
  EXPECT_THROW(list.remove(EntryId{0}), InvariantError);
  EXPECT_THROW(list.remove(EntryId{7}), InvariantError);
  EXPECT_THROW(list.move_to_back(EntryId{0}), InvariantError);
  EXPECT_EQ(contents(list), Entries{1});
}

TEST(EntryList, AgreesWithAStandardListOnRandomOperations) {
  RandomStream stream(1, "entry list");
  EntryList list;
  std::list<std::uint32_t> model;
  for (int step = 0; step < 20'000; ++step) {
    const auto entry = static_cast<std::uint32_t>(stream.index(40));
    const auto found = std::ranges::find(model, entry);
    ASSERT_EQ(list.contains(EntryId{entry}), found != model.end());
    if (found == model.end()) {
      list.push_back(EntryId{entry});
      model.push_back(entry);
    } else if (stream.index(2) == 0) {
      list.remove(EntryId{entry});
      model.erase(found);
    } else {
      list.move_to_back(EntryId{entry});
      model.splice(model.end(), model, found);
    }
    ASSERT_EQ(list.size(), model.size());
    ASSERT_EQ(contents(list), Entries(model.begin(), model.end())) << "after step " << step;
  }
}

}  // namespace
}  // namespace kvtier
