#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/errors.hpp"
#include "sim/serving/config.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/serving/store_rules.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

std::int64_t kv_tokens(const std::string& hardware, int gpus, const std::string& model,
                       std::vector<std::string> more = {}) {
  more.insert(more.begin(),
              {"/serving={}", "/hardware=" + hardware, "/hardware/gpus=" + std::to_string(gpus),
               "/model=" + model, "/system=vllm"});
  const RunConfig config = resolved("examples/engines.json", more);
  return running_kv_capacity(config) / kv_bytes_per_token(config.model);
}

struct Log {
  std::string hardware;
  int gpus;
  std::string model;
  std::int64_t tokens;
};

// Logs of vLLM with its defaults, quoted in public benchmarks.
TEST(EngineMemory, LeavesTheKvTokensOfEnginesLogs) {
  for (const Log& log :
       {Log{"h100-8x", 1, "llama-3.1-8b", 434'000}, Log{"h200-8x", 1, "llama-3.1-8b", 868'000},
        Log{"l40s-8x", 1, "llama-3.1-8b", 208'000}, Log{"h100-8x", 2, "qwen3-32b", 298'000}}) {
    const double error = static_cast<double>(kv_tokens(log.hardware, log.gpus, log.model)) /
                             static_cast<double>(log.tokens) -
                         1;
    EXPECT_LT(std::abs(error), 0.06) << log.hardware << " x " << log.gpus << ": " << error;
  }
}

TEST(EngineMemory, GrowsWithTheTokenBudget) {
  const std::string budget = "/serving/token_budget=";
  EXPECT_EQ(kv_tokens("h100-8x", 1, "llama-3.1-8b", {budget + "8192tokens"}),
            kv_tokens("h100-8x", 1, "llama-3.1-8b"));
  EXPECT_EQ(kv_tokens("l40s-8x", 1, "llama-3.1-8b", {budget + "2048tokens"}),
            kv_tokens("l40s-8x", 1, "llama-3.1-8b"));
  // 8,192 more tokens: 2 x 4,096 elements of two hidden states and 3 x 14,336 of the MLP, in 16
  // bits. A token's KV has 128 KiB.
  EXPECT_EQ(kv_tokens("h100-8x", 1, "llama-3.1-8b") -
                kv_tokens("h100-8x", 1, "llama-3.1-8b", {budget + "16384tokens"}),
            8192 * 2 * (2 * 4096 + 3 * 14'336) / (128 * 1024));
}

// Each of 8 GPUs holds one of 4 KV heads, so that two hold the same.
TEST(EngineMemory, GpusWithoutAHeadOfTheirOwnHoldACopy) {
  const auto config = [](const std::string& heads) {
    return resolved("examples/engines.json",
                    {"/hardware=h100-8x", "/model=qwen3-8b", "/system=vllm", "/serving={}",
                     "/model/kv_heads=" + heads});
  };
  const RunConfig eight = config("8");
  const RunConfig four = config("4");
  EXPECT_EQ(kv_bytes_per_token(four.model) * 2, kv_bytes_per_token(eight.model));
  EXPECT_NEAR(
      static_cast<double>(running_kv_capacity(four) / kv_bytes_per_token(four.model)),
      static_cast<double>(running_kv_capacity(eight) / kv_bytes_per_token(eight.model)),
      0.01 * static_cast<double>(running_kv_capacity(eight) / kv_bytes_per_token(eight.model)));
}

TEST(EngineMemory, RanksWriteTheirHeadsBehindHbm) {
  const auto config = [](const std::string& system, const std::string& model,
                         const std::string& heads) {
    return resolved("examples/engines.json",
                    {"/hardware=h200-8x", "/model=" + model, "/system=" + system, "/serving={}",
                     "/model/kv_heads=" + heads});
  };
  const auto blocks = [](const RunConfig& run) { return store_rules(run).pools[1].capacity; };
  const RunConfig four = config("vllm_cpu_offload", "qwen3-8b", "4");
  EXPECT_EQ(stored_kv_bytes_per_token(four), kv_bytes_per_token(four.model) * 2);
  EXPECT_EQ(blocks(four), blocks(config("vllm_cpu_offload", "qwen3-8b", "8")));
  const RunConfig one = config("vllm_lmcache", "deepseek-v3", "128");
  EXPECT_EQ(stored_kv_bytes_per_token(one), kv_bytes_per_token(one.model));
  const RunConfig each = config("vllm_cpu_offload", "deepseek-v3", "128");
  EXPECT_EQ(stored_kv_bytes_per_token(each), kv_bytes_per_token(each.model) * 8);
}

TEST(EngineMemory, CopiesCrossTheLinks) {
  const auto result = [](const std::string& copies) {
    return simulate(
        resolved("examples/engines.json",
                 {"/hardware=h200-8x", "/model=deepseek-v3", "/system=vllm_lmcache",
                  "/system/blocks/latent_copies=" + copies, "/serving={}", "/workload/sessions=3"}),
        builtin_policies());
  };
  const Json one = result("one");
  const Json ranks = result("ranks");
  const auto written = [](const Json& run) {
    return run["metrics"]["tiers"]["dram"]["written_bytes"].get<std::int64_t>();
  };
  EXPECT_GT(written(one), 0);
  EXPECT_EQ(written(ranks), 8 * written(one));
  EXPECT_EQ(ranks["load"]["kv"]["copies_behind_hbm"], 8);
  EXPECT_EQ(ranks["load"]["kv"]["tokens_in_hbm"], one["load"]["kv"]["tokens_in_hbm"]);
}

// Llama-3.1-8B has a window of 131,072 tokens, of which an RTX 4090 holds a third.
TEST(ContextWindow, IsAtMostWhatHbmHolds) {
  const auto window = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"/serving={}", "/hardware=rtx4090-8x", "/hardware/gpus=1",
                               "/model=llama-3.1-8b", "/system=vllm"});
    return resolved("examples/engines.json", more);
  };
  const RunConfig one = window({});
  EXPECT_EQ(one.whole_window, Tokens(131'072));
  EXPECT_LE(one.model.context_window.value,
            running_kv_capacity(one) / kv_bytes_per_token(one.model));
  EXPECT_GT(one.model.context_window.value,
            running_kv_capacity(one) / kv_bytes_per_token(one.model) - 16);
  // Each rank has the KV of its own requests.
  const RunConfig ranks = window({"/hardware/gpus=2", "/hardware/parallel/attention_dp=2"});
  EXPECT_LE(ranks.model.context_window.value,
            running_kv_capacity(ranks) / kv_bytes_per_token(ranks.model) / 2);
  EXPECT_EQ(window({"/model/context_window=2048tokens"}).whole_window, std::nullopt);
  EXPECT_THROW(static_cast<void>(window({"/serving/kv_memory=1GiB"})), ConfigError);
  EXPECT_THROW(static_cast<void>(window({"/model/attention=[]"})), ConfigError);
  EXPECT_THROW(static_cast<void>(window({R"(/model/attention=["full", "latent"])"})), ConfigError);
}

}  // namespace
}  // namespace kvtier::test
