/// Every model preset runs, with the properties that it states.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/load.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

RunConfig run_of(const std::string& model, const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings{
      "/hardware=h100-8x",     "/hardware/hbm/capacity=400GiB", "/model=" + model,
      "/workload/sessions=40", "/workload/arrival_rate=1/s",    "/serving/slots=16"};
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("examples/planner-70.json", settings);
}

TEST(ModelPresets, RunOnEightGpus) {
  for (const std::string& model : config_names("models")) {
    SCOPED_TRACE(model);
    // 8 GPUs divide neither 40 heads nor 4.
    const ModelConfig shape = load_model(model);
    const bool splits = shape.attention_heads % 8 == 0;
    const RunConfig config = run_of(model, {splits ? "/hardware/gpus=8" : "/hardware/gpus=4"});
    const Json closed = simulate(config, builtin_policies());
    expect_result_invariants(closed);
    RunOptions reference;
    reference.stepping = DecodeStepping::per_iteration;
    EXPECT_TRUE(closed.dump() == simulate(config, builtin_policies(), reference).dump());
  }
}

double tpot(const RunConfig& config) {
  return number_at(simulate(config, builtin_policies()), "/metrics/tpot_seconds/mean");
}

TEST(ModelPresets, FewerBytesOfWeightsDecodeFaster) {
  const double bf16 = tpot(run_of("llama-3.1-70b"));
  const double fp8 =
      tpot(run_of("llama-3.1-70b", {"/model/precision/attention=fp8", "/model/precision/mlp=fp8"}));
  const double int4 = tpot(
      run_of("llama-3.1-70b", {"/model/precision/attention=int4", "/model/precision/mlp=int4"}));
  EXPECT_LT(fp8, bf16);
  EXPECT_LT(int4, fp8);
}

TEST(ModelPresets, AreTimedByTheRooflineIfAProfileLacksThem) {
  try {
    static_cast<void>(
        run_of("qwen3-30b-a3b", {"/hardware/profile=xeon-2core", "/hardware/unmeasured=refuse"}));
    FAIL();
  } catch (const ConfigError& error) {
    // Matrices, two kinds of attention, the experts and the head.
    ASSERT_EQ(error.problems().size(), 7U);
    EXPECT_NE(error.problems()[5].find("has no moe of 128 experts, 8 of them active, 768 wide"),
              std::string::npos)
        << error.problems()[5];
  }
  const RunConfig config = run_of(
      "qwen3-30b-a3b",
      {"/hardware/profile=xeon-2core", "/hardware/unmeasured=roofline", "/workload/sessions=5"});
  const Json timing = simulate(config, builtin_policies()).at("timing");
  const Json& names = timing.at("from_roofline");
  EXPECT_NE(std::ranges::find(names, Json("experts")), names.end());
  EXPECT_NE(std::ranges::find(names, Json("gemm qkv")), names.end());
  EXPECT_GT(number_at(timing, "/prefills/total"), 0);
}

}  // namespace
}  // namespace kvtier::test
