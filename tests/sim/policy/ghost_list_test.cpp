#include "sim/policy/ghost_list.hpp"

#include <cstdint>
#include <list>
#include <utility>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

constexpr EntryKey kA{7};
constexpr EntryKey kB{8};
constexpr EntryKey kC{9};

TEST(GhostList, RemembersEntriesThatLeftWithTheirBytes) {
  GhostList ghosts;
  EXPECT_FALSE(ghosts.contains(kA));
  ghosts.push(kA, Bytes(10));
  ghosts.push(kB, Bytes(5));
  EXPECT_TRUE(ghosts.contains(kA));
  EXPECT_TRUE(ghosts.contains(kB));
  EXPECT_EQ(ghosts.bytes(), Bytes(15));
}

TEST(GhostList, ForgetsTheFirstThatLeft) {
  GhostList ghosts;
  ghosts.push(kA, Bytes(10));
  ghosts.push(kB, Bytes(5));
  ghosts.push(kC, Bytes(4));
  // 19 bytes: without A 9, which is within the limit.
  ghosts.trim(Bytes(9));
  EXPECT_FALSE(ghosts.contains(kA));
  EXPECT_TRUE(ghosts.contains(kB));
  EXPECT_EQ(ghosts.bytes(), Bytes(9));
  ghosts.trim(Bytes(8));
  EXPECT_FALSE(ghosts.contains(kB));
  EXPECT_TRUE(ghosts.contains(kC));
}

TEST(GhostList, MovesAnEntryThatLeavesAgainToTheEnd) {
  GhostList ghosts;
  ghosts.push(kA, Bytes(10));
  ghosts.push(kB, Bytes(5));
  ghosts.push(kA, Bytes(3));
  EXPECT_EQ(ghosts.bytes(), Bytes(8));
  ghosts.trim(Bytes(7));
  EXPECT_TRUE(ghosts.contains(kA));
  EXPECT_FALSE(ghosts.contains(kB));
}

TEST(GhostList, RemovesOutOfTurn) {
  GhostList ghosts;
  ghosts.push(kA, Bytes(10));
  ghosts.push(kB, Bytes(5));
  EXPECT_TRUE(ghosts.remove(kA));
  EXPECT_FALSE(ghosts.remove(kA));
  EXPECT_EQ(ghosts.bytes(), Bytes(5));
  ghosts.trim(Bytes(0));
  EXPECT_EQ(ghosts.bytes(), Bytes(0));
  EXPECT_FALSE(ghosts.contains(kB));
}

// Against a list that is searched from its beginning; enough steps for holes to be swept many
// times.
TEST(GhostList, IsAListInOrderOfLeaving) {
  GhostList ghosts;
  std::list<std::pair<std::uint64_t, std::int64_t>> simple;
  std::int64_t bytes = 0;
  const auto erase = [&](std::uint64_t key) {
    for (auto at = simple.begin(); at != simple.end(); ++at) {
      if (at->first == key) {
        bytes -= at->second;
        simple.erase(at);
        return true;
      }
    }
    return false;
  };
  RandomStream random(1, "test");
  for (int step = 0; step < 20000; ++step) {
    const auto key = static_cast<std::uint64_t>(random.index(300));
    if (random.uniform() < 0.6) {
      const std::int64_t size = 1 + random.index(50);
      ghosts.push(EntryKey{key}, Bytes(size));
      erase(key);
      simple.emplace_back(key, size);
      bytes += size;
    } else {
      EXPECT_EQ(ghosts.remove(EntryKey{key}), erase(key));
    }
    if (random.uniform() < 0.05) {
      const std::int64_t limit = random.index(4000);
      ghosts.trim(Bytes(limit));
      while (bytes > limit) {
        bytes -= simple.front().second;
        simple.pop_front();
      }
    }
    ASSERT_EQ(ghosts.bytes(), Bytes(bytes));
    bool known = false;
    for (const auto& [other, size] : simple) {
      known = known || other == key;
    }
    ASSERT_EQ(ghosts.contains(EntryKey{key}), known);
  }
}

}  // namespace
}  // namespace kvtier
