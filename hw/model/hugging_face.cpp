#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "hw/model/model.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

/// Reads the keys of a Hugging Face config by their several spellings.
class HuggingFaceReader {
 public:
  /// `pointer` is where `json` stands in the file.
  HuggingFaceReader(const Json& json, std::string pointer, Problems& problems)
      : json_(json), pointer_(std::move(pointer)), problems_(problems) {}

  /// The value of the first of `keys` that is there and not null.
  template <class T>
  std::optional<T> find(std::initializer_list<const char*> keys, const Limits& limits = {}) {
    for (const char* key : keys) {
      const auto found = json_.find(key);
      if (found == json_.end() || found->is_null()) {
        continue;
      }
      T value{};
      const std::size_t before = problems_.lines().size();
      read_value(value, *found, pointer_ + "/" + key, problems_, limits);
      if (problems_.lines().size() != before) {
        failed_ = true;
        return std::nullopt;
      }
      return value;
    }
    return std::nullopt;
  }

  template <class T>
  T get(std::initializer_list<const char*> keys, const Limits& limits = {}) {
    const std::size_t before = problems_.lines().size();
    const std::optional<T> value = find<T>(keys, limits);
    if (!value && problems_.lines().size() == before) {
      missing(*keys.begin());
    }
    return value.value_or(T{});
  }

  /// The object or list at `key`, or null if there is none.
  [[nodiscard]] const Json* at(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  void missing(const char* key) { fail(key, "missing key"); }

  void fail(const std::string& key, const std::string& message) {
    problems_.add(pointer_ + "/" + key, message);
    failed_ = true;
  }

  /// Whether any key was wrong so far. Values derived from other keys are then not checked.
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  const Json& json_;
  std::string pointer_;
  Problems& problems_;
  bool failed_ = false;
};

/// Kinds of layers that a family may have.
enum class Shape {
  dense,        // full attention, or windows as layer_types says
  experts,      // the same with experts
  latent,       // latent attention, experts, perhaps an indexer
  gated_delta,  // state layers of gated delta networks, gated full layers, experts
  lightning,    // state layers as wide as the attention, experts
};

/// One family of models: its own spellings, and the defaults of its class in transformers.
struct Family {
  std::string_view type;
  bool gated_mlp;
  bool tied_embeddings;
  /// MLP width over hidden size if the config omits the width; 0: the key is required.
  std::int64_t default_mlp_factor;
  /// Context window if the config omits it; 0: the key is required.
  std::int64_t default_window;
  Shape shape = Shape::dense;
  /// The width of a head if the config omits it; 0: hidden size over heads.
  std::int64_t default_head_dim = 0;
};

constexpr Family kFamilies[] = {
    {"deepseek_v2", true, false, 0, 0, Shape::latent},
    {"deepseek_v3", true, false, 0, 0, Shape::latent},
    {"deepseek_v32", true, false, 0, 0, Shape::latent},
    {"falcon", false, true, 4, 2048},
    {"gemma", true, true, 0, 8192, Shape::dense, 256},
    {"gemma2", true, true, 0, 8192, Shape::dense, 256},
    {"gemma3_text", true, true, 0, 131072, Shape::dense, 256},
    {"glm_moe_dsa", true, false, 0, 0, Shape::latent},
    {"gpt2", false, true, 4, 0},
    {"gpt_neox", false, false, 0, 0},
    {"gpt_oss", true, false, 0, 131072, Shape::experts},
    {"kimi_k2", true, false, 0, 0, Shape::latent},
    {"llama", true, false, 0, 0},
    {"llama4_text", true, false, 0, 0, Shape::experts},
    {"minimax", true, false, 0, 0, Shape::lightning},
    {"minimax_m2", true, false, 0, 0, Shape::experts},
    {"mistral", true, false, 0, 0},
    {"mixtral", true, false, 0, 0, Shape::experts},
    {"opt", false, true, 0, 0},
    {"qwen2", true, false, 0, 0},
    {"qwen2_moe", true, false, 0, 0, Shape::experts},
    {"qwen3", true, false, 0, 0, Shape::dense, 128},
    {"qwen3_5_moe_text", true, false, 0, 0, Shape::gated_delta, 256},
    {"qwen3_moe", true, false, 0, 0, Shape::experts},
    {"qwen3_next", true, false, 0, 0, Shape::gated_delta, 256},
};

/// Types that hold their language model in an object `text_config`, and the model type if that
/// object omits it.
struct Wrapper {
  std::string_view type;
  std::string_view text_type;
};
constexpr Wrapper kWrappers[] = {{"gemma3", "gemma3_text"},
                                 {"kimi_k25", "kimi_k2"},
                                 {"llama4", "llama4_text"},
                                 {"mistral3", "mistral"},
                                 {"qwen3_5_moe", "qwen3_5_moe_text"}};

const Family* find_family(const std::string& type) {
  for (const Family& family : kFamilies) {
    if (type == family.type) {
      return &family;
    }
  }
  return nullptr;
}

void refuse_type(const Json& type, HuggingFaceReader& reader) {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    names.emplace_back(family.type);
  }
  for (const Wrapper& wrapper : kWrappers) {
    names.emplace_back(wrapper.type);
  }
  std::ranges::sort(names);
  reader.fail(
      "model_type",
      fmt::format("expected one of {}, got {}; a model file can describe another one by the "
                  "shape of its layers, or by kv_bytes_per_token, active_parameters and "
                  "total_parameters",
                  fmt::join(names, ", "), quote_json(type)));
}

