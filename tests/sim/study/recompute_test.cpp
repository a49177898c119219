/// A system that stores nothing serves every workload.

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/study/runs/bound.hpp"
#include "sim/study/runs/hit_curve.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

std::string block_trace() {
  return (source_dir() / "tests/data/mooncake_conversation.jsonl.gz").string();
}

struct Workload {
  std::string name;
  std::string json;
  bool names_tokens = true;
};
void PrintTo(const Workload& workload, std::ostream* out) { *out << workload.name; }

const std::vector<Workload> kWorkloads{
    {"ShareGpt", R"({"generator": "sharegpt", "sessions": 60, "arrival_rate": "0.2/s"})", false},
    {"SharedPrompts", R"({"generator": "shared_prompts", "sessions": 60, "arrival_rate": "0.2/s"})",
     false},
    {"MultiTurn", R"({"generator": "multi_turn", "sessions": 40, "arrival_rate": "0.2/s"})"},
    {"SharedPrefixes",
     R"({"generator": "shared_prefixes", "sessions": 60, "arrival_rate": "0.2/s"})"},
    {"Rag", R"({"generator": "rag", "sessions": 60, "arrival_rate": "0.2/s"})"},
    {"Agents", R"({"generator": "agents", "sessions": 8, "arrival_rate": "0.01/s",
         "agents": {"context_max": "120000tokens"}})"},
    {"BlockTrace", fmt::format(R"({{"trace": "{}", "arrivals": "trace"}})", block_trace())},
    {"Mix",
     R"({"mix": [{"name": "chat", "weight": 3, "workload": {"generator": "multi_turn"}},
                 {"name": "agents", "weight": 1, "workload": {"generator": "agents",
                   "agents": {"context_max": "120000tokens"}}}],
         "sessions": 20, "arrival_rate": "0.02/s"})"}};

RunConfig config_of(const Workload& workload, std::vector<std::string> more = {}) {
  std::vector<std::string> settings{"/system=recompute", "/workload=" + workload.json,
                                    "/workload/measure=all"};
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("examples/agents-h100-8x.json", settings);
}

using Place = std::pair<std::int64_t, std::int64_t>;
/// Tokens of the prompts and of the responses, by session and turn.
std::map<Place, std::pair<Tokens, Tokens>> requests_of(const RequestList& list) {
  std::map<Place, std::pair<Tokens, Tokens>> requests;
  for (const RequestRecord& r : list.records) {
    requests[{r.session, r.turn}] = {r.prompt(), r.output};
  }
  return requests;
}

class RecomputeOf : public testing::TestWithParam<Workload> {};

TEST_P(RecomputeOf, ComputesTheRequestsThatABlockSystemServes) {
  RequestList timed;
  const Json result = simulate(config_of(GetParam()), builtin_policies(), {.observer = &timed});
  RequestList untimed;
  static_cast<void>(
      simulate_untimed(config_of(GetParam()), builtin_policies(), {.observer = &untimed}));
  RequestList of_blocks;
  static_cast<void>(simulate(config_of(GetParam(), {"/system=vllm"}), builtin_policies(),
                             {.observer = &of_blocks}));
  EXPECT_EQ(requests_of(timed), requests_of(untimed));
  EXPECT_EQ(requests_of(timed), requests_of(of_blocks));
  Tokens prompts;
  Tokens responses;
  for (const RequestRecord& r : timed.records) {
    prompts += r.prompt();
    responses += r.output;
    EXPECT_EQ(r.found.reused, Tokens(0));
    EXPECT_GT(r.prefill_compute, SimDuration(0));
  }
  EXPECT_EQ(number_at(result, "/metrics/prompt_tokens"), static_cast<double>(prompts.value));
  EXPECT_EQ(number_at(result, "/workload/assistant_tokens_total"),
            static_cast<double>(responses.value));
  EXPECT_EQ(number_at(result, "/metrics/computed_tokens_per_second"),
            number_at(result, "/metrics/prompt_tokens_served_per_second"));
  EXPECT_EQ(number_at(result, "/metrics/hit_rate/tokens/total"), 0);
  EXPECT_EQ(number_at(result, "/metrics/lost_hits/not_stored"),
            number_at(result, "/metrics/resumed_turns"));
  EXPECT_EQ(result["workload"].contains("blocks"), GetParam().names_tokens);
}

TEST_P(RecomputeOf, JumpsThroughDecodesAsItStepsThem) {
  const RunConfig config = config_of(GetParam());
  EXPECT_EQ(
      outcome(simulate(config, builtin_policies())),
      outcome(simulate(config, builtin_policies(), {.stepping = DecodeStepping::per_iteration})));
}

