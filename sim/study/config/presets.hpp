#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
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
  /// The path of a preset. Throws nothing; the file may not exist.
  [[nodiscard]] std::filesystem::path file(const std::string& kind, const std::string& name) const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Called with the notice of each preset that a config names and that has one ("notice": what
  /// changed under this name), each time it is looked up.
  using OnNotice = std::function<void(const std::string& notice)>;
  void on_notice(OnNotice call) { on_notice_ = std::move(call); }
  void give_notice(const std::string& notice) const {
    if (on_notice_) {
      on_notice_(notice);
    }
  }

 private:
  std::filesystem::path path_;
  OnNotice on_notice_;
};

}  // namespace kvtier
