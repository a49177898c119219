/// A paper as data: the rules of its files, values computed from runs, and their judgement.

#include "sim/study/papers/reproduce.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

/// A folder like `configs` with one paper, "tiny", whose run takes a few milliseconds.
class Reproducing : public testing::Test {
 protected:
  Reproducing() {
    for (const char* kind : {"models", "hardware", "systems"}) {
      fs::create_directory_symlink(source_dir() / "configs" / kind, dir_.path(kind));
    }
    fs::create_directories(dir_.path("papers/tiny/figures"));
    dir_.write("papers/tiny/run.json", R"({
      "model": "llama2-13b", "hardware": {"preset": "a100-80g", "gpus": 2},
      "system": "attentionstore",
      "workload": {"generator": "sharegpt", "sessions": 40, "arrival_rate": "1/s",
                   "warmup_turns": 20}
    })");
    paper(R"({"title": "Tiny", "source": "here", "runs": {
      "AS": {"config": "run.json"},
      "RE": {"config": "run.json", "set": {"/system": "recompute"}}
    }})");
  }

  void paper(const std::string& json) const { dir_.write("papers/tiny/reproduction.json", json); }
  void figure(const std::string& name, const std::string& json) const {
    dir_.write("papers/tiny/figures/" + name + ".json", json);
  }
  /// A figure of these values.
  void values(const std::string& list) const {
    figure("1", R"({"title": "t", "source": "Fig. 1", "values": [)" + list + "]}");
  }

  [[nodiscard]] Paper load(const Lines& figures = {}) const {
    return load_paper(ConfigDirectory(dir_.path("")), "tiny", figures);
  }
  [[nodiscard]] Reproduction run(std::int64_t replications = 1) {
    ReproduceOptions options;
    options.replications = replications;
    options.progress = [this](std::int64_t done, std::int64_t all) {
      runs_ = done;
      left_.push_back(all - done);
    };
    return reproduce(load(), ConfigDirectory(dir_.path("")), builtin_policies(), options);
  }
  [[nodiscard]] ReproducedValue only_value(std::int64_t replications = 1) {
    return run(replications).figures.at(0).values.at(0);
  }
  /// Every problem, with paths from the paper's folder on.
  template <class Function>
  [[nodiscard]] Lines problems_of(Function function) const {
    try {
      function();
    } catch (const ConfigError& error) {
      Lines lines = error.problems();
      for (std::string& line : lines) {
        const std::string folder = dir_.path("papers/tiny/").string();
        for (std::size_t at = line.find(folder); at != std::string::npos; at = line.find(folder)) {
          line.erase(at, folder.size());
        }
      }
      return lines;
    }
    return {};
  }
  [[nodiscard]] Lines problems() {
    return problems_of([&] { (void)run(); });
  }
  [[nodiscard]] Json simulated(const std::string& system, std::int64_t seed) const {
    ConfigRequest request;
    request.file = dir_.path("papers/tiny/run.json");
    request.system = system;
    request.seed = seed;
    return simulate(
        resolve_config(request, ConfigDirectory(dir_.path("")), builtin_policies()).config,
        builtin_policies());
  }

  TempDir dir_;
  std::int64_t runs_ = 0;
  /// Runs that were still known to come after each run.
  std::vector<std::int64_t> left_;
};

constexpr const char* kThroughput = "/metrics/prompt_tokens_served_per_prefill_second";

TEST_F(Reproducing, TakesMetricsOfRuns) {
  values(R"({"name": "v", "unit": "tokens/s",
             "value": "AS /metrics/prompt_tokens_served_per_prefill_second"})");
  EXPECT_DOUBLE_EQ(only_value().mean, number_at(simulated("attentionstore", 1), kThroughput));
}

