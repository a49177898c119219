#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

using test::TestQueue;

std::unique_ptr<OrderPolicy> make_order(std::int64_t requests) {
  return known_policy(builtin_policies().order, "shuffled_window")
      .make({{"requests", static_cast<double>(requests)}});
}

/// A request for an entry of its own with this placement.
QueuePosition push(TestQueue& queue, Placement placement) {
  const EntryId entry{static_cast<std::uint32_t>(queue.end().value)};
  queue.placements[entry] = placement;
  return queue.push(entry);
}

std::vector<std::uint64_t> serve(OrderPolicy& order, TestQueue& queue, int requests) {
  std::vector<std::uint64_t> served;
  for (int i = 0; i < requests; ++i) {
    const QueuePosition next = order.next(queue);
    EXPECT_TRUE(queue.waiting_at(next));
    served.push_back(next.value);
    queue.leave(next);
  }
  return served;
}

using Order = std::vector<std::uint64_t>;

TEST(ShuffledWindow, ServesEntriesInHbmThenFirstTurnsThenTheRest) {
  TestQueue queue;
  const auto order = make_order(6);
  for (const Placement placement : {Placement::slower, Placement::none, Placement::fastest,
                                    Placement::slower, Placement::fastest, Placement::none}) {
    push(queue, placement);
  }
  EXPECT_EQ(serve(*order, queue, 6), (Order{2, 4, 1, 5, 0, 3}));
}

TEST(ShuffledWindow, IsDrainedBeforeItTakesTheNextRequests) {
  TestQueue queue;
  const auto order = make_order(2);
  push(queue, Placement::slower);
  push(queue, Placement::none);
  push(queue, Placement::fastest);
  push(queue, Placement::fastest);
  // The window is 0 and 1: those in HBM behind it wait.
  EXPECT_EQ(serve(*order, queue, 4), (Order{1, 0, 2, 3}));
}

TEST(ShuffledWindow, RequestsThatArriveInADrainingWindowAreNotInIt) {
  TestQueue queue;
  const auto order = make_order(3);
  push(queue, Placement::slower);
  push(queue, Placement::slower);
  EXPECT_EQ(serve(*order, queue, 1), Order{0});
  EXPECT_EQ(order->window_end(queue), QueuePosition{2});
  push(queue, Placement::fastest);
  EXPECT_EQ(serve(*order, queue, 2), (Order{1, 2}));
}

TEST(ShuffledWindow, GivesTheEndOfADrainedWindowIfItWereFilled) {
  TestQueue queue;
  const auto order = make_order(2);
  EXPECT_EQ(order->window_end(queue), QueuePosition{0});
  push(queue, Placement::slower);
  EXPECT_EQ(order->window_end(queue), QueuePosition{1});
  push(queue, Placement::slower);
  push(queue, Placement::slower);
  EXPECT_EQ(order->window_end(queue), QueuePosition{2});
  static_cast<void>(order->next(queue));
  queue.leave(QueuePosition{0});
  EXPECT_EQ(order->window_end(queue), QueuePosition{2}) << "it is not drained yet";
  queue.leave(QueuePosition{1});
  EXPECT_EQ(order->window_end(queue), QueuePosition{3});
}

TEST(ShuffledWindow, SeesThatARequestsKvHasComeNearer) {
  TestQueue queue;
  const auto order = make_order(4);
  push(queue, Placement::slower);
  push(queue, Placement::none);
  push(queue, Placement::slower);
  EXPECT_EQ(order->next(queue), QueuePosition{1});
  queue.placements[EntryId{2}] = Placement::fastest;
  EXPECT_EQ(serve(*order, queue, 3), (Order{2, 1, 0}));
}

TEST(ShuffledWindow, IsFirstComeFirstServedWithAWindowOfOne) {
  TestQueue queue;
  const auto order = make_order(1);
  push(queue, Placement::slower);
  push(queue, Placement::fastest);
  push(queue, Placement::none);
  EXPECT_EQ(serve(*order, queue, 3), (Order{0, 1, 2}));
}

/// A stream of requests in HBM, one for each that is served, cannot hold back one that must load:
/// at most the rest of its window goes first.
TEST(ShuffledWindow, BoundsTheWaitOfEveryRequest) {
  constexpr std::int64_t kWindow = 8;
  TestQueue queue;
  const auto order = make_order(kWindow);
  RandomStream stream(1, "placements");
  const auto push_one = [&] {
    push(queue, stream.index(5) == 0 ? Placement::slower : Placement::fastest);
  };
  for (int i = 0; i < 100; ++i) {
    push_one();
  }
  bool passed_over = false;
  for (std::uint64_t served = 0; served < 2'000; ++served) {
    const QueuePosition next = order->next(queue);
    // The n-th served request is at most the rest of a window away from the n-th place.
    ASSERT_LT(next.value, served + kWindow);
    ASSERT_LT(served, next.value + kWindow);
    passed_over = passed_over || next.value != served;
    queue.leave(next);
    push_one();
  }
  EXPECT_TRUE(passed_over);
}

}  // namespace
}  // namespace kvtier
