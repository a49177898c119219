#include "traces/turns_table.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/statistics.hpp"

namespace kvtier {
namespace {

using testing::bytes_of;
using testing::config_error_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;

const std::string kHeader = "conv,turn,user_tokens,assistant_tokens\n";

TEST(TurnsTable, ReadsColumnsInAnyOrderAndIgnoresOthers) {
  const TempDir dir;
  for (const char* name : {"t.csv", "t.csv.gz", "t.csv.zst"}) {
    TurnsTableReader reader(dir.compressed(name,
                                           "assistant_tokens,note,turn,conv,user_tokens\n"
                                           "20,\"a, \"\"b\"\"\",0,x,10\n"
                                           "21,,1,x,11\r\n"
                                           "\n"
                                           "30,c,0,y,5\n"));
    EXPECT_EQ(text_of(read_all(reader)), "0@0: 10/20 11/21\n1@0: 5/30\n");
    EXPECT_EQ(reader.report().sessions, 2);
    EXPECT_EQ(reader.report().turns, 3);
    EXPECT_EQ(reader.report().clamped_messages, 0);
  }
}

TEST(TurnsTable, CountsMessagesClampedToOneToken) {
  const TempDir dir;
  TurnsTableReader reader(dir.file("t.csv", kHeader + "0,0,0,7\n0,1,3,0\n"));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 1/7 3/1\n");
  EXPECT_EQ(reader.report().clamped_messages, 2);
}

TEST(TurnsTable, TakesTheOverheadOffEachMessage) {
  const TempDir dir;
  TurnsTableReader reader(dir.file("t.csv", kHeader + "0,0,10,2\n0,1,1,9\n"), Tokens(1));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 9/1 1/8\n");
  EXPECT_EQ(reader.report().clamped_messages, 1);
}

TEST(TurnsTable, TakesTheHistoryOffWholePrompts) {
  const TempDir dir;
  const auto path =
      dir.file("t.csv", kHeader + "0,0,10,20\n0,1,45,5\n0,2,60,1\n0,3,30,9\n0,4,39,1\n");
  TurnsTableReader reader(path, Tokens(0), {.value = InputTokens::total});
  // The prompt of 30 tokens is shorter than 60 + 1: a new session begins.
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 10/20 15/5 10/1\n1@0: 30/9 1/1\n");
  EXPECT_EQ(reader.report().cut_histories, 1);
}

TEST(TurnsTable, RefusesToGuessTheMeaningOfPromptsThatLookWhole) {
  const TempDir dir;
  const auto path =
      dir.file("t.csv", kHeader + "0,0,10,20\n0,1,45,5\n0,2,60,1\n1,0,9,9\n1,1,3,9\n");
  EXPECT_EQ(config_error_of(dir, [&] { TurnsTableReader reader(path); }),
            "t.csv: the input tokens look like whole prompts: 2 of 3 later turns have more of them "
            "than the turn before and its response together; expected the meaning at "
            "--input-tokens: \"total\" (whole prompts) or \"new\" (new tokens of the turn)");
  TurnsTableReader reader(path, Tokens(0), {.value = InputTokens::new_tokens});
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 10/20 45/5 60/1\n1@0: 9/9 3/9\n");
}

TEST(TurnsTable, NamesFileAndLineOfEveryError) {
  const TempDir dir;
  const std::string out_of_order =
      ": the rows of a conversation must follow each other with turns 0, 1, 2, ...";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "t.csv: the file is empty"},
      {"conv,turn,tokens\n0,0,1\n",
       "t.csv:1: missing columns user_tokens, assistant_tokens (found conv, turn, tokens)"},
      {"conv,user_tokens,assistant_tokens\n",
       "t.csv:1: missing column turn (found conv, user_tokens, assistant_tokens)"},
      {"conv,turn,user_tokens,assistant_tokens,turn\n", "t.csv:1: column turn comes 2 times"},
      {kHeader, "t.csv: no rows after the header"},
      {kHeader + "\n\n", "t.csv: no rows after the header"},
      {kHeader + "0,0,5,-3\n",
       "t.csv:2: assistant_tokens: expected a whole number in 0 .. 2147483647, got \"-3\""},
      {kHeader + "0,0,5.5,3\n",
       "t.csv:2: user_tokens: expected a whole number in 0 .. 2147483647, got \"5.5\""},
      {kHeader + "0,0,5,\n",
       "t.csv:2: assistant_tokens: expected a whole number in 0 .. 2147483647, got \"\""},
      {kHeader + "0,x,5,3\n",
       "t.csv:2: turn: expected a whole number in 0 .. 2147483647, got \"x\""},
      {kHeader + "0,0,5,2147483648\n",
       "t.csv:2: assistant_tokens: expected a whole number in 0 .. 2147483647, got \"2147483648\""},
      {kHeader + "0,0,5\n", "t.csv:2: expected 4 fields as in line 1, got 3"},
      {kHeader + "0,1,5,3\n",
       "t.csv:2: turn 1 of conversation \"0\" where turn 0 should be" + out_of_order},
      {kHeader + "0,0,5,3\n0,2,5,3\n",
       "t.csv:3: turn 2 of conversation \"0\" where turn 1 should be" + out_of_order},
      {kHeader + "0,0,5,3\n0,0,5,3\n",
       "t.csv:3: turn 0 of conversation \"0\" where turn 1 should be" + out_of_order},
      {kHeader + "0,0,5,3\n1,0,5,3\n0,1,5,3\n",
       "t.csv:4: turn 1 of conversation \"0\" where turn 0 should be" + out_of_order},
      {kHeader + "\"0,0,5,3\n", "t.csv:2: a quoted field does not end on its line"},
      {kHeader + "\"0\"1,0,5,3\n", "t.csv:2: expected ',' after a quoted field"},
  };
  for (const auto& [text, message] : cases) {
    const auto path = dir.file("t.csv", text);
    EXPECT_EQ(config_error_of(dir,
                              [&] {
                                TurnsTableReader reader(path);
                                static_cast<void>(read_all(reader));
                              }),
              message);
  }
}

