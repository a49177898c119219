/// Every system has the same hit rates, with and without a clock.

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/replay/untimed.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

std::set<std::string> keys_of(const Json& json) {
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    keys.insert(key);
  }
  return keys;
}

RunConfig config_of(const std::string& system, const std::string& generator) {
  return resolved(
      "examples/planner-70.json",
      {R"(/hardware/cxl={"capacity": "16GiB", "price": "0$/h/GiB", "bandwidth": {"read": "10GB/s", "write": "10GB/s", "both": "10GB/s"}})",
       "/system=" + system, "/hardware/dram/capacity=16GiB", "/hardware/ssd/capacity=60GiB",
       "/workload/generator=" + generator, "/workload/sessions=60", "/workload/arrival_rate=1/s",
       "/workload/measure=all"});
}

void expect_one_definition(const Json& metrics, bool of_blocks, bool names_tokens) {
  const Json& rates = metrics["hit_rate"];
  std::set<std::string> expected{"all_turns",          "resumed_turns", "tokens",   "prompt_tokens",
                                 "requests_with_hits", "partial_turns", "late_hits"};
  std::set<std::string> counts{
      "turns",           "resumed_turns",    "prompt_tokens", "hit_tokens", "requests_with_hits",
      "truncated_turns", "truncated_tokens", "lost_hits"};
  if (of_blocks) {
    expected.insert("blocks");
    counts.insert({"prompt_blocks", "hit_blocks"});
  }
  if (names_tokens) {
    expected.insert("ideal");
    EXPECT_EQ(keys_of(rates["ideal"]),
              of_blocks ? (std::set<std::string>{"requests_with_hits", "prompt_tokens", "blocks"})
                        : (std::set<std::string>{"requests_with_hits", "prompt_tokens"}));
    EXPECT_LE(number_at(rates, "/prompt_tokens/total"), number_at(rates, "/ideal/prompt_tokens"));
  }
  EXPECT_EQ(keys_of(rates), expected);
  for (const std::string& count : counts) {
    EXPECT_TRUE(metrics.contains(count)) << count;
  }
  const double turns = number_at(metrics, "/turns");
  const double hits = number_at(rates, "/all_turns/total") * turns;
  EXPECT_NEAR(number_at(rates, "/resumed_turns/total") * number_at(metrics, "/resumed_turns"), hits,
              1e-6);
  EXPECT_LE(hits, number_at(metrics, "/requests_with_hits") + 1e-6);
  EXPECT_NEAR(number_at(rates, "/requests_with_hits") * turns,
              number_at(metrics, "/requests_with_hits"), 1e-6);
  double lost = 0;
  for (const auto& [cause, count] : metrics["lost_hits"].items()) {
    lost += count.get<double>();
  }
  EXPECT_GE(hits + lost, number_at(metrics, "/resumed_turns") - 1e-6);
  for (const char* tier : {"hbm", "dram", "cxl", "ssd", "total"}) {
    const std::string at = std::string("/") + tier;
    EXPECT_NEAR(number_at(rates["prompt_tokens"], at) * number_at(metrics, "/prompt_tokens"),
                number_at(metrics["hit_tokens"], at), 1e-3)
        << tier;
  }
  if (metrics.contains("computed_tokens_per_second")) {
    EXPECT_NEAR(number_at(metrics, "/computed_tokens_per_second"),
                number_at(metrics, "/prompt_tokens_served_per_second") *
                    (1 - number_at(rates, "/prompt_tokens/total")),
                1e-6 * number_at(metrics, "/prompt_tokens_served_per_second"));
  }
}

TEST(HitRates, HaveOneNameAndOneDefinition) {
  for (const std::string& system : presets().names("systems")) {
    for (const bool names_tokens : {false, true}) {
      if (names_tokens && stores_sessions(config_of(system, "sharegpt").system)) {
        continue;
      }
      const RunConfig config = config_of(system, names_tokens ? "multi_turn" : "sharegpt");
      SCOPED_TRACE(system + (names_tokens ? ", multi_turn" : ", sharegpt"));
      const bool of_blocks = config.system.blocks.has_value();
      expect_one_definition(simulate(config, builtin_policies())["metrics"], of_blocks,
                            names_tokens);
      expect_one_definition(simulate_untimed(config, builtin_policies())["metrics"], of_blocks,
                            names_tokens);
    }
  }
}

/// All that a system of sessions finds is history.
TEST(HitRates, OfPromptsAreThoseOfHistoriesWhereNothingIsShared) {
  for (const char* system : {"attentionstore", "pensieve", "vllm", "sglang_hicache"}) {
    const Json metrics = simulate(config_of(system, "sharegpt"), builtin_policies())["metrics"];
    const double prompts = number_at(metrics, "/prompt_tokens");
    const double found = number_at(metrics, "/hit_tokens/total");
    EXPECT_GT(found, 0) << system;
    EXPECT_LT(found, prompts) << system;
    EXPECT_GE(number_at(metrics, "/hit_rate/tokens/total"),
              number_at(metrics, "/hit_rate/prompt_tokens/total"))
        << system;
  }
}

/// With all KV in a large tier, a system of blocks finds whole histories, but for one block and for
/// those that the context window cuts.
TEST(HitRates, OfWholeHistoriesAreThoseOfBlocksToo) {
  const RunConfig config =
      resolved("examples/planner-70.json",
               {"/system=vllm_cpu_offload", "/hardware/dram/capacity=2TiB", "/workload/sessions=60",
                "/workload/arrival_rate=0.05/s", "/workload/measure=all"});
  const Json metrics = simulate(config, builtin_policies())["metrics"];
  const double resumed = number_at(metrics, "/resumed_turns");
  const double found = number_at(metrics, "/hit_rate/resumed_turns/total") * resumed;
  EXPECT_GT(found, 0.7 * resumed);
  EXPECT_GT(number_at(metrics, "/lost_hits/overflow"), 0);
  EXPECT_NEAR(found + number_at(metrics, "/lost_hits/overflow"), resumed, 1e-6);
}

}  // namespace
}  // namespace kvtier::test
