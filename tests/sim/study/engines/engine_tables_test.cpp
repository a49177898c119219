/// Tables of calls on the stores.

#include "sim/study/engines/engine_tables.hpp"

#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

EngineTable table(const char* calls, const char* system = R"({"kind": "gpu", "block_tokens": 4,
                                                              "gpu_blocks": 3})") {
  return {.name = "t", .system = Json::parse(system), .calls = Json::parse(calls)};
}

EngineComparison compared(const char* calls) {
  return std::get<EngineComparison>(compare_with_calls(table(calls), presets()));
}

std::string problem(const char* calls) {
  try {
    static_cast<void>(compare_with_calls(table(calls), presets()));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Three blocks of 4 tokens: r0 has 2 whole ones and 1 token, r1 shares the first one, and takes two
// for the rest: the one without a key, and the tail of r0.
TEST(EngineTables, MakeTheirCallsInOrder) {
  const EngineComparison comparison = compared(R"([
    {"call": "request", "request": "r0", "prompt": [["a", 9]]},
    {"call": "lookup", "request": "r0", "expect": {"hit_tokens": 0}},
    {"call": "allocate", "request": "r0", "tokens": 9,
     "expect": {"fits": true, "new_blocks": 3, "evicted": [], "findable_keys": 2, "free_blocks": 0}},
    {"call": "free", "request": "r0",
     "expect": {"free_blocks": 3, "free_without_key": 1, "free_keys": ["r0/1", "r0/0"]}},
    {"call": "request", "request": "r1", "prompt": [["a", 4], ["b", 1], ["c", 3, 7]]},
    {"call": "lookup", "request": "r1", "expect": {"hit_tokens": 4}},
    {"call": "allocate", "request": "r1", "tokens": 8,
     "expect": {"fits": true, "new_blocks": 2, "evicted": ["r0/1"], "findable_keys": 3}},
    {"call": "respond", "request": "r1", "tokens": [["d", 2]]},
    {"call": "allocate", "request": "r1", "tokens": 2, "expect": {"fits": false}},
    {"call": "reset", "expect": {"done": false}},
    {"call": "free", "request": "r1"},
    {"call": "reset", "expect": {"done": true, "free_without_key": 3, "findable_keys": 0}},
    {"call": "check", "expect": {"free_keys": []}}])");
  EXPECT_EQ(comparison.rows, 9);
  EXPECT_EQ(comparison.different, 0)
      << comparison.first.front().row << comparison.first.front().got;
}

// 30 tokens on the GPU, 20 on the host, pages of 2. a has 4 pages; c shares 3 of them, and each of
// its two chunks is a node of one page. b takes the whole GPU. The host is too small for it, but
// all leaves that are there alone make room.
TEST(EngineTables, MakeCallsOfTrees) {
  const EngineTable tree = table(R"([
    {"call": "serve", "prompt": [["a", 9]], "expect": {"hit_tokens": 0, "host_tokens": 8}},
    {"call": "transfers_done"},
    {"call": "begin", "request": "r", "prompt": [["a", 6], ["c", 4]], "tokens": 2,
     "expect": {"fits": true, "hit_tokens": 6, "free_tokens": 22}},
    {"call": "continue", "request": "r", "tokens": 2, "expect": {"gpu_tokens": 10}},
    {"call": "end", "request": "r", "expect": {"gpu_tokens": 12, "host_tokens": 12}},
    {"call": "transfers_done"},
    {"call": "serve", "prompt": [["b", 30]], "expect": {"gpu_tokens": 30, "host_tokens": 0}},
    {"call": "lookup", "prompt": [["a", 9]], "expect": {"hit_tokens": 0, "host_hit_tokens": 0}}])",
                                 R"({"kind": "tree", "page_tokens": 2, "gpu_tokens": 30,
                                     "host_tokens": 20, "least_load": 4})");
  const EngineComparison comparison =
      std::get<EngineComparison>(compare_with_calls(tree, presets()));
  EXPECT_EQ(comparison.rows, 6);
  EXPECT_EQ(comparison.different, 0)
      << comparison.first.front().row << comparison.first.front().got;
}

