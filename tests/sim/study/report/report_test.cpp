/// The page of charts: values read from results, charts drawn from them, and texts of results,
/// which stay plain text.

#include "sim/study/report/report.hpp"

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;
using Rows = std::vector<std::vector<std::string>>;

constexpr PageParts kParts{
    .style = "", .script = "", .chart_library = "Chart", .chart_licence = "<MIT>"};

/// A result of an hour that has every metric that is drawn.
Json result(const std::string& system, const std::string& dram, double dram_hits, int seed = 1) {
  return {
      {"format", "kvtier.result/1"},
      {"config",
       {{"hardware", {{"dram", {{"capacity", dram}}}, {"ssd", {{"capacity", "1TiB"}}}}},
        {"system", {{"name", system}, {"tiers", {{"dram", Json::object()}, {"ssd", "none"}}}}},
        {"seed", seed}}},
      {"load", {{"verdict", "load is within capacity"}, {"measured_seconds", 3600.0}}},
      {"metrics",
       {{"resumed_turns", 120},
        {"hit_rate",
         {{"all_turns",
           {{"total", dram_hits}, {"hbm", 0.0}, {"dram", dram_hits}, {"cxl", 0.0}, {"ssd", 0.0}}},
          {"prompt_tokens", {{"total", dram_hits}}}}},
        {"lost_hits", {{"capacity", 30}, {"below_threshold", 0}}},
        {"ttft_seconds", {{"mean", 2.0}, {"p50", 1.0}, {"p90", 4.0}, {"p95", 6.0}, {"p99", 8.0}}},
        {"gpu_seconds",
         {{"total", 3600.0},
          {"prefill", 900.0},
          {"decode", 2700.0},
          {"exposed_load", 0.0},
          {"exposed_save", 0.0}}},
        {"cost_dollars", {{"total", 5.0}}}}}};
}

class Reporting : public testing::Test {
 protected:
  void write(const std::string& name, const Json& json) { write_text(name, json.dump()); }
  void write_text(const std::string& name, const std::string& text) {
    files_.push_back(dir_.write(name, text).string());
  }
  [[nodiscard]] Report read() const { return read_report(files_); }
  [[nodiscard]] ReportSection section(const std::string& id) const {
    for (ReportSection& section : make_sections(read())) {
      if (section.id == id) {
        return std::move(section);
      }
    }
    ADD_FAILURE() << "no section " << id;
    return {};
  }
  [[nodiscard]] std::string page() const { return report_page(read(), kParts); }
  /// Expects these problems, with the test's folder taken off.
  void expect_problems(const Lines& expected) const {
    Lines problems;
    try {
      (void)read();
    } catch (const ConfigError& error) {
      problems = error.problems();
    }
    for (std::string& problem : problems) {
      const std::string folder = dir_.path("").string();
      for (std::size_t at = 0; (at = problem.find(folder)) != std::string::npos;) {
        problem.erase(at, folder.size());
      }
    }
    EXPECT_EQ(problems, expected);
  }

  TempDir dir_;
  Lines files_;
};

TEST_F(Reporting, DrawsHitRatesOverTheCapacityThatRunsDifferIn) {
  write("a.json", result("lru", "32GiB", 0.5));
  write("b.json", result("lru", "8GiB", 0.25));
  write("c.json", result("fifo", "8GiB", 0.125));
  write("d.json", result("fifo", "32GiB", 0.375));
  const ReportSection section = this->section("capacity");
  ASSERT_EQ(section.charts.size(), 4U) << "the lines of turns and of prompts, and each by tier";
  const ReportChart& lines = section.charts[0];
  EXPECT_EQ(lines.table.header, (Lines{"capacity of DRAM", "lru", "fifo"}));
  EXPECT_EQ(lines.table.rows, (Rows{{"8GiB", "25", "12.5"}, {"32GiB", "50", "37.5"}}));
  EXPECT_EQ(lines.drawing["series"][0]["points"],
            Json({{8589934592.0, 25.0}, {34359738368.0, 50.0}}));
  EXPECT_EQ(section.charts[2].table.rows[1], (Lines{"32GiB", "0", "50", "0", "0"}));
}

// The second pair has another rate: neither line may join runs of both.
TEST_F(Reporting, JoinsOnlyRunsThatAgreeInAllElse) {
  Json other = result("lru", "32GiB", 0.5);
  other["config"]["workload"]["arrival_rate"] = "1/s";
  write("a.json", result("lru", "8GiB", 0.25));
  write("b.json", other);
  const ReportSection section = this->section("capacity");
  EXPECT_TRUE(section.charts.empty());
  EXPECT_EQ(
      section.missing,
      "No two runs differ in one tier's capacity alone. Give results at several capacities, a "
      "sweep with an axis of sizes, or what kvtier trace mrc --json writes.");
}

// (0.25 + 0.75) / 2 at 8 GiB.
TEST_F(Reporting, TakesTheMeanOfSeeds) {
  write("a.json", result("lru", "8GiB", 0.25, 1));
  write("b.json", result("lru", "8GiB", 0.75, 2));
  write("c.json", result("lru", "16GiB", 0.8));
  EXPECT_EQ(section("capacity").charts.at(0).table.rows, (Rows{{"8GiB", "50"}, {"16GiB", "80"}}));
}

