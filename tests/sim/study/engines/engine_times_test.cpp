#include "sim/study/engines/engine_times.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
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

TEST_F(EngineTimesTest, RunsThatAreFasterOnFewerGpusHaveDraftedTokens) {
  const EngineTimes times = predict_measured_runs(
      rows("four,sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,b200_sxm,128,8,fp8,fp8,4,4,1,1,100,6.3\n"
           "eight,sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,b200_sxm,128,8,fp8,fp8,4,8,1,1,100,8.3\n"
           "more,sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,b200_sxm,128,8,fp8,fp8,8,4,1,1,100,9\n"
           "again,sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,b200_sxm,128,8,fp8,fp8,8,4,1,1,100,9.001\n"),
      presets());
  EXPECT_NE(times.runs[0].not_expressed.find("another run"), std::string::npos);
  EXPECT_TRUE(times.runs[1].not_expressed.empty()) << times.runs[1].not_expressed;
  // The server drafts wherever it can be compared; a copy of the same run is no comparison.
  EXPECT_NE(times.runs[2].not_expressed.find("most runs"), std::string::npos);
  EXPECT_NE(times.runs[3].not_expressed.find("most runs"), std::string::npos);
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
  EXPECT_EQ(times.runs[0].not_expressed, "no preset of the model model");
  EXPECT_EQ(times.runs[1].not_expressed, "no preset of the engine mlc");
  EXPECT_NE(
      error_of([&] {
        (void)predict_measured_runs(
            rows("unknown,vllm,1,nobody/model,tpu_v7,128,8,,,1,1,,1,100,10\n"), presets());
      }).find("no run can be expressed; 1 rows: no preset of the model model, the GPU tpu_v7"),
      std::string::npos);
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
  EXPECT_EQ(json.at("runs")[5].at("class"), "measured");
  EXPECT_NE(table.find("80 % ranges of TPOT"), std::string::npos) << table;
  EXPECT_EQ(class_of(times.by_roofline[5].times.shares), "roofline");
  EXPECT_EQ(class_of(times.by_sibling[5].times.shares), "sibling");
  EXPECT_NE(times.by_sibling[5].tpot_seconds, times.runs[5].tpot_seconds);
}

TEST_F(EngineTimesTest, AcceptsEveryGpuWithAHardwarePreset) {
  std::string text;
  std::vector<std::string> gpus{
      "a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200",
      "b300_sxm", "gb300",    "h20_sxm",  "h800_sxm", "l40s",
      "mi300x",   "mi325x",   "mi355x",   "rtx_4090", "rtx_pro_6000_server"};
  const std::vector<std::string> names = presets().names("hardware");
  gpus.insert(gpus.end(), names.begin(), names.end());
  for (const std::string& gpu : gpus) {
    text += gpu + ",vllm,1,meta-llama/Llama-3.1-8B," + gpu + ",128,8,,,1,1,,1,100,10\n";
  }
  const EngineTimes times = predict_measured_runs(rows(text), presets());
  ASSERT_EQ(times.runs.size(), gpus.size());
  for (const PredictedRun& one : times.runs) {
    EXPECT_EQ(one.not_expressed, "") << one.run.gpu;
    EXPECT_GT(one.tpot_seconds, 0) << one.run.gpu;
  }
}

/// One user, so the times are those of kernels. The roofline makes each GPU 2.5 to 3.5 times as
/// fast.
TEST_F(EngineTimesTest, OrdersGpusWithProfilesAsTheirMemoryDoes) {
  std::string text;
  for (const char* gpu : {"h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm"}) {
    text += fmt::format("{0},vllm,1,openai/gpt-oss-120b,{0},1024,64,,,1,1,,1,100,10\n", gpu);
  }
  const EngineTimes times = predict_measured_runs(rows(text), presets());
  ASSERT_EQ(times.runs.size(), 4U);
  for (std::size_t i = 0; i < times.runs.size(); ++i) {
    EXPECT_EQ(times.runs[i].not_expressed, "") << times.runs[i].run.gpu;
    EXPECT_GT(times.runs[i].tpot_seconds, 1.0 / 500) << times.runs[i].run.gpu;
    if (i > 0) {
      EXPECT_LT(times.runs[i].tpot_seconds, times.runs[i - 1].tpot_seconds)
          << times.runs[i].run.gpu;
    }
  }
}

