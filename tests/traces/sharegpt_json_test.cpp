#include "traces/sharegpt_json.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"

namespace kvtier {
namespace {

using testing::bytes_of;
using testing::config_error_of;
using testing::read_all;
using testing::TempDir;
using testing::text_of;

/// One token per character, so that expected counts can be read off the texts.
ShareGptJsonReader open(const std::filesystem::path& path) {
  return ShareGptJsonReader(path, std::make_unique<CharsTokenizer>(1));
}

TEST(ShareGptJson, ReadsTurns) {
  const TempDir dir;
  const std::string text = R"([{"id": "a", "conversations": [
      {"from": "human", "value": "12345"}, {"from": "gpt", "value": "123"},
      {"value": "1", "from": "user"}, {"value": "12", "from": "chatgpt"}]},
    {"conversations": [{"from": "human", "value": "x"}, {"from": "bing", "value": "xyz"}], "id": "b"}])";
  for (const char* name : {"s.json", "s.json.gz", "s.json.zst"}) {
    auto reader = open(dir.compressed(name, text));
    EXPECT_EQ(text_of(read_all(reader)), "0@0: 5/3 1/2\n1@0: 1/3\n");
    EXPECT_EQ(reader.report().merged_messages, 0);
  }
}

TEST(ShareGptJson, MergesSkipsAndDropsAndCountsIt) {
  const TempDir dir;
  auto reader = open(dir.file("s.json", R"([
    {"conversations": [
      {"from": "gpt", "value": "leading"},
      {"from": "system", "value": "123"}, {"from": "human", "value": "12"}, {"from": "human", "value": "1"},
      {"from": "gpt", "value": "1234"}, {"from": "tool", "value": "ignored"}, {"from": "gpt", "value": "5"},
      {"from": "human", "value": "trailing"}]},
    {"conversations": []},
    {"conversations": [{"from": "gpt", "value": "alone"}]},
    {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "ok"}]}])"));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 6/5\n1@0: 1/2\n");
  const ImportReport& report = reader.report();
  EXPECT_EQ(report.sessions, 2);
  EXPECT_EQ(report.turns, 2);
  EXPECT_EQ(report.leading_assistant_messages, 2);
  EXPECT_EQ(report.system_messages, 1);
  EXPECT_EQ(report.merged_messages, 3);
  EXPECT_EQ(report.trailing_user_messages, 1);
  EXPECT_EQ(report.sessions_without_turns, 2);
  EXPECT_EQ(report.clamped_messages, 1);
  EXPECT_EQ(report.unknown_role_messages, 1);
  EXPECT_EQ(report.unknown_roles.at("tool"), 1);
  EXPECT_EQ(to_json(report)["unknown_roles"]["tool"], 1);
}

TEST(ShareGptJson, KeepsTheNamesOfABoundedNumberOfUnknownRoles) {
  const TempDir dir;
  std::string text =
      R"([{"conversations": [{"from":"human","value":"a"},{"from":"gpt","value":"b"})";
  for (int i = 0; i < 40; ++i) {
    text += R"(,{"from":"role)" + std::to_string(i) + R"(","value":"x"})";
  }
  auto reader = open(dir.file("s.json", text + "]}]"));
  static_cast<void>(read_all(reader));
  EXPECT_EQ(reader.report().unknown_role_messages, 40);
  EXPECT_EQ(reader.report().unknown_roles.size(), ImportReport::kUnknownRolesMax);
}

TEST(ShareGptJson, IgnoresOtherKeysHoweverNested) {
  const TempDir dir;
  auto reader =
      open(dir.file("s.json", R"([{"meta": {"conversations": [{"from": 1}], "from": ["}", "\"]"]},
    "items": [[{"value": null}]],
    "conversations": [{"from": "human", "value": "\"}]", "x": {"from": "gpt"}, "y": [1, {"value": 2}]},
                      {"from": "gpt", "value": "\\"}], "after": true}])"));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 3/1\n");
}

TEST(ShareGptJson, ReplacesHalfSurrogatePairs) {
  const TempDir dir;
  // A whole pair is one character, each lone half becomes one, and \\ud83d is a backslash and five
  // letters.
  auto reader =
      open(dir.file("s.json", R"([{"conversations": [{"from": "human", "value": "\ud83d\ude00"},
    {"from": "gpt", "value": "\ud83d-\udE00\\ud83d\ud83d"}]}])"));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 1/10\n");
  EXPECT_EQ(reader.report().replaced_surrogates, 3);
}