std::int64_t read_kv_heads(const Family& family, HuggingFaceReader& reader, std::int64_t heads) {
  const Limits limits = between(1, ModelLimits::kHeads);
  if (family.type == "falcon") {
    // transformers reads num_kv_heads only in the new architecture; the old one has one KV head or
    // all.
    if (reader.find<bool>({"new_decoder_architecture"}).value_or(false)) {
      return reader.find<std::int64_t>({"num_kv_heads", "n_head_kv"}, limits).value_or(heads);
    }
    return reader.find<bool>({"multi_query"}).value_or(true) ? 1 : heads;
  }
  // Latent layers share one row among all heads.
  if (family.shape == Shape::latent || family.type == "gpt2" || family.type == "gpt_neox" ||
      family.type == "opt") {
    return heads;
  }
  return reader.find<std::int64_t>({"num_key_value_heads"}, limits).value_or(heads);
}

std::int64_t read_element_bytes(HuggingFaceReader& reader, HuggingFaceReader& file,
                                bool may_lack_it) {
  // Newer releases of transformers write "dtype".
  auto name = reader.find<std::string>({"torch_dtype", "dtype"});
  if (!name && &reader != &file) {
    name = file.find<std::string>({"torch_dtype", "dtype"});
  }
  if (!name) {
    if (!may_lack_it) {
      reader.missing("torch_dtype");
    }
    return may_lack_it ? 2 : 0;
  }
  if (*name == "float16" || *name == "bfloat16") {
    return 2;
  }
  if (*name == "float32") {
    return 4;
  }
  if (!name->empty() || !reader.failed()) {
    reader.fail("torch_dtype", fmt::format("expected one of bfloat16, float16, float32, got {}",
                                           quote_text(*name)));
  }
  return 0;
}

/// The shortest pattern of kinds whose repetition gives `kinds`.
std::vector<AttentionKind> shortest_pattern(const std::vector<AttentionKind>& kinds) {
  for (std::size_t length = 1; length < kinds.size(); ++length) {
    bool repeats = true;
    for (std::size_t i = length; i < kinds.size() && repeats; ++i) {
      repeats = kinds[i] == kinds[i - length];
    }
    if (repeats) {
      return {kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(length)};
    }
  }
  return kinds;
}

