#include "sim/study/expect.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

const Json kResult = Json::parse(
    R"({"metrics": {"rate": 0.5, "count": 3, "none": null, "a/b": 1, "list": [4, 5]}, "load": {"verdict": "fine"}})");

Lines failed(const char* expectations) {
  return failed_expectations(kResult, Json::parse(expectations), "expect.json");
}

Lines problems(const char* expectations) {
  try {
    (void)failed(expectations);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(Expectations, HoldAtTheirLimits) {
  EXPECT_EQ(failed(R"({"/metrics/rate": {"min": 0.5, "max": 0.5}})"), Lines{});
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.5}})"), Lines{});
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.75, "tolerance": 0.25}})"), Lines{});
  EXPECT_EQ(failed(R"({"/metrics/count": {"min": 3}, "/metrics/list/1": {"max": 5}})"), Lines{});
  EXPECT_EQ(failed(R"({"/load/verdict": {"value": "fine"}, "/metrics/none": {"value": null}})"),
            Lines{});
  EXPECT_EQ(failed(R"({"/metrics/list": {"value": [4, 5]}, "/metrics/a~1b": {"value": 1}})"),
            Lines{});
}

TEST(Expectations, ThatDoNotHoldGiveALineEach) {
  EXPECT_EQ(
      failed(R"({"/metrics/rate": {"min": 0.6}, "/metrics/count": {"max": 2},
                       "/metrics/list/0": {"value": 5}, "/load/verdict": {"value": "bad"}})"),
      (Lines{"/metrics/rate: expected at least 0.6, got 0.5",
             "/metrics/count: expected at most 2, got 3", "/metrics/list/0: expected 5 +- 0, got 4",
             "/load/verdict: expected \"bad\", got \"fine\""}));
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.76, "tolerance": 0.25}})"),
            Lines{"/metrics/rate: expected 0.76 +- 0.25, got 0.5"});
  EXPECT_EQ(failed(R"({"/metrics/none": {"min": 0}})"),
            Lines{"/metrics/none: expected a number, got null"});
}

/// An expectation that is misspelt would hold for ever.
TEST(Expectations, OfAnythingThatIsNotThereAreBadInput) {
  EXPECT_EQ(problems(R"({"/metrics/rat": {"min": 0}, "metrics/rate": {"min": 0},
                         "/metrics/~2": {"min": 0}})"),
            (Lines{"expect.json: /~1metrics~1rat: the result has no such value",
                   "expect.json: /metrics~1rate: expected a JSON pointer, which starts with /",
                   "expect.json: /~1metrics~1~02: expected a JSON pointer, in which ~ is written "
                   "~0 and / in a key ~1"}));
}

TEST(Expectations, ThatAreMalformedAreBadInput) {
  for (const char* text :
       {R"({"/metrics/rate": 0.5})", R"({"/metrics/rate": {}})", R"({"/metrics/rate": {"mim": 1}})",
        R"({"/metrics/rate": {"min": "1"}})", R"({})", R"([])", R"(3)"}) {
    EXPECT_EQ(problems(text).size(), 1U) << text;
  }
  EXPECT_EQ(problems(R"({"/metrics/rate": {"mim": 1}})"),
            Lines{"expect.json: /~1metrics~1rate/mim: expected {\"min\": .., \"max\": ..} or "
                  "{\"value\": .., \"tolerance\": ..}, got {\"mim\":1}"});
}

}  // namespace
}  // namespace kvtier::test