TEST_F(Reproducing, ComputesWithThemFromTheLeft) {
  const auto value_of = [&](const std::string& expression) {
    values(R"({"name": "v", "unit": "x", "value": )" + expression + "}");
    return only_value().mean;
  };
  EXPECT_DOUBLE_EQ(value_of("1.5"), 1.5);
  EXPECT_DOUBLE_EQ(value_of(R"({"sum": [1, 2, 3]})"), 6);
  EXPECT_DOUBLE_EQ(value_of(R"({"difference": [10, 2, 3]})"), 5);
  EXPECT_DOUBLE_EQ(value_of(R"({"product": [2, 3, 4]})"), 24);
  EXPECT_DOUBLE_EQ(value_of(R"({"ratio": [12, 2, 3]})"), 2);
  EXPECT_DOUBLE_EQ(value_of(R"({"largest": [1, 7, 3]})"), 7);
  EXPECT_DOUBLE_EQ(value_of(R"({"difference": [1, {"ratio": [1, 4]}]})"), 0.75);
  const double as = number_at(simulated("attentionstore", 1), kThroughput);
  const double re = number_at(simulated("recompute", 1), kThroughput);
  EXPECT_DOUBLE_EQ(value_of(R"({"ratio": ["AS )" + std::string(kThroughput) + R"(", "RE )" +
                            kThroughput + R"("]})"),
                   as / re);
}

TEST_F(Reproducing, GivesMeanAndSpreadOverSeeds) {
  values(R"({"name": "v", "unit": "tokens/s",
             "value": "RE /metrics/prompt_tokens_served_per_prefill_second"})");
  const ReproducedValue value = only_value(3);
  double sum = 0;
  double least = 1e300;
  double most = 0;
  for (std::int64_t seed = 1; seed <= 3; ++seed) {
    const double one = number_at(simulated("recompute", seed), kThroughput);
    EXPECT_DOUBLE_EQ(value.of_seeds.at(static_cast<std::size_t>(seed - 1)), one);
    sum += one;
    least = std::min(least, one);
    most = std::max(most, one);
  }
  EXPECT_NEAR(value.mean, sum / 3, 1e-9 * sum);
  EXPECT_DOUBLE_EQ(value.spread, most - least);
}

TEST_F(Reproducing, ExecutesARunOnceForEachSeed) {
  const std::string value =
      R"({"name": "v", "unit": "x", "value": {"sum": ["AS /metrics/turns", "again /metrics/turns"]}})";
  const auto with_run = [&](const std::string& name) {
    figure(name, R"({"title": "t", "source": "s", "values": [)" + value + R"(],
      "runs": {"again": {"config": "run.json", "set": {"/system": "attentionstore"}}}})");
  };
  with_run("1");
  with_run("2");
  (void)run(2);
  EXPECT_EQ(runs_, 2);
}

// The paper says 40 %, we have 50.
TEST_F(Reproducing, JudgesByTheBand) {
  const auto verdict = [&](const std::string& band) {
    values(R"({"name": "v", "unit": "%", "value": 0.5, "paper": 40, "band": )" + band + "}");
    return only_value().verdict;
  };
  EXPECT_EQ(verdict(R"({"absolute": 10})"), Verdict::in);
  EXPECT_EQ(verdict(R"({"absolute": 9.9})"), Verdict::out);
  EXPECT_EQ(verdict(R"({"relative": 0.25})"), Verdict::in);
  EXPECT_EQ(verdict(R"({"relative": 0.24})"), Verdict::out);
  EXPECT_EQ(verdict(R"({"absolute": 1, "side": "at_least"})"), Verdict::in);
  EXPECT_EQ(verdict(R"({"absolute": 1, "side": "at_most"})"), Verdict::out);
}

TEST_F(Reproducing, FindsNonFiniteValuesOutOfTheirBand) {
  for (const char* number : {R"({"product": [1e300, 1e300]})", R"({"product": [-1e300, 1e300]})",
                             R"({"difference": [{"product": [1e300, 1e300]},
                                                {"product": [1e300, 1e300]}]})"}) {
    for (const char* side : {"both", "at_most", "at_least"}) {
      values(R"({"name": "v", "unit": "x", "paper": 1, "value": )" + std::string(number) +
             R"(, "band": {"relative": 1, "side": ")" + side + R"("}})");
      const Reproduction found = run();
      EXPECT_EQ(found.count(Verdict::out), 1) << number << side;
      EXPECT_NE(to_table(found).find("OUT\n"), std::string::npos) << to_table(found);
      const Json row = to_json(found)["figures"]["1"]["values"][0];
      EXPECT_EQ(row["verdict"], "out");
      EXPECT_EQ(row["mean"], nullptr);
    }
  }
}