TEST(EngineTables, NameProblemsOfTrees) {
  const auto problem_of = [](const char* calls) {
    try {
      static_cast<void>(
          compare_with_calls(table(calls, R"({"kind": "tree", "gpu_tokens": 30})"), presets()));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(problem_of(R"([{"call": "end", "request": "r"}])"),
            "t: call 0: no request \"r\" before this call");
  EXPECT_EQ(problem_of(R"([{"call": "evict", "request": "r"}])"),
            "t: call 0: expected a call of a tree, got \"evict\"");
  EXPECT_EQ(problem_of(R"([{"call": "serve", "prompt": []}])"),
            "t: call 0: expected a prompt of one token at least");
}

TEST(EngineTables, NameDifferences) {
  const EngineComparison comparison = compared(R"([
    {"call": "request", "request": "r0", "prompt": [["a", 9]]},
    {"call": "lookup", "request": "r0", "expect": {"hit_tokens": 4}},
    {"call": "check", "expect": {"free_blocks": 3}}])");
  EXPECT_EQ(comparison.rows, 2);
  ASSERT_EQ(comparison.different, 1);
  EXPECT_EQ(comparison.first[0].row, 1);
  EXPECT_EQ(comparison.first[0].expected, (Json{{"hit_tokens", 4}}));
  EXPECT_EQ(comparison.first[0].got, (Json{{"hit_tokens", 0}}));
}

// Two copies of a's block: the second request looks nothing up. Without a prefix cache nothing is
// found, and nothing is evicted.
TEST(EngineTables, SkipLookUpsIfTheySaySo) {
  const EngineComparison comparison = compared(R"([
    {"call": "request", "request": "r0", "prompt": [["a", 4]]},
    {"call": "allocate", "request": "r0", "tokens": 4, "expect": {"new_blocks": 1}},
    {"call": "request", "request": "r1", "prompt": [["a", 4]], "skip_lookup": true},
    {"call": "lookup", "request": "r1", "expect": {"hit_tokens": 0}},
    {"call": "allocate", "request": "r1", "tokens": 4,
     "expect": {"fits": true, "new_blocks": 1, "findable_keys": 1, "free_blocks": 1}},
    {"call": "request", "request": "r2", "prompt": [["b", 8]]},
    {"call": "allocate", "request": "r2", "tokens": 8, "expect": {"fits": false, "free_blocks": 1}}])");
  EXPECT_EQ(comparison.rows, 4);
  EXPECT_EQ(comparison.different, 0);
  const EngineTable uncached =
      table(R"([{"call": "request", "request": "r0", "prompt": [["a", 9]]},
                {"call": "allocate", "request": "r0", "tokens": 9},
                {"call": "free", "request": "r0", "expect": {"free_without_key": 3}},
                {"call": "request", "request": "r1", "prompt": [["a", 9]]},
                {"call": "lookup", "request": "r1", "expect": {"hit_tokens": 0}}])",
            R"({"kind": "gpu", "block_tokens": 4, "gpu_blocks": 3, "caching": false})");
  EXPECT_EQ(std::get<EngineComparison>(compare_with_calls(uncached, presets())).different, 0);
}

// Two chunks: c refuses while both are being written or loaded, then evicts b, the tail. The tier
// behind has what was stored.
TEST(EngineTables, StoreChunksBehindTheGpu) {
  const EngineTable one = table(R"([
    {"call": "request", "request": "r", "keys": ["a", "b"]},
    {"call": "prepare_store", "request": "r", "keys": ["a", "b"],
     "expect": {"refused": false, "stored": ["a", "b"], "evicted": [], "tiers": [[]]}},
    {"call": "prepare_store", "request": "q", "keys": ["c"],
     "expect": {"refused": true, "evictable_chunks": 0}},
    {"call": "complete_store", "keys": ["a", "b"],
     "expect": {"evictable_chunks": 2, "tiers": [["a", "b"]]}},
    {"call": "prepare_load", "request": "q", "keys": ["a", "b"]},
    {"call": "prepare_store", "request": "q", "keys": ["c"], "expect": {"refused": true}},
    {"call": "complete_load", "request": "q", "keys": ["a", "b"]},
    {"call": "finish", "request": "r"},
    {"call": "prepare_store", "request": "p", "keys": ["c"],
     "expect": {"stored": ["c"], "evicted": ["b"], "free_chunks": 0}},
    {"call": "lookup", "keys": ["a", "c"], "expect": {"states": ["hit", "writing"]}}])",
                                R"({"kind": "tiers", "cpu_chunks": 2, "eviction": "lru",
                                    "secondary_tiers": 1})");
  const auto comparison = std::get<EngineComparison>(compare_with_calls(one, presets()));
  EXPECT_EQ(comparison.rows, 6);
  EXPECT_EQ(comparison.different, 0)
      << comparison.first.front().row << comparison.first.front().got;
}

TEST(EngineTables, NameCallsThatNoStoreCanDo) {
  const auto reason = [](const EngineTable& one) {
    return std::get<NotRun>(compare_with_calls(one, presets())).reason;
  };
  EXPECT_EQ(reason(table("[]", R"({"kind": "scheduler"})")), "kind scheduler");
  EXPECT_EQ(reason(table(R"([{"call": "put", "tier": 0, "keys": [1]}])",
                         R"({"kind": "tiers", "cpu_chunks": 2, "eviction": "lru",
                             "secondary_tiers": 1})")),
            "the call put");
  EngineTable told = table("[]");
  told.not_executed = "Steps are not compared.";
  EXPECT_EQ(reason(told), "Steps are not compared.");
}

TEST(EngineTables, NameTheCallThatIsWrong) {
  EXPECT_EQ(problem(R"([{"call": "free", "request": "r7"}])"),
            "t: call 0: no request \"r7\" before this call");
  EXPECT_EQ(problem(R"([{"call": "request", "request": "r", "prompt": [["a", 9]]},
                        {"call": "lend", "request": "r"}])"),
            "t: call 1: expected a call of the block pool, got \"lend\"");
  EXPECT_EQ(problem(R"([{"call": "request", "request": "r", "prompt": [["a", 9]]},
                        {"call": "allocate", "request": "r", "tokens": 10}])"),
            "t: call 1: expected tokens of the request, which has 9, got 10");
  EXPECT_EQ(problem(R"([{"call": "request", "request": "r", "prompt": [["a", 9]]},
                        {"call": "check", "expect": {"free_keys": ["r-0"]}}])"),
            "t: call 1: expected a key such as r0/2, got \"r-0\"");
  EXPECT_NE(problem(R"([{"call": "request"}])").find("t: call 0: "), std::string::npos);
}

}  // namespace
}  // namespace kvtier::test