TEST_P(RecomputeOf, HasABoundAndACurve) {
  const RunConfig config = config_of(GetParam());
  const Json result = simulate_untimed(config, builtin_policies());
  EXPECT_EQ(bound_of(config, result, builtin_policies(), {})["hit_blocks"], 0);
  EXPECT_EQ(hit_curve(config, builtin_policies(), {}, {})["format"],
            GetParam().names_tokens ? "kvtier.block_curve/1" : "kvtier.miss_ratio_curve/1");
}

/// A router is told of no blocks, and predicts that instances have those of the prompts they got.
TEST_P(RecomputeOf, RunsBehindEveryRouter) {
  for (const auto& router : builtin_policies().routing) {
    const RunConfig config =
        config_of(GetParam(), {"/cluster/instances=2", "/cluster/router=" + router.name});
    RequestList list;
    const Json result = simulate(config, builtin_policies(), {.observer = &list});
    SCOPED_TRACE(router.name);
    EXPECT_EQ(number_at(result, "/workload/turns"), static_cast<double>(list.records.size()));
    for (const Json& instance : result["metrics"]["instances"]) {
      EXPECT_EQ(instance["prompt_hit_rate"], 0.0);
    }
  }
}

TEST_P(RecomputeOf, OneInstanceOfAClusterIsARunWithoutACluster) {
  const RunConfig alone = config_of(GetParam());
  const RunConfig clustered =
      config_of(GetParam(), {R"(/cluster/slow=[{"instance": 0, "from": "0s", "factor": 1}])"});
  EXPECT_EQ(simulate(alone, builtin_policies())["metrics"]["ttft_seconds"],
            simulate(clustered, builtin_policies())["metrics"]["ttft_seconds"]);
}

TEST_P(RecomputeOf, RequestsOfALostInstanceAreSentAgain) {
  const Json result = simulate(
      config_of(GetParam(),
                {"/cluster/instances=2", R"(/cluster/lost=[{"instance": 1, "at": "20s"}])"}),
      builtin_policies());
  EXPECT_EQ(result["metrics"]["turns"], result["workload"]["turns"]);
}

INSTANTIATE_TEST_SUITE_P(Workloads, RecomputeOf, testing::ValuesIn(kWorkloads),
                         [](const auto& workload) { return workload.param.name; });

/// A log of the same requests without the names of their blocks.
TEST(Recompute, TakesTheTimesOfRequestsWithoutNames) {
  const TempDir dir;
  RequestList named;
  const RunConfig config = config_of(kWorkloads[6]);
  const Json result = simulate(config, builtin_policies(), {.observer = &named});
  std::ranges::sort(named.records, {}, &RequestRecord::session);
  std::string log = "arrival,input_tokens,output_tokens\n";
  for (const RequestRecord& r : named.records) {
    log += fmt::format("{},{},{}\n", r.arrived.seconds(), r.prompt().value, r.output.value);
  }
  const auto path = dir.write("log.csv", log);
  const Json plain = simulate(
      config_of({"", fmt::format(R"({{"trace": "{}", "arrivals": "trace"}})", path.string())}),
      builtin_policies());
  EXPECT_EQ(result["metrics"]["ttft_seconds"], plain["metrics"]["ttft_seconds"]);
  EXPECT_EQ(result["metrics"]["gpu_seconds"], plain["metrics"]["gpu_seconds"]);
  EXPECT_EQ(result["metrics"]["prompt_tokens"], plain["metrics"]["prompt_tokens"]);
}

TEST(Recompute, ASystemThatStoresSessionsRefusesNames) {
  const auto refused = [](const Workload& workload, const char* system) {
    try {
      static_cast<void>(simulate(config_of(workload, {std::string("/system=") + system,
                                                      "/serving/token_budget=131072tokens"}),
                                 builtin_policies()));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr const char* kWhy =
      ": its requests share blocks, which only a system of blocks (/system/blocks) finds";
  for (const char* system : {"attentionstore", "attentionstore_lru", "overflow"}) {
    EXPECT_NE(refused(kWorkloads[5], system).find(std::string("/workload/generator") + kWhy),
              std::string::npos)
        << system;
    EXPECT_NE(refused(kWorkloads[6], system).find(std::string("/workload/trace") + kWhy),
              std::string::npos)
        << system;
  }
  EXPECT_EQ(refused(kWorkloads[6], "vllm_0_2"), "");
}

}  // namespace
}  // namespace kvtier::test
