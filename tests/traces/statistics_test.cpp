#include "traces/statistics.hpp"

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"

namespace kvtier {
namespace {

using testing::turn;

TEST(WorkloadStatistics, TheSessionsOfAGroupCountAsOne) {
  WorkloadStatistics statistics;
  statistics.add({.id = 0, .group = 7, .turns = {turn(10, 90), turn(20, 80)}});
  statistics.add({.id = 1, .group = 8, .turns = {turn(2048, 2049)}});
  statistics.add({.id = 2, .group = 7, .turns = {turn(1500, 1000)}});
  EXPECT_EQ(statistics.sessions(), 2);
  EXPECT_EQ(statistics.turns(), 4);
  EXPECT_EQ(statistics.turns_per_session().maximum(), 3);
  EXPECT_DOUBLE_EQ(statistics.multi_turn_share(), 0.5);
  // The longest parts have 2500 and 4097 tokens.
  EXPECT_EQ(statistics.session_tokens().minimum(), 2500);
  EXPECT_DOUBLE_EQ(statistics.over_2k_share(), 1);
  EXPECT_DOUBLE_EQ(statistics.over_4k_share(), 0.5);
  WorkloadStatistics more;
  more.add({.id = 3, .group = 7, .turns = {turn(1, 1)}});
  statistics.merge(more);
  EXPECT_EQ(statistics.sessions(), 2);
  EXPECT_EQ(statistics.turns_per_session().maximum(), 4);
}

TEST(WorkloadStatistics, AddsUpAHandMadeWorkload) {
  WorkloadStatistics statistics;
  statistics.add({.id = 0,
                  .arrival = SimTime(0),
                  .turns = {turn(10, 90), turn(20, 80, 2000000000), turn(5, 5)}});
  statistics.add({.id = 1, .arrival = SimTime(1500000000), .turns = {turn(2048, 2049)}});
  statistics.add({.id = 2, .arrival = SimTime(500000000), .turns = {turn(48, 2000)}});
  EXPECT_EQ(statistics.sessions(), 3);
  EXPECT_EQ(statistics.turns(), 5);
  EXPECT_DOUBLE_EQ(statistics.multi_turn_share(), 1.0 / 3);
  // Sessions have 210, 4097 and 2048 tokens: exactly 2048 is not over 2048.
  EXPECT_DOUBLE_EQ(statistics.over_2k_share(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(statistics.over_4k_share(), 1.0 / 3);
  // Histories 0 + 100 + 200 + 0 + 0; prompts 10 + 120 + 205 + 2048 + 48.
  EXPECT_DOUBLE_EQ(statistics.repeated_prompt_share(), 300.0 / 2431);

  const Json json = to_json(statistics);
  EXPECT_EQ(json["sessions"], 3);
  EXPECT_EQ(json["turns"], 5);
  EXPECT_EQ(json["user_tokens_total"], 2131);
  EXPECT_EQ(json["assistant_tokens_total"], 4224);
  EXPECT_DOUBLE_EQ(json["turns_per_session"]["mean"].get<double>(), 5.0 / 3);
  EXPECT_EQ(json["user_tokens"]["p50"], 20);
  EXPECT_EQ(json["user_tokens"]["max"], 2048);
  EXPECT_DOUBLE_EQ(json["think_time_seconds"]["mean"].get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(json["think_time_seconds"]["max"].get<double>(), 2.0);
  EXPECT_DOUBLE_EQ(json["last_arrival_seconds"].get<double>(), 1.5);
}

TEST(WorkloadStatistics, CountsSharedPromptsInEveryPrompt) {
  WorkloadStatistics statistics;
  statistics.add({.id = 0,
                  .arrival = SimTime(0),
                  .shared_prompt = {.id = 7, .tokens = Tokens(100)},
                  .turns = {turn(10, 90), turn(20, 80)}});
  statistics.add({.id = 1,
                  .arrival = SimTime(0),
                  .shared_prompt = {.id = 7, .tokens = Tokens(100)},
                  .turns = {turn(5, 5)}});
  statistics.add({.id = 2,
                  .arrival = SimTime(0),
                  .shared_prompt = {.id = 9, .tokens = Tokens(2048)},
                  .turns = {turn(1, 1)}});
  statistics.add({.id = 3, .arrival = SimTime(0), .turns = {turn(30, 1)}});
  EXPECT_EQ(statistics.distinct_shared_prompts(), 2);
  EXPECT_EQ(statistics.sessions_with_shared_prompt(), 3);
  // Prompts of 110 and 220, 105, 2,049 and 30 tokens.
  EXPECT_DOUBLE_EQ(statistics.shared_prompt_share(), (2 * 100 + 100 + 2048) / 2514.0);
  // Only the second turn's history was in an earlier turn's prompt or response.
  EXPECT_DOUBLE_EQ(statistics.repeated_prompt_share(), 200 / 2514.0);
  EXPECT_EQ(statistics.session_tokens().maximum(), 2050);
  EXPECT_DOUBLE_EQ(statistics.over_2k_share(), 1.0 / 4);
  const Json json = to_json(statistics);
  EXPECT_EQ(json["user_tokens_total"], 10 + 20 + 5 + 1 + 30);
  EXPECT_EQ(json["shared_prompts"]["distinct"], 2);
  EXPECT_EQ(json["shared_prompts"]["sessions"], 3);
  EXPECT_DOUBLE_EQ(json["shared_prompts"]["prompt_tokens_fraction"], 2348 / 2514.0);
}

TEST(WorkloadStatistics, SayNothingOfSharedPromptsWhereThereAreNone) {
  WorkloadStatistics statistics;
  statistics.add({.id = 0, .arrival = SimTime(0), .turns = {turn(10, 90)}});
  EXPECT_FALSE(to_json(statistics).contains("shared_prompts"));
}

TEST(WorkloadStatistics, HasNoDistributionsWithoutValues) {
  const Json json = to_json(WorkloadStatistics());
  EXPECT_EQ(json["sessions"], 0);
  EXPECT_EQ(json["multi_turn_sessions_fraction"], 0.0);
  EXPECT_EQ(json["repeated_prompt_tokens_fraction"], 0.0);
  EXPECT_TRUE(json["user_tokens"].is_null());
  EXPECT_TRUE(json["think_time_seconds"].is_null());
}

TEST(WorkloadStatistics, DoesNotOverflowOnExtremeTraces) {
  WorkloadStatistics statistics;
  SessionSpec session;
  session.turns.assign(100000, turn(INT32_MAX, INT32_MAX));
  statistics.add(session);
  EXPECT_GT(statistics.repeated_prompt_share(), 0.999);
  EXPECT_LT(statistics.repeated_prompt_share(), 1.0);
}

}  // namespace
}  // namespace kvtier
