#pragma once

#include <cstdint>
#include <string>

#include "sim/cli/program.hpp"

/// `kvtier calibrate` with a device.
namespace kvtier::cli {

struct MeasureOptions {
  std::string device = "cpu";
  std::string storage;
  /// Empty: a small model, on a CPU only.
  std::string model;
  bool quick = false;
  bool full = false;
  bool resume = false;
  /// kvtier or flashinfer.
  std::string attention = "kvtier";
  std::string out;
};

struct LiveCheckCommandOptions {
  std::string profile;
  std::string device = "cpu";
  /// Empty: the profile's model.
  std::string model;
  std::uint64_t seed = 1;
  std::int64_t cells = 8;
};

/// Measures cells of a profile again and prints its errors. Returns the exit code: 1 out of band.
int live_check_command(const Program& program, const LiveCheckCommandOptions& options);

struct SparsityCommandOptions {
  bool wanted = false;
  std::int64_t tokens = 512;
};

/// Prints the share of small attention scores in each layer, and as a value for configs. An empty
/// `model` means the CPU's default model. Returns the exit code.
int sparsity_command(const Program& program, const SparsityCommandOptions& options,
                     const std::string& model, std::uint64_t seed);

/// --device, --storage, --quick, --full, --resume, --attention.
void add_measure_options(CLI::App& command, MeasureOptions& options);

/// Measures and writes the profile. Returns the exit code.
int measure_command(const Program& program, const MeasureOptions& options);

}  // namespace kvtier::cli