TEST(TurnsTable, RefusesTruncatedGzip) {
  const TempDir dir;
  const std::string packed = bytes_of(dir.compressed("whole.csv.gz", kHeader + "0,0,5,3\n"));
  const auto cut = dir.file("cut.csv.gz", packed.substr(0, packed.size() - 4));
  EXPECT_EQ(config_error_of(dir,
                            [&] {
                              TurnsTableReader reader(cut);
                              static_cast<void>(read_all(reader));
                            }),
            "cut.csv.gz:3: the gzip data are truncated");
}

// The counts are those of a script of ten lines over Python's csv module.
TEST(TurnsTable, ReadsTheRealShareGptTable) {
  TurnsTableReader reader(std::filesystem::path(KVTIER_SOURCE_DIR) /
                          "tests/data/sharegpt_turns.csv.gz");
  WorkloadStatistics statistics;
  SessionSpec session;
  while (reader.next(session)) {
    statistics.add(session);
  }
  EXPECT_EQ(statistics.sessions(), 300);
  EXPECT_EQ(statistics.turns(), 1566);
  EXPECT_EQ(reader.report().clamped_messages, 0);
  EXPECT_DOUBLE_EQ(statistics.multi_turn_share(), 238.0 / 300);
  EXPECT_DOUBLE_EQ(statistics.turns_per_session().mean(), 5.22);
  EXPECT_DOUBLE_EQ(statistics.over_2k_share(), 161.0 / 300);
  EXPECT_DOUBLE_EQ(statistics.over_4k_share(), 94.0 / 300);
  EXPECT_EQ(statistics.user_tokens().quantile(0.5), 33);
  EXPECT_DOUBLE_EQ(statistics.assistant_tokens().mean(), 724368.0 / 1566);
}

}  // namespace
}  // namespace kvtier
