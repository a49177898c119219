#include "sim/study/engines/engine_times.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/study/engines/served_run.hpp"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHeader =
    "id,backend,backend_version,model_path,system,isl,osl,gemm_quant_mode,moe_quant_mode,"
    "batch_size,tp_size,attention_dp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n";

class EngineTimesTest : public testing::Test {
 protected:
  EngineTimesTest() { fs::create_directories(folder_); }
  ~EngineTimesTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  fs::path rows(const std::string& text) { return write("runs.csv", kHeader + text); }

  static ConfigDirectory presets() {
    return ConfigDirectory(fs::path(KVTIER_SOURCE_DIR) / "configs");
  }

  fs::path folder_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
};

std::string error_of(const auto& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(EngineTimesTest, ReadsGpusThatTheTableCountsTwice) {
  const auto runs = read_measured_runs(rows(
      "tp,vllm,0.19.0,meta-llama/Llama-3.1-70B,h100_sxm,1024,128,fp8,fp8,16,4,,1,100,10\n"
      "ep,trtllm,1.1,deepseek-ai/DeepSeek-V3,b200_sxm,1024,128,nvfp4,nvfp4,16,64,1,8,100,10\n"
      "dp,trtllm,1.1,deepseek-ai/DeepSeek-V3,b200_sxm,1024,128,,,16,1,64,8,100,10\n"
      "both,vllm,0.17,moonshotai/Kimi-K2.5,b200_sxm,1024,128,int4_wo,int4_wo,16,4,4,16,100,10\n"));
  ASSERT_EQ(runs.size(), 4U);
  EXPECT_EQ(runs[0].model, "Llama-3.1-70B");
  EXPECT_EQ(runs[0].precision, "fp8");
  EXPECT_EQ(runs[0].tensor, 4);
  EXPECT_EQ(runs[0].attention_dp, 1);
  EXPECT_DOUBLE_EQ(runs[0].tpot_seconds, 0.01);
  EXPECT_EQ(runs[1].precision, "fp4");
  EXPECT_EQ(runs[1].tensor, 8);
  EXPECT_EQ(runs[1].expert, 8);
  EXPECT_EQ(runs[2].precision, "bf16");
  EXPECT_EQ(runs[2].tensor, 1);
  EXPECT_EQ(runs[2].attention_dp, 8);
  EXPECT_EQ(runs[3].precision, "int4");
  EXPECT_EQ(runs[3].tensor, 1);
  EXPECT_EQ(runs[3].attention_dp, 4);
  EXPECT_EQ(runs[3].expert, 4);
}

TEST_F(EngineTimesTest, RefusesRowsWithoutTimesOrSizes) {
  EXPECT_NE(error_of([&] { (void)read_measured_runs(rows("")); }).find("got none"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              (void)read_measured_runs(rows("a,vllm,1,m,h100_sxm,0,128,,,16,4,,1,100,10\n"));
            }).find("expected a whole number > 0"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              (void)read_measured_runs(rows("a,vllm,1,m,h100_sxm,1,128,,,16,4,,1,100,nan\n"));
            }).find("expected milliseconds > 0"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              (void)read_measured_runs(write("short.csv", "id,backend\na,b\n"));
            }).find("model_path"),
            std::string::npos);
}

