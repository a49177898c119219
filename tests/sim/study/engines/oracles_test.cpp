/// Hits of the engines' own code, request by request.

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/study/engines/comparison.hpp"
#include "tests/sim/store/test_data.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> known_files() {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(oracle_data() / "oracles")) {
    const std::string name = file.path().stem().stem().string();
    if (oracle_kind(name)) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

class Engines : public testing::TestWithParam<std::string> {};

TEST_P(Engines, FindTheSameRequestByRequest) {
  const std::string& name = GetParam();
  const OracleKind kind = oracle_kind(name).value();
  const OracleTable table = read_oracle(oracle_data() / "oracles" / (name + ".csv.gz"));
  const char* file = name.find("mooncake1000") != std::string::npos
                         ? "mooncake_1000.jsonl.gz"
                         : "mooncake_conversation.jsonl.gz";
  const HashTrace trace = read_hash_trace(oracle_data() / file, table.rows.size());
  ASSERT_TRUE(is_of(table, trace));
  const std::vector<OracleRun> runs = oracle_runs(name, kind, table);
  ASSERT_FALSE(runs.empty());
  for (const OracleRun& run : runs) {
    for (const bool reference : {false, true}) {
      // Every step of thousands of requests takes long.
      if (reference && kind.held > 1 && table.rows.size() > 2000) {
        continue;
      }
      const EngineComparison comparison = compare_with_oracle(
          name, kind, table, run, trace, presets(), {.reference = reference, .stop = {}});
      EXPECT_EQ(comparison.rows, static_cast<std::int64_t>(table.rows.size()));
      EXPECT_EQ(comparison.different, 0)
          << run.capacity << (reference ? ", plain stores" : "") << ": "
          << (comparison.first.empty() ? ""
                                       : comparison.first.front().expected.dump() + ", got " +
                                             comparison.first.front().got.dump());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Oracles, Engines, testing::ValuesIn(known_files()),
                         [](const auto& one) { return one.param; });

/// The sample has tables of every kind, so that the test above is not one of nothing.
TEST(EngineSamples, AreOfEveryKind) {
  std::map<OracleEngine, int> files;
  for (const std::string& name : known_files()) {
    ++files[oracle_kind(name)->engine];
  }
  EXPECT_GE(files[OracleEngine::vllm_manager], 10);
  EXPECT_GE(files[OracleEngine::vllm_scheduler], 13);
  EXPECT_GE(files[OracleEngine::sglang], 12);
  EXPECT_GE(files[OracleEngine::sglang_0510], 10);
  EXPECT_GE(files[OracleEngine::lmcache], 3);
}

TEST(OracleNames, SayHowATableWasMade) {
  const OracleKind fifo = oracle_kind("vllm_mgr_fifo32_conversation_b512").value();
  EXPECT_EQ(fifo.held, 32);
  EXPECT_EQ(fifo.block, Tokens(512));
  EXPECT_FALSE(fifo.with_output);
  EXPECT_TRUE(oracle_kind("vllm_mgr_output_pertoken_mine_b16")->with_output);
  const OracleKind offload =
      oracle_kind("vllm_sched_conversation2000_g1Mi_c512Ki_arc_seqs32_output").value();
  EXPECT_EQ(offload.engine, OracleEngine::vllm_scheduler);
  EXPECT_EQ(offload.gpu, 1 << 20);
  EXPECT_EQ(offload.cpu, 512 << 10);
  EXPECT_EQ(offload.eviction, "arc");
  EXPECT_EQ(offload.held, 32);
  EXPECT_TRUE(offload.with_output);
  const OracleKind tree = oracle_kind("sgl_radix_lfu_prompt_chunk8192_x_p64").value();
  EXPECT_EQ(tree.engine, OracleEngine::sglang);
  EXPECT_EQ(tree.chunk, Tokens(8192));
  EXPECT_EQ(tree.block, Tokens(64));
  const OracleKind tiers =
      oracle_kind("sgl_hiradix_write_through_selective_lfu_x_p64_g256Ki_c1024Ki").value();
  EXPECT_EQ(tiers.engine, OracleEngine::sglang_0510);
  EXPECT_EQ(tiers.eviction, "lfu");
  EXPECT_EQ(tiers.writes_from, 2);
  EXPECT_EQ(tiers.block, Tokens(64));
  EXPECT_EQ(tiers.gpu, 256 << 10);
  EXPECT_EQ(tiers.cpu, 1 << 20);
  EXPECT_EQ(oracle_kind("sgl_hiradix_write_through_lru_x_p64_g1Mi_c5Mi")->writes_from, 1);
  EXPECT_EQ(oracle_kind("sgl_radix0510_lru_x_p64_g1024Ki_c0Ki")->cpu, 0);
  EXPECT_EQ(oracle_kind("lmcache_lfu_x_c256")->eviction, "lfu");
  for (const char* name :
       {"", "vllm_mgr_prompt_x", "vllm_mgr_prompt_x_b0", "vllm_mgr_fifo0_x_b16",
        "vllm_sched_x_g1Mi_c0Mi_lru_seqs1_prompt", "vllm_sched_x_g1Mi_c1Mi_none_seqs1_prompt",
        "sgl_hiradix_write_back_lru_x_p64_g1024Ki_c5120Ki",
        "sgl_hiradix_write_through_lru_x_p64_g1024Ki_c0Ki",
        "sgl_radix0510_lru_x_p64_g1024Ki_c5120Ki", "lmcache_fifo_x_c256"}) {
    EXPECT_FALSE(oracle_kind(name)) << name;
  }
}

}  // namespace
}  // namespace kvtier::test