// A result with a clock and an untimed one.
TEST_F(Reporting, ShowsHitsOfBlocksBesideTheirCeilingAndBound) {
  const Json ideal{{"requests_with_hits", 0.75}, {"blocks", 0.5}, {"prompt_tokens", 0.625}};
  Json timed = result("blocks", "8GiB", 0);
  timed["metrics"]["hit_rate"] = {{"requests_with_hits", 0.5},
                                  {"blocks", {{"total", 0.25}}},
                                  {"prompt_tokens", {{"dram", 0.375}, {"total", 0.375}}},
                                  {"ideal", ideal}};
  write("a.json", timed);
  Json untimed = timed;
  untimed["format"] = "kvtier.untimed/1";
  untimed["metrics"] = {{"hit_rate",
                         {{"requests_with_hits", 0.25},
                          {"blocks", {{"total", 0.125}}},
                          {"prompt_tokens", {{"total", 0.125}}},
                          {"ideal", ideal}}}};
  untimed["bound"]["hit_rate"]["blocks"] = 0.4375;
  write("b.json", untimed);
  write("c.json", result("sessions", "8GiB", 0.5));
  const ReportSection section = this->section("hit-rate");
  ASSERT_EQ(section.charts.size(), 2U);
  EXPECT_EQ(section.charts[1].table.header, (Lines{"run", "of", "hit rate", "ceiling", "bound"}));
  EXPECT_EQ(section.charts[1].table.rows, (Rows{{"a", "requests", "50", "75", "-"},
                                                {"a", "blocks", "25", "50", "-"},
                                                {"a", "prompt tokens", "37.5", "62.5", "-"},
                                                {"b", "requests", "25", "75", "-"},
                                                {"b", "blocks", "12.5", "50", "43.75"},
                                                {"b", "prompt tokens", "12.5", "62.5", "-"},
                                                {"c", "prompt tokens", "50", "-", "-"}}));
}

TEST_F(Reporting, DrawsAnAxisOfSizesOfASweep) {
  std::string lines;
  int point = 0;
  for (const char* system : {"lru", "fifo"}) {
    for (const char* size : {"8GiB", "1TiB"}) {
      Json line{{"point", point++},
                {"replication", 0},
                {"axes", {{"system", system}, {"DRAM", size}}},
                {"seed", 7}};
      line["metrics"] = result("", "1GiB", point / 8.0)["metrics"];
      lines += line.dump() + "\n";
    }
  }
  lines += R"({"point": 4, "replication": 0, "axes": {"system": "x", "DRAM": "-"}, )"
           R"("refused": ["no such system"]})"
           "\n";
  write_text("results.jsonl", lines);
  dir_.write("sweep.json", R"({"format": "kvtier.sweep/1", "version": "9.9", "commit": "1234",
      "hash": "cafe"})");
  const ReportChart chart = section("capacity").charts.at(0);
  EXPECT_EQ(chart.table.header, (Lines{"capacity of DRAM", "lru", "fifo"}));
  EXPECT_EQ(chart.table.rows, (Rows{{"8GiB", "12.5", "37.5"}, {"1TiB", "25", "50"}}));
  const ReportInput input = read().inputs.at(0);
  EXPECT_EQ(input.version, "9.9 (commit 1234)");
  EXPECT_EQ(input.config_hash, "cafe");
  EXPECT_EQ(input.seeds, Lines{"7"});
  EXPECT_EQ(input.notes, Lines{"1 run has no result: no such system."});
  const std::string folder = std::filesystem::path(files_[0]).parent_path().string();
  EXPECT_EQ(read_report({folder}).runs.size(), 4U) << "a folder stands for its results";
}

// $ per hour is dollars of 3,600 s. c costs more than b and is slower; d is overloaded.
TEST_F(Reporting, FindsTheFrontOfCostAndTtft) {
  const auto write_priced = [&](const char* name, double dollars, double seconds) {
    Json json = result(name, "8GiB", 0.5);
    json["metrics"]["cost_dollars"]["total"] = dollars;
    json["metrics"]["ttft_seconds"]["mean"] = seconds;
    if (std::string(name) == "d") {
      json["load"]["verdict"] = "load exceeds capacity";
    }
    write(std::string(name) + ".json", json);
  };
  write_priced("a", 1, 10);
  write_priced("b", 2, 5);
  write_priced("c", 3, 6);
  write_priced("d", 0.5, 1);
  EXPECT_EQ(section("cost").charts.at(0).table.rows,
            (Rows{{"d *", "0.500", "1", "load exceeds capacity"},
                  {"a", "1.000", "10", "on the front"},
                  {"b", "2.000", "5", "on the front"},
                  {"c", "3.000", "6", "costs more or is slower"}}));
  EXPECT_NE(page().find("In some runs, marked with * and hatched, the load exceeds capacity"),
            std::string::npos);
}

// 30 lost of 120 turns with a history; 900 s and 2,700 s of GPU time.
TEST_F(Reporting, DrawsSharesAndTimes) {
  write("a.json", result("lru", "8GiB", 0.5));
  const ReportChart lost = section("lost").charts.at(0);
  EXPECT_EQ(lost.table.header, (Lines{"run", "capacity"})) << "a cause of nothing is left out";
  EXPECT_EQ(lost.table.rows, (Rows{{"a", "25"}}));
  EXPECT_EQ(section("gpu").charts.at(0).table.rows, (Rows{{"a", "0.25", "0.75", "0", "0"}}));
  const ReportChart ttft = section("ttft").charts.at(0);
  EXPECT_EQ(ttft.table.rows, (Rows{{"a", "2", "1", "4", "6", "8"}}));
  EXPECT_EQ(ttft.drawing["p99"], Json({8.0}));
}

TEST_F(Reporting, ReadsComparisonsWithAllTheirSeeds) {
  Json second = result("lru", "8GiB", 0.25, 2);
  second["metrics"]["ttft_seconds"]["p50"] = 3.0;  // the mean of 1 and 3 is 2
  write("a.json", {{"format", "kvtier.compare/1"},
                   {"systems", {{"lru", {{"results", {result("lru", "8GiB", 0.75), second}}}}}}});
  const Report report = read();
  EXPECT_EQ(report.inputs[0].seeds, (Lines{"1", "2"}));
  EXPECT_EQ(report.inputs[0].configs.size(), 1U);
  EXPECT_EQ(section("hit-rate").charts.at(0).table.rows, (Rows{{"lru", "0", "50", "0", "0"}}));
  EXPECT_EQ(section("ttft").charts.at(0).table.rows[0][2], "2");
  EXPECT_EQ(headline_tables(report).at(0).header, (Lines{"metric", "lru (mean of 2)"}));
}

