#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sim/study/config/plugins.hpp"
#include "sim/study/config/presets.hpp"

namespace kvtier::cli {

using Action = std::function<int()>;

struct Program {
  CLI::App app;
  /// --config-dir of every subcommand.
  std::string config_dir;
  /// --plugin of every subcommand.
  std::vector<std::string> plugins;
  /// Runs the subcommand that the command line names.
  Action run;

  /// The folder with presets. Throws ConfigError.
  [[nodiscard]] ConfigDirectory presets() const { return ConfigDirectory::find(config_dir); }
  /// The program's own policies and those of its plugins. Throws ConfigError.
  [[nodiscard]] PolicyRegistry policies() const { return load_policies(plugins); }
};

}  // namespace kvtier::cli
