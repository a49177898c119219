/// AttentionStore's hit rates (arXiv 2403.19708, Fig. 13 and 21) with the built-in generator,
/// inside bands around the paper's figures; and pinned values for a real table of conversations,
/// where there is one. `--update-golden` rewrites the pinned values.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/file.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {

bool update_golden = false;

namespace {

constexpr std::int64_t kSeeds = 5;
constexpr const char* kAllTurns = "/metrics/hit_rate/all_turns/total";
constexpr const char* kAllTurnsDram = "/metrics/hit_rate/all_turns/dram";

const std::string kPaper = "papers/attentionstore/";

struct Summary {
  double mean = 0;
  double spread = 0;
};

Summary summarize(const std::vector<Json>& results, const std::string& pointer) {
  std::vector<double> values;
  for (const Json& result : results) {
    values.push_back(number_at(result, pointer));
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return {sum / static_cast<double>(values.size()), *most - *least};
}

std::vector<Json> runs_of_seeds(const std::string& config, std::vector<std::string> settings) {
  std::vector<Json> results;
  for (std::int64_t seed = 1; seed <= kSeeds; ++seed) {
    settings.push_back(fmt::format("/seed={}", seed));
    results.push_back(simulate(resolved(config, settings), builtin_policies()));
    expect_result_invariants(results.back());
  }
  return results;
}

/// Prints mean and spread of a share in points beside the paper's, and holds the mean to the band.
Summary expect_share(const std::string& what, const std::vector<Json>& results,
                     const std::string& pointer, double paper_points, double band_points) {
  Summary points = summarize(results, pointer);
  points.mean *= 100;
  points.spread *= 100;
  fmt::print("{:<44} {:6.2f} % (largest - smallest {:.2f}), paper {} +- {}\n", what, points.mean,
             points.spread, paper_points, band_points);
  EXPECT_NEAR(points.mean, paper_points, band_points) << what;
  // Seeds stand for the same workload: a wider spread would make the mean a matter of luck.
  EXPECT_LT(points.spread, 6) << what;
  return points;
}

void expect_overloaded(const std::vector<Json>& results) {
  for (const Json& result : results) {
    EXPECT_EQ(result["load"]["verdict"], "load exceeds capacity");
  }
}

struct ModelFigure {
  const char* config;
  double paper_points;
};
void PrintTo(const ModelFigure& figure, std::ostream* stream) { *stream << figure.config; }
class HitRatesOfModels : public testing::TestWithParam<ModelFigure> {};

TEST_P(HitRatesOfModels, AreThoseOfFigure13) {
  const ModelFigure& figure = GetParam();
  const std::vector<Json> results =
      runs_of_seeds(kPaper + figure.config + ".json",
                    {"/hardware/dram/capacity=128GiB", "/hardware/ssd/capacity=10TiB"});
  expect_share(fmt::format("AS {} 128GiB/10TiB", figure.config), results, kAllTurns,
               figure.paper_points, 6);
  expect_overloaded(results);
}

INSTANTIATE_TEST_SUITE_P(Figure13, HitRatesOfModels,
                         testing::Values(ModelFigure{"llama2-13b", 86},
                                         ModelFigure{"llama-65b", 71},
                                         ModelFigure{"llama2-70b", 89},
                                         ModelFigure{"falcon-40b", 90}),
                         [](const auto& figure) {
                           std::string name = figure.param.config;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-'; }, '_');
                           return name;
                         });

struct StorageFigure {
  const char* ssd;
  double lru_points;
  double fifo_points;
};
void PrintTo(const StorageFigure& figure, std::ostream* stream) { *stream << figure.ssd; }
class HitRatesOfPolicies : public testing::TestWithParam<StorageFigure> {};

TEST_P(HitRatesOfPolicies, AreThoseOfFigure21) {
  const StorageFigure& figure = GetParam();
  const auto runs = [&](const std::string& system) {
    return runs_of_seeds(kPaper + "llama2-13b.json",
                         {"/system=" + system, "/hardware/dram/capacity=128GiB",
                          std::string("/hardware/ssd/capacity=") + figure.ssd});
  };
  const std::vector<Json> lru = runs("attentionstore_lru");
  const std::vector<Json> fifo = runs("attentionstore_fifo");
  const std::vector<Json> aware = runs("attentionstore");
  const std::string place = std::string(" 13B 128GiB/") + figure.ssd;

  const Summary lru_rate = expect_share("LRU" + place, lru, kAllTurns, figure.lru_points, 8);
  expect_share("FIFO" + place, fifo, kAllTurns, figure.fifo_points, 8);
  const Summary rate = expect_share("AS" + place, aware, kAllTurns,
                                    std::string(figure.ssd) == "2TiB" ? 12.9 + 27 : 86, 8);
  if (std::string(figure.ssd) == "2TiB") {
    fmt::print("{:<44} {:6.2f} points, paper 27 +- 8\n", "AS - LRU" + place,
               rate.mean - lru_rate.mean);
    EXPECT_NEAR(rate.mean - lru_rate.mean, 27, 8);
  }
  expect_share("LRU in DRAM" + place, lru, kAllTurnsDram, 0.55, 1.05);
  expect_share("FIFO in DRAM" + place, fifo, kAllTurnsDram, 0.55, 1.05);
  const double in_dram =
      100 * summarize(aware, kAllTurnsDram).mean / summarize(aware, kAllTurns).mean;
  fmt::print("{:<44} {:6.2f} %, paper 99.6 +- 1\n", "share of AS hits in DRAM" + place, in_dram);
  EXPECT_NEAR(in_dram, 99.6, 1);
}

INSTANTIATE_TEST_SUITE_P(Figure21, HitRatesOfPolicies,
                         testing::Values(StorageFigure{"2TiB", 12.9, 9.5},
                                         StorageFigure{"10TiB", 58, 48}),
                         [](const auto& figure) { return figure.param.ssd; });

// ---- The same on real conversations ----

const std::filesystem::path kTable = source_dir() / "../shared/data/sharegpt_turns.csv.gz";
const std::filesystem::path kGolden =
    source_dir() / "tests/sim/study/golden/hit_rates_of_real_conversations.json";

struct RealRun {
  const char* name;
  const char* config;
  const char* system;
  const char* ssd;
};
constexpr RealRun kRealRuns[] = {
    {"llama2-13b attentionstore 10TiB", "llama2-13b", "attentionstore", "10TiB"},
    {"llama-65b attentionstore 10TiB", "llama-65b", "attentionstore", "10TiB"},
    {"llama2-70b attentionstore 10TiB", "llama2-70b", "attentionstore", "10TiB"},
    {"falcon-40b attentionstore 10TiB", "falcon-40b", "attentionstore", "10TiB"},
    {"llama2-13b lru 10TiB", "llama2-13b", "attentionstore_lru", "10TiB"},
    {"llama2-13b fifo 10TiB", "llama2-13b", "attentionstore_fifo", "10TiB"},
    {"llama2-13b attentionstore 2TiB", "llama2-13b", "attentionstore", "2TiB"},
    {"llama2-13b lru 2TiB", "llama2-13b", "attentionstore_lru", "2TiB"},
    {"llama2-13b fifo 2TiB", "llama2-13b", "attentionstore_fifo", "2TiB"},
};
constexpr const char* kPinned[] = {"/workload/turns", "/metrics/resumed_turns", kAllTurns,
                                   kAllTurnsDram, "/metrics/hit_rate/tokens/total"};
/// Values are pinned to one part in this many.
constexpr double kPinnedParts = 1e6;

Json run_on_table(const RealRun& run) {
  return simulate(
      resolved(
          kPaper + run.config + ".json",
          {std::string("/system=") + run.system, std::string("/hardware/ssd/capacity=") + run.ssd,
           "/workload/generator=none", "/workload/trace=" + kTable.string(),
           "/workload/replay=bootstrap", "/workload/tokens_per_message_overhead=1tokens",
           "/serving/long_turn=clamp", "/seed=1"}),
      builtin_policies());
}

TEST(HitRatesOfRealConversations, ArePinned) {
  if (!std::filesystem::exists(kTable)) {
    GTEST_SKIP() << "there is no " << kTable
                 << ": the table of real conversations is not installed";
  }
  Json found = Json::object();
  for (const RealRun& run : kRealRuns) {
    const Json result = run_on_table(run);
    expect_result_invariants(result);
    Json& row = found[run.name];
    for (const char* pointer : kPinned) {
      row[pointer] = std::round(number_at(result, pointer) * kPinnedParts) / kPinnedParts;
    }
    fmt::print("{:<36} hit rate {:6.2f} %\n", run.name, 100 * number_at(result, kAllTurns));
  }
  if (update_golden) {
    write_text_output(kGolden.string(), found.dump(2) + "\n");
    fmt::print("wrote {}\n", kGolden.string());
    return;
  }
  const Json pinned = parse_json_strictly(read_text_file(kGolden), kGolden.string());
  ASSERT_EQ(pinned.size(), found.size());
  for (const auto& [name, row] : pinned.items()) {
    ASSERT_TRUE(found.contains(name)) << name;
    for (const auto& [pointer, value] : row.items()) {
      EXPECT_NEAR(found[name][pointer].get<double>(), value.get<double>(), 1.5 / kPinnedParts)
          << name << " " << pointer
          << ": if the change is meant, run this program with --update-golden";
    }
  }
}

/// What must hold beside the pinned values, whatever they are.
TEST(HitRatesOfRealConversations, RankTheSystemsAsThePaperDoes) {
  if (!std::filesystem::exists(kTable)) {
    GTEST_SKIP() << "there is no " << kTable
                 << ": the table of real conversations is not installed";
  }
  for (const char* ssd : {"2TiB", "10TiB"}) {
    const double aware =
        number_at(run_on_table({"", "llama2-13b", "attentionstore", ssd}), kAllTurns);
    const double lru =
        number_at(run_on_table({"", "llama2-13b", "attentionstore_lru", ssd}), kAllTurns);
    const double fifo =
        number_at(run_on_table({"", "llama2-13b", "attentionstore_fifo", ssd}), kAllTurns);
    EXPECT_GT(aware, lru + 0.1) << ssd;
    EXPECT_GT(aware, fifo + 0.1) << ssd;
  }
}

/// What must hold beside the bands: more storage never loses hits by points, and the look-ahead is
/// worth something only where a queue forms.
TEST(HitRatesOfTheGenerator, RiseWithStorageAndNeedAQueue) {
  double last = 0;
  for (const char* ssd : {"1TiB", "2TiB", "5TiB", "10TiB", "20TiB"}) {
    const double rate = number_at(simulate(resolved(kPaper + "llama2-13b.json",
                                                    {std::string("/hardware/ssd/capacity=") + ssd}),
                                           builtin_policies()),
                                  kAllTurns);
    EXPECT_GT(rate, last) << ssd;
    last = rate;
  }
  // No request waits at a hundredth of the load: then the eviction is LRU, and fetching ahead finds
  // nothing to fetch.
  const std::vector<std::string> idle{"/workload/arrival_rate=0.01/s", "/workload/sessions=3000",
                                      "/workload/warmup_turns=3000", "/hardware/ssd/capacity=1TiB"};
  const auto rate_of = [&](const std::string& system) {
    std::vector<std::string> settings = idle;
    settings.insert(settings.begin(), "/system=" + system);
    const Json result =
        simulate(resolved(kPaper + "llama2-13b.json", settings), builtin_policies());
    EXPECT_EQ(result["load"]["verdict"], "load is within capacity");
    return number_at(result, kAllTurns);
  };
  EXPECT_NEAR(rate_of("attentionstore"), rate_of("attentionstore_lru"), 0.005);
}

}  // namespace
}  // namespace kvtier::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    kvtier::test::update_golden =
        kvtier::test::update_golden || std::string(argv[i]) == "--update-golden";
  }
  return RUN_ALL_TESTS();
}