/// With what pages say of a run's model, server, workload and load.
Json described(Json of, const std::string& model, const std::string& generator,
               const std::string& rate) {
  of["config"]["model"]["name"] = model;
  of["config"]["hardware"]["gpus"] = 2;
  of["config"]["hardware"]["gpu"]["name"] = "A100";
  of["config"]["workload"] = {{"generator", generator}, {"trace", "none"}, {"arrival_rate", rate}};
  return of;
}

TEST_F(Reporting, BeginsWithTheSettingAndTheOutcome) {
  Json cheap = described(result("lru", "8GiB", 0.5), "llama2-13b", "sharegpt", "1.5/s");
  cheap["metrics"]["dollars_per_million_output_tokens"]["rented"] = 7;
  cheap["load"]["bottleneck"] = {{"name", "batch_slots"}, {"share", 0.25}};
  Json other = described(result("fifo", "8GiB", 0.25), "llama2-13b", "sharegpt", "1.5/s");
  other["metrics"]["ttft_seconds"]["mean"] = 3;
  other["metrics"]["dollars_per_million_output_tokens"]["rented"] = 9;
  write("a.json", cheap);
  write("b.json", other);
  EXPECT_EQ(page_line(read()), "llama2-13b; 2 x A100; sharegpt; 1.5 sessions/s");
  EXPECT_EQ(
      page_sentences(read()),
      (Lines{"50.0 % of the prompt tokens are found in a cache with a, and 25.0 % with "
             "b.",
             "The first token comes after 2 s on average (p99 8 s) with a, and after 3 s with "
             "b.",
             "The cheapest is a, at $7.00 per million output tokens. Its main cause of "
             "waiting is batch slots 25 %."}));
  EXPECT_NE(page().find("<h1>llama2-13b; 2 x A100; sharegpt; 1.5 sessions/s</h1>"),
            std::string::npos);
  // An overloaded run is no answer.
  other["load"]["verdict"] = "load exceeds capacity";
  other["metrics"]["hit_rate"]["prompt_tokens"]["total"] = 0.9;
  (void)dir_.write("b.json", other.dump());
  EXPECT_EQ(page_sentences(read()),
            (Lines{"50.0 % of the prompt tokens are found in a cache with a.",
                   "The first token comes after 2 s on average (p99 8 s) with a.",
                   "a costs $7.00 per million output tokens. Its main cause of waiting is batch "
                   "slots 25 %."}));
  cheap["load"]["verdict"] = "load exceeds capacity";
  (void)dir_.write("a.json", cheap.dump());
  EXPECT_EQ(page_sentences(read()),
            Lines{"The load exceeds capacity in every run, so none has a steady state."});
}

TEST_F(Reporting, RanksNoCostsThatAreAboutEqual) {
  Json json = result("lru", "8GiB", 0.5);
  json["metrics"]["dollars_per_million_output_tokens"] = {{"rented", 2.11}};
  write("a.json", json);
  json["metrics"]["dollars_per_million_output_tokens"] = {{"rented", 2.12}};
  write("b.json", json);
  EXPECT_EQ(page_sentences(read()).back(),
            "Costs are about equal: $2.11 to $2.12 per million output tokens.");
}

TEST_F(Reporting, DrawsPromptTokensOverCapacity) {
  for (const auto& [name, dram, hits] :
       {std::tuple{"a.json", "8GiB", 0.25}, {"b.json", "16GiB", 0.75}}) {
    Json json = result("blocks", dram, 0);
    json["metrics"]["hit_rate"] = {{"prompt_tokens", {{"total", hits}}}};
    write(name, json);
  }
  EXPECT_EQ(section("capacity").charts.at(0).table.rows, (Rows{{"8GiB", "25"}, {"16GiB", "75"}}));
}

TEST_F(Reporting, RecommendsNoRunThatIsTooShortToTell) {
  Json brief = described(result("lru", "8GiB", 0.9), "llama2-13b", "sharegpt", "1.5/s");
  brief["metrics"]["dollars_per_million_output_tokens"]["rented"] = 1;
  brief["load"]["bottleneck"] = {{"name", "none"}, {"share", 0}};
  brief["load"]["verdict"] = "run too short to tell";
  brief["load"]["too_short"] = "the measured part lasts 20 s";
  write("a.json", brief);
  const std::string why =
      "the measured part lasts 20 s; expected /workload/sessions \"auto\", or about 100.";
  EXPECT_EQ(page_sentences(read()), Lines{"The run is too short to tell: " + why});
  write("b.json", brief);
  EXPECT_EQ(page_sentences(read()),
            Lines{"All 2 runs are too short to tell which is better. a: " + why});
  Json enough = described(result("fifo", "8GiB", 0.25), "llama2-13b", "sharegpt", "1.5/s");
  enough["metrics"]["dollars_per_million_output_tokens"]["rented"] = 9;
  write("c.json", enough);
  EXPECT_EQ(
      page_sentences(read()),
      (Lines{"2 of 3 runs are too short to tell, and these sentences leave them out. a: " + why,
             "25.0 % of the prompt tokens are found in a cache with c.",
             "The first token comes after 2 s on average (p99 8 s) with c.",
             "c costs $9.00 per million output tokens."}));
  EXPECT_EQ(section("cost").charts.at(0).table.rows,
            (Rows{{"a", "5.000", "2", "run too short to tell"},
                  {"b", "5.000", "2", "run too short to tell"},
                  {"c", "5.000", "2", "on the front"}}));
}

