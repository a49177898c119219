/// The prefill time of `kvtier breakeven` is that of a simulated request of the same length.

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/study/runs/break_even.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

struct Server {
  const char* model;
  const char* hardware;
  const char* system;
  std::vector<std::string> settings{};
};

class PromptPrefill : public testing::TestWithParam<Server> {
 protected:
  [[nodiscard]] RunConfig config() const {
    ConfigRequest request;
    request.inline_config = InlineConfig{.json = {{"model", GetParam().model},
                                                  {"hardware", Json::parse(GetParam().hardware)},
                                                  {"system", GetParam().system},
                                                  {"workload",
                                                   {{"trace", dir_.path("one.csv").string()},
                                                    {"format", "request_log"},
                                                    {"sessions", "all"},
                                                    {"arrivals", "trace"},
                                                    {"measure", "all"}}}},
                                         .origin = "test"};
    for (const std::string& setting : GetParam().settings) {
      request.overrides.push_back(parse_override(setting));
    }
    return resolve_config(request, presets(), builtin_policies()).config;
  }

  /// GPU time of the prefill of one request that finds no KV.
  [[nodiscard]] SimDuration simulated(const RunConfig& config, Tokens prompt) const {
    dir_.write("one.csv",
               fmt::format("arrival,input_tokens,output_tokens\n0,{},2\n", prompt.value));
    RequestList requests;
    RunOptions options;
    options.observer = &requests;
    (void)simulate(config, builtin_policies(), options);
    return requests.records.at(0).prefill_compute;
  }

  TempDir dir_;
};

TEST_P(PromptPrefill, OfBreakEvenIsThatOfASimulatedRequest) {
  const RunConfig run = config();
  const BreakEven found = break_even(run);
  ASSERT_GE(found.tokens.size(), 2U);
  // A response needs room behind the longest prompt.
  for (std::size_t i = 0; i + 1 < found.tokens.size(); ++i) {
    EXPECT_EQ(found.recompute[i].ns, simulated(run, found.tokens[i]).ns)
        << found.tokens[i].value << " tokens";
  }
}

// Twice the tokens of a prompt are four times the pairs of tokens that attend to each other.
TEST_P(PromptPrefill, OfLongPromptsGrowsFasterThanTheirTokens) {
  const BreakEven found = break_even(config());
  constexpr Tokens kLong(16384);
  for (std::size_t i = 1; i < found.tokens.size(); ++i) {
    if (found.tokens[i - 1] >= kLong) {
      EXPECT_GT(found.recompute[i] * found.tokens[i - 1].value,
                found.recompute[i - 1] * found.tokens[i].value)
          << found.tokens[i].value << " tokens";
    }
  }
}

const std::vector<std::string> kBudget{"/serving/token_budget=8192tokens"};
constexpr const char* kCpu = R"({"profile": "xeon-2core-tiny", "unmeasured": "roofline"})";

INSTANTIATE_TEST_SUITE_P(
    Servers, PromptPrefill,
    testing::Values(
        Server{"deepseek-v3", R"("b200-8x")", "vllm"},
        Server{"deepseek-v3", R"("b200-8x")", "vllm", kBudget},
        Server{"deepseek-v3", R"("b200-8x")", "sglang_hicache", kBudget},
        Server{"deepseek-v3", R"("h200-8x")", "vllm", kBudget},
        Server{"llama-3.1-70b", R"("h100-8x")", "vllm_cpu_offload", kBudget},
        Server{
            "llama-3.1-8b", R"("l40s-8x")", "tensorrt_llm", {"/serving/token_budget=5000tokens"}},
        Server{"qwen3-30b-a3b", R"({"preset": "h100-8x", "gpus": 4})", "vllm", kBudget},
        Server{"gpt-oss-120b", R"("h100-8x")", "vllm", kBudget},
        Server{"gemma-3-27b",
               R"({"preset": "h100-8x", "gpus": 4})",
               "sglang",
               {"/serving/token_budget=5000tokens"}},
        Server{"mistral-7b", R"({"preset": "a100-80g", "gpus": 1})", "attentionstore"},
        Server{"llama2-13b", R"("a100-80g")", "pensieve"},
        Server{"kvtier-tiny", kCpu, "attentionstore", {"/system/save/write_buffer=16MiB"}},
        Server{"kvtier-tiny", kCpu, "vllm", {"/serving/token_budget=200tokens"}}));

}  // namespace
}  // namespace kvtier::test