TEST_F(Reproducing, CountsJudgedAndUnjudgedValues) {
  values(R"({"name": "a", "unit": "x", "value": 1, "paper": 1, "band": {"absolute": 1}},
            {"name": "b", "unit": "x", "value": 1, "paper": 3, "band": {"absolute": 1}},
            {"name": "c", "unit": "x", "value": 1, "paper": 3, "band": {"absolute": 1},
             "explain": {"text": "why"}},
            {"each": [{"n": 1}, {"n": 2}, {"n": 3}], "name": "d", "unit": "x", "value": "{n}",
             "paper": 9, "explain": {"text": "why"}},
            {"each": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}], "name": "e", "unit": "x",
             "value": "{n}"})");
  const Reproduction found = run();
  const std::string table = to_table(found);
  EXPECT_TRUE(
      table.ends_with("\n1 in their band, 2 out, 3 explained, 4 that the paper gives no "
                      "number for\n"))
      << table;
  const Json json = to_json(found);
  EXPECT_EQ(json["values_in_band"], 1);
  EXPECT_EQ(json["values_out_of_band"], 2);
  EXPECT_EQ(json["values_explained"], 3);
  EXPECT_EQ(json["values_without_paper"], 4);
}

TEST_F(Reproducing, PrintsTheBoundOfABandWithOneSide) {
  const auto row = [&](const std::string& band) {
    values(R"({"name": "v", "unit": "s", "value": 20, "paper": 20, "band": )" + band + "}");
    const std::string table = to_table(run());
    const std::size_t end = table.find("  in\n");
    return table.substr(table.find("20.0") + 4, end - table.find("20.0") - 4);
  };
  EXPECT_EQ(row(R"({"absolute": 0, "side": "at_most"})"), "    <= 20");
  EXPECT_EQ(row(R"({"relative": 0.25, "side": "at_most"})"), "    <= 25");
  EXPECT_EQ(row(R"({"relative": 0.25, "side": "at_least"})"), "    >= 15");
  EXPECT_EQ(row(R"({"absolute": 1.5, "side": "at_least"})"), "  >= 18.5");
  EXPECT_EQ(row(R"({"absolute": 1.5})"), "    +-1.5");
  EXPECT_EQ(row(R"({"relative": 0.25})"), "   +-25 %");
}

TEST_F(Reproducing, CopiesAnEntryForEachItem) {
  paper(R"({"title": "Tiny", "source": "here", "runs": {"{short} run": {
    "each": [{"short": "AS", "system": "attentionstore"}, {"short": "RE", "system": "recompute"}],
    "config": "run.json", "set": {"/system": "{system}"}}}})");
  values(R"({"each": [{"short": "AS", "published": 1}, {"short": "RE", "published": 2.5}],
    "name": "turns of {short}", "unit": "count", "value": "{short} run /metrics/turns",
    "paper": "{published}", "explain": {"text": "why"}})");
  const Reproduction found = run();
  ASSERT_EQ(found.figures[0].values.size(), 2U);
  EXPECT_EQ(found.figures[0].values[0].asked.name, "turns of AS");
  EXPECT_EQ(found.figures[0].values[1].asked.name, "turns of RE");
  EXPECT_EQ(found.figures[0].values[1].asked.paper, 2.5);
  EXPECT_EQ(found.figures[0].values[1].mean,
            number_at(simulated("recompute", 1), "/metrics/turns"));
}

// (3 - 1) / 3 of the paper's 3 is 2; ours is 1, a third of it.
TEST_F(Reproducing, PutsComputedNumbersIntoExplanations) {
  values(R"({"name": "v", "unit": "x", "value": 1, "paper": 3, "explain": {
    "text": "{ours}, not {paper}: {share}, {rest}.",
    "numbers": {"share": {"value": {"ratio": ["ours", "paper"]}, "unit": "%"},
                "rest": {"value": {"difference": ["paper", "ours"]}, "unit": "count"}}}})");
  const ReproducedValue value = only_value();
  EXPECT_EQ(value.explanation, "1.00 x, not 3 x: 33.3 %, 2.");
  EXPECT_NEAR(value.numbers.at("share"), 100.0 / 3, 1e-9);
}