TEST_F(Reporting, WarnsOfTiersThatStillFill) {
  Json json = result("lru", "8GiB", 0.5);
  json["metrics"]["tiers"] = {{"dram", {{"evictions", 3}, {"filling", false}}},
                              {"ssd", {{"evictions", 0}, {"filling", true}}}};
  write("a.json", json);
  EXPECT_NE(page().find("<p class=\"warning\">ssd: still filling in the measured part, and nothing "
                        "is evicted: a longer run may hit less (a).</p>"),
            std::string::npos);
}

TEST_F(Reporting, NamesTheWorstVerdictOfSeveralSeeds) {
  Json brief = result("lru", "8GiB", 0.5, 2);
  brief["load"]["verdict"] = "run too short to tell";
  write("a.json", {{"format", "kvtier.compare/1"},
                   {"systems", {{"lru", {{"results", {result("lru", "8GiB", 0.5), brief}}}}}}});
  EXPECT_EQ(headline_tables(read()).at(0).rows.back(), (Lines{"verdict", "run too short to tell"}));
}

TEST_F(Reporting, SaysRatesInTheUnitsOfTheConfig) {
  write("a.json", described(result("lru", "8GiB", 0.5), "llama2-13b", "sharegpt", "20/min"));
  EXPECT_EQ(page_line(read()), "llama2-13b; 2 x A100; sharegpt; 20 sessions/min");
}

TEST_F(Reporting, SaysWhichLoadASearchFound) {
  const auto found = [&](const char* varied, const char* key) {
    (void)dir_.write("s.json", Json{{"format", "kvtier.capacity/1"},
                                    {"config", Json::object()},
                                    {"varied", varied},
                                    {key, 1.5},
                                    {"slo", Json::array()},
                                    {"trials", Json::array()}}
                                   .dump());
    return page_sentences(read());
  };
  files_.push_back(dir_.path("s.json").string());
  EXPECT_EQ(found("/workload/arrival_rate", "capacity_per_second"),
            Lines{"s: the SLO is met up to 1.5 (arrivals per second)."});
  EXPECT_EQ(found("/workload/speed_up", "capacity"),
            Lines{"s: the SLO is met up to 1.5 (speed-up of the trace)."});
}

TEST_F(Reporting, GivesModelsAndWorkloadsAxesOfTheirOwn) {
  write("a.json", described(result("lru", "8GiB", 0.5), "llama2-13b", "sharegpt", "1/s"));
  write("b.json", described(result("lru", "8GiB", 0.5), "llama2-13b", "sharegpt", "2/s"));
  write("c.json", described(result("lru", "8GiB", 0.5), "llama2-70b", "sharegpt", "1/s"));
  write("d.json", described(result("lru", "8GiB", 0.5), "llama2-70b", "agents", "1/s"));
  const std::vector<ReportChart> charts = section("hit-rate").charts;
  ASSERT_EQ(charts.size(), 6U) << "by tier, and of prompts";
  for (std::size_t i = 0; i < 6; i += 3) {
    EXPECT_EQ(charts[i].table.rows.size(), 2U);  // loads may differ
    EXPECT_TRUE(charts[i].title.ends_with("(llama2-13b, sharegpt)")) << charts[i].title;
    EXPECT_TRUE(charts[i + 1].title.ends_with("(llama2-70b, sharegpt)")) << charts[i + 1].title;
    EXPECT_TRUE(charts[i + 2].title.ends_with("(llama2-70b, agents)")) << charts[i + 2].title;
  }
  EXPECT_EQ(page_line(read()), "2 models; 2 x A100; 2 workloads; 2 loads");
  EXPECT_EQ(page_sentences(read())[2],
            "llama2-70b, agents: 50.0 % of the prompt tokens are found in a cache.");
}

// From four runs on.
TEST_F(Reporting, HasARowForEachRunIfThereAreMany) {
  for (const char* name : {"a.json", "b.json", "c.json"}) {
    write(name, result("lru", "8GiB", 0.5));
  }
  EXPECT_EQ(headline_tables(read()).at(0).header, (Lines{"metric", "a", "b", "c"}));
  write("d.json", result("lru", "8GiB", 0.25));
  const std::vector<ReportTable> tables = headline_tables(read());
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_EQ(tables[0].header[0], "run");
  EXPECT_EQ(tables[0].header[1], "hit rate, all turns %");
  EXPECT_EQ(tables[0].header[2], "hit rate, prompt tokens %");
  ASSERT_EQ(tables[0].rows.size(), 4U);
  EXPECT_EQ(tables[0].rows[3][0], "d");
  EXPECT_EQ(tables[0].rows[3][1], "25.0");
}

// Two more metrics make 9 columns, one more than a part has room for.
TEST_F(Reporting, KeepsHitsTtftCostAndVerdictTogetherInManyColumns) {
  Json many = result("lru", "8GiB", 0.5);
  many["metrics"]["turns"] = 100;
  many["metrics"]["dollars_per_million_output_tokens"] = {{"rented", 7}};
  for (const char* name : {"a.json", "b.json", "c.json", "d.json"}) {
    write(name, many);
  }
  const std::vector<ReportTable> tables = headline_tables(read());
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(tables[0].header, (Lines{"run", "hit rate, prompt tokens %", "TTFT mean s",
                                     "TTFT p95 s", "$ per million output tokens", "verdict"}));
  EXPECT_EQ(tables[0].rows[3],
            (Lines{"d", "50.0", "2.000", "6.000", "7.00", "load is within capacity"}));
  EXPECT_EQ(tables[1].header, (Lines{"run", "turns measured", "hit rate, all turns %", "TTFT p90 s",
                                     "rent, $ per hour", "bottleneck"}));
}

