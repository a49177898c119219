#include "policies/prefetch/none.hpp"

#include <gtest/gtest.h>

#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

TEST(NoPrefetch, FetchesNothingThoughTheHeadOfTheQueueNeedsIt) {
  test::TestQueue queue;
  test::TestPrefetch prefetch("none");
  queue.push(EntryId{0});
  prefetch.slow = {EntryId{0}};
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
  prefetch.demote(EntryId{0}, QueuePosition{0});
  EXPECT_EQ(prefetch.next(queue), kNoEntry);
  EXPECT_EQ(queue.looks(), 0);
}

}  // namespace
}  // namespace kvtier