/// The kinds that `layer_types` lists; nullopt if the config omits it.
std::optional<std::vector<AttentionKind>> read_layer_types(HuggingFaceReader& reader,
                                                           std::int64_t layers) {
  const auto types = reader.find<std::vector<std::string>>({"layer_types"});
  if (!types) {
    return std::nullopt;
  }
  std::vector<AttentionKind> kinds;
  for (std::size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type == "full_attention") {
      kinds.push_back(AttentionKind::full);
    } else if (type == "sliding_attention" || type == "chunked_attention") {
      kinds.push_back(AttentionKind::window);
    } else if (type == "linear_attention") {
      kinds.push_back(AttentionKind::state);
    } else {
      reader.fail(fmt::format("layer_types/{}", i),
                  fmt::format("expected one of full_attention, sliding_attention, "
                              "chunked_attention, linear_attention, got {}",
                              quote_text(type)));
    }
  }
  if (!reader.failed() && std::ssize(kinds) != layers) {
    reader.fail("layer_types", fmt::format("expected {} of them, one for each layer, got {}",
                                           layers, kinds.size()));
  }
  return reader.failed() || kinds.empty() ? std::vector{AttentionKind::full}
                                          : shortest_pattern(kinds);
}

/// `ordinary` layers of one kind, then a full one, as far as the model has layers.
std::vector<AttentionKind> every_nth_is_full(AttentionKind ordinary, std::int64_t n,
                                             std::int64_t layers) {
  std::vector<AttentionKind> kinds(static_cast<std::size_t>(n), ordinary);
  kinds.back() = AttentionKind::full;
  kinds.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, std::min(n, layers))));
  return kinds;
}

void read_attention(const Family& family, HuggingFaceReader& reader, ModelConfig& model) {
  const Limits heads = between(1, ModelLimits::kHeads);
  const Limits width = between(1, ModelLimits::kHeadDim);
  const Limits interval = between(1, ModelLimits::kLayers);
  // A window of all layers, as the first Mistral models have, is left out: engines keep all tokens.
  const bool ignores_window = family.type == "mistral" || family.type == "mixtral" ||
                              family.type == "llama" || family.type == "minimax_m2";
  if (!ignores_window) {
    if (auto kinds = read_layer_types(reader, model.layers)) {
      model.attention = *kinds;
    } else if (family.type == "gemma2") {
      model.attention = {AttentionKind::window, AttentionKind::full};
    } else if (family.type == "gemma3_text") {
      model.attention = every_nth_is_full(
          AttentionKind::window,
          reader.find<std::int64_t>({"sliding_window_pattern"}, interval).value_or(6),
          model.layers);
    } else if (family.type == "gpt_oss") {
      model.attention = {AttentionKind::window, AttentionKind::full};
    } else if (family.type == "llama4_text") {
      model.attention = every_nth_is_full(
          AttentionKind::window,
          reader.find<std::int64_t>({"no_rope_layer_interval"}, interval).value_or(4),
          model.layers);
    } else if (family.shape == Shape::gated_delta) {
      model.attention = every_nth_is_full(
          AttentionKind::state,
          reader.find<std::int64_t>({"full_attention_interval"}, interval).value_or(4),
          model.layers);
    } else if (const auto list = reader.find<std::vector<std::int64_t>>({"attn_type_list"});
               list && family.shape == Shape::lightning && !list->empty()) {
      std::vector<AttentionKind> kinds_of_list;
      for (const std::int64_t one : *list) {
        kinds_of_list.push_back(one == 0 ? AttentionKind::state : AttentionKind::full);
      }
      model.attention = shortest_pattern(kinds_of_list);
    }
  }
  const auto has = [&](AttentionKind kind) {
    return std::ranges::find(model.attention, kind) != model.attention.end();
  };
  if (has(AttentionKind::window)) {
    const std::int64_t usual = family.type == "gemma3_text" || family.type == "gemma2" ? 4096
                               : family.type == "gpt_oss"                              ? 128
                                                                                       : 0;
    const auto window = reader.find<std::int64_t>({"sliding_window", "attention_chunk_size"},
                                                  between(1, ModelLimits::kWindow));
    if (!window && usual == 0) {
      reader.missing(family.type == "llama4_text" ? "attention_chunk_size" : "sliding_window");
    }
    model.window = Tokens(window.value_or(usual));
  }
  if (family.shape == Shape::gated_delta) {
    model.output_gate = true;
  }
  model.norm_over_heads = family.type == "minimax_m2";
  if (has(AttentionKind::state)) {
    if (family.shape == Shape::gated_delta) {
      StateConfig state;
      state.key_heads = reader.get<std::int64_t>({"linear_num_key_heads"}, heads);
      state.value_heads = reader.get<std::int64_t>({"linear_num_value_heads"}, heads);
      state.key_dim = reader.get<std::int64_t>({"linear_key_head_dim"}, width);
      state.value_dim = reader.get<std::int64_t>({"linear_value_head_dim"}, width);
      state.convolution =
          reader.find<std::int64_t>({"linear_conv_kernel_dim"}, between(0, 64)).value_or(4);
      model.state = state;
    } else if (family.shape == Shape::lightning) {
      model.state = StateConfig{.key_heads = model.attention_heads,
                                .value_heads = model.attention_heads,
                                .key_dim = model.head_dim,
                                .value_dim = model.head_dim};
    } else {
      reader.fail("layer_types",
                  fmt::format("{} has no linear_attention", std::string(family.type)));
    }
  }
  if (family.shape == Shape::latent) {
    LatentConfig latent;
    const auto nope = reader.get<std::int64_t>({"qk_nope_head_dim"}, width);
    latent.rank = reader.get<std::int64_t>({"kv_lora_rank"}, between(1, ModelLimits::kWidth));
    latent.rope_dim = reader.get<std::int64_t>({"qk_rope_head_dim"}, width);
    latent.query_rank =
        reader.find<std::int64_t>({"q_lora_rank"}, between(1, ModelLimits::kWidth)).value_or(0);
    latent.value_dim = reader.get<std::int64_t>({"v_head_dim"}, width);
    model.head_dim = nope + latent.rope_dim;
    model.latent = latent;
    model.attention = {AttentionKind::latent};
    if (reader.at("index_topk") != nullptr) {
      SparseConfig sparse;
      sparse.top_k =
          Tokens(reader.get<std::int64_t>({"index_topk"}, between(1, ModelLimits::kWindow)));
      sparse.index_heads = reader.get<std::int64_t>({"index_n_heads"}, heads);
      sparse.index_dim = reader.get<std::int64_t>({"index_head_dim"}, width);
      model.sparse = sparse;
    }
  }
}