TEST_F(Reporting, HatchesOverloadedRunsAndDrawsCapacities) {
  Json over = result("lru", "8GiB", 0.5);
  over["load"]["verdict"] = "load exceeds capacity";
  over["occupancy"] = {{"seconds", {0, 3600}}, {"bytes", {{"dram", {0, 1073741824}}}}};
  write("a.json", result("lru", "8GiB", 0.5));
  write("b.json", over);
  EXPECT_EQ(section("hit-rate").charts.at(0).drawing["hatched"], Json({false, true}));
  EXPECT_EQ(section("occupancy").charts.at(0).drawing["marks"],
            Json::parse(R"([{"name": "capacity", "at": 8.0}])"));
}

TEST_F(Reporting, HasThePlansAnswer) {
  const auto trial = [](const char* system, const char* dram, double dollars, bool holds) {
    return Json{{"axes", {{"system", system}, {"DRAM", dram}}},
                {"system", system},
                {"dollars_per_hour", dollars},
                {"meets", holds},
                {"conditions",
                 {{{"condition", "ttft_seconds.p90 <= 2"},
                   {"value", {{"mean", holds ? 1 : 3}}},
                   {"holds", holds}}}},
                {"hit_rate", 0.5},
                {"drive_life_years", 4}};
  };
  Json plan{
      {"format", "kvtier.plan/1"},
      {"plan", Json::object()},
      {"setting",
       {{"model", "llama2-13b"}, {"server", "2 x A100"}, {"workload", "agents"}, {"load", ""}}},
      {"cheapest", 1},
      {"trials",
       {trial("lru", "8GiB", 1, false), trial("lru", "16GiB", 2, true),
        trial("fifo", "16GiB", 3, true)}},
      {"systems",
       {{{"name", "lru"}, {"trial", 1}, {"excluded_by", Json::array()}},
        {{"name", "fifo"}, {"trial", 2}, {"excluded_by", {"more expensive by 50 %"}}},
        {{"name", "none"}, {"trial", nullptr}, {"excluded_by", {"ttft_seconds.p90 <= 2"}}}}},
      {"capacities", {{"DRAM", {{"trials", {0, 1}}, {"knee", 1}}}}}};
  write("p.json", plan);
  const std::vector<ReportChart> tables = section("plan").charts;
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(
      tables[0].table.rows,
      (Rows{{"lru", "2.000", "1", "50", "4", "system lru, DRAM 16GiB", ""},
            {"fifo", "3.000", "1", "50", "4", "system fifo, DRAM 16GiB", "more expensive by 50 %"},
            {"none", "-", "-", "-", "-", "-", "ttft_seconds.p90 <= 2"}}));
  EXPECT_EQ(tables[1].table.rows, (Rows{{"8GiB", "1.000", "3 (missed)", "50", "4", ""},
                                        {"16GiB", "2.000", "1", "50", "4", "knee"}}));
  EXPECT_EQ(
      page_sentences(read()),
      (Lines{"The cheapest configuration that meets the SLO (ttft_seconds.p90 <= 2) costs "
             "$2.00 an hour: system lru, DRAM 16GiB; its drives last 4 years, and their price "
             "by the hour has no replacement.",
             "More than 16GiB of DRAM improves little.", "fifo: more expensive by 50 %."}));
  EXPECT_EQ(page_line(read()), "llama2-13b; 2 x A100; agents");
  plan["trials"][1]["replacement_dollars_per_hour"] = 0.25;
  (void)dir_.write("p.json", plan.dump());
  EXPECT_TRUE(page_sentences(read()).at(0).ends_with(
      "; its drives last 4 years, and their replacement is $0.25 of that."));
  // Numbers of trials that are not there, and no objects where some are expected.
  const Json wrong{{"format", "kvtier.plan/1"},
                   {"plan", Json::object()},
                   {"cheapest", 7},
                   {"trials", Json::array()},
                   {"systems", {3, {{"name", "lru"}, {"trial", 9}}}},
                   {"capacities", {{"DRAM", 4}}}};
  (void)dir_.write("p.json", wrong.dump());
  EXPECT_EQ(page_sentences(read()), Lines{"No configuration meets the SLO ()."});
  EXPECT_FALSE(page().empty());
}

TEST_F(Reporting, DrawsAPlanAndNamesMissingParts) {
  const auto trial = [](const char* dram, double dollars, double seconds, double hits) {
    return Json{{"axes", {{"DRAM", dram}}},
                {"dollars_per_hour", dollars},
                {"meets", seconds < 2},
                {"overloaded_replications", 0},
                {"ttft_seconds", {{"mean", seconds}}},
                {"hit_rate", hits}};
  };
  write("p.json", {{"format", "kvtier.plan/1"},
                   {"plan", Json::object()},
                   {"trials", {trial("8GiB", 1, 3, 0.5), trial("16GiB", 2, 1, 0.75)}}});
  EXPECT_EQ(section("cost").charts.at(0).table.rows,
            (Rows{{"8GiB", "1.000", "3", "on the front"},
                  {"16GiB (meets the SLO)", "2.000", "1", "on the front"}}));
  EXPECT_EQ(section("capacity").charts.at(0).table.rows, (Rows{{"8GiB", "50"}, {"16GiB", "75"}}));
  const std::string text = page();
  for (const char* missing :
       {"<li><strong>Time to first token.</strong> No input has the distribution of TTFT",
        "<li><strong>Lost hits by cause.</strong> No input counts lost hits",
        "<li><strong>GPU time.</strong> No input has GPU time",
        "<li><strong>Tier occupancy over time.</strong> No input has samples",
        "<li><strong>Objective over load.</strong> No input is a search"}) {
    EXPECT_NE(text.find(missing), std::string::npos) << missing;
  }
}

