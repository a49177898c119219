#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/errors.hpp"
#include "sim/replay/block_curve.hpp"
#include "tests/traces/support.hpp"
#include "traces/trace_source.hpp"

namespace kvtier::test {
namespace {

/// Events of a server that has lost blocks 2 and 3 before the third one.
const std::string kEvents = R"([1, [["BlockStored", [1, 2], null, [], 4]]]
[2, [["BlockStored", [3], 2, [], 4]]]
[3, [["BlockStored", [2, 3], 1, [], 4]]]
[4, [["BlockStored", [9], null, [], 4]]]
)";

Json curve_of(const kvtier::testing::TempDir& dir, BlockCurveOptions options) {
  const auto path = dir.file("events.jsonl", kEvents);
  options.block = Tokens(4);
  return block_curve([&] { return open_trace(path, {}); }, nullptr, options);
}

// LRU keeps a chain's head longest: at one block the head alone, which the server had itself.
TEST(KvEventsCurve, CountsTheBlocksThatTheServerLacked) {
  const kvtier::testing::TempDir dir;
  BlockCurveOptions options;
  for (const std::int64_t blocks : {1, 2, 3, 4}) {
    options.capacities.push_back({KvSize::Unit::blocks, blocks});
  }
  const Json lru = curve_of(dir, options);
  options.policy = "fifo";
  const Json fifo = curve_of(dir, options);
  for (const Json& curve : {lru, fifo}) {
    EXPECT_EQ(curve["requests"], 4);
    EXPECT_EQ(curve["blocks"], 6);
    EXPECT_EQ(curve["tokens"], 24);
    EXPECT_EQ(curve["ideal"]["hit_blocks"], 2);
    EXPECT_EQ(curve["ideal"]["hit_tokens"], 8);
    EXPECT_EQ(curve["ideal"]["hit_rate"]["blocks"], 2.0 / 6);
  }
  const std::vector<std::int64_t> expected{0, 1, 2, 2};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(lru["rows"][i]["hit_blocks"], expected[i]) << i;
    EXPECT_EQ(lru["rows"][i]["hit_tokens"], 4 * expected[i]) << i;
    EXPECT_LE(fifo["rows"][i]["hit_blocks"], 2) << i;
  }
  EXPECT_EQ(fifo["rows"][3]["hit_blocks"], 2);
}

TEST(KvEventsCurve, HasNoBound) {
  const kvtier::testing::TempDir dir;
  BlockCurveOptions options;
  options.capacities.push_back({KvSize::Unit::blocks, 3});
  options.belady = true;
  EXPECT_EQ(kvtier::testing::config_error_of(dir, [&] { curve_of(dir, options); }),
            "the bound needs requests for whole prompts, but the trace's requests ask for parts: "
            "the recorded server had the earlier blocks");
}

}  // namespace
}  // namespace kvtier::test