void read_experts(const Family& family, HuggingFaceReader& reader, ModelConfig& model) {
  if (family.shape == Shape::dense) {
    return;
  }
  const Limits count = between(1, ModelLimits::kExperts);
  const Limits width = between(1, ModelLimits::kIntermediate);
  const Limits layers = between(0, ModelLimits::kLayers);
  ExpertsConfig experts;
  const auto routed =
      reader.find<std::int64_t>({"n_routed_experts", "num_experts", "num_local_experts"}, count);
  if (!routed) {
    // The first DeepSeek-V2 models without experts are dense.
    if (family.shape != Shape::latent) {
      reader.missing(family.type == "mixtral" || family.type == "gpt_oss" ||
                             family.type == "llama4_text" || family.type.starts_with("minimax")
                         ? "num_local_experts"
                         : "num_experts");
    }
    return;
  }
  experts.routed = *routed;
  experts.active = reader.get<std::int64_t>({"num_experts_per_tok", "experts_per_token"}, count);
  experts.intermediate_size =
      reader.find<std::int64_t>({"moe_intermediate_size"}, width).value_or(model.intermediate_size);
  experts.shared =
      reader.find<std::int64_t>({"n_shared_experts"}, between(0, ModelLimits::kExperts))
          .value_or(0);
  if (const auto shared = reader.find<std::int64_t>({"shared_expert_intermediate_size"},
                                                    between(0, ModelLimits::kIntermediate));
      shared && *shared > 0) {
    experts.shared = 1;
    if (*shared != experts.intermediate_size) {
      experts.shared_intermediate_size = *shared;
    }
  }
  experts.dense_layers = reader.find<std::int64_t>({"first_k_dense_replace"}, layers).value_or(0);
  experts.every = reader
                      .find<std::int64_t>(
                          {"decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"},
                          between(1, ModelLimits::kLayers))
                      .value_or(1);
  if (family.type == "llama4_text") {
    experts.shared = 1;
    experts.intermediate_size = model.intermediate_size;
    model.intermediate_size = reader.find<std::int64_t>({"intermediate_size_mlp"}, width)
                                  .value_or(model.intermediate_size);
  }
  if (const Json* only = reader.at("mlp_only_layers"); only != nullptr && *only != Json::array()) {
    reader.fail("mlp_only_layers", "expected [], got " + quote_json(*only));
  }
  model.experts = experts;
}

