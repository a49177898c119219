#include "sim/core/ring.hpp"

#include <deque>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

TEST(Ring, GivesBackInTheOrderOfPushing) {
  Ring<int> ring;
  EXPECT_TRUE(ring.empty());
  for (int i = 0; i < 40; ++i) {  // grows twice from 16 places
    ring.push_back(i);
  }
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(ring.front(), i);
    ring.pop_front();
  }
  EXPECT_TRUE(ring.empty());
}

TEST(Ring, ErasesFromTheMiddle) {
  Ring<int> ring;
  for (int i = 0; i < 4; ++i) {
    ring.push_back(i);
  }
  EXPECT_TRUE(ring.erase(2));
  EXPECT_FALSE(ring.erase(2));
  EXPECT_EQ(ring.size(), 3U);
  for (const int expected : {0, 1, 3}) {
    EXPECT_EQ(ring.front(), expected);
    ring.pop_front();
  }
}

TEST(Ring, RefusesToPopNothing) {
  Ring<int> ring;
  EXPECT_THROW(ring.pop_front(), InvariantError);
}

TEST(Ring, AgreesWithADequeOnRandomOperations) {
  Ring<std::int64_t> ring;
  std::deque<std::int64_t> model;
  RandomStream random(1, "ring");
  for (std::int64_t i = 0; i < 20000; ++i) {
    const std::int64_t choice = random.index(5);
    if (choice < 2) {
      ring.push_back(i);
      model.push_back(i);
    } else if (choice < 4 && !model.empty()) {
      ring.pop_front();
      model.pop_front();
    } else if (!model.empty()) {
      const auto at = model.begin() + random.index(static_cast<std::int64_t>(model.size()));
      EXPECT_TRUE(ring.erase(*at));
      model.erase(at);
    }
    ASSERT_EQ(ring.size(), model.size());
    if (!model.empty()) {
      ASSERT_EQ(ring.front(), model.front());
    }
  }
}

}  // namespace
}  // namespace kvtier
