#include "traces/long_document_generator.hpp"

#include <cstdint>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/statistics.hpp"
#include "traces/workload.hpp"

namespace kvtier {
namespace {

using testing::take;
using testing::text_of;

TEST(LongDocumentGenerator, BringsTheDocumentWithTheFirstTask) {
  LongDocumentGenerator generator({.document_tokens_min = Tokens(1000),
                                   .document_tokens_max = Tokens(1000),
                                   .tasks = 3,
                                   .task_input_tokens = Tokens(20),
                                   .task_output_tokens = Tokens(7)},
                                  1);
  EXPECT_EQ(text_of(take(generator, 2)), "0@0: 1020/7 20/7 20/7\n1@0: 1020/7 20/7 20/7\n");
}

TEST(LongDocumentGenerator, DefaultsToThePapersTasks) {
  LongDocumentGenerator generator({}, 1);
  WorkloadStatistics statistics;
  for (const SessionSpec& session : take(generator, 5000)) {
    ASSERT_EQ(session.turns.size(), 6U);
    EXPECT_EQ(session.turns[5].user, Tokens(256));
    EXPECT_EQ(session.turns[5].assistant, Tokens(64));
    EXPECT_GE(session.turns[0].user, Tokens(4096 + 256));
    EXPECT_LE(session.turns[0].user, Tokens(28672 + 256));
    statistics.add(session);
  }
  // Both ends come up in 5,000 draws of 24,577 lengths, within 50 tokens.
  EXPECT_GT(statistics.user_tokens().maximum(), 28672 + 256 - 50);
  // The mean of a uniform draw: (4,096 + 28,672) / 2, and a standard error of 100.
  const double documents = statistics.user_tokens().mean() * 6 - 6 * 256;
  EXPECT_NEAR(documents, 16384, 400);
}

TEST(LongDocumentGenerator, GivesTheSameSessionsHoweverManyAreDrawn) {
  LongDocumentGenerator some({}, 7);
  LongDocumentGenerator more({}, 7);
  LongDocumentGenerator other({}, 8);
  const std::string text = text_of(take(some, 5));
  auto sessions = take(more, 9);
  sessions.resize(5);
  EXPECT_EQ(text_of(sessions), text);
  EXPECT_NE(text_of(take(other, 5)), text);
}

TEST(LongDocumentGenerator, IsAWorkload) {
  WorkloadConfig config;
  config.generator = Generator::long_documents;
  config.sessions = 3;
  config.arrival_rate = PerSecond(1);
  const auto source = make_source(config, 1, "");
  SessionSpec session;
  int sessions = 0;
  while (source->next(session)) {
    ++sessions;
    EXPECT_EQ(session.turns.size(), 6U);
    EXPECT_GT(session.arrival, SimTime());
    EXPECT_EQ(session.turns[0].think, SimDuration());
    EXPECT_GT(session.turns[1].think, SimDuration());
  }
  EXPECT_EQ(sessions, 3);
}

TEST(LongDocumentGenerator, RefusesAnEmptyRangeOfLengths) {
  WorkloadConfig config;
  config.generator = Generator::long_documents;
  config.sessions = 3;
  config.arrival_rate = PerSecond(1);
  config.long_documents.document_tokens_min = Tokens(9);
  config.long_documents.document_tokens_max = Tokens(8);
  Problems problems;
  check(config, "/workload", problems);
  ASSERT_EQ(problems.lines().size(), 1U);
  EXPECT_EQ(problems.lines()[0],
            "/workload/long_documents/document_tokens_min: 9 is more than document_tokens_max, "
            "which is 8");
}

}  // namespace
}  // namespace kvtier
