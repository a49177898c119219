#include "sim/study/config/overrides.hpp"

#include <fmt/format.h>

#include "sim/core/text.hpp"

namespace kvtier {

std::optional<Json> parse_json_if_valid(std::string_view text, const std::string& origin) {
  return Json::accept(text) ? std::optional(parse_json_strictly(text, origin)) : std::nullopt;
}

Override parse_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (text.empty() || text.front() != '/' || equals == std::string::npos || equals < 2) {
    throw ConfigError(fmt::format("--set: expected /json/pointer=VALUE, got {}", quote_text(text)));
  }
  const std::string value = text.substr(equals + 1);
  const std::string pointer = text.substr(0, equals);
  if (!is_utf8(text)) {
    throw ConfigError(fmt::format("--set {}: expected UTF-8, got {}", pointer, quote_text(value)));
  }
  return {pointer, parse_json_if_valid(value, "--set " + pointer).value_or(Json(value))};
}

void check_pointer(const std::string& text, const std::string& at, Problems& problems) {
  if (text.empty() || text.front() != '/') {
    problems.add(at, "expected a JSON pointer, which starts with /");
  }
}

void read_config(Overrides& overrides, const Json& json, const std::string& pointer,
                 Problems& problems) {
  overrides.list.clear();
  if (!json.is_object()) {
    problems.add(pointer,
                 "expected an object from JSON pointers to values, got " + quote_json(json));
    return;
  }
  for (const auto& [key, value] : json.items()) {
    check_pointer(key, pointer + "/" + escape_pointer(key), problems);
    overrides.list.push_back({key, value});
  }
}

Json write_config(const Overrides& overrides) {
  Json json = Json::object();
  for (const Override& change : overrides.list) {
    json[change.pointer] = change.value;
  }
  return json;
}

Json config_schema(const Overrides&) { return Json{{"type", "object"}}; }

void read_config(AnyJson& any, const Json& json, const std::string&, Problems&) { any.json = json; }
Json write_config(const AnyJson& any) { return any.json; }
Json config_schema(const AnyJson&) { return Json::object(); }

}  // namespace kvtier