TEST(ShareGptJson, NamesFileAndByteOfEveryError) {
  const TempDir dir;
  const std::string good =
      R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})";
  const std::string second = std::to_string(1 + good.size() + 1);
  const auto message = [](const std::string& keys) {
    return "{\"conversations\":[{" + keys + "}]}";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "s.json: byte 0: expected a list of conversations, which begins with '['"},
      {"  {}", "s.json: byte 2: expected a list of conversations, which begins with '['"},
      {"[]", "s.json: the list has no conversations"},
      {"[{\"conversations\":[]}]", "s.json: no conversation has a turn"},
      {"[" + good, "s.json: byte " + std::to_string(good.size() + 1) +
                       ": the list of conversations does not end"},
      {"[" + good + ",", "s.json: byte " + std::to_string(good.size() + 2) +
                             ": the list of conversations does not end"},
      {"[" + good + ",]", "s.json: byte " + second + ": expected a conversation after ','"},
      {"[" + good + "{}]", "s.json: byte " + std::to_string(good.size() + 1) +
                               ": expected ',' or ']' after a conversation"},
      {"[" + good + ",3]",
       "s.json: byte " + second + ": expected a conversation, which begins with '{'"},
      {"[" + good + "] x", "s.json: byte " + std::to_string(good.size() + 3) +
                               ": expected nothing after the list of conversations"},
      {"[" + good + ",{\"conv", "s.json: byte " + std::to_string(good.size() + 8) +
                                    ": the conversation that begins at byte " + second +
                                    " does not end"},
      {"[" + good + ",{\"a\":tru}]",
       "s.json: byte " + std::to_string(good.size() + 2 + 8) + ": not valid JSON"},
      {"[{\"id\":1}]", "s.json: byte 1: a conversation has no \"conversations\""},
      {"[{\"conversations\":{}}]", "s.json: byte 1: expected \"conversations\" as a list"},
      {"[{\"conversations\":3}]", "s.json: byte 1: expected \"conversations\" as a list"},
      {"[{\"conversations\":[1]}]", "s.json: byte 1: expected each message as an object"},
      {"[{\"conversations\":[[]]}]", "s.json: byte 1: expected each message as an object"},
      {"[{\"conversations\":[],\"conversations\":[]}]",
       "s.json: byte 1: duplicate key \"conversations\""},
      {"[" + message(R"("from":"human")") + "]", "s.json: byte 1: a message has no \"value\""},
      {"[" + message(R"("value":"a")") + "]", "s.json: byte 1: a message has no \"from\""},
      {"[" + message(R"("from":3,"value":"a")") + "]",
       "s.json: byte 1: expected \"from\" as a string"},
      {"[" + message(R"("from":"gpt","value":["a"])") + "]",
       "s.json: byte 1: expected \"value\" as a string"},
      {"[" + message(R"("from":"gpt","from":"human","value":"a")") + "]",
       "s.json: byte 1: duplicate key \"from\""},
  };
  for (const auto& [text, expected] : cases) {
    const auto path = dir.file("s.json", text);
    EXPECT_EQ(config_error_of(dir,
                              [&] {
                                auto reader = open(path);
                                static_cast<void>(read_all(reader));
                              }),
              expected)
        << text;
  }
}

TEST(ShareGptJson, RefusesTruncatedGzip) {
  const TempDir dir;
  const std::string packed = bytes_of(dir.compressed("whole.json.gz", "[{\"conversations\": []}]"));
  const auto cut = dir.file("cut.json.gz", packed.substr(0, packed.size() - 4));
  const std::string error = config_error_of(dir, [&] {
    auto reader = open(cut);
    static_cast<void>(read_all(reader));
  });
  EXPECT_EQ(error, "cut.json.gz: byte 23: the gzip data are truncated");
}

TEST(ShareGptJson, ReadsConversationsThatSpanManyBuffers) {
  const TempDir dir;
  std::string text = "[";
  for (int i = 0; i < 3; ++i) {
    text += (i > 0 ? ",\n" : "") + std::string(R"({"conversations":[{"from":"human","value":")") +
            std::string(150000 + static_cast<std::size_t>(i), 'x') +
            R"("},{"from":"gpt","value":"ok"}]})";
  }
  auto reader = open(dir.file("s.json", text + "]"));
  EXPECT_EQ(text_of(read_all(reader)), "0@0: 150000/2\n1@0: 150001/2\n2@0: 150002/2\n");
}

}  // namespace
}  // namespace kvtier