/// The parts of layers that are quantized.
struct Quantized {
  bool attention = true;
  bool mlp = true;
};

/// Matrices of layers in one format.
void set_formats(ModelConfig& model, NumberFormat format, Quantized parts) {
  if (parts.mlp) {
    model.precision.mlp = format;
  }
  if (parts.attention) {
    model.precision.attention = format;
  }
  if (model.experts) {
    model.precision.experts = format;
  }
}

/// Parts that the lists of excluded modules leave quantized. A part that is excluded in some layers
/// counts as excluded. Modules outside of text layers are ignored.
Quantized quantized_parts(const Json& quantization, bool has_experts) {
  Quantized parts;
  const auto names = [](const std::string& text, std::initializer_list<const char*> words) {
    return std::ranges::any_of(
        words, [&](const char* word) { return text.find(word) != std::string::npos; });
  };
  for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert"}) {
    const auto list = quantization.find(key);
    if (list == quantization.end() || !list->is_array()) {
      continue;
    }
    for (const Json& one : *list) {
      const std::string text = one.is_string() ? one.get<std::string>() : "";
      if (names(text, {"vision", "visual", "audio", "mtp", "draft", "multi_modal"})) {
        continue;
      }
      parts.attention = parts.attention && !names(text, {"self_attn"});
      parts.mlp = parts.mlp && !names(text, {"shared_expert"}) &&
                  (has_experts || !names(text, {"mlp.", "mlp\\."}));
    }
  }
  return parts;
}

/// `kv_cache_scheme` of compressed-tensors and ModelOpt.
void read_kv_scheme(HuggingFaceReader& reader, ModelConfig& model) {
  const Json* scheme = reader.at("kv_cache_scheme");
  if (scheme == nullptr || scheme->is_null()) {
    return;
  }
  const bool eight_bits = scheme->is_object() && scheme->value("num_bits", Json()) == 8;
  const Json type = scheme->is_object() ? scheme->value("type", Json()) : Json();
  if (!eight_bits || (type != "float" && type != "int")) {
    reader.fail("kv_cache_scheme",
                "expected num_bits 8 and type int or float, got " + quote_json(*scheme));
    return;
  }
  model.precision.kv = type == "float" ? NumberFormat::fp8 : NumberFormat::int8;
}

/// The format of a number of bits and a type in compressed-tensors.
std::optional<NumberFormat> format_of(std::int64_t bits, const std::string& type) {
  if (bits == 8) {
    return type == "float" ? NumberFormat::fp8 : NumberFormat::int8;
  }
  if (bits == 4) {
    return type == "float" ? NumberFormat::nvfp4 : NumberFormat::int4;
  }
  return std::nullopt;
}