// The price of a GPU hour is 5 dollars, 6 busy dollars for each 5 need 6 dollars an hour.
TEST_F(Reproducing, SearchesTheValueThatAKeyWouldNeed) {
  const auto explained = [&](double to, const std::string& more) {
    values(R"({"name": "v", "unit": "x", "paper": 1.2,
      "value": {"ratio": ["RE /metrics/busy_cost_dollars/gpu",
                          {"product": [5, {"ratio": ["RE /metrics/gpu_seconds/total", 3600]}]}]},
      "explain": {"text": "a price of {price}", "numbers": {"price": {"search": {
        "keys": ["/hardware/gpu/price"], "quantity": "$/h", "from": 1, "to": )" +
           std::to_string(to) + "}" + more + "}}}}");
    return only_value();
  };
  const ReproducedValue found = explained(20, "");
  EXPECT_NEAR(found.mean, 1, 1e-9);
  EXPECT_NEAR(found.numbers.at("price"), 6, 0.01);
  EXPECT_EQ(found.explanation, "a price of 6 $/h");
  EXPECT_EQ(explained(2, "").explanation, "a price of nothing from 1$/h to 2$/h");
  // The cost of the run at that price, per GPU hour.
  const ReproducedValue at = explained(20, R"(, "unit": "count", "value": {"ratio": [
      "RE /metrics/busy_cost_dollars/gpu", {"ratio": ["RE /metrics/gpu_seconds/total", 3600]}]})");
  EXPECT_NEAR(at.numbers.at("price"), 6, 0.01);
}

// The value is the number of sessions. 33 of them come nearest to 33.3, 10 to less.
TEST_F(Reproducing, SearchesWholeNumbersForIntegerKeys) {
  const auto explained = [&](const std::string& paper, double from, double to) {
    values(R"({"name": "v", "unit": "count", "value": "RE /workload/sessions", "paper": )" + paper +
           R"(, "explain": {"text": "{n} sessions", "numbers": {"n": {"search": {
             "keys": ["/workload/sessions"], "quantity": "", "from": )" +
           std::to_string(from) + R"(, "to": )" + std::to_string(to) + "}}}}}");
    return only_value();
  };
  EXPECT_EQ(explained("33.3", 10, 50).numbers.at("n"), 33);
  EXPECT_EQ(explained("33.3", 50, 10).explanation, "33 sessions");
  EXPECT_EQ(explained("10.2", 10, 11).numbers.at("n"), 10);
  EXPECT_EQ(explained("60", 10, 50).explanation, "nothing from 10 to 50 sessions");
}

TEST_F(Reproducing, CountsTheRunsOfSearchesBesideThoseStillToCome) {
  figure("1", R"({"title": "t", "source": "s", "values": [
    {"name": "v", "unit": "count", "value": "RE /workload/sessions", "paper": 30, "explain": {
      "text": "{n}", "numbers": {"n": {"search": {
        "keys": ["/workload/sessions"], "quantity": "", "from": 20, "to": 40}}}}}]})");
  figure("2", R"({"title": "t", "source": "s", "values": [
    {"name": "v", "unit": "count", "value": "AS /workload/sessions"}]})");
  (void)run();
  ASSERT_GT(left_.size(), 3U);
  EXPECT_EQ(left_.back(), 0);
  left_.pop_back();
  EXPECT_EQ(left_, std::vector<std::int64_t>(left_.size(), 1));
}

TEST_F(Reproducing, TakesNumbersOfExperiments) {
  figure("1", R"({"title": "t", "source": "s", "runs": {"fill": {
      "config": "run.json", "experiment": "kv_fill_times", "parameters": {"prompt": "100tokens"}}},
    "values": [{"name": "v", "unit": "ms", "value": "fill /prefill_seconds"}]})");
  const double milliseconds = only_value().mean;
  EXPECT_GT(milliseconds, 1);
  EXPECT_LT(milliseconds, 100);
}

TEST_F(Reproducing, GivesTheSameBytesTwice) {
  values(R"({"name": "v", "unit": "%", "value": "AS /metrics/hit_rate/all_turns/total",
    "paper": 50, "band": {"absolute": 60}, "explain": {"text": "{ours}"}})");
  EXPECT_EQ(to_json(run(2)).dump(), to_json(run(2)).dump());
  EXPECT_EQ(to_table(run(2)), to_table(run(2)));
}

