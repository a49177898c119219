#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// A folder with `models/`, `hardware/` and `systems/`: what presets are named after.
class ConfigDirectory {
 public:
  /// `explicit_path` if given; otherwise the folder beside the installed program, the installed
  /// data directory, or the folder beside the sources, whichever exists first. Throws ConfigError
  /// if none does.
  static ConfigDirectory find(const std::string& explicit_path);

  explicit ConfigDirectory(std::filesystem::path path) : path_(std::move(path)) {}

  /// Names of the presets of a kind ("models", "hardware", "systems"), sorted.
  [[nodiscard]] std::vector<std::string> names(const std::string& kind) const;
  /// Where a preset lies. Throws nothing; the file may not exist.
  [[nodiscard]] std::filesystem::path file(const std::string& kind, const std::string& name) const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvtier
