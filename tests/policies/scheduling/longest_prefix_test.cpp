#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

using test::TestQueue;
using Order = std::vector<std::uint64_t>;

std::unique_ptr<OrderPolicy> make_order(const PolicyParameters& parameters = {}) {
  return known_policy(builtin_policies().order, "longest_prefix").make(parameters);
}

/// A request with `stored` tokens of its prompt in the fastest tier.
void push(TestQueue& queue, std::int64_t stored) {
  queue.stored[queue.push(kNoEntry).value] = {.nearest = Tokens(stored), .total = Tokens(stored)};
}

Order serve(OrderPolicy& order, TestQueue& queue, int requests) {
  Order served;
  order.begin_batch(queue);
  for (int i = 0; i < requests; ++i) {
    served.push_back(order.next(queue).value);
    queue.leave(QueuePosition{served.back()});
  }
  return served;
}

TEST(LongestPrefix, ServesTheMostStoredFirstAndEqualOnesInOrder) {
  TestQueue queue;
  for (const std::int64_t stored : {100, 200, 100, 300}) {
    push(queue, stored);
  }
  EXPECT_EQ(serve(*make_order(), queue, 4), (Order{3, 1, 0, 2}));
}

TEST(LongestPrefix, CountsWhatIsStoredInAllTiers) {
  TestQueue queue;
  push(queue, 100);
  push(queue, 50);
  queue.stored[1].total = Tokens(150);
  EXPECT_EQ(serve(*make_order(), queue, 2), (Order{1, 0}));
}

TEST(LongestPrefix, SendsOneOfThoseThatBeginAlike) {
  TestQueue queue;
  for (const std::int64_t stored : {32, 0, 33, 5}) {
    push(queue, stored);
  }
  // The second one shares 32 tokens with the first, of which 32 are stored; more are of the third.
  queue.common = {{{0, 1}, Tokens(32)}, {{0, 2}, Tokens(40)}, {{0, 3}, Tokens(31)}};
  EXPECT_EQ(serve(*make_order(), queue, 4), (Order{2, 0, 3, 1}));
}

TEST(LongestPrefix, LeavesALongQueueAsItIs) {
  TestQueue queue;
  for (const std::int64_t stored : {100, 200, 300}) {
    push(queue, stored);
  }
  const std::unique_ptr<OrderPolicy> order = make_order({{"queue", 2}});
  EXPECT_EQ(serve(*order, queue, 1), Order{0});
  EXPECT_EQ(serve(*order, queue, 2), (Order{2, 1}));
}

TEST(LongestPrefix, StartsFromTheOrderOfTheBatchBefore) {
  TestQueue queue;
  for (const std::int64_t stored : {100, 200, 300}) {
    push(queue, stored);
  }
  const std::unique_ptr<OrderPolicy> order = make_order();
  EXPECT_EQ(serve(*order, queue, 1), Order{2});
  // Nothing is stored any more; the second one is still before the first, and a new one is last.
  queue.stored.clear();
  push(queue, 0);
  EXPECT_EQ(serve(*order, queue, 3), (Order{1, 0, 3}));
}

TEST(LongestPrefix, ServesARequestThatCameDuringABatch) {
  TestQueue queue;
  push(queue, 100);
  const std::unique_ptr<OrderPolicy> order = make_order();
  order->begin_batch(queue);
  push(queue, 200);
  EXPECT_EQ(order->next(queue), QueuePosition{0});
  queue.leave(QueuePosition{0});
  EXPECT_EQ(order->next(queue), QueuePosition{1});
}

}  // namespace
}  // namespace kvtier