void read_quantization(const Json& json, Problems& problems, ModelConfig& model) {
  const std::string pointer = "/quantization_config";
  if (!json.is_object()) {
    problems.add(pointer, "expected an object, got " + quote_json(json));
    return;
  }
  HuggingFaceReader reader(json, pointer, problems);
  auto method = reader.find<std::string>({"quant_method"});
  if (!method) {
    reader.missing("quant_method");
    return;
  }
  const Quantized parts = quantized_parts(json, model.experts.has_value());
  read_kv_scheme(reader, model);
  if (*method == "fp8" || *method == "fbgemm_fp8") {
    set_formats(model, NumberFormat::fp8, parts);
  } else if (*method == "mxfp4") {
    model.precision.experts = NumberFormat::mxfp4;
    if (!model.experts) {
      set_formats(model, NumberFormat::mxfp4, parts);
    }
  } else if (*method == "awq" || *method == "gptq" || *method == "auto-round") {
    const auto bits = reader.find<std::int64_t>({"bits", "w_bit"});
    const std::optional<NumberFormat> format = format_of(bits.value_or(4), "int");
    if (!format) {
      reader.fail("bits", fmt::format("expected 4 or 8, got {}", *bits));
      return;
    }
    set_formats(model, *format, parts);
  } else if (*method == "compressed-tensors") {
    const Json* groups = reader.at("config_groups");
    if (groups == nullptr || !groups->is_object() || groups->empty()) {
      reader.missing("config_groups");
      return;
    }
    const Json& group = *groups->begin();
    const Json weights = group.is_object() ? group.value("weights", Json()) : Json();
    std::optional<NumberFormat> format;
    if (weights.is_object() && weights.value("num_bits", Json()).is_number_integer() &&
        weights.value("type", Json()).is_string()) {
      format =
          format_of(weights["num_bits"].get<std::int64_t>(), weights["type"].get<std::string>());
    }
    if (!format) {
      reader.fail("config_groups",
                  "expected weights with num_bits 4 or 8 and type int or float, got " +
                      quote_json(weights));
      return;
    }
    set_formats(model, *format, parts);
  } else if (method->starts_with("modelopt")) {
    const auto algorithm = reader.find<std::string>({"quant_algo"});
    const std::string name =
        algorithm.value_or(*method == "modelopt_fp4" || *method == "nvfp4" ? "NVFP4" : "");
    if (name == "NVFP4") {
      set_formats(model, NumberFormat::nvfp4, parts);
    } else if (name.starts_with("FP8")) {
      set_formats(model, NumberFormat::fp8, parts);
    } else if (!algorithm) {
      reader.missing("quant_algo");
    } else {
      reader.fail("quant_algo",
                  fmt::format("expected one of FP8, NVFP4, got {}", quote_text(name)));
    }
    const auto kv = reader.find<std::string>({"kv_cache_quant_algo"});
    if (kv && kv->starts_with("FP8")) {
      model.precision.kv = NumberFormat::fp8;
    }
  } else {
    reader.fail("quant_method",
                fmt::format("expected one of awq, auto-round, compressed-tensors, fp8, gptq, "
                            "modelopt, mxfp4, got {}",
                            quote_text(*method)));
  }
}

}  // namespace

bool looks_like_hugging_face(const Json& json) {
  return json.is_object() && (json.contains("model_type") || json.contains("architectures"));
}

