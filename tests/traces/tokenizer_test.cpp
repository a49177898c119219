#include "traces/tokenizer.hpp"

#include <string>

#include <gtest/gtest.h>

#include "tests/traces/support.hpp"

#if __has_include(<sentencepiece_trainer.h>)
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#define KVTIER_TEST_CAN_TRAIN 1
#endif

namespace kvtier {
namespace {

using testing::config_error_of;
using testing::TempDir;

TEST(CharsTokenizer, RoundsUpCodePointsNotBytes) {
  const CharsTokenizer tokenizer(4);
  EXPECT_EQ(tokenizer.count(""), Tokens(0));
  EXPECT_EQ(tokenizer.count("abcd"), Tokens(1));
  EXPECT_EQ(tokenizer.count("abcde"), Tokens(2));
  EXPECT_EQ(tokenizer.count("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80x"),
            Tokens(1));  // 4 characters in 10 bytes
}

TEST(MakeTokenizer, ReadsTheRule) {
  EXPECT_EQ(make_tokenizer("chars:2", "")->count("abc"), Tokens(2));
  EXPECT_TRUE(is_chars_tokenizer("chars:2"));
  EXPECT_FALSE(is_chars_tokenizer("tokenizer.model"));
}

TEST(MakeTokenizer, RefusesOtherRules) {
  const TempDir dir;
  for (const std::string rule : {"chars:", "chars:0", "chars:-1", "chars:4x", "chars:1001"}) {
    EXPECT_EQ(
        config_error_of(dir, [&] { static_cast<void>(make_tokenizer(rule, "")); }),
        "tokenizer \"" + rule + "\": expected chars:N with N in 1 .. 1000, such as \"chars:4\"");
  }
}

TEST(MakeTokenizer, RefusesAMissingModelAndAFileThatIsNone) {
  const TempDir dir;
  EXPECT_EQ(
      config_error_of(dir, [&] { static_cast<void>(make_tokenizer("absent.model", dir.path())); }),
      "absent.model: no such file");
  static_cast<void>(dir.file("text.model", "this is no model"));
  EXPECT_EQ(
      config_error_of(dir, [&] { static_cast<void>(make_tokenizer("text.model", dir.path())); }),
      "text.model: not a SentencePiece model");
}

#ifdef KVTIER_TEST_CAN_TRAIN
TEST(SentencePieceTokenizer, CountsThePiecesOfATrainedModel) {
  const TempDir dir;
  std::string corpus;
  for (int i = 0; i < 200; ++i) {
    corpus +=
        "the cache keeps the keys and the values\nthe host memory keeps the rest of the cache\n";
  }
  const auto text = dir.file("corpus.txt", corpus);
  const auto trained = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + text.string() + " --model_prefix=" + (dir.path() / "tiny").string() +
      " --vocab_size=40 --model_type=bpe --minloglevel=4");
  ASSERT_TRUE(trained.ok()) << trained.ToString();

  const auto tokenizer = make_tokenizer("tiny.model", dir.path());
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load((dir.path() / "tiny.model").string()).ok());
  EXPECT_EQ(tokenizer->count(""), Tokens(0));
  for (const std::string sentence : {"the", "the cache keeps the host", "zebra \xe2\x82\xac"}) {
    const auto pieces = processor.EncodeAsPieces(sentence);
    EXPECT_EQ(tokenizer->count(sentence), Tokens(static_cast<std::int64_t>(pieces.size())));
    EXPECT_GT(tokenizer->count(sentence), Tokens(0));
  }
  // A frequent word is one piece, so repeating it adds one token each time.
  EXPECT_EQ(tokenizer->count("the the the") - tokenizer->count("the"), Tokens(2));
}
#endif

}  // namespace
}  // namespace kvtier
