#include "hw/device/task_threads.hpp"

#include <atomic>
#include <future>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(TaskThreads, OneThreadRunsTasksInOrder) {
  TaskThreads threads;
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) {
    threads.add([&ran, i] { ran.push_back(i); });
  }
  threads.wake();
  threads.drain();
  ASSERT_EQ(ran.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
  }
}

// Each of three tasks waits for the other two.
TEST(TaskThreads, SeveralThreadsRunTasksAtTheSameTime) {
  TaskThreads threads(3);
  std::atomic<int> begun = 0;
  std::promise<void> all;
  const std::shared_future<void> all_begun = all.get_future().share();
  for (int i = 0; i < 3; ++i) {
    threads.add([&, all_begun] {
      if (++begun == 3) {
        all.set_value();
      }
      all_begun.wait();
    });
  }
  threads.wake();
  threads.drain();
  EXPECT_EQ(begun, 3);
}

TEST(TaskThreads, DrainRethrowsTheFirstExceptionOnce) {
  TaskThreads threads;
  bool ran_later = false;
  threads.add([] { throw std::runtime_error("first"); });
  threads.add([] { throw std::logic_error("second"); });
  threads.add([&] { ran_later = true; });
  threads.wake();
  EXPECT_THROW(threads.drain(), std::runtime_error);
  EXPECT_TRUE(ran_later);
  EXPECT_NO_THROW(threads.drain());
}

TEST(TaskThreads, RunsWaitingTasksBeforeItEnds) {
  int ran = 0;
  {
    TaskThreads threads;
    threads.add([&] { ++ran; });
    threads.add([&] { ++ran; });
  }
  EXPECT_EQ(ran, 2);
}

TEST(TaskThreads, DropsTasksOnceAbandoned) {
  bool ran = false;
  // The task may use them until `threads` has ended.
  std::promise<void> begun;
  std::promise<void> go;
  {
    TaskThreads threads;
    threads.add([&] {
      begun.set_value();
      go.get_future().wait();
    });
    threads.wake();
    begun.get_future().wait();
    threads.add([&] { ran = true; });
    threads.abandon();
    threads.add([&] { ran = true; });
    go.set_value();
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace kvtier
