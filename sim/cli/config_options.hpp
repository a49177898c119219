#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "sim/cli/validators.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier::cli {

/// The options of a subcommand that takes a config.
struct ConfigOptions {
  std::string file;
  std::vector<std::string> sets;
  std::optional<std::int64_t> seed;

  /// Adds CONFIG and --set, without --seed, for commands that draw no random numbers.
  void add_config_to(CLI::App& command, const char* name = "CONFIG",
                     const char* text = "JSON config of a run") {
    command.add_option(name, file, text)->required();
    command.add_option("--set", sets, "Override a key: /json/pointer=VALUE (may be repeated)")
        ->type_name("/POINTER=VALUE")
        ->take_all();
  }

  void add_to(CLI::App& command, const char* name = "CONFIG",
              const char* text = "JSON config of a run") {
    add_config_to(command, name, text);
    command.add_option("--seed", seed, "Master seed of every random stream")
        ->check(whole_number(0));
  }

  /// Throws ConfigError for malformed overrides, all of them at once.
  [[nodiscard]] ConfigRequest request() const {
    ConfigRequest request;
    request.file = file;
    request.seed = seed;
    std::vector<std::string> problems;
    for (const std::string& set : sets) {
      try {
        request.overrides.push_back(parse_override(set));
      } catch (const ConfigError& error) {
        problems.push_back(error.what());
      }
    }
    if (!problems.empty()) {
      throw ConfigError(std::move(problems));
    }
    return request;
  }
};

}  // namespace kvtier::cli
