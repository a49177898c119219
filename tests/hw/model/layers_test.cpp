/// Models whose layers differ: kinds of attention, experts, formats of numbers.

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "tests/hw/load.hpp"
#include "tests/hw/tiny_model.hpp"

namespace kvtier {
namespace {

using Lines = std::vector<std::string>;
using test::load_model;

TEST(Presets, HaveThePublishedNumbersOfParameters) {
  const std::map<std::string, double> published{
      {"llama-3.1-8b", 8.03e9},
      {"llama-3.1-70b", 70.55e9},
      {"llama-3.1-405b", 405.85e9},
      {"qwen3-8b", 8.2e9},
      {"qwen3-32b", 32.8e9},
      {"qwen3-30b-a3b", 30.5e9},
      {"qwen3-235b-a22b", 235e9},
      {"mixtral-8x7b", 46.7e9},
      {"deepseek-v3", 671e9},
      // The checkpoint's own count; the report rounds to 1.04e12.
      {"kimi-k2", 1026.5e9},
      {"glm-5", 744e9},
      {"gpt-oss-20b", 20.9e9},
      {"gpt-oss-120b", 116.8e9},
      // 1.416e9 of embedding and 25.6e9 of layers.
      {"gemma-3-27b", 27.0e9},
      {"minimax-m2", 230e9},
      {"qwen3.5-397b-a17b", 397e9},
  };
  for (const auto& [name, count] : published) {
    EXPECT_NEAR(static_cast<double>(parameters(load_model(name))) / count, 1, 0.01) << name;
  }
}

TEST(Presets, HaveThePublishedNumbersOfActiveParameters) {
  // Published counts differ in whether they include the embedding.
  const std::map<std::string, double> published{{"qwen3-30b-a3b", 3.3e9},  {"mixtral-8x7b", 12.9e9},
                                                {"qwen3-235b-a22b", 22e9}, {"deepseek-v3", 37e9},
                                                {"kimi-k2", 32.6e9},       {"glm-5", 40e9}};
  for (const auto& [name, count] : published) {
    EXPECT_NEAR(static_cast<double>(active_parameters(load_model(name))) / count, 1, 0.06) << name;
  }
  // gpt-oss counts the head and not the embedding: 5.13e9 and 3.61e9.
  const std::map<std::string, double> with_head{{"gpt-oss-120b", 5.13e9}, {"gpt-oss-20b", 3.61e9}};
  for (const auto& [name, count] : with_head) {
    const ModelConfig model = load_model(name);
    const std::int64_t embedding = model.vocabulary_size * model.hidden_size;
    EXPECT_NEAR(static_cast<double>(active_parameters(model) - embedding) / count, 1, 0.01) << name;
  }
}

TEST(Presets, HaveTheKvBytesThatFollowFromTheirShape) {
  const std::map<std::string, std::int64_t> by_hand{
      {"llama-3.1-8b", 131'072},     // 2 x 32 layers x 8 x 128 x 2 B
      {"llama-3.1-70b", 327'680},    // 2 x 80 x 8 x 128 x 2 B
      {"llama-3.1-405b", 516'096},   // 2 x 126 x 8 x 128 x 2 B
      {"qwen3-8b", 147'456},         // 2 x 36 x 8 x 128 x 2 B
      {"qwen3-32b", 262'144},        // 2 x 64 x 8 x 128 x 2 B
      {"qwen3-30b-a3b", 98'304},     // 2 x 48 x 4 x 128 x 2 B
      {"qwen3-235b-a22b", 192'512},  // 2 x 94 x 4 x 128 x 2 B
      {"mixtral-8x7b", 131'072},     // 2 x 32 x 8 x 128 x 2 B
      {"deepseek-v3", 70'272},       // 61 x (512 + 64) x 2 B
      {"kimi-k2", 70'272},           // 61 x (512 + 64) x 2 B
      {"glm-5", 100'152},            // 78 x ((512 + 64) x 2 B + an index key of 128 B + 4 B)
      {"gpt-oss-20b", 49'152},       // 2 x 24 x 8 x 64 x 2 B; windows keep all tokens
      {"gpt-oss-120b", 73'728},      // 2 x 36 x 8 x 64 x 2 B
      {"gemma-3-27b", 507'904},      // 2 x 62 x 16 x 128 x 2 B
      {"minimax-m2", 253'952},       // 2 x 62 x 8 x 128 x 2 B
      // 15 full layers x 2 x 2 x 256 x 2 B = 30,720. A state of one of 45 layers has 64 x 128 x 128
      // x 4 B = 4,194,304, and 3 x 12,288 x 2 B = 73,728 for its convolution; each 4,096th of it,
      // rounded up, is 1,042 B a token: 46,890.
      {"qwen3.5-397b-a17b", 77'610},
  };
  for (const auto& [name, bytes] : by_hand) {
    EXPECT_EQ(kv_bytes_per_token(load_model(name)), Bytes(bytes)) << name;
  }
}

TEST(Presets, TakeThePublishedBytesOfWeights) {
  // gpt-oss-120b's checkpoint has 60.8 GiB, gpt-oss-20b's 12.8 GiB.
  constexpr double kGib = 1 << 30;
  EXPECT_NEAR(static_cast<double>(weight_bytes(load_model("gpt-oss-120b")).value) / kGib, 60.8,
              0.6);
  EXPECT_NEAR(static_cast<double>(weight_bytes(load_model("gpt-oss-20b")).value) / kGib, 12.8, 0.2);
}

/// 8 layers of 2 KV heads of 4 elements in 2 B: 32 B of KV a token and layer.
ModelConfig layered() {
  ModelConfig model = test::tiny_model();
  model.layers = 8;
  model.attention_heads = 4;
  model.kv_heads = 2;
  model.head_dim = 4;
  model.kv_bytes_per_element = 2;
  model.context_window = Tokens(1000);
  return model;
}

TEST(LayerMatrices, HaveTheWeightsOfTheirLayer) {
  for (const std::string& name : test::config_names("models")) {
    const ModelConfig model = load_model(name);
    for (const LayerGroup& group : layer_groups(model)) {
      std::int64_t weights = 0;
      for (const MatrixShape& matrix : layer_matrices(model, group, 1, 1)) {
        weights += matrix.n * matrix.k;
      }
      const LayerParameters parameters = layer_parameters(model, group);
      EXPECT_EQ(weights, parameters.attention + parameters.mlp + parameters.router) << name;
    }
  }
}

TEST(LayerMatrices, AreSplitOverTheGpusOfTheirWork) {
  const ModelConfig model = load_model("deepseek-v3");
  const LayerGroup experts = layer_groups(model).back();
  const std::vector<MatrixShape> matrices = layer_matrices(model, experts, 2, 8);
  ASSERT_EQ(matrices.size(), 7U);
  EXPECT_EQ(matrices[0], (MatrixShape{"attention_input", 1536 + 512 + 64, 7168}));
  EXPECT_EQ(matrices[1], (MatrixShape{"attention_queries", 64 * 192, 1536}));
  EXPECT_EQ(matrices[2], (MatrixShape{"attention_values", 64 * 256, 512}));
  EXPECT_EQ(matrices[3], (MatrixShape{"attention_output", 7168, 64 * 128}));
  EXPECT_EQ(matrices[4], (MatrixShape{"router", 256, 7168}));
  EXPECT_EQ(matrices[5], (MatrixShape{"shared_up", 2 * 256, 7168}));
  EXPECT_EQ(matrices[6], (MatrixShape{"shared_down", 7168, 256}));
}

TEST(WindowLayers, KeepAllTokensUnlessContextsAreResumedAtSomePositionsOnly) {
  ModelConfig model = layered();
  model.attention = {AttentionKind::window, AttentionKind::full};
  model.window = Tokens(100);
  EXPECT_EQ(kv_bytes_per_token(model), Bytes(8 * 32));
  EXPECT_EQ(kv_bytes_per_request(model), Bytes(0));
  model.resume_every = Tokens(400);
  // A quarter of 32 B in 4 layers.
  EXPECT_EQ(kv_bytes_per_token_layer(model, 0), Bytes(8));
  EXPECT_EQ(kv_bytes_per_token_layer(model, 1), Bytes(32));
  EXPECT_EQ(kv_bytes_per_token_layer(model), Bytes(32));
  EXPECT_EQ(kv_bytes_per_token(model), Bytes(4 * 8 + 4 * 32));
  // The windows of a running request.
  EXPECT_EQ(kv_bytes_per_request(model), Bytes(4 * 100 * 32));
  model.resume_every = Tokens(50);
  EXPECT_EQ(kv_bytes_per_token(model), Bytes(8 * 32));
}

TEST(StateLayers, HoldAStateForEachRequestAndNoTokens) {
  ModelConfig model = layered();
  model.attention = {AttentionKind::state, AttentionKind::full};
  model.state = StateConfig{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16};
  // 4 x 8 x 16 x 4 B
  EXPECT_EQ(kv_bytes_per_request(model), Bytes(4 * 2048));
  EXPECT_EQ(kv_bytes_per_token(model), Bytes(4 * 32));
  model.resume_every = Tokens(512);
  EXPECT_EQ(kv_bytes_per_token(model), Bytes(4 * 32 + 4 * 4));
}

TEST(GivenByHand, KvIsSpreadOverTheLayers) {
  ModelConfig model = layered();
  model.kv_bytes_per_token = Bytes(1003);
  EXPECT_EQ(kv_bytes_per_token(model), Bytes(1003));
  EXPECT_EQ(kv_bytes_per_token_layer(model, 0), Bytes(126));
  EXPECT_EQ(kv_bytes_per_token_layer(model, 3), Bytes(125));
  // State layers have none of it.
  model.attention = {AttentionKind::state, AttentionKind::full};
  EXPECT_EQ(kv_bytes_per_token_layer(model, 0), Bytes(0));
  EXPECT_EQ(kv_bytes_per_token_layer(model, 1), Bytes(1003 / (model.layers / 2) + 1));
}

TEST(GivenByHand, ParametersReplaceTheShape) {
  ModelConfig model = layered();
  const std::int64_t embedding = 2 * model.vocabulary_size * model.hidden_size;
  model.tied_embeddings = false;
  model.total_parameters = embedding + 8 * 1000;
  model.active_parameters = embedding + 8 * 400;
  model.experts = ExpertsConfig{.routed = 5, .active = 1, .intermediate_size = 1};
  EXPECT_EQ(parameters(model), *model.total_parameters);
  EXPECT_EQ(active_parameters(model), *model.active_parameters);
  // rest + routed = 1000 and rest + routed / 5 = 400: routed is 750.
  const LayerParameters layer = layer_parameters(model, layer_kind(model, 0));
  EXPECT_EQ(layer.routed, 750);
  EXPECT_EQ(layer.mlp, 250);
}

TEST(Experts, AreTouchedAsTokensChooseAtRandom) {
  const ExpertsConfig experts{.routed = 8, .active = 2, .intermediate_size = 1};
  EXPECT_DOUBLE_EQ(touched_experts(experts, 1), 2);
  // 8 x (1 - 0.75^2)
  EXPECT_DOUBLE_EQ(touched_experts(experts, 2), 3.5);
  EXPECT_NEAR(touched_experts(experts, 1000), 8, 1e-9);
}

TEST(Experts, BeginBehindTheDenseLayers) {
  ModelConfig model = layered();
  model.experts = ExpertsConfig{
      .routed = 4, .active = 1, .intermediate_size = 3, .dense_layers = 2, .every = 3};
  std::vector<bool> has;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    has.push_back(layer_kind(model, layer).has_experts);
  }
  EXPECT_EQ(has, (std::vector<bool>{false, false, false, false, true, false, false, true}));
  EXPECT_EQ(layer_groups(model), (std::vector<LayerGroup>{{6, AttentionKind::full, false},
                                                          {2, AttentionKind::full, true}}));
}

TEST(Formats, HaveTheBytesOfTheirBlocks) {
  EXPECT_EQ(format_bytes(NumberFormat::bf16, 128), Bytes(256));
  EXPECT_EQ(format_bytes(NumberFormat::fp8, 128 * 128), Bytes(128 * 128 + 4));
  EXPECT_EQ(format_bytes(NumberFormat::nvfp4, 16), Bytes(9));
  EXPECT_EQ(format_bytes(NumberFormat::mxfp4, 32), Bytes(17));
  // 64 B, a scale of 2 B and half a byte of zero, rounded up.
  EXPECT_EQ(format_bytes(NumberFormat::int4, 128), Bytes(67));
}

Lines problems_of(const ModelConfig& model) {
  Problems problems;
  check_model(model, "/model", problems);
  return problems.lines();
}

TEST(CheckModel, NamesKindsOfLayersWithoutTheirShape) {
  ModelConfig model = layered();
  model.attention = {AttentionKind::window, AttentionKind::latent, AttentionKind::state};
  EXPECT_EQ(problems_of(model), (Lines{"/model/window: window layers need it, got \"none\"",
                                       "/model/latent: latent layers need it, got \"none\"",
                                       "/model/state: state layers need it, got \"none\""}));
  model = layered();
  model.window = Tokens(5);
  model.resume_every = Tokens(5);
  EXPECT_EQ(problems_of(model),
            (Lines{"/model/window: expected \"none\": /attention has no window layer",
                   "/model/resume_every: expected \"none\": /attention has no window and no state "
                   "layer"}));
}

TEST(CheckModel, NamesImpossibleExperts) {
  ModelConfig model = layered();
  model.experts =
      ExpertsConfig{.routed = 4, .active = 5, .intermediate_size = 3, .dense_layers = 8};
  EXPECT_EQ(problems_of(model),
            (Lines{"/model/experts/active: expected at most the routed experts, 4, got 5",
                   "/model/experts/dense_layers: expected that one of 8 layers has experts at "
                   "least"}));
}

TEST(CheckModel, NamesFiguresByHandThatContradictEachOther) {
  ModelConfig model = layered();
  model.active_parameters = 1000;
  EXPECT_EQ(problems_of(model),
            Lines{"/model/total_parameters: active_parameters needs it, got \"auto\""});
  model.total_parameters = 1'000'000;
  model.active_parameters = 500'000;
  EXPECT_EQ(problems_of(model), Lines{"/model/experts: active_parameters below total_parameters "
                                      "need experts that are not all active"});
}

TEST(CheckModel, RefusesSizesBeyondSixtyFourBits) {
  ModelConfig model = layered();
  model.layers = 1000;
  model.hidden_size = 1 << 20;
  model.experts = ExpertsConfig{.routed = 4096, .active = 1, .intermediate_size = 1 << 22};
  EXPECT_EQ(problems_of(model), Lines{"/model: expected weights of at most 9e+18 bytes in all"});
}

HardwareConfig gpus(std::int64_t count) {
  HardwareConfig hardware;
  hardware.gpus = count;
  hardware.hbm.capacity = Bytes(std::int64_t{1} << 40);
  return hardware;
}

Lines parallel_problems(const ModelConfig& model, const HardwareConfig& hardware) {
  Problems problems;
  check_parallel(model, hardware, problems);
  return problems.lines();
}

TEST(Parallel, RefusesGroupsThatDoNotDivide) {
  const ModelConfig deepseek = load_model("deepseek-v3");
  HardwareConfig hardware = gpus(8);
  hardware.parallel = {.pipeline = 3, .attention_dp = 1, .expert = 1};
  EXPECT_EQ(parallel_problems(deepseek, hardware),
            Lines{"/hardware/parallel/pipeline: expected a divisor of /hardware/gpus, 8, got 3"});
  hardware.parallel = {.pipeline = 1, .attention_dp = 3, .expert = 5};
  EXPECT_EQ(parallel_problems(deepseek, hardware),
            (Lines{"/hardware/parallel/attention_dp: expected a divisor of the GPUs of a stage, 8, "
                   "got 3",
                   "/hardware/parallel/expert: expected a divisor of the GPUs of a stage, 8, got 5",
                   "/hardware/parallel/expert: expected a divisor of the routed experts, 256, got "
                   "5"}));
  EXPECT_EQ(parallel_problems(load_model("llama2-70b"), gpus(3)),
            Lines{"/hardware/gpus: 3 GPUs of a tensor-parallel rank do not divide 64 attention "
                  "heads"});
  hardware = gpus(4);
  hardware.parallel.expert = 2;
  EXPECT_EQ(parallel_problems(load_model("llama2-70b"), hardware),
            Lines{"/hardware/parallel/expert: expected 1: llama2-70b has no experts, got 2"});
}

TEST(Parallel, RanksHoldTheWeightsOfAttentionAndEachTokenOnce) {
  const ModelConfig model = load_model("deepseek-v3");
  HardwareConfig hardware = gpus(8);
  const Bytes left = hbm_bytes(hardware) - weight_bytes(model);
  // All 8 GPUs of one rank hold all latent rows.
  EXPECT_EQ(kv_capacity(model, hardware), Bytes(left.value / 8));
  hardware.parallel.attention_dp = 8;
  // 61 layers of 187,105,280 weights in FP8: 187,150,960 B, 7 times more.
  const Bytes attention =
      format_bytes(NumberFormat::fp8, layer_parameters(model, layer_kind(model, 0)).attention);
  EXPECT_EQ(kv_capacity(model, hardware), left - attention * (61 * 7));
}

// ---- Hugging Face ----

ModelConfig from_json(const char* text) {
  return model_from_hugging_face(Json::parse(text), "config.json");
}

/// The preset with the name and the source of `model`, to compare shapes.
ModelConfig preset(const char* name, const ModelConfig& model) {
  ModelConfig result = load_model(name);
  result.name = model.name;
  result.source = model.source;
  return result;
}

TEST(HuggingFaceFamilies, Qwen3) {
  const ModelConfig model = from_json(R"({"model_type": "qwen3", "head_dim": 128,
    "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
    "max_window_layers": 36, "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_EQ(model, preset("qwen3-8b", model));
}

TEST(HuggingFaceFamilies, Qwen2) {
  const ModelConfig model = from_json(R"({"model_type": "qwen2", "hidden_size": 3584,
    "intermediate_size": 18944, "max_position_embeddings": 32768, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
    "vocab_size": 152064})");
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_TRUE(is_dense(model));
  // Published as 7.62e9.
  EXPECT_NEAR(static_cast<double>(parameters(model)) / 7.62e9, 1, 0.01);
}

TEST(HuggingFaceFamilies, Qwen3Moe) {
  const ModelConfig model = from_json(R"({"model_type": "qwen3_moe", "decoder_sparse_step": 1,
    "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 151936})");
  EXPECT_EQ(model, preset("qwen3-30b-a3b", model));
}

TEST(HuggingFaceFamilies, Mixtral) {
  const ModelConfig model = from_json(R"({"model_type": "mixtral", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 32000})");
  EXPECT_EQ(model, preset("mixtral-8x7b", model));
}

constexpr const char* kDeepseek = R"({"model_type": "deepseek_v3", "first_k_dense_replace": 3,
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic",
    "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "v_head_dim": 128,
    "vocab_size": 129280})";

TEST(HuggingFaceFamilies, DeepseekV3) {
  const ModelConfig model = from_json(kDeepseek);
  EXPECT_EQ(model, preset("deepseek-v3", model));
}

TEST(HuggingFaceFamilies, DeepseekV2WithoutCompressedQueries) {
  const ModelConfig model = from_json(R"({"model_type": "deepseek_v2", "first_k_dense_replace": 1,
    "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "torch_dtype": "bfloat16", "vocab_size": 102400})");
  // Published as 15.7e9, of which 2.4e9 are active without the embedding's 0.2e9 twice.
  EXPECT_NEAR(static_cast<double>(parameters(model)) / 15.7e9, 1, 0.01);
  EXPECT_NEAR(static_cast<double>(active_parameters(model)), 2.66e9, 0.05e9);
}

TEST(HuggingFaceFamilies, KimiK2AndItsWrapper) {
  Json json = Json::parse(kDeepseek);
  json["model_type"] = "kimi_k2";
  json["first_k_dense_replace"] = 1;
  json["n_routed_experts"] = 384;
  json["num_attention_heads"] = 64;
  json["num_key_value_heads"] = 64;
  json["max_position_embeddings"] = 131072;
  json["vocab_size"] = 163840;
  ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(model, preset("kimi-k2", model));
  const Json wrapped{{"model_type", "kimi_k25"}, {"text_config", json}};
  EXPECT_EQ(model_from_hugging_face(wrapped, "config.json"), model);
}

TEST(HuggingFaceFamilies, GlmMoeDsa) {
  Json json = Json::parse(kDeepseek);
  json.erase("quantization_config");
  json["model_type"] = "glm_moe_dsa";
  json["hidden_size"] = 6144;
  json["index_head_dim"] = 128;
  json["index_n_heads"] = 32;
  json["index_topk"] = 2048;
  json["intermediate_size"] = 12288;
  json["max_position_embeddings"] = 202752;
  json["num_attention_heads"] = 64;
  json["num_hidden_layers"] = 78;
  json["q_lora_rank"] = 2048;
  json["qk_nope_head_dim"] = 192;
  json["v_head_dim"] = 256;
  json["vocab_size"] = 154880;
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(model, preset("glm-5", model));
}

TEST(HuggingFaceFamilies, GptOss) {
  Json types = Json::array();
  for (int i = 0; i < 12; ++i) {
    types.push_back("sliding_attention");
    types.push_back("full_attention");
  }
  Json json = Json::parse(R"({"model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "quantization_config": {"modules_to_not_convert":
    ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    "quant_method": "mxfp4"}, "sliding_window": 128, "tie_word_embeddings": false,
    "vocab_size": 201088})");
  json["layer_types"] = types;
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(model, preset("gpt-oss-20b", model));
}

TEST(HuggingFaceFamilies, Gemma3TakesTheDefaultsOfItsClass) {
  const ModelConfig model = from_json(R"({"model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376,
    "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
    "num_key_value_heads": 16, "sliding_window": 1024}})");
  EXPECT_EQ(model, preset("gemma-3-27b", model));
}

TEST(HuggingFaceFamilies, Gemma2AlternatesAndGemmaDoesNot) {
  const char* const text = R"({"model_type": "gemma2", "head_dim": 256, "hidden_size": 3584,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 16,
    "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096,
    "torch_dtype": "float32", "vocab_size": 256000})";
  const ModelConfig model = from_json(text);
  EXPECT_EQ(model.attention, (std::vector{AttentionKind::window, AttentionKind::full}));
  EXPECT_EQ(model.window, Tokens(4096));
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_NEAR(static_cast<double>(parameters(model)) / 9.24e9, 1, 0.01);
  Json json = Json::parse(text);
  json["model_type"] = "gemma";
  EXPECT_TRUE(is_dense(model_from_hugging_face(json, "config.json")));
}

TEST(HuggingFaceFamilies, Llama4HasChunksAndExpertsInEveryOtherLayer) {
  const ModelConfig model = from_json(R"({"model_type": "llama4", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128,
    "hidden_size": 5120, "interleave_moe_layer_step": 2, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 1048576,
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
    "num_key_value_heads": 8, "num_local_experts": 128, "vocab_size": 202048}})");
  EXPECT_EQ(model.attention, (std::vector{AttentionKind::window, AttentionKind::window,
                                          AttentionKind::window, AttentionKind::full}));
  // Maverick has 400e9 parameters, of which 17e9 are active.
  EXPECT_NEAR(static_cast<double>(parameters(model)) / 400e9, 1, 0.01);
  EXPECT_NEAR(static_cast<double>(active_parameters(model)) / 17e9, 1, 0.02);
}

TEST(HuggingFaceFamilies, MinimaxM2) {
  const ModelConfig model = from_json(R"({"model_type": "minimax_m2", "head_dim": 128,
    "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
    "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
    "num_key_value_heads": 8, "num_local_experts": 256, "quantization_config":
    {"quant_method": "fp8", "weight_block_size": [128, 128]}, "tie_word_embeddings": false,
    "vocab_size": 200064})");
  EXPECT_EQ(model, preset("minimax-m2", model));
}

TEST(HuggingFaceFamilies, MinimaxHasLightningAttention) {
  const ModelConfig model = from_json(R"({"model_type": "minimax",
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], "head_dim": 128,
    "hidden_size": 6144, "intermediate_size": 9216, "max_position_embeddings": 10240000,
    "num_attention_heads": 64, "num_experts_per_tok": 2, "num_hidden_layers": 80,
    "num_key_value_heads": 8, "num_local_experts": 32, "torch_dtype": "bfloat16",
    "vocab_size": 200064})");
  EXPECT_EQ(model.attention.size(), 8U);
  EXPECT_EQ(model.attention.back(), AttentionKind::full);
  // MiniMax-Text-01: 456e9 parameters, of which 45.9e9 are active beside embedding and head.
  EXPECT_NEAR(static_cast<double>(parameters(model)) / 456e9, 1, 0.01);
  const std::int64_t embedding = 2 * model.vocabulary_size * model.hidden_size;
  EXPECT_NEAR(static_cast<double>(active_parameters(model) - embedding) / 45.9e9, 1, 0.01);
}

TEST(HuggingFaceFamilies, Qwen35MoeInItsWrapper) {
  const ModelConfig model = from_json(R"({"model_type": "qwen3_5_moe",
    "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 256, "hidden_size": 4096,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 64, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "moe_intermediate_size": 1024,
    "num_attention_heads": 32, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 60, "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 1024, "vocab_size": 248320}})");
  ModelConfig expected = preset("qwen3.5-397b-a17b", model);
  expected.resume_every.reset();
  EXPECT_EQ(model, expected);
}

TEST(HuggingFaceFamilies, Qwen3Next) {
  const ModelConfig model = from_json(R"({"model_type": "qwen3_next", "dtype": "bfloat16",
    "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
    "intermediate_size": 5120, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "moe_intermediate_size": 512,
    "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 48, "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512, "vocab_size": 151936})");
  EXPECT_NEAR(static_cast<double>(parameters(model)) / 80e9, 1, 0.01);
}

PrecisionConfig quantized(const char* quantization, const char* type = "qwen3_moe") {
  Json json = Json::parse(R"({"head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "moe_intermediate_size": 768, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "torch_dtype": "bfloat16", "vocab_size": 151936})");
  json["model_type"] = type;
  json["quantization_config"] = Json::parse(quantization);
  return model_from_hugging_face(json, "config.json").precision;
}

TEST(HuggingFaceQuantization, GivesTheFormatOfEachMatrix) {
  using enum NumberFormat;
  const auto all = [](NumberFormat format) {
    return PrecisionConfig{.attention = format, .mlp = format, .experts = format};
  };
  EXPECT_EQ(quantized(R"({"quant_method": "fp8"})"), all(fp8));
  EXPECT_EQ(quantized(R"({"quant_method": "awq", "bits": 4, "group_size": 128})"), all(int4));
  EXPECT_EQ(quantized(R"({"quant_method": "gptq", "bits": 8})"), all(int8));
  EXPECT_EQ(quantized(R"({"quant_method": "compressed-tensors", "config_groups": {"group_0":
      {"weights": {"num_bits": 4, "type": "int"}}}})"),
            all(int4));
  EXPECT_EQ(quantized(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
      "ignore": ["lm_head", "model.layers.0.self_attn*"], "kv_cache_quant_algo": "FP8"})"),
            (PrecisionConfig{.mlp = nvfp4, .experts = nvfp4, .kv = fp8}));
  // A dense model has no experts.
  EXPECT_EQ(quantized(R"({"quant_method": "awq"})", "qwen3"),
            (PrecisionConfig{.attention = int4, .mlp = int4}));
}

