#include "traces/sharegpt_generator.hpp"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/statistics.hpp"

namespace kvtier {
namespace {

using testing::text_of;

WorkloadStatistics statistics_of(const ShareGptParameters& parameters, std::uint64_t seed,
                                 int sessions) {
  ShareGptGenerator generator(parameters, seed);
  WorkloadStatistics statistics;
  SessionSpec session;
  for (int i = 0; i < sessions; ++i) {
    EXPECT_TRUE(generator.next(session));
    statistics.add(session);
  }
  return statistics;
}

TEST(ShareGptGenerator, AgreesWithThePublishedStatistics) {
  // AttentionStore, section 2.3: 73 % multi-turn, 5.75 turns, 47 % over 2K, 30 % over 4K. A sample
  // of 20,000 sessions scatters by at most 0.35 points (one standard deviation) in a share and 0.04
  // in the turns; the recipe itself lies 0.07 turns and 3 points of the longest sessions below the
  // paper.
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    const WorkloadStatistics statistics = statistics_of({}, seed, 20000);
    EXPECT_NEAR(statistics.multi_turn_share(), 0.73, 0.015) << seed;
    EXPECT_NEAR(statistics.turns_per_session().mean(), 5.75, 0.25) << seed;
    EXPECT_NEAR(statistics.over_2k_share(), 0.47, 0.02) << seed;
    EXPECT_NEAR(statistics.over_4k_share(), 0.30, 0.045) << seed;
  }
}

TEST(ShareGptGenerator, AgreesWithTheExpectationOfItsRecipe) {
  const WorkloadStatistics statistics = statistics_of({}, 1, 200000);
  EXPECT_NEAR(statistics.turns_per_session().mean(), 5.68, 0.05);
  EXPECT_NEAR(statistics.over_2k_share(), 0.47, 0.01);
  EXPECT_NEAR(statistics.over_4k_share(), 0.27, 0.01);
  EXPECT_NEAR(static_cast<double>(statistics.user_tokens().quantile(0.5)), 60, 2);
  EXPECT_NEAR(static_cast<double>(statistics.assistant_tokens().quantile(0.5)), 330, 7);
  EXPECT_EQ(statistics.user_tokens().minimum(), 1);
  EXPECT_EQ(statistics.user_tokens().maximum(), 2000);
  EXPECT_EQ(statistics.assistant_tokens().maximum(), 2000);
  EXPECT_EQ(statistics.turns_per_session().maximum(), 40);
}

TEST(ShareGptGenerator, IsExactWithoutSpread) {
  const ShareGptParameters parameters{.single_turn_fraction = 0,
                                      .turns_median = 3.4,
                                      .turns_sigma = 0,
                                      .session_scale_sigma = 0,
                                      .user_tokens_median = 10.6,
                                      .user_tokens_sigma = 0,
                                      .assistant_tokens_median = 5000,
                                      .assistant_tokens_sigma = 0};
  ShareGptGenerator generator(parameters, 1);
  SessionSpec session;
  ASSERT_TRUE(generator.next(session));
  EXPECT_EQ(text_of({session}), "0@0: 11/2000 11/2000 11/2000\n");
}

TEST(ShareGptGenerator, ClipsTurns) {
  ShareGptParameters parameters{.single_turn_fraction = 0, .turns_min = 5, .turns_max = 7};
  const WorkloadStatistics statistics = statistics_of(parameters, 1, 1000);
  EXPECT_EQ(statistics.turns_per_session().minimum(), 5);
  EXPECT_EQ(statistics.turns_per_session().maximum(), 7);
}

TEST(ShareGptGenerator, SurvivesTheWidestSpreadThatIsAllowed) {
  const ShareGptParameters parameters{.turns_sigma = 10,
                                      .session_scale_sigma = 10,
                                      .user_tokens_sigma = 10,
                                      .assistant_tokens_sigma = 10};
  const WorkloadStatistics statistics = statistics_of(parameters, 1, 1000);
  EXPECT_GE(statistics.user_tokens().minimum(), 1);
  EXPECT_LE(statistics.user_tokens().maximum(), 2000);
}

TEST(ShareGptGenerator, TurnsDoNotDependOnTheLengthParameters) {
  ShareGptGenerator one({}, 9);
  ShareGptGenerator other(
      {.session_scale_sigma = 0.1, .user_tokens_median = 7, .assistant_tokens_sigma = 0}, 9);
  SessionSpec a;
  SessionSpec b;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(one.next(a));
    ASSERT_TRUE(other.next(b));
    EXPECT_EQ(a.turns.size(), b.turns.size());
  }
}

TEST(ShareGptGenerator, DifferentSeedsGiveDifferentSessions) {
  ShareGptGenerator one({}, 1);
  ShareGptGenerator other({}, 2);
  SessionSpec a;
  SessionSpec b;
  ASSERT_TRUE(one.next(a));
  ASSERT_TRUE(other.next(b));
  EXPECT_NE(text_of({a}), text_of({b}));
}

}  // namespace
}  // namespace kvtier
