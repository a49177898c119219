#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/core/errors.hpp"
#include "sim/core/quantity.hpp"

/// Strict configs. A config struct has one function `template <class V> void describe(V& v, T&
/// config)` that names every key once, with its documentation and its limits; reading, printing,
/// the JSON Schema and the reference are all made from it:
///
///     template <class V>
///     void describe(V& v, LinkConfig& c) {
///       v.field("bandwidth", c.bandwidth, "Peak rate of one direction.", positive());
///     }
///
/// `v.gone("key", "text about its successor")` names a key of earlier versions. A config with this
/// key is an error with that text.
///
/// `v.rare(...)` in place of `v.field(...)` names a key that few configs need. It takes the usual
/// value after the field, and writes the key only if its value differs.
///
/// An enumeration has a function `constexpr auto enum_names(E)` that returns an array of (name,
/// value).
namespace kvtier {

using Json = nlohmann::ordered_json;

/// Parses JSON. Bad syntax, a duplicate key or over 200 levels throw ConfigError naming `origin`.
[[nodiscard]] Json parse_json_strictly(std::string_view text, const std::string& origin);

/// Collects every problem of an input before anything is thrown, and knows which file each key came
/// from.
class Problems {
 public:
  /// Without `name_origins`, a problem has its pointer and message only.
  explicit Problems(bool name_origins = true) : name_origins_(name_origins) {}

  /// Values at `pointer` and below come from `origin`, unless a deeper pointer has its own origin.
  void set_origin(const std::string& pointer, const std::string& origin) {
    origins_[pointer] = origin;
  }
  /// Adds `origin: pointer: message`.
  void add(const std::string& pointer, const std::string& message);
  void add_line(const std::string& line) { lines_.push_back(line); }
  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
  /// Throws ConfigError with all problems, if there are any.
  void throw_if_any() const;

 private:
  [[nodiscard]] std::string origin_of(const std::string& pointer) const;

  bool name_origins_;
  std::map<std::string, std::string> origins_;
  std::vector<std::string> lines_;
};

/// JSON text of a value. Bytes that are not UTF-8 (in paths) become U+FFFD.
[[nodiscard]] std::string json_text(const Json& value, int indent = -1);

/// JSON text of a value, shortened for an error message.
[[nodiscard]] std::string quote_json(const Json& value);

/// Escapes one key for use in a JSON pointer (RFC 6901).
[[nodiscard]] std::string escape_pointer(std::string_view key);

/// Limits of a value in its quantity's own unit (bytes, tokens, nanoseconds, plain numbers).
struct Limits {
  std::optional<double> minimum{};
  std::optional<double> maximum{};
  bool minimum_excluded = false;
  bool required = false;
  /// For optional fields: the word that stands for "no value".
  const char* none_word = "none";
};
[[nodiscard]] inline Limits positive() { return {.minimum = 0, .minimum_excluded = true}; }
[[nodiscard]] inline Limits non_negative() { return {.minimum = 0}; }
[[nodiscard]] inline Limits at_least(double minimum) { return {.minimum = minimum}; }
[[nodiscard]] inline Limits between(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum};
}
[[nodiscard]] inline Limits required(Limits limits = {}) {
  limits.required = true;
  return limits;
}
/// For std::optional fields: `word` in the config means nullopt.
[[nodiscard]] inline Limits or_word(const char* word, Limits limits = {}) {
  limits.none_word = word;
  return limits;
}

template <class T>
concept ConfigEnum = std::is_enum_v<T> && requires(T value) {
  enum_names(value);
};
template <class T>
concept ConfigQuantity = requires(T value) {
  quantity_format<T>();
}
&&(
    requires(T v) { v.value; } || requires(T v) { v.ns; });
template <class T>
concept ConfigCustom = requires(T& value, const T& constant, const Json& json,
                                const std::string& pointer, Problems& problems) {
  read_config(value, json, pointer, problems);
  { write_config(constant) } -> std::convertible_to<Json>;
  { config_schema(constant) } -> std::convertible_to<Json>;
};

template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};
template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
template <class T>
struct is_string_map : std::false_type {};
template <class T>
struct is_string_map<std::map<std::string, T>> : std::true_type {};