TEST_F(Reporting, DrawsCurvesSearchesAndOccupancy) {
  write("m.json", {{"format", "kvtier.miss_ratio_curve/1"},
                   {"config", {{"seed", 3}}},
                   {"points", {{{"capacity_bytes", 1024}, {"hit_rate", {{"all_turns", 0.25}}}}}}});
  write(
      "s.json",
      {{"format", "kvtier.capacity/1"},
       {"config", Json::object()},
       {"slo", {{{"metric", "/metrics/ttft_seconds/p90"}, {"relation", "<="}, {"bound", 2}}}},
       {"trials", {{{"rate_per_second", 0.5}, {"values", {{"/metrics/ttft_seconds/p90", 1.0}}}}}}});
  Json sampled = result("lru", "8GiB", 0.5);
  // 2^30 and 2^31 bytes at one and two hours.
  sampled["occupancy"] = {{"seconds", {3600, 7200}},
                          {"bytes", {{"dram", {1073741824, 2147483648}}}}};
  write("r.json", sampled);
  const ReportChart curve = section("capacity").charts.at(0);
  EXPECT_EQ(curve.table.header[1], "m (LRU, one tier, untimed)");
  EXPECT_EQ(curve.table.rows, (Rows{{"1KiB", "25"}}));
  const ReportChart search = section("load").charts.at(0);
  EXPECT_EQ(search.table.header[1], "ttft_seconds.p90 <= 2");
  EXPECT_EQ(search.drawing["series"][0]["points"], Json::array({{0.5, 0.5}}));
  EXPECT_EQ(section("occupancy").charts.at(0).table.rows, (Rows{{"r", "1", "1"}, {"r", "2", "2"}}));
}

TEST_F(Reporting, SaysHowManyLinesOfSamplesAreDrawn) {
  Json sampled = result("lru", "8GiB", 0.5);
  sampled["occupancy"] = {{"seconds", {3600}}, {"bytes", {{"dram", {0}}}}};
  for (int i = 0; i < 13; ++i) {
    write("r" + std::to_string(i) + ".json", sampled);
  }
  const ReportChart chart = section("occupancy").charts.at(0);
  EXPECT_EQ(chart.drawing["series"].size(), 12U);
  EXPECT_EQ(chart.table.rows.size(), 13U);
  EXPECT_EQ(chart.note,
            "Means between one sample and the next. The first 12 of 13 lines are drawn; the table "
            "has all.");
}

// 86.4 is within 6 of 86, 62 is no more than 60 + 0, and 1.1 is within 15 % of 1; the others have
// no band.
TEST_F(Reporting, ShowsAPapersValuesBesideOurs) {
  const auto value = [](const char* name, const Json& paper, double mean, const Json& band,
                        const Json& verdict) {
    return Json{{"name", name},   {"unit", "%"},  {"paper", paper},    {"mean", mean},
                {"spread", 0.25}, {"band", band}, {"verdict", verdict}};
  };
  const auto band = [](const Json& absolute, const Json& relative, const char* side) {
    return Json{{"absolute", absolute}, {"relative", relative}, {"side", side}};
  };
  Json explained = value("saves", 70, -1.7, nullptr, nullptr);
  explained["explanation"] = "decode <takes> all";
  write("p.json", {{"format", "kvtier.reproduce/1"},
                   {"title", "Paper"},
                   {"source", "v2"},
                   {"replications", 5},
                   {"figures",
                    {{"13",
                      {{"source", "Fig. 13"},
                       {"values",
                        {value("hits", 86, 86.4, band(6.0, "none", "both"), "in"),
                         value("fills", 60, 62, band(0.0, "none", "at_most"), "out"),
                         value("least", 60, 62, band(2.0, "none", "at_least"), "in")}}}},
                     {"14",
                      {{"source", "Fig. 14"},
                       {"values",
                        {value("ratio", 1, 1.1, band("none", 0.15, "both"), "in"), explained,
                         value("ours", nullptr, 3, nullptr, nullptr)}}}}}}});
  const ReportSection section = this->section("paper");
  ASSERT_EQ(section.charts.size(), 1U);
  const ReportChart& chart = section.charts[0];
  EXPECT_EQ(chart.title, "p: Paper (v2)");
  EXPECT_EQ(chart.note, "3 in their band, 1 out. Means of 5 seeds.");
  EXPECT_TRUE(chart.drawing.is_null());
  EXPECT_EQ(chart.table.rows,
            (Rows{{"hits", "Fig. 13", "%", "86", "86.4", "0.25", "+-6", "in", ""},
                  {"fills", "Fig. 13", "%", "60", "62", "0.25", "<= 60", "OUT", ""},
                  {"least", "Fig. 13", "%", "60", "62", "0.25", ">= 58", "in", ""},
                  {"ratio", "Fig. 14", "%", "1", "1.1", "0.25", "+-15 %", "in", ""},
                  {"saves", "Fig. 14", "%", "70", "-1.7", "0.25", "-", "-", "decode <takes> all"},
                  {"ours", "Fig. 14", "%", "-", "3", "0.25", "-", "-", ""}}));
  const std::string text = page();
  EXPECT_NE(text.find("<td>decode &lt;takes&gt; all</td>"), std::string::npos);
  EXPECT_NE(text.find("p.json has no configs: the paper's folder in configs has"),
            std::string::npos);
  EXPECT_NE(text.find("id=\"drawings\">[]</script>"), std::string::npos) << "nothing to draw";
}

Json validation(double dram_hits) {
  const auto row = [](const char* metric, double simulated, double measured, const Json& band,
                      const Json& in_band) {
    return Json{{"metric", metric},
                {"simulated", simulated},
                {"measured", measured},
                {"measured_lowest", measured / 2},
                {"measured_highest", measured * 2},
                {"error", 0.25},
                {"band", band},
                {"in_band", in_band}};
  };
  Json measured = result("lru", "8GiB", dram_hits / 2);
  measured["metrics"]["ttft_seconds"]["p50"] = 3.0;
  return {{"format", "kvtier.validation/1"},
          {"device", "cpu"},
          {"in_band", false},
          {"occupied_fraction", 0.75},
          {"rows",
           {row("hit_rate.all_turns.total", dram_hits, dram_hits / 2, 0.01, false),
            row("ttft_seconds.p50", 1.0, 0.8, 0.1, true),
            row("tpot_seconds.mean", 0.5, 0.25, nullptr, nullptr),
            row("gpu_seconds.prefill", 7, 8, nullptr, nullptr)}},
          {"simulated", result("lru", "8GiB", dram_hits)},
          {"measured", {measured, measured}}};
}

