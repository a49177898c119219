/// `kvtier reproduce engines-cache`: exit codes, outputs, messages.

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

/// Two blocks of 512 tokens and one that is not full; the second request shares the first block.
constexpr const char* kTrace =
    R"({"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 4, 5]}
)";
constexpr const char* kTable =
    "req,prompt_tokens,hit_256Ki,evict_cum_256Ki\n0,1100,0,0\n1,1100,512,0\n";
constexpr const char* kName = "oracles/vllm_mgr_prompt_mine_b512.csv";

class EnginesCache : public ProgramTest {
 protected:
  EnginesCache() {
    fs::create_directory(path("oracles"));
    write("trace.jsonl", kTrace);
    write(kName, kTable);
  }
  [[nodiscard]] static Names arguments(const Names& more = {}) {
    Names all{"reproduce", "engines-cache", "--oracles", "oracles", "--trace", "trace.jsonl"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(EnginesCache, FindsNoDifferenceInTheSample) {
  const Outcome outcome = kvtier({"reproduce", "engines-cache", "--json", "out.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find(", different: 0\n"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("not known"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err.find("vllm_0_2"), std::string::npos) << outcome.err;
  const nlohmann::json result = read_json("out.json");
  EXPECT_EQ(result["format"], "kvtier.engines_cache/1");
  EXPECT_EQ(result["different"], 0);
  int tables = 0;
  int trees = 0;
  int runs = 0;
  for (const nlohmann::json& file : result["files"]) {
    ++(file["name"] == "vllm_unit" ? tables : file["name"] == "sglang_unit" ? trees : runs);
  }
  EXPECT_EQ(trees, 34);
  EXPECT_EQ(runs, 4 * 5 + 3 + 4);
  if (fs::exists(configs() / "engines" / "vllm_unit.json")) {
    EXPECT_EQ(tables, 64);
    std::map<std::string, std::string> left_out;
    for (const nlohmann::json& table : result["not_run"]) {
      left_out[table["name"]] = table["reason"];
    }
    std::map<std::string, std::string> with_reason;
    std::size_t all = 0;
    for (const char* name : {"vllm_unit.json", "sglang_unit.json"}) {
      const nlohmann::json file = nlohmann::json::parse(read_file(configs() / "engines" / name));
      all += file["tables"].size();
      for (const nlohmann::json& table : file["tables"]) {
        if (table.contains("not_executed")) {
          with_reason[table["name"]] = table["not_executed"];
        }
      }
    }
    EXPECT_EQ(left_out, with_reason);
    EXPECT_EQ(static_cast<std::size_t>(tables + trees) + left_out.size(), all);
    EXPECT_NE(outcome.out.find("tables that are not executed: 18\n"), std::string::npos);
  }
}

TEST_F(EnginesCache, PrintsARowForEachFileAndCapacity) {
  const Outcome outcome = kvtier(arguments());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "file                       capacity, or table    rows  different\n"
            "vllm_mgr_prompt_mine_b512  256Ki                    2          0\n"
            "\nfiles: 1, rows: 2, different: 0\n");
}

TEST_F(EnginesCache, ShowsTheFirstRowsThatDiffer) {
  write(kName, "req,prompt_tokens,hit_256Ki,evict_cum_256Ki\n0,1100,0,0\n1,1100,1024,3\n");
  const Outcome outcome = kvtier(arguments({"--json", "out.json"}));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.out.find("\nvllm_mgr_prompt_mine_b512, 256Ki\n"
                             "  row 1: expected hit 1024, evicted 3; got hit 512, evicted 0\n"
                             "\nfiles: 1, rows: 2, different: 1\n"),
            std::string::npos)
      << outcome.out;
  const nlohmann::json file = read_json("out.json")["files"][0];
  EXPECT_EQ(file["different"], 1);
  EXPECT_EQ(file["first"], (nlohmann::json::array({{{"row", 1},
                                                    {"expected", {{"hit", 1024}, {"evicted", 3}}},
                                                    {"got", {{"hit", 512}, {"evicted", 0}}}}})));
}

TEST_F(EnginesCache, NamesFilesThatItDoesNotKnow) {
  write("oracles/sgl_hiradix_write_back_lru_mine_p64_g1Mi_c5Mi.csv", kTable);
  write("oracles/README.md", "no table\n");
  const Outcome outcome = kvtier(arguments({"--json", "out.json"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nnot known:\n  sgl_hiradix_write_back_lru_mine_p64_g1Mi_c5Mi\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(read_json("out.json")["unknown"].size(), 1U);
}

TEST_F(EnginesCache, TakesTheTraceThatATableIsOf) {
  write("other.jsonl",
        R"({"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
)");
  write("oracles/lmcache_lru_other_c256.csv", "req,prompt_tokens,hit_inf\n0,700,0\n");
  write("oracles/lmcache_lru_third_c256.csv", "req,prompt_tokens,hit_inf\n0,701,0\n");
  const Outcome outcome = kvtier(arguments({"--trace", "other.jsonl"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nof another trace:\n  lmcache_lru_third_c256\n"
                             "\nfiles: 2, rows: 3, different: 0\n"),
            std::string::npos)
      << outcome.out;
}

TEST_F(EnginesCache, NeedsATableOfTheTrace) {
  write("trace.jsonl",
        R"({"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
)");
  write("oracles/mine.csv", kTable);
  expect_bad_input(arguments(), {"oracles: expected a table of the trace trace.jsonl; 1 of another "
                                 "trace, 1 with an unknown name"});
}

TEST_F(EnginesCache, RefusesTruncatedFiles) {
  const auto truncate = [&](const fs::path& from, const std::string& to) {
    const std::string whole = read_file(from);
    write(to, whole.substr(0, whole.size() / 2));
  };
  const fs::path samples = configs() / "engines" / "oracles";
  fs::remove(path(kName));
  truncate(samples / "vllm_mgr_prompt_conversation_b512.csv.gz",
           "oracles/vllm_mgr_prompt_conversation_b512.csv.gz");
  const std::string trace = (samples / "mooncake_conversation.jsonl.gz").string();
  const Outcome table =
      kvtier({"reproduce", "engines-cache", "--oracles", "oracles", "--trace", trace});
  EXPECT_EQ(table.code, 2);
  EXPECT_NE(table.err.find("vllm_mgr_prompt_conversation_b512.csv.gz:"), std::string::npos)
      << table.err;
  EXPECT_NE(table.err.find("truncated"), std::string::npos) << table.err;
  truncate(samples / "mooncake_conversation.jsonl.gz", "half.jsonl.gz");
  const Outcome half = kvtier({"reproduce", "engines-cache", "--trace", "half.jsonl.gz"});
  EXPECT_EQ(half.code, 2);
  EXPECT_NE(half.err.find("half.jsonl.gz:"), std::string::npos) << half.err;
  EXPECT_NE(half.err.find("truncated"), std::string::npos) << half.err;
}

TEST_F(EnginesCache, NamesEveryProblemOfATable) {
  write(kName, "req,prompt_tokens,hit_lots\n0,1100,0\n");
  expect_bad_input(arguments(), {"oracles/vllm_mgr_prompt_mine_b512.csv: expected hits of a "
                                 "capacity and evictions, got the column \"hit_lots\""});
  write(kName, "req,prompt_tokens,hit_1Mi\n1,1100,0\n");
  expect_bad_input(arguments(), {"oracles/vllm_mgr_prompt_mine_b512.csv:2: req: expected 0, the "
                                 "number of the row, got \"1\""});
  write(kName, "req,prompt_tokens,hit_1Mi\n");
  expect_bad_input(arguments(), {"oracles/vllm_mgr_prompt_mine_b512.csv: the table has no rows"});
  write(kName, "req,tokens,hit_1Mi\n");
  expect_bad_input(arguments(), {"oracles/vllm_mgr_prompt_mine_b512.csv: expected the columns req, "
                                 "prompt_tokens and others"});
  write(kName, "req,prompt_tokens,hit_1Ki\n0,1100,0\n");
  expect_bad_input(arguments(), {"vllm_mgr_prompt_mine_b512, 1Ki: a request of 1100 tokens and a "
                                 "response of 5 has no room"});
  expect_bad_input({"reproduce", "engines-cache", "--oracles", "nowhere", "--trace", "trace.jsonl"},
                   {"nowhere: expected a folder"});
}

TEST_F(EnginesCache, RefusesTwoFilesOfAName) {
  write(std::string(kName) + ".gz", kTable);
  expect_bad_input(arguments(),
                   {"oracles: expected one file of a name, got two of vllm_mgr_prompt_mine_b512"});
}

TEST_F(EnginesCache, RefusesOptionsOfPapers) {
  expect_bad_input({"reproduce", "engines-cache", "--oracles", "oracles"},
                   {"--oracles requires --trace", "see kvtier reproduce engines-cache --help"});
  expect_bad_input({"reproduce", "attentionstore", "engines-cache"},
                   {"PAPER is not for engines-cache", "see kvtier reproduce engines-cache --help"});
  expect_bad_input({"reproduce"}, {"PAPER is required", "see kvtier reproduce --help"});
}

}  // namespace
}  // namespace kvtier::test
