#include "sim/store/tier_config.hpp"

namespace kvtier {
namespace {

constexpr const char* kPolicyKey = "policy";
constexpr const char* kAutomatic = "auto";

}  // namespace

void read_config(PolicyChoice& choice, const Json& json, const std::string& pointer,
                 Problems& problems) {
  choice = PolicyChoice{};
  if (json.is_string()) {
    choice.name = json.get<std::string>();
    return;
  }
  if (!json.is_object() || !json.contains(kPolicyKey) || !json[kPolicyKey].is_string()) {
    problems.add(pointer, "expected a policy's name or {\"policy\": NAME, parameters}, got " +
                              quote_json(json));
    return;
  }
  choice.name = json[kPolicyKey].get<std::string>();
  for (const auto& [key, value] : json.items()) {
    if (key == kPolicyKey || value == kAutomatic) {
      continue;
    }
    if (!value.is_number()) {
      problems.add(pointer + "/" + escape_pointer(key),
                   "expected a number or \"auto\", got " + quote_json(value));
      continue;
    }
    choice.parameters[key] = value.get<double>();
  }
}

Json write_config(const PolicyChoice& choice) {
  if (choice.parameters.empty()) {
    return choice.name;
  }
  Json json{{kPolicyKey, choice.name}};
  for (const auto& [name, value] : choice.parameters) {
    json[name] = value;
  }
  return json;
}

Json config_schema(const PolicyChoice&) {
  return Json{{"anyOf", Json::array({Json{{"type", "string"}},
                                     Json{{"type", "object"},
                                          {"properties", {{kPolicyKey, {{"type", "string"}}}}},
                                          {"required", Json::array({kPolicyKey})},
                                          {"additionalProperties",
                                           {{"type", Json::array({"number", "string"})}}}}})}};
}

}  // namespace kvtier