TEST_F(Reproducing, OrdersFiguresByNumber) {
  for (const char* name : {"10", "2.4", "1b", "4", "1a"}) {
    figure(name,
           R"({"title": "t", "source": "s", "values": [{"name": "v", "unit": "x", "value": 1}]})");
  }
  Lines names;
  for (const Figure& figure : load().figures) {
    names.push_back(figure.name);
  }
  EXPECT_EQ(names, (Lines{"1a", "1b", "2.4", "4", "10"}));
  ASSERT_EQ(load({"4"}).figures.size(), 1U);
  EXPECT_EQ(load({"4"}).figures[0].name, "4");
}

TEST_F(Reproducing, VariesOneThingAtATime) {
  paper(R"({"title": "Tiny", "source": "here", "runs": {"AS": {"config": "run.json"}},
    "sensitivity": {"figures": ["1"], "variations": [
      {"name": "fewer sessions", "set": {"/workload/sessions": 30}},
      {"name": "a table", "set": {"/workload/sessions": 1}, "needs": "no such file"}]}})");
  values(R"({"name": "v", "unit": "count", "value": "AS /workload/sessions"})");
  const SensitivityResult result =
      vary(load(), ConfigDirectory(dir_.path("")), builtin_policies(), {.replications = 2});
  EXPECT_EQ(result.base.figures[0].values[0].mean, 40);
  ASSERT_EQ(result.columns.size(), 2U);
  EXPECT_EQ(result.columns[0].values.at(0).mean, 30);
  EXPECT_EQ(result.columns[1].left_out, "there is no no such file");
  EXPECT_TRUE(result.columns[1].values.empty());
  const std::string table = to_table(result);
  EXPECT_NE(table.find("30*"), std::string::npos) << table;
  EXPECT_NE(table.find("(2) a table [left out: there is no no such file]"), std::string::npos)
      << table;
  EXPECT_EQ(to_json(result)["variations"][0]["values"][0]["mean"], 30);
}

// ---- Files that are wrong ----

TEST_F(Reproducing, NamesUnknownKeysWhereTheyStand) {
  figure("1", R"({"title": "t", "source": "s", "valves": [], "values": [
    {"name": "v", "unit": "%", "value": 1, "papr": 3}]})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/0/papr: unknown key (did you mean \"paper\"?)",
                   "figures/1.json: /valves: unknown key (did you mean \"values\"?)"}));
}

TEST_F(Reproducing, NamesMissingKeysAndWrongTypes) {
  figure("1", R"({"title": 3, "values": [{"unit": "yards", "value": true}]})");
  EXPECT_EQ(
      problems(),
      (Lines{"figures/1.json: /title: expected a string, got 3",
             "figures/1.json: /source: missing key", "figures/1.json: /values/0/name: missing key",
             "figures/1.json: /values/0/value: expected a number, \"RUN /json/pointer\", "
             "\"paper\", \"ours\", or one of sum, difference, product, ratio, largest with a list "
             "of two or more, got true",
             "figures/1.json: /values/0/unit: expected one of %, points, x, s, ms, tokens/s, GPU "
             "hours, GB/s, GB, TiB, $, count, got \"yards\""}));
}

TEST_F(Reproducing, NamesMissingRuns) {
  values(R"({"name": "v", "unit": "x", "value": {"ratio": ["RF /metrics/turns", 1]}})");
  EXPECT_EQ(problems(), (Lines{"figures/1.json: /values/0/value/ratio/0: there is no run \"RF\" "
                               "(did you mean \"RE\"?)"}));
}

TEST_F(Reproducing, NamesNumbersThatAResultDoesNotHave) {
  values(R"({"name": "v", "unit": "x", "value": {"ratio": [1, "AS /metrics/turn"]}})");
  EXPECT_EQ(problems(), (Lines{"figures/1.json: /values/0/value/ratio/1: the result of \"AS\" has "
                               "no number at /metrics/turn"}));
}

TEST_F(Reproducing, NamesADivisorOfZero) {
  values(
      R"({"name": "v", "unit": "x", "value": {"ratio": [1, "RE /metrics/hit_rate/tokens/total"]}})");
  EXPECT_EQ(problems(), (Lines{"figures/1.json: /values/0/value: a divisor is 0"}));
}