TEST_F(EngineTimesTest, NamesTheRunsThatItCannotExpress) {
  const EngineTimes times = predict_measured_runs(
      rows("unknown,vllm,1,nobody/model,h100_sxm,128,8,,,1,1,,1,100,10\n"
           "engine,mlc,1,meta-llama/Llama-3.1-70B,h100_sxm,128,8,fp8,fp8,1,4,,1,100,10\n"
           "large,vllm,1,meta-llama/Llama-3.1-70B,h100_sxm,128,8,,,1,1,,1,100,10\n"
           "slow,trtllm,1.1,deepseek-ai/DeepSeek-V3,b200_sxm,128,8,fp8,fp8,1,8,1,1,100,10\n"
           "drafted,trtllm,1.1,deepseek-ai/DeepSeek-R1,b200_sxm,128,8,fp8,fp8,1,8,1,1,100,5\n"
           "good,vllm,1,meta-llama/Llama-3.1-70B,h100_sxm,128,8,fp8,fp8,1,4,,1,100,10\n"),
      presets());
  ASSERT_EQ(times.runs.size(), 6U);
  EXPECT_EQ(times.runs[0].not_expressed, "no preset of this model, GPU or engine");
  EXPECT_EQ(times.runs[1].not_expressed, "no preset of this model, GPU or engine");
  EXPECT_NE(times.runs[2].not_expressed.find("/hardware/hbm/capacity"), std::string::npos);
  EXPECT_TRUE(times.runs[3].not_expressed.empty()) << times.runs[3].not_expressed;
  EXPECT_TRUE(times.runs[3].has_experts);
  EXPECT_TRUE(times.runs[4].not_expressed.starts_with("drafted tokens"));
  EXPECT_TRUE(times.runs[5].not_expressed.empty()) << times.runs[5].not_expressed;
  EXPECT_FALSE(times.runs[5].is_fitted);
  const std::string table = to_table(times);
  EXPECT_NE(table.find("1 rows: drafted tokens"), std::string::npos) << table;
  const Json json = to_json(times);
  EXPECT_EQ(json.at("format"), "kvtier.engine_times/1");
  EXPECT_EQ(json.at("runs").size(), 6U);
  EXPECT_TRUE(json.at("runs")[0].contains("not_expressed"));
  EXPECT_GT(json.at("runs")[5].at("predicted").at("tpot_seconds"), 0);
}

constexpr const char* kMeta =
    R"({"model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "engine_kwargs":
       {"tensor_parallel_size": 1, "data_parallel_size": 1, "enable_expert_parallel": false,
        "max_num_seqs": 4, "max_num_batched_tokens": 2048}})";

TEST_F(EngineTimesTest, ComparesAServedRunRequestByRequest) {
  write("run/meta.json", kMeta);
  write(
      "run/requests.jsonl",
      R"({"input_toks": 1000, "output_toks": 11, "queued_ts": 5.0, "first_token_ts": 5.1, "last_token_ts": 5.3}
{"input_toks": 100, "output_toks": 1, "queued_ts": 4.0, "first_token_ts": 4.02, "last_token_ts": 4.02}
)");
  const ServedRun run = predict_served_run(folder_, "rtxpro6000-8x", "", presets());
  EXPECT_EQ(run.model, "Llama-3.1-8B");
  ASSERT_EQ(run.measured.size(), 2U);
  ASSERT_EQ(run.predicted.size(), 2U);
  // In the order of arrival.
  EXPECT_NEAR(run.measured[0].ttft_seconds, 0.02, 1e-9);
  EXPECT_EQ(run.measured[0].tpot_seconds, 0);
  EXPECT_NEAR(run.measured[1].tpot_seconds, 0.02, 1e-9);
  EXPECT_GT(run.predicted[1].tpot_seconds, 0.005);
  EXPECT_LT(run.predicted[1].tpot_seconds, 0.05);
  EXPECT_EQ(run.predicted[0].tpot_seconds, 0);
  EXPECT_GT(run.predicted[1].ttft_seconds, run.predicted[0].ttft_seconds);
  EXPECT_EQ(to_json(run).at("requests").size(), 2U);
  EXPECT_NE(to_table(run).find("TPOT"), std::string::npos);
}

TEST_F(EngineTimesTest, RefusesServedRunsWithEveryProblem) {
  EXPECT_NE(error_of([&] {
              (void)predict_served_run(folder_, "rtxpro6000-8x", "", presets());
            }).find("expected meta.json"),
            std::string::npos);
  write("meta.json", R"({"model": 3, "engine_kwargs": {"max_num_seqs": "many"}})");
  const std::string problems =
      error_of([&] { (void)predict_served_run(folder_, "rtxpro6000-8x", "", presets()); });
  for (const char* pointer : {"/model", "/vllm_version", "/engine_kwargs/tensor_parallel_size",
                              "/engine_kwargs/max_num_seqs"}) {
    EXPECT_NE(problems.find(pointer), std::string::npos) << problems;
  }
  write("meta.json", kMeta);
  write("requests.jsonl", "{\"input_toks\": 3}\n");
  EXPECT_NE(error_of([&] {
              (void)predict_served_run(folder_, "rtxpro6000-8x", "", presets());
            }).find("requests.jsonl:1: /queued_ts"),
            std::string::npos);
}

}  // namespace
}  // namespace kvtier
