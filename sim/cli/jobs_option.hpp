#pragma once

#include <cstdint>

#include <CLI/CLI.hpp>

#include "hw/device/processors.hpp"
#include "sim/cli/validators.hpp"

namespace kvtier::cli {

/// Adds --jobs for subcommands with several runs, and sets `jobs` to its default.
inline void add_jobs(CLI::App& command, std::int64_t& jobs) {
  jobs = available_processors();
  command.add_option("--jobs", jobs, "Runs at the same time (as many as there are cores)")
      ->check(whole_number(1, 4096));
}

}  // namespace kvtier::cli