TEST_F(EngineTimesTest, CountsIncompleteRowsWithTheReason) {
  const fs::path path = write(
      "runs.csv",
      "id,backend,backend_version,model_path,system,mode,isl,osl,gemm_quant_mode,moe_quant_mode,"
      "batch_size,tp_size,pp_size,attention_dp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n"
      "good,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,agg,128,8,,,1,1,1,,1,100,10\n"
      "empty,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,agg,128,8,,,,1,1,,1,100,\n"
      "apart,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,disagg,128,8,,,,,,,,100,10\n"
      "apart2,vllm,1,deepseek-ai/DeepSeek-V3,h100_sxm,disagg,128,8,,,,,,,,100,10\n"
      "staged,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,agg,128,8,,,1,1,2,,1,100,10\n");
  const EngineTimes times = predict_measured_runs(path, presets());
  ASSERT_EQ(times.runs.size(), 5U);
  EXPECT_EQ(times.runs[0].not_expressed, "");
  const std::string table = to_table(times);
  EXPECT_NE(table.find("Not expressed:\n"
                       "  1 rows: empty batch_size, silicon_tpot_ms\n"
                       "  1 rows: pipeline parallelism: pp_size 2\n"
                       "  2 rows: prefill and decode apart: mode disagg\n"),
            std::string::npos)
      << table;
  const Json json = to_json(times);
  EXPECT_EQ(json.at("not_expressed"),
            Json::parse(R"([{"reason": "empty batch_size, silicon_tpot_ms", "rows": 1},
                            {"reason": "pipeline parallelism: pp_size 2", "rows": 1},
                            {"reason": "prefill and decode apart: mode disagg", "rows": 2}])"));
  EXPECT_TRUE(json.at("runs")[1].at("measured").at("tpot_seconds").is_null());
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

/// meta.json of a run of Llama-3.1-8B with eight requests at a time.
std::string meta(const std::string& longest, const std::string& kv_cache) {
  return R"({"model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "engine_kwargs":
      {"tensor_parallel_size": 1, "data_parallel_size": 1, "enable_expert_parallel": false,
       "max_num_seqs": 8, "max_num_batched_tokens": 8192, "max_model_len": )" +
         longest + R"(}, "kv_cache": )" + kv_cache + "}";
}

TEST_F(EngineTimesTest, ServedRunsObeyTheEnginesLongestRequestAndKvCapacity) {
  std::string requests;
  for (int i = 0; i < 8; ++i) {
    requests +=
        R"({"input_toks": 1000, "output_toks": 200, "queued_ts": 0, "first_token_ts": 1, "last_token_ts": 5})"
        "\n";
  }
  write("requests.jsonl", requests);
  const auto slowest_ttft = [&](const std::string& text) {
    write("meta.json", text);
    double slowest = 0;
    for (const ServedRun::Times& one :
         predict_served_run(folder_, "rtx4090-8x", "", presets()).predicted) {
      slowest = std::max(slowest, one.ttft_seconds);
    }
    return slowest;
  };
  // The context window of the model, 128Ki tokens of 128 KiB, takes more than the 24 GiB of the
  // GPU.
  const double all_at_once = slowest_ttft(meta("4096", "{}"));
  EXPECT_LT(all_at_once, 2);
  EXPECT_EQ(slowest_ttft(meta("4096", R"({"num_kv_tokens": 41408})")), all_at_once);
  // Room for 3 requests: the last of 8 waits for two times 200 tokens.
  EXPECT_GT(slowest_ttft(meta("4096", R"({"num_kv_tokens": 4096})")), all_at_once + 3);
}

TEST_F(EngineTimesTest, RefusesServedRunsThatContradictTheirEngine) {
  write(
      "requests.jsonl",
      R"({"input_toks": 1000, "output_toks": 200, "queued_ts": 0, "first_token_ts": 1, "last_token_ts": 5})"
      "\n");
  const auto problem = [&](const std::string& text) {
    write("meta.json", text);
    return error_of([&] { (void)predict_served_run(folder_, "rtx4090-8x", "", presets()); });
  };
  EXPECT_NE(problem(meta("1199", "{}")).find("requests.jsonl:1: /: expected at most max_model_len"),
            std::string::npos)
      << problem(meta("1199", "{}"));
  const std::string large = problem(meta("4096", R"({"num_kv_tokens": 1000000})"));
  EXPECT_NE(large.find("meta.json: /kv_cache/num_kv_tokens: expected at most "), std::string::npos)
      << large;
  const std::string malformed = problem(meta("0", R"({"num_kv_tokens": "many"})"));
  for (const char* pointer : {"/engine_kwargs/max_model_len", "/kv_cache/num_kv_tokens"}) {
    EXPECT_NE(malformed.find(pointer), std::string::npos) << malformed;
  }
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
