#include "sim/study/runs/run_threads.hpp"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(RunOnThreads, DoesEverythingOnce) {
  for (const std::int64_t jobs : {1, 3, 64}) {
    std::vector<std::atomic<int>> calls(20);
    std::int64_t last = -1;
    run_on_threads(
        calls.size(), jobs, [&](std::size_t i, const std::stop_token&) { ++calls[i]; },
        [&](std::int64_t done) {
          EXPECT_GE(done, last);
          last = done;
        });
    for (const auto& count : calls) {
      EXPECT_EQ(count, 1);
    }
    EXPECT_LE(last, 20);
  }
}

TEST(RunOnThreads, DoesNothingWithoutWork) {
  run_on_threads(
      0, 4, [](std::size_t, const std::stop_token&) { FAIL(); }, [](std::int64_t) { FAIL(); });
}

/// Waits until it is told to stop.
void wait_for(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::this_thread::yield();
  }
}

TEST(RunOnThreads, ThrowsTheFirstExceptionAndStopsTheOthers) {
  // Both fail, the later one first.
  std::atomic<bool> later_failed = false;
  try {
    run_on_threads(3, 3,
                   [&](std::size_t i, const std::stop_token& stop) {
                     if (i == 2) {
                       later_failed = true;
                       throw std::runtime_error("2");
                     }
                     wait_for(stop);
                     if (i == 0) {
                       throw std::runtime_error("0");
                     }
                     throw Stopped{};
                   },
                   {});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(later_failed);
    EXPECT_EQ(error.what(), std::string("0"));
  }
}

TEST(RunOnThreads, EndsWhenProgressThrows) {
  EXPECT_THROW(run_on_threads(
                   4, 2,
                   [](std::size_t, const std::stop_token& stop) {
                     wait_for(stop);
                     throw Stopped{};
                   },
                   [](std::int64_t) { throw std::runtime_error("ended"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace kvtier