TEST(HuggingFaceQuantization, LeavesOutLayersThatTheListsName) {
  using enum NumberFormat;
  // The attention of an image encoder and of draft layers is ignored.
  EXPECT_EQ(quantized(R"({"quant_method": "fp8", "ignore":
      ["vision_tower.encoder.layers.0.self_attn.k_proj", "mtp.layers.0.self_attn.q_proj"]})"),
            (PrecisionConfig{.attention = fp8, .mlp = fp8, .experts = fp8}));
  EXPECT_EQ(quantized(R"({"quant_method": "fp8",
      "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*"]})"),
            PrecisionConfig{.experts = fp8});
  EXPECT_EQ(quantized(R"({"quant_method": "fp8",
      "ignore": ["model.layers.0.mlp.down_proj"]})",
                      "qwen3"),
            PrecisionConfig{.attention = fp8});
}

TEST(HuggingFaceQuantization, TakesTheSchemeOfKv) {
  using enum NumberFormat;
  EXPECT_EQ(quantized(R"({"quant_method": "fp8",
      "kv_cache_scheme": {"num_bits": 8, "type": "float"}})")
                .kv,
            fp8);
  EXPECT_EQ(quantized(R"({"quant_method": "fp8",
      "kv_cache_scheme": {"num_bits": 8, "type": "int"}})")
                .kv,
            int8);
  EXPECT_EQ(quantized(R"({"quant_method": "fp8", "kv_cache_scheme": null})").kv, std::nullopt);
}

