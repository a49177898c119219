#include "sim/study/config/presets.hpp"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"

namespace kvtier {
namespace {

bool is_config_directory(const std::filesystem::path& path) {
  return is_folder(path / "models") && is_folder(path / "systems");
}

}  // namespace

ConfigDirectory ConfigDirectory::find(const std::string& explicit_path) {
  if (!explicit_path.empty()) {
    if (!is_config_directory(explicit_path)) {
      throw ConfigError(fmt::format(
          "--config-dir: expected a folder with models/ and systems/, got \"{}\"", explicit_path));
    }
    return ConfigDirectory(explicit_path);
  }
  std::vector<std::filesystem::path> places;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    places.push_back(program.parent_path().parent_path() / "share/kvtier/configs");
  }
  places.emplace_back(KVTIER_SOURCE_CONFIG_DIR);
  places.emplace_back(KVTIER_INSTALL_CONFIG_DIR);
  for (const std::filesystem::path& place : places) {
    try {
      if (is_config_directory(place)) {
        return ConfigDirectory(place);
      }
    } catch (const DeviceError&) {
      // An installed program may be built from sources that its user cannot read.
      if (place != KVTIER_SOURCE_CONFIG_DIR) {
        throw;
      }
    }
  }
  throw ConfigError("no folder with presets found: give one with --config-dir");
}

std::vector<std::string> ConfigDirectory::names(const std::string& kind) const {
  std::vector<std::string> names;
  for (const std::filesystem::path& file : folder_entries(path_ / kind)) {
    if (file.extension() == ".json") {
      names.push_back(file.stem().string());
    }
  }
  std::sort(names.begin(), names.end());  // "a.json" and "a-b.json": by name, not by path
  return names;
}

std::filesystem::path ConfigDirectory::file(const std::string& kind,
                                            const std::string& name) const {
  return path_ / kind / (name + ".json");
}

}  // namespace kvtier
