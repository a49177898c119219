/// AttentionStore's hit rates (arXiv 2403.19708, Fig. 13 and 21): what must hold beside the paper's
/// bands, and pinned values for a sample of real conversations (tests/data).
/// `--update-golden` rewrites the pinned values.

#include <algorithm>
#include <cmath>
#include <filesystem>
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

/// The paper's runs. `kvtier reproduce` checks the paper's bands; these tests check further
/// conditions.
struct PaperRun {
  const char* config;
  const char* system;
  const char* ssd;
};
constexpr PaperRun kPaperRuns[] = {
    {"llama2-13b", "attentionstore", "10TiB"},      {"llama-65b", "attentionstore", "10TiB"},
    {"llama2-70b", "attentionstore", "10TiB"},      {"falcon-40b", "attentionstore", "10TiB"},
    {"llama2-13b", "attentionstore_lru", "10TiB"},  {"llama2-13b", "attentionstore_lru", "2TiB"},
    {"llama2-13b", "attentionstore_fifo", "10TiB"}, {"llama2-13b", "attentionstore_fifo", "2TiB"},
    {"llama2-13b", "attentionstore", "2TiB"},
};

TEST(HitRatesOfThePaper, AreThoseOfAnOverloadedServerAndOfNoLuckySeed) {
  for (const PaperRun& run : kPaperRuns) {
    SCOPED_TRACE(fmt::format("{} {} {}", run.config, run.system, run.ssd));
    double least = 1;
    double most = 0;
    for (std::int64_t seed = 1; seed <= kSeeds; ++seed) {
      const Json result = simulate(
          resolved(kPaper + run.config + ".json", {std::string("/system=") + run.system,
                                                   std::string("/hardware/ssd/capacity=") + run.ssd,
                                                   fmt::format("/seed={}", seed)}),
          builtin_policies());
      expect_result_invariants(result);
      EXPECT_EQ(result["load"]["verdict"], "load exceeds capacity");
      least = std::min(least, number_at(result, kAllTurns));
      most = std::max(most, number_at(result, kAllTurns));
    }
    // Seeds stand for the same workload: a wider spread would make the mean a matter of luck.
    EXPECT_LT(most - least, 0.06);
  }
}

// ---- The same on real conversations ----

const std::filesystem::path kTable = source_dir() / "tests/data/sharegpt_turns.csv.gz";
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

/// Relations that hold for any pinned values.
TEST(HitRatesOfRealConversations, RankTheSystemsAsThePaperDoes) {
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

/// Further relations: more storage never loses hits by points, and look-ahead helps only if a queue
/// forms.
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
