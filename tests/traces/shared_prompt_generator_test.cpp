#include "traces/shared_prompt_generator.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/statistics.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using testing::take;
using testing::text_of;

std::map<std::int64_t, std::int64_t> sessions_by_prompt(const SharedPromptParameters& parameters,
                                                        int sessions) {
  SharedPromptGenerator generator(parameters, {}, 1);
  std::map<std::int64_t, std::int64_t> counts;
  for (const SessionSpec& session : take(generator, sessions)) {
    ++counts[session.shared_prompt.id];
  }
  return counts;
}

TEST(SharedPromptGenerator, BeginsTheConversationsOfShareGptWithAPrompt) {
  SharedPromptGenerator generator({}, {}, 7);
  ShareGptGenerator conversations({}, 7);
  for (SessionSpec& session : take(generator, 200)) {
    EXPECT_GT(session.shared_prompt.tokens, Tokens(0));
    session.shared_prompt = {};
    EXPECT_EQ(text_of({session}), text_of(take(conversations, 1)));
  }
}

TEST(SharedPromptGenerator, IsExactWithoutSpread) {
  SharedPromptGenerator generator(
      {.prompts = 1, .tokens_min = Tokens(30), .tokens_max = Tokens(30)},
      {.single_turn_fraction = 1,
       .session_scale_sigma = 0,
       .user_tokens_median = 8,
       .user_tokens_sigma = 0,
       .assistant_tokens_median = 9,
       .assistant_tokens_sigma = 0},
      1);
  EXPECT_EQ(text_of(take(generator, 2)), "0@0: (0: 30) 8/9\n1@0: (0: 30) 8/9\n");
}

TEST(SharedPromptGenerator, PopularityFollowsItsExponent) {
  // Weights 1, 1/2, 1/3, 1/4 of 25/12: shares 0.48, 0.24, 0.16, 0.12. A share of 100,000 draws
  // scatters by at most 0.0016 (one standard deviation).
  const auto zipf = sessions_by_prompt({.prompts = 4, .popularity_exponent = 1}, 100000);
  ASSERT_EQ(zipf.size(), 4U);
  EXPECT_NEAR(static_cast<double>(zipf.at(0)), 48000, 640);
  EXPECT_NEAR(static_cast<double>(zipf.at(1)), 24000, 640);
  EXPECT_NEAR(static_cast<double>(zipf.at(2)), 16000, 640);
  EXPECT_NEAR(static_cast<double>(zipf.at(3)), 12000, 640);
  // Weights 1, 1/4: shares 0.8, 0.2.
  const auto steep = sessions_by_prompt({.prompts = 2, .popularity_exponent = 2}, 100000);
  EXPECT_NEAR(static_cast<double>(steep.at(0)), 80000, 640);
  const auto even = sessions_by_prompt({.prompts = 5, .popularity_exponent = 0}, 100000);
  ASSERT_EQ(even.size(), 5U);
  for (const auto& [prompt, sessions] : even) {
    EXPECT_NEAR(static_cast<double>(sessions), 20000, 640) << prompt;
  }
}

TEST(SharedPromptGenerator, APromptHasOneLengthInItsRange) {
  SharedPromptGenerator generator({.prompts = 1000,
                                   .tokens_min = Tokens(200),
                                   .tokens_max = Tokens(1000),
                                   .popularity_exponent = 0},
                                  {}, 1);
  std::map<std::int64_t, std::int64_t> lengths;
  for (const SessionSpec& session : take(generator, 20000)) {
    const auto [known, is_new] =
        lengths.try_emplace(session.shared_prompt.id, session.shared_prompt.tokens.value);
    ASSERT_EQ(known->second, session.shared_prompt.tokens.value);
    ASSERT_TRUE(200 <= known->second && known->second <= 1000);
  }
  // e^-20 of the prompts are missed.
  ASSERT_EQ(lengths.size(), 1000U);
  double sum = 0;
  for (const auto& [prompt, tokens] : lengths) {
    sum += static_cast<double>(tokens);
  }
  // Uniform in 200 .. 1,000: a mean of 600, and of 1,000 prompts a standard error of 7.3.
  EXPECT_NEAR(sum / 1000, 600, 30);
}

TEST(SharedPromptGenerator, GivesTheSameSessionsHoweverManyAreDrawn) {
  SharedPromptGenerator some({}, {}, 7);
  SharedPromptGenerator more({}, {}, 7);
  SharedPromptGenerator other({}, {}, 8);
  const std::string text = text_of(take(some, 50));
  auto sessions = take(more, 90);
  sessions.resize(50);
  EXPECT_EQ(text_of(sessions), text);
  EXPECT_NE(text_of(take(other, 50)), text);
}

TEST(SharedPromptGenerator, MorePromptsDoNotChangeTheLengthsOfTheFirst) {
  SharedPromptGenerator few({.prompts = 3}, {}, 7);
  SharedPromptGenerator many({.prompts = 30}, {}, 7);
  std::map<std::int64_t, std::int64_t> lengths;
  for (const SessionSpec& session : take(few, 100)) {
    lengths[session.shared_prompt.id] = session.shared_prompt.tokens.value;
  }
  int seen = 0;
  for (const SessionSpec& session : take(many, 100)) {
    if (session.shared_prompt.id < 3) {
      EXPECT_EQ(session.shared_prompt.tokens.value, lengths[session.shared_prompt.id]);
      ++seen;
    }
  }
  EXPECT_GT(seen, 10);
}

TEST(SharedPromptGenerator, IsAWorkloadThatIsSynthetic) {
  WorkloadConfig config;
  config.generator = Generator::shared_prompts;
  config.sessions = 300;
  config.arrival_rate = PerSecond(1);
  config.shared_prompts.prompts = 2;
  EXPECT_TRUE(is_synthetic(config));
  const auto source = make_source(config, 1, "");
  WorkloadStatistics statistics;
  SessionSpec session;
  while (source->next(session)) {
    statistics.add(session);
    EXPECT_GT(session.arrival, SimTime());
  }
  EXPECT_EQ(statistics.sessions_with_shared_prompt(), 300);
  EXPECT_EQ(statistics.distinct_shared_prompts(), 2);
}

TEST(SharedPromptGenerator, RefusesAnEmptyRangeOfLengths) {
  WorkloadConfig config;
  config.generator = Generator::shared_prompts;
  config.sessions = 3;
  config.arrival_rate = PerSecond(1);
  config.shared_prompts.tokens_min = Tokens(9);
  config.shared_prompts.tokens_max = Tokens(8);
  Problems problems;
  check(config, "/workload", problems);
  ASSERT_EQ(problems.lines().size(), 1U);
  EXPECT_EQ(problems.lines()[0],
            "/workload/shared_prompts/tokens_min: 9 is more than tokens_max, which is 8");
}

}  // namespace
}  // namespace kvtier
