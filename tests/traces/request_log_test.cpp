#include "traces/request_log.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "traces/trace_format.hpp"

namespace kvtier {
namespace {

using testing::config_error_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;

const std::string kHeader = "arrival,session,input_tokens,output_tokens\n";

TEST(RequestLog, TakesTurnsOfSessionsAtTheirTimes) {
  const TempDir dir;
  for (const char* name : {"log.csv", "log.csv.gz", "log.csv.zst"}) {
    // The earliest time, 100 s, becomes zero; b's second turn comes 2.5 s after its first.
    RequestLogReader reader(dir.compressed(name, kHeader + "100,b,10,20\n"
                                                           "101.25,a,30,40\r\n"
                                                           "\n"
                                                           "102.5,b,11,21\n"),
                            RequestLogColumns::generic);
    EXPECT_EQ(text_of(read_all(reader)),
              "0@0: 10/20 11/21+2500000000\n"
              "1@1250000000: 30/40\n");
    EXPECT_EQ(reader.report().sessions, 2);
    EXPECT_EQ(reader.report().turns, 3);
    EXPECT_EQ(reader.report().reordered_rows, 0);
    EXPECT_TRUE(reader.has_arrivals());
    EXPECT_TRUE(reader.has_turn_arrivals());
    EXPECT_FALSE(reader.has_think_times());
  }
}

TEST(RequestLog, WithoutSessionsEachRowIsOne) {
  const TempDir dir;
  RequestLogReader reader(
      dir.file("log.csv", "note,output_tokens,arrival,input_tokens\nx,2,0.5,1\ny,4,0.5,3\n"),
      RequestLogColumns::generic);
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 1/2\n1@0: 3/4\n");
}

TEST(RequestLog, SortsByTimeAndCountsWhatWasOutOfOrder) {
  const TempDir dir;
  // Two rows come after a row of a later time. Rows of the same time keep their order.
  RequestLogReader reader(dir.file("log.csv", kHeader + "9,c,1,1\n"
                                                        "5,a,2,2\n"
                                                        "7,b,3,3\n"
                                                        "7,a,4,4\n"
                                                        "6,a,5,5\n"),
                          RequestLogColumns::generic);
  EXPECT_EQ(text_of(read_all(reader)),
            "0@0: 2/2 5/5+1000000000 4/4+1000000000\n"
            "1@2000000000: 3/3\n"
            "2@4000000000: 1/1\n");
  EXPECT_EQ(reader.report().reordered_rows, 2);
}

TEST(RequestLog, TakesNumberedTurnsThatIncreaseWithTime) {
  const TempDir dir;
  const std::string header = "session,turn,arrival,input_tokens,output_tokens\n";
  RequestLogReader reader(dir.file("log.csv", header + "a,3,1,1,1\na,7,2,2,2\n"),
                          RequestLogColumns::generic);
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 1/1 2/2+1000000000\n");
  const auto path = dir.file("bad.csv", header + "a,1,5,1,1\nb,9,5,1,1\na,1,4,2,2\n");
  EXPECT_EQ(config_error_of(dir, [&] { RequestLogReader(path, RequestLogColumns::generic); }),
            "bad.csv:2: turn 1 comes after turn 1 of the same session, which line 4 has: turns "
            "must increase with time");
}

TEST(RequestLog, ReadsTheAzureTraceFormat) {
  const TempDir dir;
  const std::string text =
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n"
      "2023-11-16 18:15:50.9951690,396,109\n";
  const auto path = dir.compressed("azure.csv.gz", text);
  RequestLogReader reader(path, RequestLogColumns::azure_llm);
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 374/44\n1@4314579000: 396/109\n");
  const auto later = dir.file("2024.csv",
                              "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                              "2024-05-10 00:00:00.009930+00:00,2162,5\n");
  EXPECT_EQ(text_of(read_all(*open_trace(later, {}))), "0@0: 2162/5\n");
}

TEST(RequestLog, IsToldByItsColumns) {
  const TempDir dir;
  EXPECT_EQ(detect_format(dir.file("a", "\xef\xbb\xbfTIMESTAMP,ContextTokens\r\n")),
            TraceFormat::azure_llm);
  EXPECT_EQ(detect_format(dir.file("b", "note,arrival\n1,2\n")), TraceFormat::request_log);
  EXPECT_EQ(detect_format(dir.file("c", "conv,arrivals\narrival,1\n")), TraceFormat::turns_table);
  EXPECT_EQ(detect_format(dir.file("d", "")), TraceFormat::turns_table);
}

TEST(RequestLog, IsToldByQuotedAndCapitalisedColumns) {
  const TempDir dir;
  const auto format_of = [&](const std::string& text) {
    return detect_format(dir.compressed("t.csv.gz", text));
  };
  for (const char* header : {"\"arrival\",\"input_tokens\",\"output_tokens\"\n",
                             "Arrival,Input_Tokens,Output_Tokens\r\n",
                             "note,\"ARRIVAL\",input_tokens,output_tokens\n"}) {
    EXPECT_EQ(format_of(header), TraceFormat::request_log) << header;
  }
  EXPECT_EQ(format_of("\xef\xbb\xbf\"Timestamp\",\"ContextTokens\",\"GeneratedTokens\"\n"),
            TraceFormat::azure_llm);
  EXPECT_EQ(format_of("timestamp,contexttokens,generatedtokens\n"), TraceFormat::azure_llm);
  EXPECT_EQ(format_of("\"Conv\",\"Turn\",\"User_Tokens\",\"Assistant_Tokens\"\n"),
            TraceFormat::turns_table);
  // A comma in a quoted name does not make a column of what follows it, nor is a part of a name
  // one.
  EXPECT_EQ(format_of("\"conv,arrival,b\",turn\n"), TraceFormat::turns_table);
  EXPECT_EQ(format_of("arrivals,timestamps\n"), TraceFormat::turns_table);
  EXPECT_EQ(config_error_of(dir, [&] { static_cast<void>(format_of("\"arrival,b\n0,1\n")); }),
            "t.csv.gz:1: a quoted field does not end on its line");
}

TEST(RequestLog, ReadsQuotedAndCapitalisedColumns) {
  const TempDir dir;
  const auto log = dir.file("log.csv",
                            "\"Arrival\",\"Session\",\"Input_Tokens\",\"OUTPUT_TOKENS\"\n"
                            "\"3\",\"a\",\"5\",\"7\"\n");
  EXPECT_EQ(text_of(read_all(*open_trace(log, {}))), "0@0: 5/7\n");
  const auto azure = dir.file("azure.csv",
                              "Timestamp,contexttokens,\"GENERATEDTOKENS\"\n"
                              "2023-11-16 18:15:46.6805900,374,44\n");
  EXPECT_EQ(text_of(read_all(*open_trace(azure, {}))), "0@0: 374/44\n");
  const auto turns =
      dir.file("turns.csv", "Conv,Turn,\"User_tokens\",Assistant_tokens\nx,0,10,20\n");
  EXPECT_EQ(text_of(read_all(*open_trace(turns, {}))), "0@0: 10/20\n");
  const auto twice = dir.file("twice.csv", "arrival,Arrival,input_tokens,output_tokens\n0,0,1,1\n");
  EXPECT_EQ(config_error_of(dir, [&] { static_cast<void>(open_trace(twice, {})); }),
            "twice.csv:1: column arrival comes 2 times");
}

TEST(RequestLog, CountsMessagesClampedToOneToken) {
  const TempDir dir;
  RequestLogReader reader(dir.file("log.csv", kHeader + "0,a,0,7\n"), RequestLogColumns::generic,
                          Tokens(1));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 1/6\n");
  EXPECT_EQ(reader.report().clamped_messages, 1);
}

// The second prompt of a, 45, has 10 + 20 of the first turn and 15 new tokens; the third, 60, has
// 45 + 5 and 10. The fourth, 30, is shorter than 60 + 1: the history was cut.
const std::string kWholePrompts = kHeader +
                                  "0,a,10,20\n"
                                  "1,b,7,3\n"
                                  "2,a,45,5\n"
                                  "3,a,60,1\n"
                                  "4,a,30,9\n"
                                  "5,b,10,2\n";

TEST(RequestLog, TakesTheHistoryOffWholePrompts) {
  const TempDir dir;
  RequestLogReader reader(dir.file("log.csv", kWholePrompts), RequestLogColumns::generic, Tokens(0),
                          {.value = InputTokens::total});
  // The last prompt of b has no new tokens, and counts as one.
  EXPECT_EQ(text_of(read_all(reader)),
            "0@0: 10/20 15/5+2000000000 10/1+1000000000\n"
            "1@1000000000: 7/3 1/2+4000000000\n"
            "2@4000000000: 30/9\n");
  EXPECT_EQ(reader.report().cut_histories, 1);
  EXPECT_EQ(reader.report().clamped_messages, 1);
}

TEST(RequestLog, RefusesToGuessTheMeaningOfPromptsThatLookWhole) {
  const TempDir dir;
  const auto path = dir.file("log.csv", kWholePrompts);
  const auto error = [&](const std::filesystem::path& file, const InputTokensSetting& setting) {
    return config_error_of(
        dir, [&] { RequestLogReader(file, RequestLogColumns::generic, Tokens(0), setting); });
  };
  // Half of the four later turns are longer: no majority.
  EXPECT_EQ(error(path, {}), "no ConfigError");
  const auto whole = dir.file("whole.csv", kWholePrompts + "6,b,20,1\n");
  EXPECT_EQ(error(whole, {}),
            "whole.csv: the input tokens look like whole prompts: 3 of 5 later turns have more of "
            "them than the turn before and its response together; expected the meaning at "
            "--input-tokens: \"total\" (whole prompts) or \"new\" (new tokens of the turn)");
  EXPECT_EQ(error(whole, {.value = InputTokens::new_tokens}), "no ConfigError");
  const auto fresh = dir.file("new.csv", kHeader + "0,a,10,20\n1,a,8,20\n2,a,9,20\n3,a,50,1\n");
  EXPECT_EQ(
      error(fresh, {.value = InputTokens::total}),
      "new.csv: the input tokens do not look like whole prompts: only 1 of 3 later turns have "
      "as many of them as the turn before and its response together; expected \"new\" at "
      "--input-tokens, or output tokens without the reasoning that later prompts leave out");
}

TEST(RequestLog, NamesFileAndLineOfEveryError) {
  const TempDir dir;
  const std::string time =
      "expected seconds >= 0 such as \"12.5\" or a time such as \"2023-11-16 18:15:46.68\", got ";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "t.csv: the file is empty"},
      {kHeader, "t.csv: no rows after the header"},
      {"arrival,session\n",
       "t.csv:1: missing columns input_tokens, output_tokens (found arrival, session)"},
      {"arrival,input_tokens,output_tokens,turn\n", "t.csv:1: column turn needs a column session"},
      {"arrival,arrival,input_tokens,output_tokens\n", "t.csv:1: column arrival comes 2 times"},
      {kHeader + "0,a,1,1\n-3,a,1,1\n", "t.csv:3: arrival: " + time + "\"-3\""},
      {kHeader + ",a,1,1\n", "t.csv:2: arrival: " + time + "\"\""},
      {kHeader + "0,a,1,1\n\n2023-11-16 18:15:46,a,1,1\n",
       "t.csv:4: arrival: expected seconds as in the rows before, got \"2023-11-16 18:15:46\""},
      {kHeader + "2023-11-16 18:15:46,a,1,1\n1,a,1,1\n",
       "t.csv:3: arrival: expected a date and time as in the rows before, got \"1\""},
      {kHeader + "0,,1,1\n", "t.csv:2: session: expected the session's name, got \"\""},
      {kHeader + "0,a,,1\n",
       "t.csv:2: input_tokens: expected a whole number in 0 .. 2147483647, got \"\""},
      {kHeader + "0,a,1,-1\n",
       "t.csv:2: output_tokens: expected a whole number in 0 .. 2147483647, got \"-1\""},
      {kHeader + "0,a,1\n", "t.csv:2: expected 4 fields as in line 1, got 3"}};
  for (const auto& [text, message] : cases) {
    const auto path = dir.file("t.csv", text);
    EXPECT_EQ(config_error_of(dir, [&] { RequestLogReader(path, RequestLogColumns::generic); }),
              message);
  }
}

TEST(RequestLog, IsTheSameAsATraceMadeOfIt) {
  const TempDir dir;
  const auto path = dir.file("log.csv", kHeader + "3,b,5,6\n1,a,3,4\n5,b,1,2\n");
  RequestLogReader log(path, RequestLogColumns::generic);
  const std::vector<SessionSpec> sessions = read_all(log);
  TraceWriter writer(dir.path() / "t.jsonl", {.arrivals = true, .turn_arrivals = true});
  for (const SessionSpec& session : sessions) {
    writer.write(session);
  }
  writer.commit();
  TraceReader trace(dir.path() / "t.jsonl");
  EXPECT_TRUE(trace.has_turn_arrivals());
  EXPECT_FALSE(trace.has_think_times());
  EXPECT_EQ(text_of(read_all(trace)), text_of(sessions));
}

}  // namespace
}  // namespace kvtier
