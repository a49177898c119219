#include "sim/core/window.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

std::vector<std::pair<std::uint64_t, int>> all_of(Window<int>& window) {
  std::vector<std::pair<std::uint64_t, int>> all;
  window.for_each([&](std::uint64_t number, int value) { all.emplace_back(number, value); });
  return all;
}

TEST(Window, FindsValuesByTheirNumbers) {
  Window<int> window;
  window.add(7) = 70;
  window.add(9) = 90;
  EXPECT_EQ(window.at(7), 70);
  EXPECT_EQ(*window.find(9), 90);
  EXPECT_EQ(window.find(8), nullptr);
  EXPECT_EQ(window.find(10), nullptr);
  window.remove(7);
  EXPECT_EQ(window.find(7), nullptr);
  EXPECT_EQ(window.at(9), 90);
}

TEST(Window, AgreesWithAMapAfterRandomCalls) {
  Window<int> window;
  std::map<std::uint64_t, int> map;
  std::uint64_t number = 0;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::uint64_t bits = random_bits_at(1, i);
    // It grows in the first half, and becomes empty in the second one.
    if (bits % 8 < (i < 10000 ? 5U : 3U)) {
      number += 1 + bits / 8 % 3;
      window.add(number) = map[number] = static_cast<int>(i);
    } else if (!map.empty()) {
      const auto removed =
          std::next(map.begin(), static_cast<std::ptrdiff_t>(bits / 8 % map.size()));
      window.remove(removed->first);
      map.erase(removed);
    }
    ASSERT_EQ(window.empty(), map.empty());
    if (i % 100 == 0) {
      ASSERT_EQ(all_of(window),
                (std::vector<std::pair<std::uint64_t, int>>(map.begin(), map.end())));
    }
  }
}

TEST(Window, RejectsNumbersThatDoNotGrow) {
  Window<int> window;
  window.add(3);
  EXPECT_THROW(window.add(3), InvariantError);
  EXPECT_THROW(static_cast<void>(window.at(2)), InvariantError);
}

}  // namespace
}  // namespace kvtier