TEST_F(Reproducing, RefusesBandsWithoutAMeaning) {
  values(R"({"name": "a", "unit": "x", "value": 1, "band": {"absolute": 1}},
            {"name": "b", "unit": "x", "value": 1, "paper": 1, "band": {}},
            {"name": "c", "unit": "x", "value": "paper"},
            {"name": "d", "unit": "x", "value": "ours"})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/0/band: there is no \"paper\" to compare with",
                   "figures/1.json: /values/1/band: expected one of \"absolute\" and \"relative\"",
                   "figures/1.json: /values/2/value: the value has no \"paper\"",
                   "figures/1.json: /values/3/value: only an explanation can say \"ours\""}));
}

TEST_F(Reproducing, HoldsTextsAndNumbersOfExplanationsTogether) {
  values(R"({"name": "a", "unit": "x", "value": 1, "explain": {
    "text": "{paper} and {none}", "numbers": {"spare": {"value": 1}, "empty": {}}}})");
  EXPECT_EQ(
      problems(),
      (Lines{
          "figures/1.json: /values/0/explain/numbers/empty: expected a \"value\" or a "
          "\"search\"",
          "figures/1.json: /values/0/explain/text: {paper} is no number of the explanation",
          "figures/1.json: /values/0/explain/text: {none} is no number of the explanation",
          "figures/1.json: /values/0/explain/numbers/empty: the text does not use this number",
          "figures/1.json: /values/0/explain/numbers/spare: the text does not use this number"}));
}

TEST_F(Reproducing, NamesItemsThatNothingUses) {
  values(R"({"each": [{"model": "a"}], "name": "a", "unit": "x", "value": 1},
            {"each": [], "name": "a", "unit": "x", "value": 1},
            {"each": [3], "name": "a", "unit": "x", "value": 1})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/0/each/0/model: no text beside \"each\" has {model}",
                   "figures/1.json: /values/1/each: expected a list of objects, got []",
                   "figures/1.json: /values/2/each/0: expected an object, got 3"}));
}

TEST_F(Reproducing, NamesTheOverrideThatIsWrong) {
  figure("1", R"({"title": "t", "source": "s", "runs": {
      "slow": {"config": "run.json", "set": {"/serving/slts": 3}},
      "lost": {"config": "nowhere.json"},
      "odd": {"config": "run.json", "experiment": "kv_fill_time"},
      "bad": {"config": "run.json", "experiment": "kv_fill_times", "parameters": {"promt": 1}}},
    "values": [{"name": "v", "unit": "x", "value": {"sum": [
      "slow /metrics/turns", "lost /a", "odd /b", "bad /c"]}}]})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /runs/bad/parameters/prompt: missing key",
                   "figures/1.json: /runs/bad/parameters/promt: unknown key (did you mean "
                   "\"prompt\"?)",
                   "figures/1.json: /runs/lost/config: no such file: nowhere.json",
                   "figures/1.json: /runs/odd/experiment: expected one of batch_prefill, "
                   "batch_save, hbm_requests, kv_fill_times, latency_over_load, "
                   "phase_times, repeated_prompts, reuse_or_recompute, storage_per_session, got "
                   "\"kv_fill_time\" (did "
                   "you mean \"kv_fill_times\"?)",
                   "figures/1.json: /runs/slow/set: /serving/slts: unknown key (did you mean "
                   "\"slots\"?)"}));
}

TEST_F(Reproducing, PointsIntoTheFileEvenAfterCopies) {
  values(R"({"each": [{"n": 1}, {"n": 2}], "name": "row {n}", "unit": "x", "value": "{n}"},
            {"name": "v", "unit": "x", "value": "RF /metrics/turns"})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/1/value: there is no run \"RF\" (did you mean "
                   "\"RE\"?)"}));
}

