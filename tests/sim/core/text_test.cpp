#include "sim/core/text.hpp"

#include <string>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(Utf8, IsTextOfEveryLength) {
  // U+E9, U+20AC and U+1F600: two, three and four bytes.
  const std::string text = "plain, \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80, and long enough";
  EXPECT_EQ(end_of_utf8(text), text.size());
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8(std::string(1000, 'a')));
}

TEST(Utf8, EndsAtTheFirstInvalidByte) {
  EXPECT_EQ(end_of_utf8("\xE9"), 0U) << "Latin-1";
  EXPECT_EQ(end_of_utf8("0123456789\xFF"), 10U);
  EXPECT_EQ(end_of_utf8("a\x80"), 1U) << "a continuation without its beginning";
  EXPECT_EQ(end_of_utf8("a\xE2\x82"), 1U) << "cut off";
  EXPECT_EQ(end_of_utf8("a\xC3z"), 1U) << "no continuation";
  EXPECT_EQ(end_of_utf8("a\xC0\xAF"), 1U) << "overlong";
  EXPECT_EQ(end_of_utf8("a\xED\xA0\x80"), 1U) << "a surrogate";
  EXPECT_EQ(end_of_utf8("a\xF4\x90\x80\x80"), 1U) << "above U+10FFFF";
}

TEST(PrintableText, HasNoControlCharacters) {
  EXPECT_EQ(printable("a\x1b[31mb\x07\r\x7f"), "a\\u001b[31mb\\u0007\\u000d\\u007f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J"),
            "\\u009b2J")
      << "a terminal may take U+9B for ESC [";
  EXPECT_EQ(printable("a\tb\nc\n"), "a\tb\nc\n");
  EXPECT_EQ(printable_line("a\tb\nc"), "a\tb\\nc");
}

TEST(PrintableText, ShowsInvalidUtf8AsReplacementCharacters) {
  EXPECT_EQ(printable("caf\xE9!"), "caf\xEF\xBF\xBD!");
  EXPECT_EQ(printable("caf\xC3\xA9"), "caf\xC3\xA9");
}

TEST(ShortenedText, EndsBetweenCharacters) {
  EXPECT_EQ(shortened("four", 4), "four");
  EXPECT_EQ(shortened("fives", 4), "five...");
  EXPECT_EQ(shortened("caf\xC3\xA9s", 4), "caf...");  // é has two bytes
  EXPECT_EQ(shortened("caf\xC3\xA9s", 5), "caf\xC3\xA9...");
}

TEST(QuotedText, IsShortened) {
  EXPECT_EQ(quote_text("lru"), "\"lru\"");
  EXPECT_EQ(quote_text(std::string(10'000'000, 'x')), "\"" + std::string(60, 'x') + "...\"");
}

TEST(SpreadsheetText, IsNoFormula) {
  for (const char* formula : {"=1+1", "+1", "-1%", "@SUM(A1)", "\t=1", "\r=1", "-"}) {
    EXPECT_EQ(formula_safe(formula), std::string("'") + formula);
  }
  for (const char* harmless : {"", "lru", "-1", "-1.5e-3", "0.5", "1=1", "a-b"}) {
    EXPECT_EQ(formula_safe(harmless), harmless);
  }
}

TEST(NumbersInText, AreFiniteAndAllOfIt) {
  EXPECT_EQ(parse_number("-1.5e3"), -1500);
  EXPECT_EQ(parse_number("0"), 0);
  for (const char* text : {"", " 1", "1 ", "+1", "1,5", "0x10", "inf", "nan", "1e999", "one"}) {
    EXPECT_FALSE(parse_number(text)) << text;
  }
}

}  // namespace
}  // namespace kvtier
