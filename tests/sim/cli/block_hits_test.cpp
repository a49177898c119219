/// `kvtier simulate --untimed` on mooncake_conversation: hit blocks and tokens equal those of
/// tests/data/count_hits.py, and for two tiers those of independent counts.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;

class BlockHits : public ProgramTest {
 protected:
  /// The metrics of LRU or FIFO tiers of so many blocks of 512 tokens.
  json metrics(const std::filesystem::path& trace, const std::vector<std::int64_t>& capacities,
               const std::string& eviction, bool inclusive) {
    json tiers = json::object();
    for (std::size_t i = 0; i < capacities.size(); ++i) {
      tiers[i == 0 ? "dram" : "ssd"] = {
          {"eviction", eviction},
          {"inclusive", inclusive},
          {"write", inclusive ? "on_create" : "on_evict"},
          {"block_size", "512tokens"},
          {"blocks", {{"capacity", std::to_string(capacities[i]) + "blocks"}}}};
    }
    write_run(
        {{"/workload",
          {{"trace", trace.string()},
           {"arrivals", "trace"},
           {"think_time", {{"model", "logged"}}}}},
         {"/system",
          {{"name", "one tier"},
           {"blocks", {{"longest_hit", "prompt"}, {"partial_blocks", true}, {"responses", false}}},
           {"tiers", tiers}}}});
    const Outcome run = kvtier({"simulate", "run.json", "--untimed", "--json", "out.json"});
    EXPECT_EQ(run.code, 0) << run.err;
    return run.code == 0 ? read_json("out.json")["metrics"] : json();
  }
  json one(const std::filesystem::path& trace, std::int64_t capacity, const std::string& eviction) {
    return metrics(trace, {capacity}, eviction, false);
  }
};

const std::filesystem::path kSample =
    std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/data/mooncake_conversation.jsonl.gz";

TEST_F(BlockHits, TheSampleGivesTheCountedHits) {
  const json lru = one(kSample, 6'000, "lru");
  EXPECT_EQ(lru["hit_blocks"]["total"], 1'583);
  EXPECT_EQ(lru["hit_tokens"]["total"], 809'391);
  EXPECT_EQ(one(kSample, 6'000, "fifo")["hit_blocks"]["total"], 1'600);
  const json apart = metrics(kSample, {3'000, 6'000}, "lru", false);
  EXPECT_EQ(apart["hit_blocks"]["dram"], 782);
  EXPECT_EQ(apart["hit_blocks"]["total"], 2'202);
  EXPECT_EQ(metrics(kSample, {3'000, 6'000}, "lru", true)["hit_blocks"]["total"], 1'583);
}

/// With the whole trace, which KVTIER_TEST_DATA has.
class AllBlockHits : public BlockHits {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("KVTIER_TEST_DATA");
    if (folder == nullptr) {
      GTEST_SKIP() << "KVTIER_TEST_DATA does not name the folder of the whole trace";
    }
    trace_ = std::filesystem::absolute(folder) / "mooncake_conversation.jsonl.gz";
  }
  std::filesystem::path trace_;
};

TEST_F(AllBlockHits, OneTierGivesTheCountedHits) {
  struct Counted {
    std::int64_t capacity;
    std::int64_t lru;
    std::int64_t lru_tokens;
    /// 0: not counted.
    std::int64_t fifo;
  };
  for (const Counted& counted :
       {Counted{1'000, 12'847, 6'575'459, 12'840}, Counted{5'000, 32'260, 16'505'817, 30'698},
        Counted{10'000, 61'046, 31'238'981, 52'514}, Counted{30'000, 93'978, 48'093'740, 85'101},
        Counted{50'000, 102'290, 52'347'371, 96'231}, Counted{1'000'000, 105'710, 54'098'411, 0}}) {
    const json lru = one(trace_, counted.capacity, "lru");
    EXPECT_EQ(lru["prompt_blocks"], 288'500);
    EXPECT_EQ(lru["prompt_tokens"], 144'793'823);
    EXPECT_EQ(lru["hit_blocks"]["total"], counted.lru) << counted.capacity;
    EXPECT_EQ(lru["hit_tokens"]["total"], counted.lru_tokens) << counted.capacity;
    if (counted.fifo > 0) {
      EXPECT_EQ(one(trace_, counted.capacity, "fifo")["hit_blocks"]["total"], counted.fifo)
          << counted.capacity;
    }
  }
}

// An inclusive second tier counts as the larger one alone, an exclusive one as the sum.
TEST_F(AllBlockHits, TwoTiersGiveTheCountedHits) {
  const json inclusive = metrics(trace_, {6'000, 12'000}, "lru", true);
  EXPECT_EQ(inclusive["hit_blocks"]["dram"], 40'183);
  EXPECT_EQ(inclusive["hit_blocks"]["total"], 66'428);
  const json exclusive = metrics(trace_, {6'000, 12'000}, "lru", false);
  EXPECT_EQ(exclusive["hit_blocks"]["dram"], 40'183);
  EXPECT_EQ(exclusive["hit_blocks"]["total"], 79'628);
  EXPECT_EQ(metrics(trace_, {6'000, 3'000}, "lru", false)["hit_blocks"]["total"], 56'158);
}

}  // namespace
}  // namespace kvtier::test
