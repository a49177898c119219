/// Hits of the engines' own code, request by request.

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/compressed_stream.hpp"
#include "sim/study/engines/comparison.hpp"
#include "sim/study/engines/replays.hpp"
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

/// A small trace with tables of LMCache's own code.
struct SmallTrace {
  HashTrace trace;
  std::map<std::string, OracleTable> tables;
};
std::vector<SmallTrace> small_traces() {
  std::vector<SmallTrace> cases;
  const TempDir folder;
  const fs::path file = sample_data() / "lmcache_random.jsonl.gz";
  LineReader lines(file);
  std::string_view line;
  while (lines.next(line)) {
    const Json recorded = parse_json_strictly(line, file.string());
    std::string text;
    for (const Json& request : recorded["trace"]) {
      text += request.dump() + "\n";
    }
    SmallTrace one{.trace = read_hash_trace(folder.write("trace.jsonl", text)), .tables = {}};
    for (const auto& [name, columns] : recorded["tables"].items()) {
      OracleTable& table = one.tables[name];
      table.columns = {"req"};
      for (std::size_t row = 0; row < one.trace.requests.size(); ++row) {
        table.rows.push_back({static_cast<std::int64_t>(row)});
      }
      for (const auto& [column, values] : columns.items()) {
        table.columns.push_back(column);
        for (std::size_t row = 0; row < table.rows.size(); ++row) {
          table.rows[row].push_back(values.at(row).get<std::int64_t>());
        }
      }
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST(EngineSamples, ChunksOfAWriteDoNotEvictEachOther) {
  const std::vector<SmallTrace> cases = small_traces();
  EXPECT_GE(cases.size(), 40U);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const auto& [name, table] : cases[i].tables) {
      const OracleKind kind = oracle_kind(name).value();
      ASSERT_TRUE(is_of(table, cases[i].trace));
      for (const OracleRun& run : oracle_runs(name, kind, table)) {
        for (const bool reference : {false, true}) {
          const EngineComparison comparison =
              compare_with_oracle(name, kind, table, run, cases[i].trace, presets(),
                                  {.reference = reference, .stop = {}});
          EXPECT_EQ(comparison.different, 0) << "trace " << i << ", " << name << ", "
                                             << run.capacity << (reference ? ", plain stores" : "");
        }
      }
    }
  }
}

/// The cache of vllm_lmcache holds what LMCache's holds by itself, whatever HBM has.
TEST(EngineSamples, ChunksBehindHbmAreThoseOfTheCacheAlone) {
  for (const SmallTrace& one : small_traces()) {
    for (const auto& [name, table] : one.tables) {
      const OracleKind kind = oracle_kind(name).value();
      const OracleRun run = oracle_runs(name, kind, table).front();
      const PoolRules cache{.name = "dram",
                            .capacity = run.tokens / kind.block.value,
                            .block = kind.block,
                            .eviction = kind.eviction,
                            .insertion = End::head,
                            .touch = Touch::lookup,
                            .allocation = Allocation::write};
      StoreRules alone;
      alone.hit_cap = HitCap::none;
      alone.pools = {cache};
      StoreRules behind;
      behind.hit_cap = HitCap::none;
      behind.pools = {PoolRules{.capacity = 10'000}, cache};
      behind.edges = {EdgeRules{}};
      behind.requests_in_first = true;
      for (const auto& [kind_of_store, make] : store_kinds()) {
        const auto in_cache = make(alone, one.trace.streams, builtin_policies());
        const auto in_tiers = make(behind, one.trace.streams, builtin_policies());
        for (const HashRequest& request : one.trace.requests) {
          replay_cache(*in_cache, request.context());
          Match found;
          const auto id = in_tiers->acquire(request.context(), request.prompt, found);
          in_tiers->loaded(id.value());
          in_tiers->computed(*id, request.prompt);
          in_tiers->release(*id);
          ASSERT_EQ(in_tiers->contents(1), in_cache->contents(0)) << name << ", " << kind_of_store;
          ASSERT_EQ(in_tiers->counters(1).evicted, in_cache->counters(0).evicted);
        }
      }
    }
  }
}

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
        "sgl_radix0510_lru_x_p64_g1024Ki_c5120Ki", "lmcache_mru_x_c256"}) {
    EXPECT_FALSE(oracle_kind(name)) << name;
  }
}

}  // namespace
}  // namespace kvtier::test
