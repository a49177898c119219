#pragma once

#include <string>

#include "sim/cli/commands.hpp"

/// What `kvtier calibrate` does with a device.
namespace kvtier::cli {

struct MeasureOptions {
  std::string device = "cpu";
  std::string storage;
  /// Empty: a small model, on the host alone.
  std::string model;
  bool quick = false;
  bool full = false;
  bool resume = false;
  std::string out;
};

/// --device, --storage, --quick, --full, --resume.
void add_measure_options(CLI::App& command, MeasureOptions& options);

/// Measures and writes the profile. Returns the exit code.
int measure_command(const Program& program, const MeasureOptions& options);

}  // namespace kvtier::cli