TEST_F(Reproducing, RefusesRunsThatCannotBeTold) {
  figure(
      "1",
      R"({"title": "t", "source": "s", "values": [{"name": "v", "unit": "x", "value": 1}], "runs": {
    "AS": {"config": "run.json"}, "a /b": {"config": "run.json"},
    "x": {"config": "run.json"}, "{n}": {"each": [{"n": "x"}], "config": "run.json"}}})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /runs/a ~1b: a run's name is not empty and has no / after a "
                   "blank",
                   "figures/1.json: /runs/{n}: there is a run \"x\" already"}));
  figure(
      "1",
      R"({"title": "t", "source": "s", "values": [{"name": "v", "unit": "x", "value": 1}], "runs": {
    "AS": {"config": "run.json"}}})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /runs/AS: reproduction.json has a run \"AS\", too"}));
  figure("1", R"({"title": "t", "source": "s", "values": {}, "runs": []})");
  EXPECT_EQ(problems(), (Lines{"figures/1.json: /runs: expected an object, got []",
                               "figures/1.json: /values: expected a list, got {}"}));
}

TEST_F(Reproducing, RefusesSearchesWithoutAGoalOrAKey) {
  values(R"({"name": "v", "unit": "x", "value": "RE /metrics/turns", "explain": {"text": "{n}",
    "numbers": {"n": {"search": {"keys": ["seed"], "quantity": "", "from": 1, "to": 0}}}}})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/0/explain/numbers/n/search/to: expected a number > 0, "
                   "got 0"}));
  values(R"({"name": "v", "unit": "x", "value": "RE /metrics/turns", "explain": {"text": "{n}",
    "numbers": {"n": {"search": {"keys": ["seed"], "quantity": "", "from": 1, "to": 2}}}}})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/0/explain/numbers/n/search: there is no \"paper\" to "
                   "search for",
                   "figures/1.json: /values/0/explain/numbers/n/search/keys/0: expected a JSON "
                   "pointer, which starts with /"}));
  values(R"({"name": "v", "unit": "x", "value": "RE /metrics/turns", "paper": 1, "explain": {
    "text": "{n}", "numbers": {"n": {"search": {
      "keys": ["/serving/slts"], "quantity": "", "from": 1, "to": 2}}}}})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/0/explain/numbers/n/search/keys: /serving/slts: "
                   "unknown key (did you mean \"slots\"?)"}));
}

TEST_F(Reproducing, RefusesKeysOfSearchesBeforeTheFirstRun) {
  const auto search = [&](const std::string& key, const std::string& quantity,
                          const std::string& to) {
    values(R"({"name": "v", "unit": "x", "value": "RE /metrics/turns", "paper": 1e9, "explain": {
      "text": "{n}", "numbers": {"n": {"search": {"keys": [")" +
           key + R"("], "quantity": ")" + quantity + R"(", "from": 1, "to": )" + to + "}}}}}");
    const Lines lines = problems();
    EXPECT_EQ(runs_, 0) << key;
    return lines;
  };
  const std::string at = "figures/1.json: /values/0/explain/numbers/n/search/keys: ";
  EXPECT_EQ(search("/serving/slts", "", "2"),
            (Lines{at + "/serving/slts: unknown key (did you mean \"slots\"?)"}));
  EXPECT_EQ(search("/hardware/gpu/price", "miles", "2").size(), 1U);
  // Only the other end is wrong.
  EXPECT_EQ(search("/system/load/buffers", "", "2000").size(), 1U);
}

TEST_F(Reproducing, RefusesSettingsWithoutEffect) {
  paper(R"({"title": "Tiny", "source": "here", "runs": {
    "RE": {"config": "run.json", "parameters": {"prompt": "1tokens"}}}})");
  figure("1", R"({"title": "t", "source": "s", "values": []})");
  EXPECT_EQ(problems(), (Lines{"reproduction.json: /runs/RE/parameters: there is no "
                               "\"experiment\" that takes them",
                               "figures/1.json: /values: expected one value at least, got []"}));
  paper(R"({"title": "Tiny", "source": "here"})");
  figure("1", R"({"title": "t", "source": "s", "runs": {
      "used": {"config": "run.json"}, "explains": {"config": "run.json"},
      "spare": {"config": "nowhere.json"}},
    "values": [{"name": "v", "unit": "x", "paper": 1, "value": {"sum": [1, "used /metrics/turns"]},
      "explain": {"text": "{n}", "numbers": {"n": {"value": "explains /metrics/turns"}}}},
      {"name": "w", "unit": "x", "paper": 1, "value": 1}]})");
  EXPECT_EQ(problems(),
            (Lines{"figures/1.json: /values/1/paper: expected a \"band\" or an \"explain\" beside "
                   "it",
                   "figures/1.json: /runs/spare: no value names the run \"spare\""}));
}