TEST_F(Reporting, DrawsSimulatedBesideMeasured) {
  write("v.json", validation(0.5));
  const ReportSection section = this->section("validation");
  EXPECT_EQ(section.missing, "v: on cpu, out of band: it (occupied 0.75).");
  ASSERT_EQ(section.charts.size(), 2U) << "GPU time is no latency";
  EXPECT_EQ(section.charts[0].table.header, (Lines{"metric", "simulated", "measured", "lowest",
                                                   "highest", "error", "band", "verdict"}));
  EXPECT_EQ(
      section.charts[0].table.rows,
      (Rows{{"hit_rate.all_turns.total", "50", "25", "12.5", "50", "+25.00 pt", "1 pt", "OUT"}}));
  EXPECT_EQ(section.charts[1].table.rows,
            (Rows{{"ttft_seconds.p50", "1", "0.8", "0.4", "1.6", "+25.00 %", "10 %", "in"},
                  {"tpot_seconds.mean", "0.5", "0.25", "0.125", "0.5", "+25.00 %", "-", "-"}}));
  const Json& drawing = section.charts[0].drawing;
  EXPECT_EQ(drawing["labels"], Json({"hit_rate.all_turns.total (OUT)"}));
  EXPECT_EQ(drawing["simulated"], Json({50.0}));
  EXPECT_EQ(drawing["measured"], Json({25.0}));
  EXPECT_EQ(drawing["lowest"], Json({12.5}));
  EXPECT_EQ(drawing["highest"], Json({50.0}));
  // Both sides are runs as well, and no line joins them.
  EXPECT_EQ(this->section("ttft").charts.at(0).table.rows,
            (Rows{{"simulated", "2", "1", "4", "6", "8"}, {"measured", "2", "3", "4", "6", "8"}}));
  EXPECT_TRUE(this->section("capacity").charts.empty());
}

TEST_F(Reporting, DrawsTheValidationsOfASweep) {
  write("m.json", {{"format", "kvtier.validations/1"},
                   {"axes", {"DRAM"}},
                   {"complete", false},
                   {"points",
                    {{{"labels", {"8GiB"}}, {"validation", validation(0.25)}},
                     {{"labels", {"16GiB"}}, {"validation", validation(0.5)}},
                     {{"labels", {"4GiB"}}, {"refused", {"too small"}}},
                     {{"labels", {"1GiB"}},
                      {"validation",
                       {{"format", "kvtier.validation/1"},
                        {"device", "cpu"},
                        {"lock_step", {{"equal", true}}}}}}}}});
  const ReportSection section = this->section("validation");
  EXPECT_EQ(section.missing,
            "m: on cpu, out of band: 8GiB (occupied 0.75), 16GiB (occupied 0.75).");
  ASSERT_EQ(section.charts.size(), 2U) << "a chart for each metric that is judged";
  EXPECT_EQ(section.charts[0].title, "m: hit_rate.all_turns.total");
  EXPECT_EQ(section.charts[0].table.rows,
            (Rows{{"8GiB", "25", "12.5", "6.25", "25", "+25.00 pt", "1 pt", "OUT"},
                  {"16GiB", "50", "25", "12.5", "50", "+25.00 pt", "1 pt", "OUT"}}));
  EXPECT_EQ(section.charts[1].title, "m: ttft_seconds.p50");
  EXPECT_EQ(this->section("capacity").charts.at(0).table.rows,
            (Rows{{"8GiB", "25", "12.5"}, {"16GiB", "50", "25"}}));
  EXPECT_EQ(
      read().inputs[0].notes,
      (Lines{"4GiB was refused.",
             "1GiB: in lock step on cpu: the decisions and metrics are those of the simulation.",
             "The validation ended early: points are missing."}));
}

TEST_F(Reporting, NamesMissingPartsOfReproductionsAndValidations) {
  write("p.json", {{"format", "kvtier.reproduce/1"}, {"figures", {{"a/b", {{"values", {1}}}}}}});
  write("q.json", {{"format", "kvtier.reproduce/1"}});
  write("v.json", {{"format", "kvtier.validation/1"}, {"rows", {{{"metric", "m"}}}}});
  write("w.json", {{"format", "kvtier.validation/1"}, {"rows", Json::array()}});
  write("m.json", {{"format", "kvtier.validations/1"},
                   {"axes", {"a"}},
                   {"points", {{{"labels", {1}}, {"validation", 3}}}}});
  expect_problems({"p.json: /figures/a~1b/values/0/name: missing key",
                   "q.json: /figures: missing key",
                   "v.json: /rows/0: expected a metric and the numbers simulated and measured",
                   "w.json: /simulated: missing key", "w.json: /measured: missing key",
                   "m.json: /points/0/labels/0: expected a string, got 1"});
}

// Values of a wrong type are left out; all others are shown.
TEST_F(Reporting, LeavesOutValuesThatAreNotNumbers) {
  Json json = result("lru", "8GiB", 0.5);
  json["occupancy"] = {{"seconds", 3}, {"bytes", {{"dram", {1}}}}};
  json["metrics"]["ttft_seconds"]["p50"] = "fast";
  json["metrics"]["lost_hits"] = 3;
  json["metrics"]["resumed_turns"] = nullptr;
  write("a.json", json);
  write("m.json", {{"format", "kvtier.miss_ratio_curve/1"},
                   {"config", Json::object()},
                   {"points", {{{"capacity_bytes", 1e300}, {"hit_rate", {{"all_turns", 0.25}}}}}}});
  EXPECT_TRUE(section("occupancy").charts.empty());
  EXPECT_TRUE(section("ttft").charts.empty());
  EXPECT_TRUE(section("lost").charts.empty());
  EXPECT_EQ(section("hit-rate").charts.size(), 2U);
  EXPECT_EQ(section("capacity").charts.at(0).table.rows, (Rows{{"1e+300B", "25"}}));
}

