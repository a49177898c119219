#include "sim/study/runs/expect.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

const Json kResult = Json::parse(
    R"({"metrics": {"rate": 0.5, "count": 3, "none": null, "a/b": 1, "list": [4, 5]}, "load": {"verdict": "fine"}})");

Lines failed(const char* expectations) {
  return failed_expectations(values_of(kResult),
                             read_expectations(Json::parse(expectations), "expect.json"),
                             "expect.json");
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

TEST(Expectations, MayBePlainValues) {
  EXPECT_EQ(failed(R"({"/metrics/rate": 0.5, "/load/verdict": "fine", "/metrics/none": null,
                       "/metrics/list": [4, 5]})"),
            Lines{});
  EXPECT_EQ(failed(R"({"/metrics/rate": 0.6, "/load/verdict": "bad", "/metrics/list": [4]})"),
            (Lines{"/metrics/rate: expected 0.6 +- 0, got 0.5",
                   "/load/verdict: expected \"bad\", got \"fine\"",
                   "/metrics/list: expected [4], got [4,5]"}));
}

// Means of 1 and 4, and of 0.5 alone.
TEST(Expectations, UseTheMeansOfSeveralRuns) {
  const FindValue find = values_of(NamedResults{
      {"lru", {Json{{"rate", 1}, {"verdict", "fine"}}, Json{{"rate", 4}, {"verdict", "bad"}}}},
      {"8,a/b", {Json{{"rate", 0.5}}}}});
  const Json right = Json::parse(
      R"({"/lru/rate": 2.5, "/8,a~1b/rate": 0.5, "/lru/verdict": ["fine", "bad"], "/8,a~1b": {"value": {"rate": 0.5}}})");
  EXPECT_EQ(failed_expectations(find, read_expectations(right, ""), ""), Lines{});
  const Json wrong = Json::parse(R"({"/lru/rate": 2})");
  EXPECT_EQ(failed_expectations(find, read_expectations(wrong, ""), ""),
            Lines{"/lru/rate: expected 2 +- 0, got 2.5"});
  for (const char* pointer : {"/fifo/rate", "/lru/size", "/8/rate", "/"}) {
    EXPECT_EQ(find(pointer), std::nullopt) << pointer;
  }
}

TEST(Expectations, AreUpdatedToTheValuesFound) {
  const Json old = Json::parse(
      R"({"/metrics/rate": {"value": 0.6, "relative": 0.01}, "/metrics/count": {"max": 2},
          "/load/verdict": "bad"})");
  const Json updated =
      updated_expectations(old, values_of(kResult), read_expectations(old, "expect.json"));
  EXPECT_EQ(updated, Json::parse(R"({"/metrics/rate": {"value": 0.5, "relative": 0.01},
                                     "/metrics/count": {"max": 2}, "/load/verdict": "fine"})"));
}

TEST(Expectations, GiveALineEachIfTheyDoNotHold) {
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

// 0.5 is 0.1 below 0.6, a sixth of it: 16 % are too few, 17 % enough. Of two tolerances the wider
// counts: 0.05 absolute or 17 % of 0.6 (0.102). A share is that of the value's size: of -3, 100 %
// are 3, and 3 is 6 away.
TEST(Expectations, TakeARelativeTolerance) {
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.6, "relative": 0.17}})"), Lines{});
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.6, "relative": 0.17, "tolerance": 0.05}})"),
            Lines{});
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.6, "relative": 0.01, "tolerance": 0.2}})"),
            Lines{});
  EXPECT_EQ(failed(R"({"/metrics/rate": {"value": 0.6, "relative": 0.16}})"),
            Lines{"/metrics/rate: expected 0.6 +- 0.096, got 0.5"});
  EXPECT_EQ(failed(R"({"/metrics/count": {"value": -3, "relative": 1}})"),
            Lines{"/metrics/count: expected -3 +- 3, got 3"});
}

