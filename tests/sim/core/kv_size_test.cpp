#include "sim/core/kv_size.hpp"

#include <regex>
#include <string>

#include <gtest/gtest.h>

namespace kvtier::test {
namespace {

TEST(KvSize, IsWrittenInBytesTokensOrBlocks) {
  EXPECT_EQ(parse_kv_size("64GiB"), (KvSize{KvSize::Unit::bytes, std::int64_t{64} << 30}));
  EXPECT_EQ(parse_kv_size("5Mitokens"), (KvSize{KvSize::Unit::tokens, 5 << 20}));
  EXPECT_EQ(parse_kv_size("5 Mitokens"), (KvSize{KvSize::Unit::tokens, 5 << 20}));
  EXPECT_EQ(parse_kv_size("4096tokens"), (KvSize{KvSize::Unit::tokens, 4096}));
  EXPECT_EQ(parse_kv_size("1000blocks"), (KvSize{KvSize::Unit::blocks, 1000}));
  EXPECT_EQ(parse_kv_size("3kblocks"), (KvSize{KvSize::Unit::blocks, 3000}));
  EXPECT_EQ(parse_kv_size("2Gtokens"), (KvSize{KvSize::Unit::tokens, 2'000'000'000}));
  for (const char* text : {"", "64", "blocks", "-1blocks", "1.5blocks", "1xblocks", "tokens5",
                           "1 Mi tokens", "9999999999Gitokens", "1block"}) {
    EXPECT_EQ(parse_kv_size(text), std::nullopt) << text;
  }
}

TEST(KvSize, ComesBackFromItsText) {
  for (const char* text : {"64GiB", "5Mitokens", "4097tokens", "1kblocks", "3Giblocks", "7B"}) {
    EXPECT_EQ(format_kv_size(*parse_kv_size(text)), text);
  }
  EXPECT_EQ(format_kv_size({KvSize::Unit::tokens, 0}), "0tokens");
}

TEST(KvSize, ItsSchemaAcceptsTheTextsThatTheReaderAccepts) {
  const std::regex pattern(config_schema(KvSize{})["pattern"].get<std::string>());
  for (const std::string text :
       {"64GiB", "1.5GiB", "5Mitokens", "5 Mitokens", "5Kitokens", "5kitokens", "5Ktokens",
        "4096tokens", "010tokens", "0tokens", "1.5blocks", "3kblocks", "2Gtokens", "1 Mi tokens",
        "-1blocks", "blocks", "64"}) {
    KvSize size;
    Problems problems;
    read_config(size, Json(text), "/capacity", problems);
    EXPECT_EQ(std::regex_search(text, pattern), problems.lines().empty()) << text;
  }
}

TEST(KvSize, HoldsWholeBlocks) {
  const Tokens block(16);
  EXPECT_EQ(blocks_of({KvSize::Unit::blocks, 7}, block, Bytes(0)), 7);
  EXPECT_EQ(blocks_of({KvSize::Unit::tokens, 47}, block, Bytes(0)), 2);
  EXPECT_EQ(blocks_of({KvSize::Unit::bytes, 3199}, block, Bytes(100)), 1);
  EXPECT_EQ(blocks_of({KvSize::Unit::bytes, 3200}, block, Bytes(100)), 2);
}

TEST(KvSize, ASizeInAConfigIsPositive) {
  for (const Json& json : {Json("0blocks"), Json(5), Json("five")}) {
    KvSize size;
    Problems problems;
    read_config(size, json, "/capacity", problems);
    ASSERT_EQ(problems.lines().size(), 1U);
    EXPECT_EQ(problems.lines()[0],
              "/capacity: expected a size of KV such as \"64GiB\", \"5Mitokens\" or "
              "\"1000blocks\", got " +
                  quote_json(json));
  }
}

}  // namespace
}  // namespace kvtier::test
