#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// A folder with the presets in `models/`, `hardware/`, `systems/` and other folders.
class ConfigDirectory {
 public:
  /// Returns `explicit_path` if it is not empty. Otherwise returns the first folder with presets
  /// of: `share/kvtier/configs` beside the program's folder, the source tree, the installed data
  /// directory. Throws ConfigError if there is none.
  static ConfigDirectory find(const std::string& explicit_path);

  explicit ConfigDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  /// Sorted names of the presets of a kind (a folder such as "models", "hardware", "systems").
  [[nodiscard]] std::vector<std::string> names(const std::string& kind) const;
  /// The path of a preset, whose file may not exist.
  [[nodiscard]] std::filesystem::path file(const std::string& kind, const std::string& name) const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvtier
