#include "policies/scheduling/priority.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"
#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

using test::TestQueue;

void push(TestQueue& queue, std::int64_t priority) {
  queue.priorities[queue.end()] = priority;
  queue.push(kNoEntry);
}

TEST(PriorityOrder, AdmitsTheSmallestNumberThenTheFirstThatArrived) {
  const auto order = priority_order().make({});
  TestQueue queue(40);
  for (const std::int64_t priority : {3, 1, 1, -2}) {
    push(queue, priority);
  }
  for (const std::uint64_t position : {43, 41, 42, 40}) {
    EXPECT_EQ(order->next(queue), QueuePosition{position});
    EXPECT_EQ(order->next(queue), QueuePosition{position});
    queue.leave(QueuePosition{position});
  }
  EXPECT_TRUE(order->preempts_by_priority());
}

TEST(PriorityOrder, ANewcomerMayPassAll) {
  const auto order = priority_order().make({});
  TestQueue queue;
  push(queue, 1);
  EXPECT_EQ(order->next(queue), QueuePosition{0});
  push(queue, 0);
  EXPECT_EQ(order->next(queue), QueuePosition{1});
  queue.leave(QueuePosition{1});
  EXPECT_EQ(order->next(queue), QueuePosition{0});
}

TEST(PriorityOrder, FindsWhatAScanFinds) {
  RandomStream random(1, "priorities");
  const auto order = priority_order().make({});
  TestQueue queue;
  std::vector<std::pair<std::int64_t, std::uint64_t>> waiting;
  for (int step = 0; step < 2000; ++step) {
    if (waiting.empty() || random.index(2) == 0) {
      const std::int64_t priority = random.index(4);
      waiting.emplace_back(priority, queue.end().value);
      push(queue, priority);
      continue;
    }
    const auto smallest = std::min_element(waiting.begin(), waiting.end());
    ASSERT_EQ(order->next(queue), QueuePosition{smallest->second}) << "step " << step;
    // Another one may leave out of turn.
    const auto leaves =
        random.index(3) == 0 ? waiting.begin() + random.index(std::ssize(waiting)) : smallest;
    queue.leave(QueuePosition{leaves->second});
    waiting.erase(leaves);
  }
}

TEST(PriorityOrder, NeedsAWaitingRequest) {
  const auto order = priority_order().make({});
  const TestQueue queue;
  EXPECT_THROW(static_cast<void>(order->next(queue)), InvariantError);
}

}  // namespace
}  // namespace kvtier
