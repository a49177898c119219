#include <stdexcept>

#include <gtest/gtest.h>

#include "calibrate/worker.hpp"

namespace kvtier::calibrate {
namespace {

// Work of a known time: 5 ms.
TEST(Worker, ReportsItsBeginAndEnd) {
  constexpr std::chrono::milliseconds kWork(5);
  int times = 0;
  Worker worker({}, [&] {
    return [&] {
      std::this_thread::sleep_for(kWork);
      ++times;
    };
  });
  for (int i = 1; i <= 3; ++i) {
    const Worker::Times order = worker.order();
    EXPECT_EQ(times, i);
    EXPECT_GT(order.to_begin, 0);
    EXPECT_GE(order.to_end, order.to_begin + std::chrono::duration<double>(kWork).count());
  }
}

TEST(Worker, ThrowsTheErrorOfItsTask) {
  Worker fails({}, [] { return [] { throw std::runtime_error("the copy"); }; });
  EXPECT_THROW(fails.order(), std::runtime_error);
  Worker never_begins({}, []() -> std::function<void()> { throw std::logic_error("the stream"); });
  EXPECT_THROW(never_begins.order(), std::logic_error);
}

}  // namespace
}  // namespace kvtier::calibrate