TEST_F(Reproducing, SaysThatAPaperHasNoFigures) {
  const Lines expected{"figures: the paper has no figures"};
  EXPECT_EQ(problems(), expected);
  EXPECT_EQ(problems_of([&] { (void)load({"13"}); }), expected);
}

TEST_F(Reproducing, RefusesInvalidPointers) {
  values(R"({"name": "v", "unit": "x", "value": "RE /metrics/~2"})");
  EXPECT_EQ(problems(), (Lines{"figures/1.json: /values/0/value: expected a JSON pointer after the "
                               "run, got \"RE /metrics/~2\""}));
  paper(R"({"title": "Tiny", "source": "here", "runs": {"RE": {"config": "run.json", "set": 3}}})");
  EXPECT_EQ(problems().at(0),
            "reproduction.json: /runs/RE/set: expected an object from JSON "
            "pointers to values, got 3");
}

TEST_F(Reproducing, SaysWhichFiguresHaveVariations) {
  figure("2",
         R"({"title": "t", "source": "s", "values": [{"name": "v", "unit": "x", "value": 1}]})");
  values(R"({"name": "v", "unit": "x", "value": 1})");
  paper(R"({"title": "Tiny", "source": "here", "sensitivity": {
    "figures": ["1"], "variations": [{"name": "n", "set": {"/serving/slts": 1}}]}})");
  const auto problems_of_varying = [&](const std::string& figure) {
    return problems_of([&] {
      (void)vary(load({figure}), ConfigDirectory(dir_.path("")), builtin_policies(), {});
    });
  };
  EXPECT_EQ(problems_of_varying("2"), (Lines{"--figure: with --sensitivity expected one of 1"}));
  paper(R"({"title": "Tiny", "source": "here", "runs": {"RE": {"config": "run.json"}},
    "sensitivity": {"figures": ["1"], "variations": [{"name": "n", "set": {"/serving/slts": 1}}]}})");
  values(R"({"name": "v", "unit": "x", "value": "RE /metrics/turns"})");
  EXPECT_EQ(problems_of_varying("1"),
            (Lines{"reproduction.json: /sensitivity/variations/0/set: /serving/slts: unknown key "
                   "(did you mean \"slots\"?)"}));
}

TEST_F(Reproducing, RefusesKeysThatAreNotPointers) {
  paper(R"({"title": "Tiny", "source": "here",
            "runs": {"AS": {"config": "run.json", "set": {"system": "recompute"}}}})");
  values(R"({"name": "v", "unit": "x", "value": "AS /metrics/turns"})");
  EXPECT_EQ(problems().at(0),
            "reproduction.json: /runs/AS/set/system: expected a JSON pointer, which starts with /");
}

TEST_F(Reproducing, NamesUnknownPapersAndFigures) {
  figure("13",
         R"({"title": "t", "source": "s", "values": [{"name": "v", "unit": "x", "value": 1}]})");
  EXPECT_EQ(problems_of([&] { (void)load_paper(ConfigDirectory(dir_.path("")), "tinny", {}); }),
            (Lines{"PAPER: expected one of tiny, got \"tinny\" (did you mean \"tiny\"?)"}));
  EXPECT_EQ(problems_of([&] { (void)load({"14"}); }).size(), 1U);
  paper(R"({"title": "Tiny", "source": "here", "sensitivity": {
    "figures": ["31"], "variations": [{"name": "n", "set": {}}]}})");
  EXPECT_EQ(problems_of([&] {
              (void)vary(load({"13"}), ConfigDirectory(dir_.path("")), builtin_policies(), {});
            }),
            (Lines{"reproduction.json: /sensitivity/figures/0: expected one of 13, got "
                   "\"31\" (did you mean \"13\"?)"}));
  // Other figures do not need them.
  EXPECT_EQ(problems_of([&] { (void)load({"13"}); }), Lines{});
  EXPECT_EQ(problems(), Lines{});
}

}  // namespace
}  // namespace kvtier::test
