/// The sweeps of the repository: docs/sweeps.md has the program's output.

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class StockSweeps : public ProgramTest {
 protected:
  /// The page's commands start in the repository's root and write beside it.
  StockSweeps() {
    fs::create_directory_symlink(fs::path(KVTIER_SOURCE_DIR) / "configs", path("configs"));
  }
};

TEST_F(StockSweeps, AreShownAsTheProgramPrintsThem) {
  const fs::path page = fs::path(KVTIER_SOURCE_DIR) / "docs/sweeps.md";
  std::string text = read_file(page);
  for (const Block& block : fenced_blocks(text)) {
    if (!block.file.empty()) {
      write(block.file, block.text);
    }
  }
  const int outputs =
      replace_outputs(text, [this](const std::string& command, std::string& output) {
        std::vector<std::string> arguments = split_words(command);
        ASSERT_EQ(arguments.front(), "kvtier");
        arguments.erase(arguments.begin());
        const Outcome outcome = kvtier(arguments);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        output = outcome.out;
      });
  if (HasFatalFailure()) {
    return;
  }
  EXPECT_EQ(outputs, 3);
  expect_file_holds(page, text);
}

/// Points of a result by the labels of their axes.
std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(json::parse(text.substr(begin, end - begin)));
  }
  return lines;
}

// 3 evictions x 7 capacities x 3 seeds. With every eviction, 64 times the DRAM has more hits.
TEST_F(StockSweeps, MoreDramGivesMoreHits) {
  ASSERT_EQ(kvtier({"sweep", "configs/sweeps/dram-capacity.json", "--out", "out"}).code, 0);
  const std::vector<json> lines = lines_of(read("out/results.jsonl"));
  ASSERT_EQ(lines.size(), 3U * 7 * 3);
  const auto hits = [&](std::size_t line) {
    return lines[line]["metrics"]["hit_rate"]["all_turns"]["total"].get<double>();
  };
  for (std::size_t eviction = 0; eviction < 3; ++eviction) {
    const std::size_t first = eviction * 7 * 3;
    EXPECT_EQ(lines[first]["axes"]["DRAM"], "8GiB");
    EXPECT_EQ(lines[first + 6 * 3]["axes"]["DRAM"], "512GiB");
    EXPECT_LT(hits(first), hits(first + 6 * 3) - 0.1) << lines[first]["axes"];
  }
}

// Fig. 21 of AttentionStore, 3 policies x 6 capacities: at every capacity the scheduler-aware
// policy has the most hits and FIFO the fewest, more capacity has more hits, and the figures of the
// paper's text for 2 and 10 TiB hold within the 8 points of `kvtier reproduce attentionstore
// --figure 21`.
TEST_F(StockSweeps, Figure21IsTheWholeGrid) {
  ASSERT_EQ(
      kvtier({"sweep", "configs/papers/attentionstore/fig21.sweep.json", "--out", "out"}).code, 0);
  const std::vector<json> lines = lines_of(read("out/results.jsonl"));
  constexpr std::size_t kCapacities = 6;
  ASSERT_EQ(lines.size(), 3 * kCapacities);
  std::vector<std::vector<double>> hits(3);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    ASSERT_TRUE(lines[i].contains("metrics")) << lines[i];
    hits[i / kCapacities].push_back(
        lines[i]["metrics"]["hit_rate"]["all_turns"]["total"].get<double>());
  }
  const auto& [fifo, lru, as] = std::tie(hits[0], hits[1], hits[2]);
  for (std::size_t i = 0; i < kCapacities; ++i) {
    EXPECT_LT(fifo[i], lru[i]) << lines[i]["axes"];
    EXPECT_LT(lru[i] + 0.1, as[i]) << lines[i]["axes"];
    for (std::size_t policy = 0; i > 0 && policy < hits.size(); ++policy) {
      EXPECT_LT(hits[policy][i - 1], hits[policy][i]) << lines[policy * kCapacities + i]["axes"];
    }
  }
  EXPECT_EQ(lines[0]["axes"], (json{{"eviction", "attentionstore_fifo"}, {"SSD", "0.5TiB"}}));
  EXPECT_EQ(lines[2]["axes"]["SSD"], "2TiB");
  EXPECT_EQ(lines[5]["axes"]["SSD"], "10TiB");
  constexpr double kBand = 0.08;
  EXPECT_NEAR(fifo[2], 0.095, kBand);
  EXPECT_NEAR(lru[2], 0.129, kBand);
  EXPECT_NEAR(as[2] - lru[2], 0.27, kBand);
  EXPECT_NEAR(fifo[5], 0.48, kBand);
  EXPECT_NEAR(lru[5], 0.58, kBand);
  EXPECT_NEAR(as[5], 0.86, kBand);
}

// An online scheduler allows the online policies: 2 evictions x 1 order x 1 prefetch x 3 tiers.
// Their results do not depend on the knowledge offered.
TEST_F(StockSweeps, PolicyMatrixRunsPoliciesThatTheKnowledgeAllows) {
  ASSERT_EQ(kvtier({"sweep", "configs/sweeps/policy-matrix.json", "--out", "out"}).code, 0);
  const std::vector<json> lines = lines_of(read("out/results.jsonl"));
  ASSERT_EQ(lines.size(), 2U * 4 * 2 * 3 * 3);
  const std::size_t half = lines.size() / 2;
  int online = 0;
  for (std::size_t i = 0; i < half; ++i) {
    EXPECT_TRUE(lines[i].contains("metrics")) << lines[i];
    const json& same = lines[half + i];
    EXPECT_EQ(same["axes"]["eviction"], lines[i]["axes"]["eviction"]);
    if (same.contains("metrics")) {
      ++online;
      EXPECT_EQ(same["metrics"], lines[i]["metrics"]) << same["axes"];
    } else {
      EXPECT_TRUE(same.contains("refused")) << same;
    }
    // Real pressure: KV is lost for lack of room, and requests wait.
    EXPECT_GT(lines[i]["metrics"]["lost_hits"]["capacity"], 100) << lines[i]["axes"];
    EXPECT_GT(lines[i]["metrics"]["queueing_seconds"]["mean"], 1) << lines[i]["axes"];
  }
  EXPECT_EQ(online, 2 * 1 * 1 * 3);
}

}  // namespace
}  // namespace kvtier::test