Lines quantization_problems(const char* quantization) {
  try {
    static_cast<void>(quantized(quantization));
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(HuggingFaceQuantization, RefusesMethodsItDoesNotKnow) {
  EXPECT_EQ(quantization_problems(R"({"bits": 4})"),
            Lines{"config.json: /quantization_config/quant_method: missing key"});
  EXPECT_EQ(quantization_problems(R"({"quant_method": "bitsandbytes"})"),
            Lines{"config.json: /quantization_config/quant_method: expected one of awq, "
                  "auto-round, compressed-tensors, fp8, gptq, modelopt, mxfp4, got "
                  "\"bitsandbytes\""});
  EXPECT_EQ(quantization_problems(R"({"quant_method": "gptq", "bits": 3})"),
            Lines{"config.json: /quantization_config/bits: expected 4 or 8, got 3"});
  EXPECT_EQ(quantization_problems(R"({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 4}})"),
            Lines{"config.json: /quantization_config/kv_cache_scheme: expected num_bits 8 and type "
                  "int or float, got {\"num_bits\":4}"});
}

TEST(HuggingFaceFamilies, RefuseAnInvalidInterval) {
  for (const char* interval : {"\"6\"", "-1", "0"}) {
    try {
      static_cast<void>(from_json((R"({"model_type": "gemma3_text", "torch_dtype": "bfloat16",
        "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
        "sliding_window": 1024, "sliding_window_pattern": )" +
                                   std::string(interval) + "}")
                                      .c_str()));
      FAIL() << interval;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.problems(),
                Lines{std::string("config.json: /sliding_window_pattern: expected a whole number "
                                  ">= 1 and <= 1000, got ") +
                      interval});
    }
  }
}

TEST(HuggingFaceFamilies, NameAllMissingKeys) {
  try {
    static_cast<void>(from_json(R"({"model_type": "deepseek_v3", "hidden_size": 7168,
      "intermediate_size": 18432, "max_position_embeddings": 163840, "n_routed_experts": 256,
      "num_attention_heads": 128, "num_hidden_layers": 61, "torch_dtype": "bfloat16",
      "vocab_size": 129280})"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems(), (Lines{"config.json: /qk_nope_head_dim: missing key",
                                       "config.json: /kv_lora_rank: missing key",
                                       "config.json: /qk_rope_head_dim: missing key",
                                       "config.json: /v_head_dim: missing key",
                                       "config.json: /num_experts_per_tok: missing key"}));
  }
}

}  // namespace
}  // namespace kvtier
