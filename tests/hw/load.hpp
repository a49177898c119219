#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "sim/core/file.hpp"

/// Reads the project's own config files for tests; throws ConfigError on any problem.
namespace kvtier::test {

inline std::filesystem::path config_folder(const std::string& kind) {
  return std::filesystem::path(KVTIER_SOURCE_DIR) / "configs" / kind;
}

/// The names, without suffix, of all files of one kind, in order.
inline std::vector<std::string> config_names(const std::string& kind) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(config_folder(kind))) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

/// The keys of a file, completed by the preset that it builds on.
inline Json load_json(const std::string& kind, const std::string& name) {
  const std::filesystem::path path = config_folder(kind) / (name + ".json");
  Json json = parse_json_strictly(read_text_file(path), path.string());
  if (!json.contains("preset") || kind == "examples") {
    return json;
  }
  Json base = load_json(kind, json["preset"].get<std::string>());
  json.erase("preset");
  base.merge_patch(json);
  return base;
}

template <class T>
T read_config_json(const Json& json) {
  Problems problems;
  T value{};
  read_value(value, json, "", problems);
  problems.throw_if_any();
  return value;
}

inline ModelConfig load_model(const std::string& name) {
  return read_config_json<ModelConfig>(load_json("models", name));
}

inline HardwareConfig load_hardware(const std::string& name = "a100-80g") {
  return read_config_json<HardwareConfig>(load_json("hardware", name));
}

inline HardwareConfig with_gpus(HardwareConfig hardware, std::int64_t gpus) {
  hardware.gpus = gpus;
  return hardware;
}

/// The problems of reading `json` as a T.
template <class T>
std::vector<std::string> problems_of(const Json& json) {
  Problems problems;
  T value{};
  read_value(value, json, "", problems);
  return problems.lines();
}

}  // namespace kvtier::test
