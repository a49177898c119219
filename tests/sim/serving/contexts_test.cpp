#include "sim/serving/contexts.hpp"

#include <gtest/gtest.h>

#include "tests/sim/replay/named_source.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

SessionSpec session_with(std::int64_t prompt_tokens) {
  SessionSpec session;
  session.shared_prompt = {.id = 7, .tokens = Tokens(prompt_tokens)};
  session.turns = {{Tokens(10), Tokens(5), SimDuration()}, {Tokens(20), Tokens(1), SimDuration()}};
  return session;
}

TEST(Contexts, ASessionIsAStreamThatGrows) {
  ScriptedSource source({});
  Contexts contexts(source);
  EXPECT_FALSE(contexts.named());
  const SessionSpec session = session_with(0);
  const TurnContent first = contexts.of(0, turn_tokens(session, 0, Tokens(0), Tokens(0)));
  EXPECT_EQ(first.prompt.tokens, Tokens(10));
  EXPECT_EQ(first.whole.tokens, Tokens(14));  // of the response's last token there is no KV
  EXPECT_EQ(first.whole.stream, first.prompt.stream);
  const TurnContent second = contexts.of(0, turn_tokens(session, 1, Tokens(15), Tokens(0)));
  EXPECT_EQ(second.prompt.stream, first.prompt.stream);
  EXPECT_EQ(second.prompt.tokens, Tokens(35));
  EXPECT_EQ(second.whole.tokens, Tokens(35));
  contexts.end_turn(0, false);
  EXPECT_TRUE(contexts.take_ended().empty());
  contexts.end_turn(0, true);
  EXPECT_EQ(contexts.take_ended(), std::vector{first.prompt.stream});
  EXPECT_TRUE(contexts.take_ended().empty());
}

TEST(Contexts, SessionsForkFromTheirSharedPrompt) {
  ScriptedSource source({});
  Contexts contexts(source);
  const SessionSpec session = session_with(100);
  const StreamId one =
      contexts.of(0, turn_tokens(session, 0, Tokens(100), Tokens(0))).prompt.stream;
  const StreamId two =
      contexts.of(1, turn_tokens(session, 0, Tokens(100), Tokens(0))).prompt.stream;
  const Streams& streams = contexts.streams();
  EXPECT_NE(one, two);
  EXPECT_TRUE(streams.parent(one).valid());
  EXPECT_EQ(streams.parent(one), streams.parent(two));
  EXPECT_EQ(streams.first_of(one), 100);
}

TEST(Contexts, ANewStreamBeginsAfterACut) {
  ScriptedSource source({});
  Contexts contexts(source);
  const SessionSpec session = session_with(100);
  const StreamId before =
      contexts.of(0, turn_tokens(session, 0, Tokens(100), Tokens(0))).prompt.stream;
  const StreamId after =
      contexts.of(0, turn_tokens(session, 1, Tokens(107), Tokens(8))).prompt.stream;
  EXPECT_NE(before, after);
  EXPECT_EQ(contexts.streams().parent(before), contexts.streams().parent(after));
  EXPECT_EQ(contexts.take_ended(), std::vector{before});
}

TEST(Contexts, NamedTurnsKeepTheirTokensAndResponsesHaveStreamsOfTheirOwn) {
  NamedSource source({{{1, 2}, Tokens(30), Tokens(4)}, {{1, 3}, Tokens(32), Tokens(1)}},
                     {.block = Tokens(16), .partial = true});
  Contexts contexts(source);
  EXPECT_TRUE(contexts.named());
  SessionSpec session;
  ASSERT_TRUE(source.next(session));
  const TurnContent first = contexts.of(0, turn_tokens(session, 0, Tokens(0), Tokens(0)));
  EXPECT_EQ(first.prompt.stream, session.contents[0].prompt.stream);
  EXPECT_EQ(first.prompt.tokens, Tokens(30));
  EXPECT_EQ(contexts.streams().parent(first.whole.stream), first.prompt.stream);
  EXPECT_EQ(contexts.streams().first_of(first.whole.stream), 30);
  EXPECT_EQ(first.whole.tokens, Tokens(33));
  EXPECT_TRUE(contexts.take_ended().empty());
  contexts.end_turn(0, false);
  EXPECT_EQ(contexts.take_ended(), std::vector{first.whole.stream});
  ASSERT_TRUE(source.next(session));
  session.contents[0].whole = {session.contents[0].prompt.stream, Tokens(40)};
  EXPECT_EQ(contexts.of(0, turn_tokens(session, 0, Tokens(0), Tokens(0))).whole.tokens, Tokens(40));
  contexts.end_turn(0, true);
  EXPECT_TRUE(contexts.take_ended().empty());
}

}  // namespace
}  // namespace kvtier::test
