#include <cstdint>

#include <gtest/gtest.h>

#include "tests/sim/serving/support.hpp"

// A prefill takes 1 ms for each token without KV, a decode iteration 10 ms; a stored token moves in
// 1 ms.
namespace kvtier::test {
namespace {

struct Outcome {
  RequestRecord request;
  PrefetchCounters prefetches;
};

/// One slot, DRAM for 40 tokens. B's first turn ends with 30 tokens, which C's 30 drive to the SSD.
/// At 1,000 ms C's second turn takes its KV from DRAM, 30 ms and 2 for the last layer of 10 tokens,
/// and puts out 50 tokens, at 1,032 to 1,522 ms. B's second turn arrives at 1,200 ms, when C's
/// response has just one token on the books: the time per token is that of the decode before, 10
/// ms. Fetching B's 30 tokens takes 30 ms.
Outcome wait_for_c(const LengthPredictionConfig& prediction) {
  RunConfig config = tiny_config();
  config.hardware.dram->capacity = kv(40);
  config.system.tiers.dram = tier();
  config.system.tiers.ssd = tier("lru", true);
  config.system.prefetch.name = "deadline";
  config.system.length_prediction = prediction;
  ScriptedRun run(config, kMillisecond, for_ms(10),
                  {session(0, {turn(20, 10), turn(5, 2, 1200 - 110)}),
                   session(500, {turn(20, 10), turn(10, 50, 1000 - 610)})});
  run.run();
  EXPECT_EQ(run.request(1, 1).first_token, at_ms(1032));
  EXPECT_EQ(run.request(1, 1).finished, at_ms(1522));
  EXPECT_EQ(run.request(0, 1).admitted, at_ms(1522));
  return {run.request(0, 1), run.instance.prefetches()};
}

/// The end is predicted for 1,032 + 50 x 10 = 1,532 ms (the formula counts the first token, too):
/// the fetch begins at 1,502 and ends 10 ms after the slot is free.
TEST(DeadlinePrefetchRun, EndsWithTheRequestThatIsExpectedToEnd) {
  const Outcome outcome = wait_for_c({.kind = LengthPrediction::exact});
  EXPECT_TRUE(outcome.request.found.late);
  EXPECT_EQ(outcome.request.late_wait, for_ms(10));
  EXPECT_EQ(outcome.prefetches.late, 1);
}

/// 47 tokens: fetched from 1,472 to 1,502 ms, idle for 20 ms, less than it took.
TEST(DeadlinePrefetchRun, IsOnTimeWhenThePredictionIsALittleShort) {
  const Outcome outcome = wait_for_c({.kind = LengthPrediction::constant, .tokens = Tokens(47)});
  EXPECT_EQ(outcome.request.found.medium, Medium::dram);
  EXPECT_FALSE(outcome.request.found.late);
  EXPECT_EQ(outcome.prefetches.on_time, 1);
  EXPECT_EQ(outcome.prefetches.idle_byte_ns, static_cast<Int128>(30'000) * 20'000'000);
}

/// 40 tokens: fetched from 1,402 to 1,432 ms, idle for 90 ms.
TEST(DeadlinePrefetchRun, IsEarlyWhenThePredictionIsTooShort) {
  const Outcome outcome = wait_for_c({.kind = LengthPrediction::constant, .tokens = Tokens(40)});
  EXPECT_EQ(outcome.prefetches.early, 1);
  EXPECT_EQ(outcome.prefetches.idle_byte_ns, static_cast<Int128>(30'000) * 90'000'000);
}

/// 200 tokens: the slot is free long before, and B loads its KV from the SSD itself.
TEST(DeadlinePrefetchRun, DoesNotBeginWhenThePredictionIsTooLong) {
  const Outcome outcome = wait_for_c({.kind = LengthPrediction::constant, .tokens = Tokens(200)});
  EXPECT_EQ(outcome.request.found.medium, Medium::ssd);
  EXPECT_EQ(outcome.prefetches.begun, 0);
}

}  // namespace
}  // namespace kvtier::test