namespace detail {

[[nodiscard]] std::string limits_text(const Limits& limits);
[[nodiscard]] bool within(double value, const Limits& limits);
[[nodiscard]] Json limits_schema(Json schema, const Limits& limits);

template <class T>
[[nodiscard]] double plain_number(T value) {
  if constexpr (requires { value.ns; }) {
    return static_cast<double>(value.ns);
  } else if constexpr (requires { value.value; }) {
    return static_cast<double>(value.value);
  } else {
    return static_cast<double>(value);
  }
}

/// Text of a limit as a quantity; zero needs no unit.
template <class T>
[[nodiscard]] std::string limit_text(double limit) {
  if (limit == 0) {
    return "0";
  }
  if constexpr (requires { T{}.ns; }) {
    return format_quantity(T(static_cast<std::int64_t>(limit)));
  } else {
    return format_quantity(T(static_cast<decltype(T::value)>(limit)));
  }
}

/// Text of the limits for messages: `a size > 0 such as "128GiB"`. It names the maximum only if the
/// value exceeds it.
template <class T>
[[nodiscard]] std::string expected_quantity(const Limits& limits, const std::optional<T>& got) {
  const QuantityFormat& format = quantity_format<T>();
  std::string text = format.noun;
  if (limits.minimum) {
    text += (limits.minimum_excluded ? " > " : " >= ") + limit_text<T>(*limits.minimum);
  }
  if (limits.maximum && got && plain_number(*got) > *limits.maximum) {
    text += (limits.minimum ? " and <= " : " <= ") + limit_text<T>(*limits.maximum);
  }
  return text + " such as \"" + format.example + "\"";
}

template <ConfigEnum T>
[[nodiscard]] std::vector<std::string> enum_words() {
  std::vector<std::string> words;
  for (const auto& [name, value] : enum_names(T{})) {
    words.emplace_back(name);
  }
  return words;
}

[[nodiscard]] std::string join(const std::vector<std::string>& words, const char* separator);

}  // namespace detail

/// Reads one JSON object. read_value makes one for each nested struct.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string pointer, Problems& problems)
      : object_(object), pointer_(std::move(pointer)), problems_(problems) {}

  template <class T>
  void field(const char* key, T& target, const char* documentation, Limits limits = {});

  template <class T>
  void rare(const char* key, T& target, const T& /*usual*/, const char* documentation,
            Limits limits = {}) {
    field(key, target, documentation, limits);
  }

  /// Reports `key` if the object has it. `successor` names the key or feature to use instead.
  void gone(const char* key, const char* successor);

  /// Reports the unknown keys; called once after the fields.
  void finish();

 private:
  const Json& object_;
  std::string pointer_;
  Problems& problems_;
  std::vector<std::string> known_;
  std::vector<std::string> gone_;
};

/// Reads `json` into `target`. Problems go to `problems`; a value with a problem is not used.
template <class T>
void read_value(T& target, const Json& json, const std::string& pointer, Problems& problems,
                const Limits& limits = {}) {
  const auto expected = [&](const std::string& what) {
    problems.add(pointer, "expected " + what + ", got " + quote_json(json));
  };
  if constexpr (ConfigCustom<T>) {
    read_config(target, json, pointer, problems);
  } else if constexpr (is_optional<T>::value) {
    if (json.is_null() ||
        (json.is_string() && json.get_ref<const std::string&>() == limits.none_word)) {
      target.reset();
      return;
    }
    typename T::value_type inner{};
    const std::size_t before = problems.lines().size();
    read_value(inner, json, pointer, problems, limits);
    if (problems.lines().size() == before) {
      target = std::move(inner);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) {
      return expected("true or false");
    }
    target = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    const std::string wanted = "a whole number" + detail::limits_text(limits);
    if (!json.is_number_integer()) {
      return expected(wanted);
    }
    const bool fits =
        json.is_number_unsigned() ? json.get<std::uint64_t>() <= std::uint64_t{INT64_MAX} : true;
    if (!fits || !detail::within(static_cast<double>(json.get<std::int64_t>()), limits) ||
        !std::in_range<T>(json.get<std::int64_t>())) {
      return expected(wanted);
    }
    target = json.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number() || !detail::within(json.get<double>(), limits)) {
      return expected("a number" + detail::limits_text(limits));
    }
    target = json.get<double>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) {
      return expected("a string");
    }
    target = json.get<std::string>();
  } else if constexpr (ConfigEnum<T>) {
    if (json.is_string()) {
      for (const auto& [name, value] : enum_names(T{})) {
        if (json.get_ref<const std::string&>() == name) {
          target = value;
          return;
        }
      }
    }
    expected("one of " + detail::join(detail::enum_words<T>(), ", "));
  } else if constexpr (ConfigQuantity<T>) {
    const auto value =
        json.is_string() ? parse_quantity<T>(json.get_ref<const std::string&>()) : std::nullopt;
    if (!value || !detail::within(detail::plain_number(*value), limits)) {
      return expected(detail::expected_quantity<T>(limits, value));
    }
    target = *value;
  } else if constexpr (is_vector<T>::value) {
    if (!json.is_array()) {
      return expected("a list");
    }
    target.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      target.emplace_back();
      read_value(target.back(), json[i], pointer + "/" + std::to_string(i), problems, limits);
    }
  } else if constexpr (is_string_map<T>::value) {
    if (!json.is_object()) {
      return expected("an object");
    }
    target.clear();
    for (const auto& [key, value] : json.items()) {
      read_value(target[key], value, pointer + "/" + escape_pointer(key), problems, limits);
    }
  } else {
    if (!json.is_object()) {
      return expected("an object");
    }
    ObjectReader reader(json, pointer, problems);
    describe(reader, target);
    reader.finish();
  }
}

