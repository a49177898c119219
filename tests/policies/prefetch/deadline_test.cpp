#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/policies/test_queue.hpp"

namespace kvtier {
namespace {

using test::TestPrefetch;
using test::TestQueue;

constexpr SimTime at_ms(std::int64_t ms) { return SimTime(ms * 1'000'000); }
constexpr SimDuration ms(std::int64_t n) { return SimDuration(n * 1'000'000); }

class Running final : public RunningView {
 public:
  [[nodiscard]] std::optional<SimDuration> tpot() const override { return time_per_token; }
  void for_each_running(const std::function<void(SimTime, Tokens)>& visit) const override {
    for (const auto& [first_token, predicted] : requests) {
      visit(first_token, predicted);
    }
  }
  std::optional<SimDuration> time_per_token;
  std::vector<std::pair<SimTime, Tokens>> requests;
};

class DeadlinePrefetch : public testing::Test {
 protected:
  DeadlinePrefetch() {
    prefetch.running = &running;
    prefetch.slow = {EntryId{7}};
    prefetch.durations[EntryId{7}] = ms(40);
    queue.push(EntryId{7});
  }
  TestQueue queue;
  TestPrefetch prefetch{"deadline"};
  Running running;
};

/// Two requests run at 20 ms a token. The first began at 100 ms and is predicted to have 50 tokens:
/// its end is at 100 + 50 x 20 = 1,100 ms. The second began at 500 ms with 20: at 900 ms. A fetch
/// of 40 ms has to begin at 860 ms.
TEST_F(DeadlinePrefetch, BeginsWhenItWouldEndWithTheFirstRunningRequest) {
  running.time_per_token = ms(20);
  running.requests = {{at_ms(100), Tokens(50)}, {at_ms(500), Tokens(20)}};
  const std::optional<Fetch> fetch = prefetch.ask(queue);
  ASSERT_TRUE(fetch);
  EXPECT_EQ(fetch->entry, EntryId{7});
  EXPECT_EQ(fetch->at, at_ms(860));
  // Faster decoding, an earlier end: 500 + 20 x 10 - 40 = 660, and 100 + 50 x 10 - 40 = 560.
  running.time_per_token = ms(10);
  EXPECT_EQ(prefetch.ask(queue)->at, at_ms(560));
  // A larger entry has to begin earlier.
  prefetch.durations[EntryId{7}] = ms(90);
  EXPECT_EQ(prefetch.ask(queue)->at, at_ms(510));
}

TEST_F(DeadlinePrefetch, WaitsUntilSomethingRunsThatHasATpot) {
  EXPECT_FALSE(prefetch.ask(queue));
  running.requests = {{at_ms(100), Tokens(50)}};
  EXPECT_FALSE(prefetch.ask(queue));
  running.time_per_token = ms(20);
  running.requests.clear();
  EXPECT_FALSE(prefetch.ask(queue));
}

TEST_F(DeadlinePrefetch, LooksAtTheFirstOfTheWindowThatHasToBeFetched) {
  running.time_per_token = ms(1);
  running.requests = {{at_ms(0), Tokens(100)}};
  prefetch.durations[EntryId{8}] = ms(10);
  prefetch.slow = {EntryId{8}};
  queue.push(EntryId{8});
  EXPECT_EQ(prefetch.ask(queue)->entry, EntryId{8});
  queue.window = QueuePosition{1};  // entry 8 waits beyond it
  EXPECT_FALSE(prefetch.ask(queue));
}

}  // namespace
}  // namespace kvtier