ModelConfig model_from_hugging_face(const Json& json, const std::string& origin) {
  Problems problems(true);
  problems.set_origin("", origin);
  if (!json.is_object()) {
    problems.add("", "expected an object, got " + quote_json(json));
    problems.throw_if_any();
  }
  HuggingFaceReader file(json, "", problems);
  const Json* type = file.at("model_type");
  if (type == nullptr) {
    file.missing("model_type");
    problems.throw_if_any();
  }
  std::string name_of_type = type->is_string() ? type->get<std::string>() : "";
  const Json* text = nullptr;
  for (const Wrapper& wrapper : kWrappers) {
    if (name_of_type == wrapper.type) {
      text = file.at("text_config");
      if (text == nullptr || !text->is_object()) {
        file.missing("text_config");
        problems.throw_if_any();
      }
      type = text->contains("model_type") ? &(*text)["model_type"] : nullptr;
      name_of_type = type == nullptr     ? std::string(wrapper.text_type)
                     : type->is_string() ? type->get<std::string>()
                                         : "";
      break;
    }
  }
  const Family* family = find_family(name_of_type);
  if (family == nullptr) {
    refuse_type(type != nullptr ? *type : Json(name_of_type), file);
    problems.throw_if_any();
  }
  HuggingFaceReader inner(text != nullptr ? *text : json, text != nullptr ? "/text_config" : "",
                          problems);
  HuggingFaceReader& reader = text != nullptr ? inner : file;

  ModelConfig model;
  model.source = origin;
  model.name = file.find<std::string>({"_name_or_path"}).value_or("");
  if (model.name.empty()) {
    model.name = origin;
  }
  model.layers =
      reader.get<std::int64_t>({"num_hidden_layers", "n_layer"}, between(1, ModelLimits::kLayers));
  model.hidden_size =
      reader.get<std::int64_t>({"hidden_size", "n_embd"}, between(1, ModelLimits::kWidth));
  model.attention_heads =
      reader.get<std::int64_t>({"num_attention_heads", "n_head"}, between(1, ModelLimits::kHeads));
  model.kv_heads = read_kv_heads(*family, reader, model.attention_heads);
  const auto vocabulary =
      reader.find<std::int64_t>({"vocab_size"}, between(1, ModelLimits::kVocabulary));
  // Published files of Gemma 3 omit it and use the default of the class.
  const std::int64_t usual_vocabulary = family->type == "gemma3_text" ? 262208 : 0;
  if (!vocabulary && usual_vocabulary == 0 && reader.at("vocab_size") == nullptr) {
    reader.missing("vocab_size");
  }
  model.vocabulary_size = vocabulary.value_or(usual_vocabulary);

  auto intermediate =
      reader.find<std::int64_t>({"intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"},
                                between(1, ModelLimits::kIntermediate));
  if (!intermediate && family->shape != Shape::dense) {
    // Models with experts in all layers need no other width.
    intermediate = reader.find<std::int64_t>({"moe_intermediate_size"},
                                             between(1, ModelLimits::kIntermediate));
  }
  if (!intermediate && family->default_mlp_factor == 0) {
    reader.missing(family->type == "opt" ? "ffn_dim" : "intermediate_size");
  }
  model.intermediate_size = intermediate.value_or(family->default_mlp_factor * model.hidden_size);
  model.gated_mlp = family->gated_mlp;
  auto tied = reader.find<bool>({"tie_word_embeddings"});
  if (!tied && text != nullptr) {
    tied = file.find<bool>({"tie_word_embeddings"});
  }
  model.tied_embeddings = tied.value_or(family->tied_embeddings);

  const auto window = reader.find<std::int64_t>({"max_position_embeddings", "n_positions"},
                                                between(1, ModelLimits::kWindow));
  if (!window && family->default_window == 0) {
    reader.missing(family->type == "gpt2" ? "n_positions" : "max_position_embeddings");
  }
  model.context_window = Tokens(window.value_or(family->default_window));

  const Json* quantization = file.at("quantization_config");
  if (quantization == nullptr && text != nullptr) {
    quantization = reader.at("quantization_config");
  }
  model.bytes_per_element =
      read_element_bytes(reader, file, quantization != nullptr || family->type == "gpt_oss");
  model.kv_bytes_per_element = model.bytes_per_element;

  const auto head_dim = reader.find<std::int64_t>({"head_dim"}, between(1, ModelLimits::kHeadDim));
  if (!reader.failed()) {
    const std::int64_t usual = family->default_head_dim;
    if (!head_dim && usual == 0 && family->shape != Shape::latent &&
        model.hidden_size % model.attention_heads != 0) {
      reader.fail("hidden_size", fmt::format("{} attention heads do not divide {}",
                                             model.attention_heads, model.hidden_size));
    }
    model.head_dim =
        head_dim.value_or(usual > 0 ? usual : model.hidden_size / model.attention_heads);
    if (model.attention_heads % model.kv_heads != 0) {
      const char* key = family->type == "falcon" ? "num_kv_heads" : "num_key_value_heads";
      reader.fail(key, fmt::format("{} KV heads do not divide {} attention heads", model.kv_heads,
                                   model.attention_heads));
    }
  }
  read_attention(*family, reader, model);
  read_experts(*family, reader, model);
  if (quantization != nullptr) {
    read_quantization(*quantization, problems, model);
  }
  problems.throw_if_any();
  return model;
}

}  // namespace kvtier
