#include "sim/store/curves/stack_distances.hpp"

#include <list>
#include <utility>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

TEST(StackDistances, AreTheBytesUsedSinceIncludingTheEntrys) {
  StackDistances stack;
  EXPECT_EQ(stack.distance(0), 0);
  stack.use(0, 10);
  stack.use(1, 5);
  stack.use(2, 1);
  EXPECT_EQ(stack.distance(2), 1);
  EXPECT_EQ(stack.distance(1), 6);
  EXPECT_EQ(stack.distance(0), 16);
  stack.use(1, 7);  // grown, and the latest
  EXPECT_EQ(stack.distance(1), 7);
  EXPECT_EQ(stack.size(1), 7);
  EXPECT_EQ(stack.size(9), 0);
  EXPECT_EQ(stack.distance(2), 8);
  EXPECT_EQ(stack.distance(0), 18);
  stack.forget(2);  // its entry stays
  EXPECT_EQ(stack.distance(2), 0);
  EXPECT_EQ(stack.distance(0), 18);
  stack.drop(1);
  EXPECT_EQ(stack.distance(0), 11);
}

/// The oracle is a list, the latest in front.
TEST(StackDistances, AreThoseOfAList) {
  constexpr std::int64_t kUsers = 50;
  constexpr std::uint32_t kGone = UINT32_MAX;
  StackDistances stack;
  std::list<std::pair<std::uint32_t, std::int64_t>> list;
  RandomStream stream(1, "stack distances");
  for (int step = 0; step < 20'000; ++step) {
    const auto user = static_cast<std::uint32_t>(stream.index(kUsers));
    std::int64_t sum = 0;
    auto found = list.begin();
    for (; found != list.end() && found->first != user; ++found) {
      sum += found->second;
    }
    const bool here = found != list.end();
    ASSERT_EQ(stack.distance(user), here ? sum + found->second : 0) << "step " << step;
    const std::int64_t what = stream.index(20);
    if (what == 0) {
      stack.forget(user);
      if (here) {
        found->first = kGone;
      }
    } else {
      if (here) {
        list.erase(found);
      }
      if (what == 1) {
        stack.drop(user);
      } else {
        const std::int64_t bytes = 1 + stream.index(1'000);
        stack.use(user, bytes);
        list.emplace_front(user, bytes);
      }
    }
  }
}

TEST(StackDistances, KeepOnlyEntriesThatMayComeBack) {
  StackDistances stack;
  for (std::uint32_t user = 0; user < 100'000; ++user) {
    stack.use(user % 100, 1);
    stack.forget(user % 100);
  }
  EXPECT_LE(stack.places(), 1024U);
}

}  // namespace
}  // namespace kvtier
