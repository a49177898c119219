#include "sim/device/free_slots.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"

namespace kvtier::test {
namespace {

using Slots = std::vector<std::int32_t>;

TEST(FreeSlots, TakesTheMiddleOfTheLongestRun) {
  FreeSlots slots(10, 10);
  EXPECT_EQ(slots.take(2), (Slots{14, 15}));  // 4 are left on each side
  EXPECT_EQ(slots.take(2), (Slots{17, 18}));
  EXPECT_EQ(slots.count(), 6);
}

TEST(FreeSlots, GrowsARunAfterItsLastSlot) {
  FreeSlots slots(0, 10);
  EXPECT_EQ(slots.take(2), (Slots{4, 5}));
  EXPECT_EQ(slots.take(3, 5), (Slots{6, 7, 8}));
  EXPECT_EQ(slots.take(1, 5), (Slots{1}));  // slot 6 is taken: the middle of 0 .. 3
}

TEST(FreeSlots, TakesTheLongestRunsIfNoneIsLongEnough) {
  FreeSlots slots(0, 10);
  EXPECT_EQ(slots.take(4), (Slots{3, 4, 5, 6}));
  slots.give_back(4, 5);
  EXPECT_EQ(slots.take(7), (Slots{7, 8, 9, 0, 1, 2, 4}));
  EXPECT_EQ(slots.count(), 0);
  EXPECT_THROW((void)slots.take(1), InvariantError);
}

TEST(FreeSlots, JoinsFreedSlotsWithTheirNeighbours) {
  FreeSlots slots(0, 6);
  EXPECT_EQ(slots.take(6), (Slots{0, 1, 2, 3, 4, 5}));
  slots.give_back(0, 2);
  slots.give_back(4, 6);
  slots.give_back(2, 4);
  EXPECT_EQ(slots.take(6), (Slots{0, 1, 2, 3, 4, 5}));
}

TEST(FreeSlots, GivesEachSlotToOneOwner) {
  constexpr std::int64_t kSlots = 200;
  FreeSlots slots(0, kSlots);
  RandomStream random(1, "tests/free_slots");
  std::vector<Slots> owners(20);
  std::set<std::int32_t> taken;
  for (int step = 0; step < 20000; ++step) {
    Slots& owner = owners[static_cast<std::size_t>(random.index(std::ssize(owners)))];
    const std::int64_t count = random.index(12);
    if (random.index(2) == 0 && count <= slots.count()) {
      const Slots more = slots.take(count, owner.empty() ? FreeSlots::kNone : owner.back());
      ASSERT_EQ(std::ssize(more), count);
      taken.insert(more.begin(), more.end());
      owner.insert(owner.end(), more.begin(), more.end());
    } else {
      for (std::int64_t i = std::min(count, std::ssize(owner)); i > 0; --i) {
        slots.give_back(owner.back(), owner.back() + 1);
        taken.erase(owner.back());
        owner.pop_back();
      }
    }
    ASSERT_EQ(slots.count(), kSlots - std::ssize(taken));
  }
}

}  // namespace
}  // namespace kvtier::test
