#include "sim/policy/position_queue.hpp"

#include <map>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

TEST(PositionQueue, LastInTheQueueIsOnTop) {
  PositionQueue queue;
  EXPECT_TRUE(queue.empty());
  queue.insert(EntryId{1}, QueuePosition{10});
  queue.insert(EntryId{2}, QueuePosition{30});
  queue.insert(EntryId{3}, QueuePosition{20});  // out of order
  EXPECT_EQ(queue.size(), 3U);
  for (const std::uint32_t expected : {2U, 3U, 1U}) {
    EXPECT_EQ(queue.top(), EntryId{expected});
    queue.remove(EntryId{expected});
    EXPECT_FALSE(queue.contains(EntryId{expected}));
  }
  EXPECT_TRUE(queue.empty());
}

TEST(PositionQueue, RefusesAnEntryTwiceAndOneThatIsNotThere) {
  PositionQueue queue;
  queue.insert(EntryId{1}, QueuePosition{10});
  EXPECT_THROW(queue.insert(EntryId{1}, QueuePosition{11}), InvariantError);
  EXPECT_THROW(queue.remove(EntryId{2}), InvariantError);
}

TEST(PositionQueue, FindsTheLastOnRandomOperations) {
  PositionQueue queue;
  std::map<std::uint64_t, std::uint32_t> model;  // entry by position
  RandomStream random(1, "position_queue");
  std::uint64_t end = 0;
  std::map<std::uint32_t, std::uint64_t> position_of;
  for (int i = 0; i < 50000; ++i) {
    const auto entry = static_cast<std::uint32_t>(random.index(200));
    const auto found = position_of.find(entry);
    if (found != position_of.end()) {
      queue.remove(EntryId{entry});
      model.erase(found->second);
      position_of.erase(found);
    } else {
      // Mostly at the end of the queue, sometimes at a position somewhere before it.
      std::uint64_t position = end++;
      if (random.index(5) == 0) {
        position = static_cast<std::uint64_t>(random.index(static_cast<std::int64_t>(end)));
        if (model.count(position) > 0) {
          continue;
        }
      }
      queue.insert(EntryId{entry}, QueuePosition{position});
      model[position] = entry;
      position_of[entry] = position;
    }
    ASSERT_EQ(queue.size(), model.size());
    ASSERT_EQ(queue.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(queue.top(), EntryId{model.rbegin()->second});
    }
    ASSERT_EQ(queue.contains(EntryId{entry}), position_of.count(entry) > 0);
  }
}

}  // namespace
}  // namespace kvtier
