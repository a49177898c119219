/// The example of AttentionStore (arXiv 2403.19708), figure 9, with the policies of that system:
/// host memory holds the entries of jobs 2 and 4, the full disk those of 3, 9 and others. The entry
/// of job 3 is fetched, which demotes the entry of job 4 to disk, which evicts the entry of job 9.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_queue.hpp"
#include "tests/policies/test_tier.hpp"

namespace kvtier {
namespace {

using test::TestPrefetch;
using test::TestQueue;
using test::TestTier;

constexpr EntryId job(std::uint32_t number) { return EntryId{number}; }

/// Job 1 runs; 2 to 9 wait, each at the position of its number. The window of six is 2 to 7.
class Figure9 : public testing::TestWithParam<PolicyParameters> {
 protected:
  Figure9()
      : queue_(2), host_("scheduler_aware", GetParam()), disk_("scheduler_aware", GetParam()) {
    for (std::uint32_t number = 2; number <= 9; ++number) {
      queue_.push(job(number));
    }
    for (const std::uint32_t number : {2U, 4U}) {
      host_.insert(job(number), number, QueuePosition{number});
    }
    // The order of use makes LRU evict 3 first and 9 last.
    for (const std::uint32_t number : {3U, 5U, 6U, 7U, 9U}) {
      disk_.insert(job(number), number, QueuePosition{number});
      prefetch_.slow.insert(job(number));
    }
    host_.set_queue_first(queue_.first());
    disk_.set_queue_first(queue_.first());
    // Host memory has room for two entries of 1 GB each.
    prefetch_.memory = Bytes(2'000'000'000);
    prefetch_.mean_entry = Bytes(1'000'000'000);
  }

  TestQueue queue_;
  TestTier host_;
  TestTier disk_;
  TestPrefetch prefetch_{"look_ahead"};
};

INSTANTIATE_TEST_SUITE_P(Window, Figure9,
                         testing::Values(PolicyParameters{{"window", 6}}, PolicyParameters{}),
                         [](const auto& instance) {
                           return std::string(instance.param.empty() ? "whole_queue" : "six_jobs");
                         });

TEST_P(Figure9, Job3IsFetchedJob4GoesToDiskAndJob9LeavesTheSystem) {
  // The first two of the queue are looked at: 2 is in memory, 3 is on disk.
  const EntryId wanted = prefetch_.next(queue_);
  ASSERT_EQ(wanted, job(3));
  // Memory is full with 2 and 4: 4 is the last in the queue and runs after 3.
  const EntryId demoted = host_.evict(Demand::prefetch, QueuePosition{3});
  ASSERT_EQ(demoted, job(4));
  // The disk is full too: 9 is beyond the window, and the last in the queue.
  disk_.begin_move(wanted);  // it is being read
  const EntryId lost = disk_.evict(Demand::demotion, QueuePosition{4});
  ASSERT_EQ(lost, job(9));

  prefetch_.slow.erase(wanted);
  prefetch_.slow.erase(lost);
  disk_.insert(demoted, 4, QueuePosition{4});
  prefetch_.demote(demoted, QueuePosition{4});
  disk_.end_move(wanted);
  host_.insert(wanted, 3, QueuePosition{3});
  host_.check();
  disk_.check();
  // 2 and 3 are in memory, and 4 is beyond the two that fit, so nothing more is fetched.
  EXPECT_EQ(prefetch_.next(queue_), kNoEntry);
}

TEST_P(Figure9, Job5WouldNotDisplaceAJobThatRunsBeforeIt) {
  EXPECT_EQ(host_.evict(Demand::prefetch, QueuePosition{5}), kNoEntry);
}

TEST_P(Figure9, Job4IsFetchedBackOnceItIsAmongTheFirstTwo) {
  // 2 is admitted: 3 and 4 are the first two.
  host_.remove(job(4));
  prefetch_.demote(job(4), QueuePosition{4});
  EXPECT_EQ(prefetch_.fetch(queue_), job(3));
  EXPECT_EQ(prefetch_.fetch(queue_), kNoEntry);
  queue_.leave(QueuePosition{2});
  EXPECT_EQ(prefetch_.fetch(queue_), job(4));
}

}  // namespace
}  // namespace kvtier
