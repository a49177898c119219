#include "traces/long_context_generator.hpp"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/statistics.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using testing::take;
using testing::text_of;

TEST(LongContextGenerator, BringsTheContextWithTheFirstQuestion) {
  LongContextGenerator generator({.context_tokens_min = Tokens(1000),
                                  .context_tokens_max = Tokens(1000),
                                  .questions = 3,
                                  .question_tokens = Tokens(20),
                                  .answer_tokens = Tokens(7)},
                                 1);
  EXPECT_EQ(text_of(take(generator, 2)), "0@0: 1020/7 20/7 20/7\n1@0: 1020/7 20/7 20/7\n");
}

TEST(LongContextGenerator, LengthsAreLogUniformInTheRangeOfLongAlign) {
  LongContextGenerator generator({.questions = 1}, 1);
  constexpr int kSessions = 20000;
  double sum = 0;
  int short_ones = 0;
  std::int64_t least = INT64_MAX;
  std::int64_t most = 0;
  for (const SessionSpec& session : take(generator, kSessions)) {
    const std::int64_t context = session.turns[0].user.value - 64;
    sum += static_cast<double>(context);
    short_ones += context < 16384 ? 1 : 0;
    least = std::min(least, context);
    most = std::max(most, context);
  }
  // 8K to 64K are three doublings: a third lies in each, and the mean is (64K - 8K) / ln 8 =
  // 27,577. A standard deviation of 15,900 gives the mean an error of 112, and the share one of
  // 0.0033.
  EXPECT_NEAR(sum / kSessions, 27577, 450);
  EXPECT_NEAR(static_cast<double>(short_ones) / kSessions, 1.0 / 3, 0.0134);
  EXPECT_GE(least, 8192);
  EXPECT_LT(least, 8200);
  EXPECT_LE(most, 65536);
  EXPECT_GT(most, 65450);
}

TEST(LongContextGenerator, GivesTheSameSessionsHoweverManyAreDrawn) {
  LongContextGenerator some({}, 7);
  LongContextGenerator more({}, 7);
  LongContextGenerator other({}, 8);
  const std::string text = text_of(take(some, 5));
  auto sessions = take(more, 9);
  sessions.resize(5);
  EXPECT_EQ(text_of(sessions), text);
  EXPECT_NE(text_of(take(other, 5)), text);
}

TEST(LongContextGenerator, IsAWorkloadThatIsSynthetic) {
  WorkloadConfig config;
  config.generator = Generator::long_contexts;
  config.sessions = 3;
  config.arrival_rate = PerSecond(1);
  EXPECT_TRUE(is_synthetic(config));
  const auto source = make_source(config, 1, "");
  const auto sessions = testing::read_all(*source);
  ASSERT_EQ(sessions.size(), 3U);
  EXPECT_EQ(sessions[2].turns.size(), 4U);
  EXPECT_GT(sessions[0].arrival, SimTime());
  config.generator = Generator::long_documents;
  EXPECT_FALSE(is_synthetic(config));
  config.generator = Generator::sharegpt;
  EXPECT_FALSE(is_synthetic(config));
}

TEST(LongContextGenerator, RefusesAnEmptyRangeOfLengths) {
  WorkloadConfig config;
  config.generator = Generator::long_contexts;
  config.sessions = 3;
  config.arrival_rate = PerSecond(1);
  config.long_contexts.context_tokens_min = Tokens(9);
  config.long_contexts.context_tokens_max = Tokens(8);
  Problems problems;
  check(config, "/workload", problems);
  ASSERT_EQ(problems.lines().size(), 1U);
  EXPECT_EQ(problems.lines()[0],
            "/workload/long_contexts/context_tokens_min: 9 is more than context_tokens_max, which "
            "is 8");
}

}  // namespace
}  // namespace kvtier