template <class T>
void ObjectReader::field(const char* key, T& target, const char*, Limits limits) {
  known_.emplace_back(key);
  const std::string pointer = pointer_ + "/" + escape_pointer(key);
  const auto found = object_.find(key);
  if (found != object_.end()) {
    read_value(target, *found, pointer, problems_, limits);
  } else if (limits.required) {
    problems_.add(pointer, "missing key");
  }
}

/// Makes the JSON that read_value turns back into the same value.
class ObjectWriter {
 public:
  template <class T>
  void field(const char* key, const T& value, const char* documentation, Limits limits = {});
  template <class T>
  void rare(const char* key, const T& value, const T& usual, const char* documentation,
            Limits limits = {}) {
    if (!(value == usual)) {
      field(key, value, documentation, limits);
    }
  }
  void gone(const char*, const char*) {}

  [[nodiscard]] Json take() { return std::move(object_); }

 private:
  Json object_ = Json::object();
};

template <class T>
[[nodiscard]] Json write_value(const T& value, const Limits& limits = {}) {
  if constexpr (ConfigCustom<T>) {
    return write_config(value);
  } else if constexpr (is_optional<T>::value) {
    return value ? write_value(*value, limits) : Json(limits.none_word);
  } else if constexpr (ConfigEnum<T>) {
    for (const auto& [name, candidate] : enum_names(T{})) {
      if (candidate == value) {
        return Json(std::string(name));
      }
    }
    return Json();
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return Json(value);
  } else if constexpr (ConfigQuantity<T>) {
    return Json(format_quantity(value));
  } else if constexpr (is_vector<T>::value) {
    Json list = Json::array();
    for (const auto& item : value) {
      list.push_back(write_value(item, limits));
    }
    return list;
  } else if constexpr (is_string_map<T>::value) {
    Json object = Json::object();
    for (const auto& [key, item] : value) {
      object[key] = write_value(item, limits);
    }
    return object;
  } else {
    ObjectWriter writer;
    describe(writer, const_cast<T&>(value));  // a writer only reads
    return writer.take();
  }
}

template <class T>
void ObjectWriter::field(const char* key, const T& value, const char*, Limits limits) {
  object_[key] = write_value(value, limits);
}

/// Makes the JSON Schema (draft 2020-12) of a config struct.
class SchemaWriter {
 public:
  template <class T>
  void field(const char* key, T& value, const char* documentation, Limits limits = {});
  template <class T>
  void rare(const char* key, T& value, const T& /*usual*/, const char* documentation,
            Limits limits = {}) {
    field(key, value, documentation, limits);
  }
  void gone(const char*, const char*) {}

  [[nodiscard]] Json take();

 private:
  Json properties_ = Json::object();
  Json required_ = Json::array();
};

template <class T>
[[nodiscard]] Json value_schema(T& value, const Limits& limits = {}) {
  if constexpr (ConfigCustom<T>) {
    return config_schema(value);
  } else if constexpr (is_optional<T>::value) {
    typename T::value_type inner{};
    return Json{
        {"anyOf", Json::array({Json{{"const", limits.none_word}}, value_schema(inner, limits)})}};
  } else if constexpr (std::is_same_v<T, bool>) {
    return Json{{"type", "boolean"}};
  } else if constexpr (std::is_integral_v<T>) {
    return detail::limits_schema(Json{{"type", "integer"}}, limits);
  } else if constexpr (std::is_floating_point_v<T>) {
    return detail::limits_schema(Json{{"type", "number"}}, limits);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return Json{{"type", "string"}};
  } else if constexpr (ConfigEnum<T>) {
    return Json{{"enum", detail::enum_words<T>()}};
  } else if constexpr (ConfigQuantity<T>) {
    const QuantityFormat& format = quantity_format<T>();
    return Json{{"type", "string"},
                {"pattern", format.pattern},
                {"examples", Json::array({format.example})}};
  } else if constexpr (is_vector<T>::value) {
    typename T::value_type inner{};
    return Json{{"type", "array"}, {"items", value_schema(inner, limits)}};
  } else if constexpr (is_string_map<T>::value) {
    typename T::mapped_type inner{};
    return Json{{"type", "object"}, {"additionalProperties", value_schema(inner, limits)}};
  } else {
    SchemaWriter writer;
    describe(writer, value);
    return writer.take();
  }
}

template <class T>
void SchemaWriter::field(const char* key, T& value, const char* documentation, Limits limits) {
  Json schema = value_schema(value, limits);
  schema["description"] = documentation;
  if (limits.required) {
    required_.push_back(key);
  }
  properties_[key] = std::move(schema);
}

}  // namespace kvtier
