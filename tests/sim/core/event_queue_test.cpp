#include "sim/core/event_queue.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

std::vector<std::uint64_t> pop_all(EventQueue& queue) {
  std::vector<std::uint64_t> payloads;
  while (!queue.empty()) {
    payloads.push_back(queue.pop().payload);
  }
  return payloads;
}

using Payloads = std::vector<std::uint64_t>;

TEST(EventQueue, OrdersByTime) {
  EventQueue queue;
  queue.push(SimTime(30), 0, 3);
  queue.push(SimTime(10), 0, 1);
  queue.push(SimTime(20), 0, 2);
  EXPECT_EQ(pop_all(queue), (Payloads{1, 2, 3}));
}

TEST(EventQueue, OrdersEqualTimesByPriority) {
  EventQueue queue;
  queue.push(SimTime(10), 255, 4);
  queue.push(SimTime(10), 2, 3);
  queue.push(SimTime(10), 0, 1);
  queue.push(SimTime(10), 1, 2);
  EXPECT_EQ(pop_all(queue), (Payloads{1, 2, 3, 4}));
}

TEST(EventQueue, TimeCountsBeforePriority) {
  EventQueue queue;
  queue.push(SimTime(11), 0, 2);
  queue.push(SimTime(10), 255, 1);
  EXPECT_EQ(pop_all(queue), (Payloads{1, 2}));
}

TEST(EventQueue, OrdersFullTiesByTheSequenceOfPushing) {
  EventQueue queue;
  Payloads expected;
  for (std::uint64_t i = 0; i < 100; ++i) {
    queue.push(SimTime(10), 3, i);
    expected.push_back(i);
  }
  EXPECT_EQ(pop_all(queue), expected);
}

TEST(EventQueue, LaterPushesOfTheSameTimeComeAfterThoseAlreadyPopped) {
  EventQueue queue;
  queue.push(SimTime(10), 0, 1);
  queue.push(SimTime(10), 0, 2);
  EXPECT_EQ(queue.pop().payload, 1U);
  queue.push(SimTime(10), 0, 3);
  EXPECT_EQ(pop_all(queue), (Payloads{2, 3}));
}

TEST(EventQueue, GivesBackAllThatWasPushed) {
  EventQueue queue;
  queue.push(SimTime(7), 1, 99);
  EXPECT_EQ(queue.size(), 1U);
  EXPECT_EQ(queue.top().time, SimTime(7));
  const TimedEvent event = queue.pop();
  EXPECT_EQ(event.time, SimTime(7));
  EXPECT_EQ(event.payload, 99U);
  EXPECT_TRUE(queue.empty());
}

TEST(EventQueue, PopNeedsAPendingEvent) {
  EventQueue queue;
  EXPECT_THROW(queue.pop(), InvariantError);
}

TEST(EventQueue, EventsAreSmall) { EXPECT_EQ(sizeof(TimedEvent), 24U); }

TEST(EventQueue, AgreesWithAStableSortByTimeAndPriority) {
  struct Pushed {
    std::int64_t time;
    std::int64_t priority;
    std::uint64_t payload;
  };
  RandomStream stream(1, "events");
  EventQueue queue;
  std::vector<Pushed> pushed;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    // 500 times by 4 priorities: about five full ties each.
    pushed.push_back({stream.index(500), stream.index(4), i});
    queue.push(SimTime(pushed.back().time), static_cast<std::uint8_t>(pushed.back().priority), i);
  }
  std::ranges::stable_sort(pushed, [](const Pushed& a, const Pushed& b) {
    return std::tie(a.time, a.priority) < std::tie(b.time, b.priority);
  });
  Payloads expected;
  for (const Pushed& event : pushed) {
    expected.push_back(event.payload);
  }
  EXPECT_EQ(pop_all(queue), expected);
}

TEST(EventQueue, AgreesWithASortedSetWhilePushesAndPopsInterleave) {
  // Time, priority, sequence.
  std::set<std::tuple<std::int64_t, std::int64_t, std::uint64_t>> model;
  RandomStream stream(2, "events");
  EventQueue queue;
  std::int64_t now = 0;
  std::uint64_t pushes = 0;
  while (pushes < 10'000 || !model.empty()) {
    // Grows to some thousand pending events, then drains.
    const bool push = pushes < 10'000 && (model.empty() || stream.index(5) < 3);
    if (push) {
      const std::int64_t time = now + stream.index(200);
      const std::int64_t priority = stream.index(3);
      queue.push(SimTime(time), static_cast<std::uint8_t>(priority), pushes);
      model.emplace(time, priority, pushes);
      ++pushes;
    } else {
      const auto [time, priority, payload] = *model.begin();
      model.erase(model.begin());
      const TimedEvent event = queue.pop();
      ASSERT_EQ(event.payload, payload);
      ASSERT_EQ(event.time, SimTime(time));
      now = time;
    }
    ASSERT_EQ(queue.size(), model.size());
  }
}

}  // namespace
}  // namespace kvtier
