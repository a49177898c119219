#include "hw/model/model.hpp"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/load.hpp"

namespace kvtier {
namespace {

using Lines = std::vector<std::string>;
using test::load_model;
using test::problems_of;

TEST(ModelFiles, HaveTheNamesThatConfigsUse) {
  EXPECT_EQ(test::config_names("models"),
            (Lines{"deepseek-v3",   "falcon-40b",       "gemma-3-27b",   "glm-5",
                   "gpt-oss-120b",  "gpt-oss-20b",      "gpt3-13b",      "gpt3-6.7b",
                   "kimi-k2",       "kvtier-small",     "kvtier-tiny",   "llama-3.1-405b",
                   "llama-3.1-70b", "llama-3.1-8b",     "llama-65b",     "llama2-13b",
                   "llama2-70b",    "llama2-7b",        "llama3-8b",     "minimax-m2",
                   "mistral-7b",    "mixtral-8x7b",     "opt-13b",       "opt-30b",
                   "opt-6.7b",      "qwen3-235b-a22b",  "qwen3-30b-a3b", "qwen3-32b",
                   "qwen3-8b",      "qwen3.5-397b-a17b"}));
}

TEST(ModelFiles, ReadStrictlyAndRoundTrip) {
  for (const std::string& name : test::config_names("models")) {
    SCOPED_TRACE(name);
    const Json json = test::load_json("models", name);
    const auto model = test::read_config_json<ModelConfig>(json);
    EXPECT_EQ(model.name, name);
    EXPECT_FALSE(model.source.empty());
    Problems problems;
    check_model(model, "", problems);
    EXPECT_EQ(problems.lines(), Lines{});
    EXPECT_EQ(write_value(model), json);
    EXPECT_EQ(test::read_config_json<ModelConfig>(write_value(model)), model);
  }
}

TEST(ModelFiles, StateTheWindowsOfTheModelsTheyName) {
  EXPECT_EQ(load_model("llama-65b").context_window, Tokens(2048));
  EXPECT_EQ(load_model("llama2-13b").context_window, Tokens(4096));
  EXPECT_EQ(load_model("llama2-70b").context_window, Tokens(4096));
  EXPECT_EQ(load_model("falcon-40b").context_window, Tokens(2048));
  EXPECT_EQ(load_model("mistral-7b").context_window, Tokens(32768));
}

TEST(KvBytes, FollowFromTheShape) {
  // 2 x 40 layers x 40 heads x 128 x 2 B
  EXPECT_EQ(kv_bytes_per_token(load_model("llama2-13b")), Bytes(819'200));
  // 2 x 80 x 64 x 128 x 2 B
  EXPECT_EQ(kv_bytes_per_token(load_model("llama-65b")), Bytes(2'621'440));
  // 2 x 80 x 8 x 128 x 2 B
  EXPECT_EQ(kv_bytes_per_token(load_model("llama2-70b")), Bytes(327'680));
  // 2 x 60 x 8 x 64 x 2 B
  EXPECT_EQ(kv_bytes_per_token(load_model("falcon-40b")), Bytes(122'880));
  // 2 x 32 x 8 x 128 x 2 B
  EXPECT_EQ(kv_bytes_per_token(load_model("mistral-7b")), Bytes(131'072));
}

TEST(KvBytes, LayersAndSequencesAgreeWithTokens) {
  for (const std::string& name : test::config_names("models")) {
    SCOPED_TRACE(name);
    const ModelConfig model = load_model(name);
    Bytes sum;
    for (std::int64_t layer = 0; layer < model.layers; ++layer) {
      sum += kv_bytes_per_token_layer(model, layer);
    }
    EXPECT_EQ(sum, kv_bytes_per_token(model));
    EXPECT_EQ(kv_bytes(model, Tokens(100)), kv_bytes_per_token(model) * 100);
    EXPECT_EQ(kv_bytes(model, Tokens(0)), Bytes(0));
  }
}

TEST(KvBytes, HalveWithEightBitKvWhileTheWeightsStay) {
  const ModelConfig model = load_model("llama2-13b");
  ModelConfig eight_bit = model;
  eight_bit.kv_bytes_per_element = 1;
  EXPECT_EQ(kv_bytes_per_token(eight_bit) * 2, kv_bytes_per_token(model));
  EXPECT_EQ(weight_bytes(eight_bit), weight_bytes(model));
}

TEST(KvBytes, AgreeWithTheCapacityExampleOfCaR) {
  // OPT-30B: weights of 56 GiB, and 2.6 GiB for a request of 2K tokens.
  constexpr double kGib = 1 << 30;
  const ModelConfig model = load_model("opt-30b");
  EXPECT_NEAR(static_cast<double>(weight_bytes(model).value) / kGib, 56, 0.5);
  EXPECT_NEAR(static_cast<double>(kv_bytes(model, Tokens(2048)).value) / kGib, 2.6, 0.05);
}

TEST(Parameters, AddUpForOneModelByHand) {
  // Llama-2-7B. Layer: 4 x 4096^2 + 3 x 4096 x 11008 = 67,108,864 + 135,266,304 = 202,375,168.
  // 32 layers 6,476,005,376; two embeddings of 32000 x 4096 262,144,000.
  const ModelConfig model = load_model("llama2-7b");
  EXPECT_EQ(parameters_per_layer(model), 202'375'168);
  EXPECT_EQ(parameters(model), 6'738'149'376);
  EXPECT_EQ(weight_bytes_per_layer(model), Bytes(404'750'336));
  EXPECT_EQ(weight_bytes(model), Bytes(13'476'298'752));
  EXPECT_EQ(lm_head_bytes(model), Bytes(262'144'000));
}

TEST(Parameters, AgreeWithPublishedCounts) {
  const std::map<std::string, double> published{
      {"llama2-7b", 6.738e9}, {"llama2-13b", 13.016e9}, {"llama2-70b", 68.977e9},
      {"llama-65b", 65.2e9},  {"llama3-8b", 8.030e9},   {"mistral-7b", 7.242e9},
      {"gpt3-6.7b", 6.7e9},   {"gpt3-13b", 13.0e9},     {"opt-6.7b", 6.7e9},
      {"opt-13b", 13e9},      {"opt-30b", 30e9},
  };
  for (const auto& [name, count] : published) {
    EXPECT_NEAR(static_cast<double>(parameters(load_model(name))) / count, 1, 0.02) << name;
  }
  // The name rounds down. Layer: 8192 x (2 x 8192 + 2 x 512 + 2 x 32768) = 679,477,248, times 60,
  // and one embedding of 65024 x 8192 = 532,676,608.
  EXPECT_EQ(parameters(load_model("falcon-40b")), 41'301'311'488);
}

TEST(Flops, AgreeWithTableOneOfPensieve) {
  // 6.7B: 2 x 12 x 4096^2 = 402,653,184 and 4 x 4096 x 2048 = 33,554,432;
  // 13B: 2 x 12 x 5120^2 = 629,145,600 and 4 x 5120 x 2048 = 41,943,040.
  const ModelConfig small = load_model("gpt3-6.7b");
  const ModelConfig large = load_model("gpt3-13b");
  EXPECT_EQ(linear_flops_per_token_layer(small), 402'653'184);
  EXPECT_EQ(linear_flops_per_token_layer(large), 629'145'600);
  EXPECT_EQ(attention_flops_per_pair_layer(small) * 2048, 33'554'432);
  EXPECT_EQ(attention_flops_per_pair_layer(large) * 2048, 41'943'040);
}

TEST(Flops, AttentionDoesNotShrinkWithFewerKvHeads) {
  EXPECT_EQ(attention_flops_per_pair_layer(load_model("llama2-70b")),
            attention_flops_per_pair_layer(load_model("llama-65b")));
}

TEST(Flops, TheHeadHasTwoPerWeight) {
  EXPECT_EQ(lm_head_flops_per_token(load_model("llama2-7b")), 2.0 * 32000 * 4096);
}

TEST(ModelConfig, ReportsEveryProblemOfAFile) {
  Json json = test::load_json("models", "llama2-7b");
  json.erase("hidden_size");
  json["layers"] = 0;
  json["gated_mlp"] = "yes";
  json["context_window"] = 4096;
  json["kv_head"] = 8;
  EXPECT_EQ(problems_of<ModelConfig>(json),
            (Lines{"/layers: expected a whole number >= 1 and <= 1000, got 0",
                   "/hidden_size: missing key", "/gated_mlp: expected true or false, got \"yes\"",
                   "/context_window: expected a number of tokens > 0 such as \"4096tokens\", "
                   "got 4096",
                   "/kv_head: unknown key (did you mean \"kv_heads\"?)"}));
}

TEST(ModelConfig, DefaultsToSixteenBits) {
  Json json = test::load_json("models", "llama2-7b");
  json.erase("bytes_per_element");
  json.erase("kv_bytes_per_element");
  EXPECT_EQ(test::read_config_json<ModelConfig>(json), load_model("llama2-7b"));
}

TEST(ModelConfig, RefusesKvHeadsThatDoNotDivideTheQueryHeads) {
  ModelConfig model = load_model("llama2-7b");
  model.kv_heads = 5;
  Problems problems;
  check_model(model, "/model", problems);
  EXPECT_EQ(problems.lines(),
            Lines{"/model/kv_heads: 5 KV heads do not divide 32 attention heads"});
}

TEST(ModelConfig, LargestAllowedShapeStaysInSixtyFourBits) {
  ModelConfig model;
  model.layers = static_cast<std::int64_t>(ModelLimits::kLayers);
  model.hidden_size = static_cast<std::int64_t>(ModelLimits::kWidth);
  model.attention_heads = static_cast<std::int64_t>(ModelLimits::kHeads);
  model.kv_heads = model.attention_heads;
  model.head_dim = static_cast<std::int64_t>(ModelLimits::kHeadDim);
  model.intermediate_size = static_cast<std::int64_t>(ModelLimits::kIntermediate);
  model.gated_mlp = true;
  model.vocabulary_size = static_cast<std::int64_t>(ModelLimits::kVocabulary);
  model.bytes_per_element = static_cast<std::int64_t>(ModelLimits::kElementBytes);
  model.kv_bytes_per_element = model.bytes_per_element;
  // 1000 x 2^20 x (4 x 2^24 + 3 x 2^22) + 2 x 2^26 x 2^20, times 8, is 6.685e17 + 0.011e17.
  EXPECT_NEAR(static_cast<double>(weight_bytes(model).value), 6.696e17, 0.001e17);
  // 2 x 1000 x 2^24 x 8 x 2^24 tokens is 4.5e18, under 9.2e18.
  const Tokens window(static_cast<std::int64_t>(ModelLimits::kWindow));
  EXPECT_NEAR(static_cast<double>(kv_bytes(model, window).value), 4.5e18, 0.01e18);
}

TEST(ModelConfig, HasASchema) {
  ModelConfig model;
  const Json schema = value_schema(model);
  EXPECT_EQ(schema["properties"]["layers"]["maximum"], 1000);
  EXPECT_EQ(schema["additionalProperties"], false);
}

Json llama_json() {
  return Json{{"_name_or_path", "meta-llama/Llama-2-70b-hf"},
              {"architectures", Json::array({"LlamaForCausalLM"})},
              {"model_type", "llama"},
              {"hidden_act", "silu"},
              {"hidden_size", 8192},
              {"intermediate_size", 28672},
              {"max_position_embeddings", 4096},
              {"num_attention_heads", 64},
              {"num_hidden_layers", 80},
              {"num_key_value_heads", 8},
              {"rope_scaling", nullptr},
              {"tie_word_embeddings", false},
              {"torch_dtype", "float16"},
              {"vocab_size", 32000}};
}

Json falcon_json() {
  return Json{{"model_type", "falcon"},           {"hidden_size", 8192},
              {"new_decoder_architecture", true}, {"num_attention_heads", 128},
              {"num_hidden_layers", 60},          {"num_kv_heads", 8},
              {"torch_dtype", "bfloat16"},        {"vocab_size", 65024}};
}

Lines hugging_face_problems(const Json& json) {
  try {
    static_cast<void>(model_from_hugging_face(json, "config.json"));
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

/// The same shape under another name.
ModelConfig renamed(ModelConfig model, const ModelConfig& as) {
  model.name = as.name;
  model.source = as.source;
  return model;
}

TEST(HuggingFace, IsDistinguishedFromAModelFile) {
  EXPECT_TRUE(looks_like_hugging_face(llama_json()));
  EXPECT_TRUE(looks_like_hugging_face(falcon_json()));
  EXPECT_FALSE(looks_like_hugging_face(test::load_json("models", "llama2-7b")));
  EXPECT_FALSE(looks_like_hugging_face(Json("llama2-7b")));
}

TEST(HuggingFace, LlamaGivesTheSameModelAsTheModelFile) {
  const ModelConfig model = model_from_hugging_face(llama_json(), "dir/config.json");
  EXPECT_EQ(model.name, "meta-llama/Llama-2-70b-hf");
  EXPECT_EQ(model.source, "dir/config.json");
  EXPECT_EQ(renamed(load_model("llama2-70b"), model), model);
}

TEST(HuggingFace, LlamaWithoutGroupingHasAsManyKvHeadsAsHeads) {
  Json json = llama_json();
  json.erase("num_key_value_heads");
  json.erase("tie_word_embeddings");
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(model.kv_heads, 64);
  EXPECT_FALSE(model.tied_embeddings);
}

TEST(HuggingFace, MistralGivesTheSameModelAsTheModelFile) {
  Json json = llama_json();
  json["model_type"] = "mistral";
  json["hidden_size"] = 4096;
  json["intermediate_size"] = 14336;
  json["max_position_embeddings"] = 32768;
  json["num_attention_heads"] = 32;
  json["num_hidden_layers"] = 32;
  json["head_dim"] = 128;
  json["sliding_window"] = 4096;
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(renamed(load_model("mistral-7b"), model), model);
}

TEST(HuggingFace, FalconTakesTheDefaultsOfItsClass) {
  // Neither MLP width nor window nor tying is in the published file; transformers has 4 x hidden,
  // 2,048 and tied.
  const ModelConfig model = model_from_hugging_face(falcon_json(), "config.json");
  EXPECT_EQ(model.name, "config.json");
  EXPECT_EQ(renamed(load_model("falcon-40b"), model), model);
}

TEST(HuggingFace, FalconOfTheOldArchitectureHasOneKvHeadOrAll) {
  Json json = falcon_json();
  json["new_decoder_architecture"] = false;
  EXPECT_EQ(model_from_hugging_face(json, "c").kv_heads, 1);
  json["multi_query"] = true;
  EXPECT_EQ(model_from_hugging_face(json, "c").kv_heads, 1);
  json["multi_query"] = false;
  EXPECT_EQ(model_from_hugging_face(json, "c").kv_heads, 128);
}

TEST(HuggingFace, FalconOfTheNewArchitectureHasAllKvHeadsUnlessItSaysHowMany) {
  Json json = falcon_json();
  json.erase("num_kv_heads");
  EXPECT_EQ(model_from_hugging_face(json, "c").kv_heads, 128);
}

TEST(HuggingFace, OptGivesTheSameModelAsTheModelFile) {
  const Json json{{"model_type", "opt"},       {"ffn_dim", 20480},
                  {"hidden_size", 5120},       {"max_position_embeddings", 2048},
                  {"num_attention_heads", 40}, {"num_hidden_layers", 40},
                  {"torch_dtype", "float16"},  {"vocab_size", 50272}};
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(renamed(load_model("opt-13b"), model), model);
}

TEST(HuggingFace, Gpt2SpellsItsKeysItsOwnWay) {
  const Json json{{"model_type", "gpt2"}, {"n_embd", 768},      {"n_head", 12},
                  {"n_layer", 12},        {"n_inner", nullptr}, {"n_positions", 1024},
                  {"dtype", "float32"},   {"vocab_size", 50257}};
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_EQ(model.layers, 12);
  EXPECT_EQ(model.hidden_size, 768);
  EXPECT_EQ(model.head_dim, 64);
  EXPECT_EQ(model.intermediate_size, 3072);
  EXPECT_EQ(model.context_window, Tokens(1024));
  EXPECT_EQ(model.bytes_per_element, 4);
  EXPECT_TRUE(model.tied_embeddings);
  // Published as 124 million, with the 0.8 million of learned positions that are left out here.
  EXPECT_NEAR(static_cast<double>(parameters(model)), 124e6, 1e6);
}

TEST(HuggingFace, GptNeoxHasAnUntiedHead) {
  const Json json{{"model_type", "gpt_neox"},   {"hidden_size", 4096},
                  {"intermediate_size", 16384}, {"max_position_embeddings", 2048},
                  {"num_attention_heads", 32},  {"num_hidden_layers", 32},
                  {"torch_dtype", "float16"},   {"vocab_size", 50432}};
  const ModelConfig model = model_from_hugging_face(json, "config.json");
  EXPECT_FALSE(model.tied_embeddings);
  EXPECT_FALSE(model.gated_mlp);
  EXPECT_NEAR(static_cast<double>(parameters(model)), 6.9e9, 0.1e9);
}

TEST(HuggingFace, ListsTheTypesItKnows) {
  const std::string expected =
      "config.json: /model_type: expected one of deepseek_v2, deepseek_v3, deepseek_v32, falcon, "
      "gemma, gemma2, gemma3, gemma3_text, glm_moe_dsa, gpt2, gpt_neox, gpt_oss, kimi_k2, "
      "kimi_k25, "
      "llama, llama4, llama4_text, minimax, minimax_m2, mistral, mistral3, mixtral, opt, qwen2, "
      "qwen2_moe, qwen3, qwen3_5_moe, qwen3_5_moe_text, qwen3_moe, qwen3_next, got ";
  const std::string way_out =
      "; a model file can describe another one by the shape of its layers, or by "
      "kv_bytes_per_token, active_parameters and total_parameters";
  Json json = llama_json();
  json["model_type"] = "t5";
  EXPECT_EQ(hugging_face_problems(json), Lines{expected + "\"t5\"" + way_out});
  json["model_type"] = 5;
  EXPECT_EQ(hugging_face_problems(json), Lines{expected + "5" + way_out});
  json.erase("model_type");
  EXPECT_EQ(hugging_face_problems(json), Lines{"config.json: /model_type: missing key"});
}

TEST(HuggingFace, ReportsAllMissingAndIllTypedKeysTogether) {
  Json json = llama_json();
  json.erase("num_hidden_layers");
  json["hidden_size"] = "8192";
  json["num_key_value_heads"] = 0;
  json["vocab_size"] = 3.7;
  json.erase("intermediate_size");
  json["tie_word_embeddings"] = 1;
  json.erase("max_position_embeddings");
  json["torch_dtype"] = "int4";
  EXPECT_EQ(
      hugging_face_problems(json),
      (Lines{"config.json: /num_hidden_layers: missing key",
             "config.json: /hidden_size: expected a whole number >= 1 and <= 1048576, got \"8192\"",
             "config.json: /num_key_value_heads: expected a whole number >= 1 and <= 4096, got 0",
             "config.json: /vocab_size: expected a whole number >= 1 and <= 67108864, got 3.7",
             "config.json: /intermediate_size: missing key",
             "config.json: /tie_word_embeddings: expected true or false, got 1",
             "config.json: /max_position_embeddings: missing key",
             "config.json: /torch_dtype: expected one of bfloat16, float16, float32, got "
             "\"int4\""}));
}

TEST(HuggingFace, NamesMissingKeysTheWayTheFamilySpellsThem) {
  EXPECT_EQ(
      hugging_face_problems(Json{{"model_type", "opt"},
                                 {"hidden_size", 64},
                                 {"num_attention_heads", 2},
                                 {"num_hidden_layers", 2},
                                 {"vocab_size", 10},
                                 {"max_position_embeddings", 16}}),
      (Lines{"config.json: /ffn_dim: missing key", "config.json: /torch_dtype: missing key"}));
  EXPECT_EQ(hugging_face_problems(Json{{"model_type", "gpt2"},
                                       {"n_embd", 64},
                                       {"n_head", 2},
                                       {"n_layer", 2},
                                       {"vocab_size", 10},
                                       {"torch_dtype", ""}}),
            (Lines{"config.json: /n_positions: missing key"}));
}

TEST(HuggingFace, RefusesAnEmptyElementType) {
  Json json = llama_json();
  json["torch_dtype"] = "";
  EXPECT_EQ(hugging_face_problems(json),
            Lines{"config.json: /torch_dtype: expected one of bfloat16, float16, float32, got "
                  "\"\""});
}

TEST(HuggingFace, RefusesHeadsThatDoNotDivide) {
  Json json = llama_json();
  json["hidden_size"] = 8193;
  EXPECT_EQ(hugging_face_problems(json),
            Lines{"config.json: /hidden_size: 64 attention heads do not divide 8193"});
  json = llama_json();
  json["num_key_value_heads"] = 7;
  EXPECT_EQ(hugging_face_problems(json), Lines{"config.json: /num_key_value_heads: 7 KV heads do "
                                               "not divide 64 attention heads"});
  json = falcon_json();
  json["num_kv_heads"] = 7;
  EXPECT_EQ(hugging_face_problems(json),
            Lines{"config.json: /num_kv_heads: 7 KV heads do not divide 128 attention heads"});
}

TEST(HuggingFace, RefusesANonObject) {
  EXPECT_EQ(hugging_face_problems(Json::array()),
            Lines{"config.json: /: expected an object, got []"});
}

TEST(Matrices, AreThoseOfLlama2SeventyBillionOnFourGpus) {
  // 64 heads, 8 KV heads, 128 wide: a GPU has 16 and 2, so qkv (16 + 2 x 2) x 128 = 2,560 of 8,192;
  // MLP 2 x 28,672 / 4 = 14,336; head 32,000 / 4 = 8,000.
  const ModelConfig model = test::load_model("llama2-70b");
  EXPECT_EQ(layer_matrices(model, 4), (std::vector<MatrixShape>{{"qkv", 2560, 8192},
                                                                {"attention_output", 8192, 2048},
                                                                {"mlp_up", 14336, 8192},
                                                                {"mlp_down", 8192, 7168}}));
  EXPECT_EQ(head_matrix(model, 4), (MatrixShape{"lm_head", 8000, 8192}));
}

TEST(Matrices, OneGpuHasAllParametersOfALayer) {
  for (const std::string& name : test::config_names("models")) {
    const ModelConfig model = test::load_model(name);
    if (!is_dense(model)) {
      continue;
    }
    std::int64_t elements = 0;
    for (const MatrixShape& matrix : layer_matrices(model, 1)) {
      elements += matrix.n * matrix.k;
    }
    EXPECT_EQ(elements, parameters_per_layer(model)) << name;
  }
}

TEST(Matrices, LeaveEveryGpuAKvHead) {
  // 71 query heads and one KV head on 2 GPUs: 36 and 1.
  ModelConfig model = test::load_model("falcon-40b");
  model.attention_heads = 71;
  model.kv_heads = 1;
  EXPECT_EQ(heads_per_gpu(model, 2).attention, 36);
  EXPECT_EQ(heads_per_gpu(model, 2).kv, 1);
}

}  // namespace
}  // namespace kvtier