/// An expectation that is misspelt would hold for ever.
TEST(Expectations, AreBadInputIfTheirValueIsMissing) {
  EXPECT_EQ(problems(R"({"/metrics/rat": {"min": 0}, "/metrics/rate/mean": {"min": 0}})"),
            (Lines{"expect.json: /metrics/rat: the result has no such value",
                   "expect.json: /metrics/rate/mean: the result has no such value"}));
  EXPECT_EQ(problems(R"({"metrics/rate": {"min": 0}, "/metrics/~2": {"min": 0}})"),
            (Lines{"expect.json: /metrics~1rate: expected a JSON pointer, which starts with /",
                   "expect.json: /~1metrics~1~02: expected a JSON pointer, in which ~ is written "
                   "~0 and / in a key ~1"}));
}

// No index of a list is empty or larger than every number.
TEST(Expectations, AreBadInputIfTheirIndexIsInvalid) {
  EXPECT_EQ(
      problems(R"({"/metrics/list/": {"value": 1},
                         "/metrics/list/99999999999999999999999": {"value": 1}})"),
      (Lines{"expect.json: /metrics/list/: the result has no such value",
             "expect.json: /metrics/list/99999999999999999999999: the result has no such value"}));
}

TEST(Expectations, AreBadInputIfMalformed) {
  const std::string wanted =
      "expected a value, {\"min\": .., \"max\": ..} or {\"value\": .., \"tolerance\": .., "
      "\"relative\": ..}, got ";
  EXPECT_EQ(problems("{}"),
            Lines{"expect.json: /: expected an object from JSON pointers to expectations, got {}"});
  EXPECT_EQ(problems("[]").size(), 1U);
  EXPECT_EQ(problems("3").size(), 1U);
  EXPECT_EQ(problems(R"({"/b": {}, "/c": {"mim": 1}, "/d": {"min": 1, "value": 1},
                         "/e": {"min": 1, "relative": 1}})"),
            (Lines{"expect.json: /~1b: " + wanted + "{}",
                   "expect.json: /~1c/mim: " + wanted + "{\"mim\":1}",
                   "expect.json: /~1d: " + wanted + "{\"min\":1,\"value\":1}",
                   "expect.json: /~1e: " + wanted + "{\"min\":1,\"relative\":1}"}));
  EXPECT_EQ(problems(R"({"/a": {"min": "1"}, "/b": {"value": 1, "tolerance": -1},
                         "/c": {"value": 1, "relative": -0.5}, "/d": {"value": "x", "relative": 1},
                         "/e": {"tolerance": 1}, "/f": {"min": 2, "max": 1}})"),
            (Lines{"expect.json: /~1a/min: expected a number, got \"1\"",
                   "expect.json: /~1b/tolerance: expected a number >= 0, got -1",
                   "expect.json: /~1c/relative: expected a number >= 0, got -0.5",
                   "expect.json: /~1d: a tolerance needs a number as value",
                   "expect.json: /~1e: a tolerance needs a number as value",
                   "expect.json: /~1f: no number is at least 2 and at most 1"}));
}

TEST(Expectations, NameThePointerThatReplacesAnOldOne) {
  constexpr std::pair<const char*, const char*> kPointers[] = {
      {"/metrics/blocks/hit_rate/tokens/total", "/metrics/hit_rate/prompt_tokens/total"},
      {"/vllm/metrics/blocks/hit_rate/turns", "/vllm/metrics/hit_rate/requests_with_hits"},
      {"/metrics/blocks/hit_rate/blocks", "/metrics/hit_rate/blocks/total"},
      {"/metrics/blocks/ideal_hit_rate/tokens", "/metrics/hit_rate/ideal/prompt_tokens"},
      {"/metrics/blocks/prompt_blocks", "/metrics/prompt_blocks"},
      {"/metrics/ideal_hit_rate/turns", "/metrics/hit_rate/ideal/requests_with_hits"},
      {"/metrics/classes/chat/ttft_seconds", ""},
      {"/metrics/hit_rate/tokens/total", ""}};
  for (const auto& [old, current] : kPointers) {
    EXPECT_EQ(renamed_pointer(old), current);
  }
  EXPECT_EQ(problems(R"({"/metrics/blocks/hit_rate/tokens/total": 1})"),
            (Lines{"expect.json: /metrics/blocks/hit_rate/tokens/total: the result has no such "
                   "value (write /metrics/hit_rate/prompt_tokens/total)"}));
}

}  // namespace
}  // namespace kvtier::test
