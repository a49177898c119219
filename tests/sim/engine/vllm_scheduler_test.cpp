/// Requests that run together find what vLLM's own scheduler finds.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/engine/block_batcher.hpp"
#include "sim/engine/simulated_backend.hpp"
#include "tests/sim/engine/support.hpp"
#include "tests/sim/store/hash_trace.hpp"
#include "traces/block_trace.hpp"

namespace kvtier::test {
namespace {

/// The first requests of a trace, all of which arrive at once.
class AtOnce final : public SessionSource {
 public:
  AtOnce(const std::filesystem::path& path, std::size_t most, bool responses)
      : reader_(path, block_trace_style(TraceFormat::mooncake)),
        most_(most),
        responses_(responses) {}
  bool next(SessionSpec& session) override {
    if (given_ == most_ || !reader_.next(session)) {
      return false;
    }
    ++given_;
    session.arrival = SimTime(0);
    session.turns[0].assistant = responses_ ? session.turns[0].assistant : Tokens(1);
    return true;
  }
  [[nodiscard]] Streams* streams() override { return reader_.streams(); }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return reader_.named_blocks();
  }

 private:
  BlockTraceReader reader_;
  std::size_t most_;
  bool responses_;
  std::size_t given_ = 0;
};

struct Found final : RunObserver {
  void on_block_request(const BlockRequest& request) override {
    found[request.session] = request.found;
  }
  std::map<std::int64_t, std::vector<Tokens>> found;
};

struct Case {
  std::string oracle;
  std::size_t requests;
  std::int64_t gpu_tokens;
  std::int64_t cpu_tokens;
  std::string cpu_policy;
  bool responses;
  /// Requests that find something else.
  std::size_t different;
};

class VllmScheduler : public testing::TestWithParam<Case> {};

TEST_P(VllmScheduler, IsFollowedRequestByRequest) {
  const Case& with = GetParam();
  const auto path =
      std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/data/mooncake_conversation.jsonl.gz";
  const auto oracle = read_oracle(with.oracle);
  if (!oracle || !std::filesystem::exists(path)) {
    GTEST_SKIP() << "there is no ../shared/data";
  }
  constexpr std::int64_t kBlock = 512;
  RunConfig config = tiny_config(Tokens(std::int64_t{1} << 18));
  config.system.batching = Batching::unified;
  config.system.blocks =
      BlocksConfig{.found_from = Publication::scheduling, .duplicates = Duplicates::kept};
  HbmTierConfig hbm;
  hbm.block_size = Tokens(kBlock);
  hbm.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::tokens, with.gpu_tokens}};
  config.system.tiers.hbm = hbm;
  if (with.cpu_tokens > 0) {
    TierConfig dram = tier(with.cpu_policy, true);
    dram.block_size = Tokens(kBlock);
    dram.write = WriteMoment::on_create;
    dram.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::tokens, with.cpu_tokens}};
    config.system.tiers.dram = dram;
  }
  config.hardware.hbm.capacity = Bytes(std::int64_t{1} << 50);
  config.serving.slots = 32;
  config.serving.token_budget = Tokens(8192);
  AtOnce source(path, with.requests, with.responses);
  const PolicyRegistry registry = builtin_policies();
  const ConstantTiming timing(SimDuration(1000), SimDuration(1000000));
  SimulatedBackend backend(config.hardware, config.model.layers, timing,
                           DecodeStepping::closed_form);
  Found found;
  Instance instance({.config = &config,
                     .registry = &registry,
                     .backend = &backend,
                     .sessions = &source,
                     .observer = &found});
  instance.run();
  ASSERT_EQ(found.found.size(), oracle->rows.size());
  std::size_t different = 0;
  std::int64_t hits = 0;
  std::int64_t expected = 0;
  for (const std::vector<std::int64_t>& row : oracle->rows) {
    const std::vector<Tokens>& mine = found.found.at(row[0]);
    hits += mine[0].value + (mine.size() > 1 ? mine[1].value : 0);
    expected += row[2] + row[3];
    different += mine[0].value != row[2] || (mine.size() > 1 && mine[1].value != row[3]) ? 1 : 0;
  }
  EXPECT_LE(different, with.different) << hits << " tokens, expected " << expected;
}

// With responses one request finds 11 blocks that vLLM's has lost. With the tier behind, a step's
// blocks are offered when it ends and found at once; vLLM offers them as they are scheduled, and
// finds them when their copy is done.
INSTANTIATE_TEST_SUITE_P(
    Oracles, VllmScheduler,
    testing::Values(Case{"vllm_sched_conversation_g5Mi_c0Mi_none_seqs32_prompt", 12'031,
                         std::int64_t{5} << 20, 0, "", false, 0},
                    Case{"vllm_sched_conversation2000_g1Mi_c0Mi_none_seqs32_output", 2'000,
                         std::int64_t{1} << 20, 0, "", true, 1},
                    Case{"vllm_sched_conversation2000_g1Mi_c5Mi_lru_seqs32_output", 2'000,
                         std::int64_t{1} << 20, std::int64_t{5} << 20, "lru", true, 70},
                    Case{"vllm_sched_conversation2000_g1Mi_c5Mi_arc_seqs32_output", 2'000,
                         std::int64_t{1} << 20, std::int64_t{5} << 20, "arc", true, 94}),
    [](const auto& one) { return one.param.oracle; });

}  // namespace
}  // namespace kvtier::test
