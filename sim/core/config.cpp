#include "sim/core/config.hpp"

#include <fmt/format.h>

#include "sim/core/text.hpp"

namespace kvtier {
namespace {

/// The deepest nesting. Recursive functions walk through values, and the stack is finite.
constexpr std::size_t kDeepestJson = 200;

/// Finds duplicate keys, up to the first error of syntax or too deep nesting. It holds the keys of
/// the open objects only, and does not recurse.
class StructureCheck final : public nlohmann::json_sax<Json> {
 public:
  explicit StructureCheck(const std::string& origin) : origin_(origin) {}

  [[nodiscard]] std::vector<std::string> take_problems() { return std::move(problems_); }
  [[nodiscard]] bool too_deep() const { return too_deep_; }

  bool null() override { return begin_value(); }
  bool boolean(bool) override { return begin_value(); }
  bool number_integer(number_integer_t) override { return begin_value(); }
  bool number_unsigned(number_unsigned_t) override { return begin_value(); }
  bool number_float(number_float_t, const string_t&) override { return begin_value(); }
  bool string(string_t&) override { return begin_value(); }
  bool binary(binary_t&) override { return begin_value(); }
  bool start_object(std::size_t) override { return begin(false); }
  bool start_array(std::size_t) override { return begin(true); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

  bool key(string_t& key) override {
    open_.back().at = key;
    if (!open_.back().keys.insert(key).second) {
      std::string pointer;
      for (const Open& part : open_) {
        pointer += '/';
        pointer += escape_pointer(part.at);
      }
      problems_.push_back(fmt::format("{}: {}: duplicate key", origin_, pointer));
    }
    return true;
  }

 private:
  struct Open {
    bool list = false;
    std::size_t items = 0;
    std::set<std::string> keys{};
    std::string at{};  // the current key or index
  };

  bool begin_value() {
    if (!open_.empty() && open_.back().list) {
      open_.back().at = std::to_string(open_.back().items++);
    }
    return true;
  }
  bool begin(bool list) {
    begin_value();
    if (open_.size() == kDeepestJson) {
      too_deep_ = true;
      problems_.push_back(fmt::format("{}: expected at most {} levels of nested objects and lists",
                                      origin_, kDeepestJson));
      return false;
    }
    open_.push_back({.list = list});
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  const std::string& origin_;
  std::vector<Open> open_;
  std::vector<std::string> problems_;
  bool too_deep_ = false;
};

/// Line and column of a byte, as editors count.
std::string place_of(std::size_t byte, std::string_view text) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < byte && i < text.size(); ++i) {
    column = text[i] == '\n' ? 1 : column + 1;
    line += text[i] == '\n' ? 1 : 0;
  }
  return fmt::format("{}:{}", line, column);
}

}  // namespace

Json parse_json_strictly(std::string_view text, const std::string& origin) {
  if (const std::size_t byte = end_of_utf8(text); byte < text.size()) {
    throw ConfigError(fmt::format("{}:{}: expected UTF-8", origin, place_of(byte, text)));
  }
  // A separate pass: with a callback, the parser walks a whole list again after each item.
  StructureCheck structure(origin);
  Json::sax_parse(text, &structure);
  std::vector<std::string> problems = structure.take_problems();
  if (structure.too_deep()) {
    throw ConfigError(std::move(problems));
  }
  try {
    Json json = Json::parse(text);
    if (!problems.empty()) {
      throw ConfigError(std::move(problems));
    }
    return json;
  } catch (const Json::parse_error& error) {
    problems.push_back(fmt::format("{}:{}: not valid JSON: {}", origin,
                                   place_of(error.byte > 0 ? error.byte - 1 : 0, text),
                                   text.find_first_not_of(" \t\r\n") == std::string_view::npos
                                       ? "the file is empty"
                                       : "expected a value, a key or a separator here"));
    throw ConfigError(std::move(problems));
  } catch (const Json::out_of_range&) {
    problems.push_back(
        fmt::format("{}: not valid JSON: a number is too large for a double", origin));
    throw ConfigError(std::move(problems));
  }
}

std::string Problems::origin_of(const std::string& pointer) const {
  std::string at = pointer;
  while (true) {
    const auto found = origins_.find(at);
    if (found != origins_.end()) {
      return found->second;
    }
    if (at.empty()) {
      return "";
    }
    at.erase(at.rfind('/') == std::string::npos ? 0 : at.rfind('/'));
  }
}

void Problems::add(const std::string& pointer, const std::string& message) {
  const std::string origin = name_origins_ ? origin_of(pointer) : "";
  constexpr std::size_t kPointerBytesMax = 512;
  const std::string shown = pointer.empty() ? "/" : shortened(pointer, kPointerBytesMax);
  lines_.push_back(origin.empty() ? fmt::format("{}: {}", shown, message)
                                  : fmt::format("{}: {}: {}", origin, shown, message));
}

void Problems::throw_if_any() const {
  if (!lines_.empty()) {
    throw ConfigError(lines_);
  }
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string quote_json(const Json& value) { return shortened(json_text(value), kQuotedBytesMax); }

std::string escape_pointer(std::string_view key) {
  std::string escaped;
  for (const char c : key) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

namespace detail {

std::string limits_text(const Limits& limits) {
  if (limits.minimum && limits.maximum) {
    return fmt::format(" {} {} and <= {}", limits.minimum_excluded ? ">" : ">=", *limits.minimum,
                       *limits.maximum);
  }
  if (limits.minimum) {
    return fmt::format(" {} {}", limits.minimum_excluded ? ">" : ">=", *limits.minimum);
  }
  return limits.maximum ? fmt::format(" <= {}", *limits.maximum) : "";
}

bool within(double value, const Limits& limits) {
  if (limits.minimum &&
      (value < *limits.minimum || (limits.minimum_excluded && value == *limits.minimum))) {
    return false;
  }
  return !limits.maximum || value <= *limits.maximum;
}

Json limits_schema(Json schema, const Limits& limits) {
  if (limits.minimum) {
    schema[limits.minimum_excluded ? "exclusiveMinimum" : "minimum"] = *limits.minimum;
  }
  if (limits.maximum) {
    schema["maximum"] = *limits.maximum;
  }
  return schema;
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string joined;
  for (std::size_t i = 0; i < words.size(); ++i) {
    joined += i > 0 ? separator : "";
    joined += words[i];
  }
  return joined;
}

}  // namespace detail

void ObjectReader::gone(const char* key, const char* successor) {
  if (object_.contains(key)) {
    gone_.emplace_back(key);
    problems_.add(pointer_ + "/" + escape_pointer(key),
                  fmt::format("this key is gone: {}", successor));
  }
}

void ObjectReader::finish() {
  for (const auto& [key, value] : object_.items()) {
    bool known = false;
    for (const std::string& name : known_) {
      known = known || name == key;
    }
    for (const std::string& name : gone_) {
      known = known || name == key;
    }
    if (!known) {
      problems_.add(pointer_ + "/" + escape_pointer(key), "unknown key" + suggestion(key, known_));
    }
  }
}

Json SchemaWriter::take() {
  Json schema{{"type", "object"}, {"additionalProperties", false}};
  schema["properties"] = std::move(properties_);
  if (!required_.empty()) {
    schema["required"] = std::move(required_);
  }
  return schema;
}

}  // namespace kvtier
