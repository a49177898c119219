#include "policies/scheduling/fcfs.hpp"

#include <cstdint>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

using test::TestQueue;

TEST(FcfsOrder, AdmitsTheRequestThatHasWaitedLongest) {
  const auto order = fcfs_order().make({});
  TestQueue queue(40);
  for (std::uint32_t entry = 0; entry < 3; ++entry) {
    queue.push(EntryId{2 - entry});
  }
  for (std::uint64_t position = 40; position < 43; ++position) {
    EXPECT_EQ(order->next(queue), QueuePosition{position});
    EXPECT_EQ(order->next(queue), QueuePosition{position});
    queue.leave(QueuePosition{position});
  }
}

TEST(FcfsOrder, PassesPositionsWhoseRequestLeftOutOfTurn) {
  const auto order = fcfs_order().make({});
  TestQueue queue;
  for (int i = 0; i < 3; ++i) {
    queue.push(kNoEntry);
  }
  queue.leave(QueuePosition{1});
  EXPECT_EQ(order->next(queue), QueuePosition{0});
  queue.leave(QueuePosition{0});
  EXPECT_EQ(order->next(queue), QueuePosition{2});
}

TEST(FcfsOrder, NeedsAWaitingRequest) {
  const auto order = fcfs_order().make({});
  const TestQueue queue;
  EXPECT_THROW(static_cast<void>(order->next(queue)), InvariantError);
}

}  // namespace
}  // namespace kvtier
