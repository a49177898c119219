#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "hw/model/model.hpp"

namespace kvtier {
namespace {

/// Reads the keys of a Hugging Face config by their several spellings.
class HuggingFaceReader {
 public:
  HuggingFaceReader(const Json& json, Problems& problems) : json_(json), problems_(problems) {}

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
      read_value(value, *found, std::string("/") + key, problems_, limits);
      failed_ = failed_ || problems_.lines().size() != before;
      return value;
    }
    return std::nullopt;
  }

  template <class T>
  T get(std::initializer_list<const char*> keys, const Limits& limits = {}) {
    const std::optional<T> value = find<T>(keys, limits);
    if (!value) {
      missing(*keys.begin());
    }
    return value.value_or(T{});
  }

  void missing(const char* key) { fail(key, "missing key"); }

  void fail(const char* key, const std::string& message) {
    problems_.add(std::string("/") + key, message);
    failed_ = true;
  }

  /// Whether anything was wrong so far: what is derived from other keys is then not judged.
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  const Json& json_;
  Problems& problems_;
  bool failed_ = false;
};

/// What one family of models spells its own way, or leaves to the defaults of its class in
/// transformers.
struct Family {
  std::string_view type;
  bool gated_mlp;
  bool tied_embeddings;
  /// MLP width over hidden size where the config does not give it; 0: it must.
  std::int64_t default_mlp_factor;
  /// Context window where the config does not give it; 0: it must.
  std::int64_t default_window;
};

constexpr Family kFamilies[] = {
    {"falcon", false, true, 4, 2048}, {"gpt2", false, true, 4, 0},
    {"gpt_neox", false, false, 0, 0}, {"llama", true, false, 0, 0},
    {"mistral", true, false, 0, 0},   {"opt", false, true, 0, 0},
};

const Family* find_family(const Json& json, HuggingFaceReader& reader) {
  const auto type = json.find("model_type");
  if (type == json.end()) {
    reader.missing("model_type");
    return nullptr;
  }
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (type->is_string() && type->get_ref<const std::string&>() == family.type) {
      return &family;
    }
    names.emplace_back(family.type);
  }
  reader.fail("model_type",
              fmt::format("expected one of {}, got {}", fmt::join(names, ", "), quote_json(*type)));
  return nullptr;
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
  if (family.type == "llama" || family.type == "mistral") {
    return reader.find<std::int64_t>({"num_key_value_heads"}, limits).value_or(heads);
  }
  return heads;
}

std::int64_t read_element_bytes(HuggingFaceReader& reader) {
  // Newer releases of transformers write "dtype".
  const auto name = reader.find<std::string>({"torch_dtype", "dtype"});
  if (!name) {
    reader.missing("torch_dtype");
    return 0;
  }
  if (*name == "float16" || *name == "bfloat16") {
    return 2;
  }
  if (*name == "float32") {
    return 4;
  }
  if (!name->empty() || !reader.failed()) {
    reader.fail("torch_dtype",
                fmt::format("expected one of bfloat16, float16, float32, got \"{}\"", *name));
  }
  return 0;
}

}  // namespace

bool looks_like_hugging_face(const Json& json) {
  return json.is_object() && (json.contains("model_type") || json.contains("architectures"));
}

ModelConfig model_from_hugging_face(const Json& json, const std::string& origin) {
  Problems problems;
  problems.set_origin("", origin);
  if (!json.is_object()) {
    problems.add("", "expected an object, got " + quote_json(json));
    problems.throw_if_any();
  }
  HuggingFaceReader reader(json, problems);
  const Family* family = find_family(json, reader);
  if (family == nullptr) {
    problems.throw_if_any();
  }

  ModelConfig model;
  model.source = origin;
  model.name = reader.find<std::string>({"_name_or_path"}).value_or("");
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
  model.vocabulary_size =
      reader.get<std::int64_t>({"vocab_size"}, between(1, ModelLimits::kVocabulary));

  const auto intermediate =
      reader.find<std::int64_t>({"intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"},
                                between(1, ModelLimits::kIntermediate));
  if (!intermediate && family->default_mlp_factor == 0) {
    reader.missing(family->type == "opt" ? "ffn_dim" : "intermediate_size");
  }
  model.intermediate_size = intermediate.value_or(family->default_mlp_factor * model.hidden_size);
  model.gated_mlp = family->gated_mlp;
  model.tied_embeddings =
      reader.find<bool>({"tie_word_embeddings"}).value_or(family->tied_embeddings);

  const auto window = reader.find<std::int64_t>({"max_position_embeddings", "n_positions"},
                                                between(1, ModelLimits::kWindow));
  if (!window && family->default_window == 0) {
    reader.missing(family->type == "gpt2" ? "n_positions" : "max_position_embeddings");
  }
  model.context_window = Tokens(window.value_or(family->default_window));

  model.bytes_per_element = read_element_bytes(reader);
  model.kv_bytes_per_element = model.bytes_per_element;
  const auto quantization = json.find("quantization_config");
  if (quantization != json.end() && !quantization->is_null()) {
    reader.fail("quantization_config", "quantized weights are not supported");
  }

  const auto head_dim = reader.find<std::int64_t>({"head_dim"}, between(1, ModelLimits::kHeadDim));
  if (!reader.failed()) {
    if (!head_dim && model.hidden_size % model.attention_heads != 0) {
      reader.fail("hidden_size", fmt::format("{} attention heads do not divide {}",
                                             model.attention_heads, model.hidden_size));
    }
    model.head_dim = head_dim.value_or(model.hidden_size / model.attention_heads);
    if (model.attention_heads % model.kv_heads != 0) {
      const char* key = family->type == "falcon" ? "num_kv_heads" : "num_key_value_heads";
      reader.fail(key, fmt::format("{} KV heads do not divide {} attention heads", model.kv_heads,
                                   model.attention_heads));
    }
  }
  problems.throw_if_any();
  return model;
}

}  // namespace kvtier