// Every script of the page is ours: its library, the drawings, and what draws them.
TEST_F(Reporting, EscapesAllTexts) {
  const std::string hostile = "</script><script>alert(1)</script><img src=x onerror=\"a\"> & 'b'";
  Json json = result(hostile, "8GiB", 0.5);
  json["config"]["model"][hostile] = hostile;
  write("a.json",
        {{"format", "kvtier.compare/1"},
         {"systems", {{hostile, {{"results", {json, json}}}}, {"other", {{"results", {json}}}}}}});
  const std::string text = page();
  std::size_t scripts = 0;
  for (std::size_t at = 0; (at = text.find("</script", at)) != std::string::npos; ++at) {
    ++scripts;
  }
  EXPECT_EQ(scripts, 3U);
  EXPECT_EQ(text.find("<img"), std::string::npos);
  EXPECT_NE(text.find("&lt;img src=x onerror=&quot;a&quot;&gt; &amp; &#39;b&#39;"),
            std::string::npos);
  EXPECT_NE(text.find(R"(\u003cimg src=x onerror=\"a\"\u003e \u0026 'b')"), std::string::npos);
  EXPECT_NE(text.find("<pre tabindex=\"0\">&lt;MIT&gt;</pre>"), std::string::npos);
}

TEST_F(Reporting, GivesTheSamePageForTheSameInput) {
  write("a.json", result("lru", "8GiB", 0.5));
  EXPECT_EQ(page(), page());
  const Report report = read();
  write("b.json", result("lru", "8GiB", 0.5));
  EXPECT_EQ(read().inputs[0].hash, report.inputs[0].hash);
  EXPECT_EQ(read().inputs[1].hash, report.inputs[0].hash) << "of the bytes, whatever the name";
  EXPECT_EQ(report.inputs[0].hash.size(), 16U);
}

TEST_F(Reporting, TellsRunsOfTheSameNameApart) {
  write("a.json", {{"format", "kvtier.compare/1"},
                   {"systems", {{"lru", {{"results", {result("lru", "8GiB", 0.5)}}}}}}});
  write("b.json", {{"format", "kvtier.compare/1"},
                   {"systems", {{"lru", {{"results", {result("lru", "8GiB", 0.6)}}}}}}});
  const Report report = read();
  EXPECT_EQ(report.runs[0].label, "a: lru");
  EXPECT_EQ(report.runs[1].label, "b: lru");
}

TEST_F(Reporting, NamesEveryProblemOfEveryInput) {
  const std::string formats =
      "expected one of kvtier.result/1, kvtier.untimed/1, kvtier.compare/1, kvtier.capacity/1, "
      "kvtier.plan/1, kvtier.miss_ratio_curve/1, kvtier.reproduce/1, kvtier.validation/1, "
      "kvtier.validations/1, or the lines of a sweep, got ";
  write("future.json", {{"format", "kvtier.result/2"}});
  write("other.json", {{"name", "kvtier"}});
  write("list.json", Json::array({1}));
  write("empty.json", {{"format", "kvtier.result/1"}, {"config", 3}});
  write("compared.json",
        {{"format", "kvtier.compare/1"}, {"systems", {{"x/y", {{"results", 1}}}}}});
  write_text("lines.jsonl",
             "{\"point\": 0, \"axes\": {\"a\": 1}, \"metrics\": {}}\n{\"point\": 1}\n");
  files_.push_back(dir_.path("nowhere.json").string());
  files_.push_back(dir_.path("").string());
  files_.push_back(files_.front());
  expect_problems(
      {": expected a result or the folder of a finished sweep, got a folder without "
       "results.jsonl",
       "RESULT: future.json is given twice",
       "future.json: /format: " + formats + "\"kvtier.result/2\"",
       "other.json: /format: " + formats + "no format", "list.json: /: expected an object, got [1]",
       "empty.json: /config: expected an object, got 3", "empty.json: /metrics: missing key",
       "compared.json: /systems/x~1y/results: expected a list, got 1",
       "lines.jsonl:1: /axes/a: expected a string, got 1",
       "lines.jsonl:2: /: expected a line of a sweep, with point, axes and one of "
       "metrics, error and refused",
       "nowhere.json: no such file"});
}

TEST_F(Reporting, NamesPointsOfACurveThatAreNoNumbers) {
  write("m.json", {{"format", "kvtier.miss_ratio_curve/1"},
                   {"config", Json::object()},
                   {"points", {{{"capacity_bytes", "1KiB"}}}}});
  expect_problems(
      {"m.json: /points/0: expected numbers at /capacity_bytes and /hit_rate/all_turns, "
       "got neither or one"});
}

TEST_F(Reporting, RefusesASweepWithoutAnIdentity) {
  write_text("results.jsonl", "{\"point\": 0, \"axes\": {}, \"metrics\": {}}\n");
  dir_.write("sweep.json", "{}");
  expect_problems({"sweep.json: /format: expected kvtier.sweep/1"});
}

TEST(ChartLibrary, SaysWhatToInstallIfItIsMissing) {
  try {
    (void)report_page({}, PageParts{});
    FAIL() << "drawn without a library";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "report: Chart.js 3 was not there when kvtier was built; install libjs-chart.js "
                 "(apt-get install libjs-chart.js), then configure and build again (make build)");
  }
}

}  // namespace
}  // namespace kvtier::test
