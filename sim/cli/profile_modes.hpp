#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cli/program.hpp"

/// `kvtier calibrate` with profiles and tables, without a device.
namespace kvtier::cli {

struct TableImportOptions {
  std::vector<std::string> tables;
  std::vector<std::string> columns;
  std::string model;
  std::string hardware = "a100-80g";
  std::string out;
  /// The profile's name. Empty: "MODEL on GPU".
  std::string name;
  /// The version of the engine that was timed, for the provenance.
  std::string engine;
  /// Added to the profile's notes.
  std::vector<std::string> notes;
  bool compact = false;
  std::int64_t gpus = 1;
  std::uint64_t seed = 1;
  /// The roofline's shares of peak compute and memory bandwidth, in place of the hardware's.
  std::optional<double> compute;
  std::optional<double> memory;
  /// The command line, for the profile's provenance.
  std::string command;
};
/// Writes a profile and prints its errors. Returns the exit code.
int import_tables_command(const Program& program, const TableImportOptions& options);

/// Prints a profile's cross-validation. Returns the exit code: 1 out of band.
int cross_validate_command(const Program& program, const std::string& profile, std::uint64_t seed);

/// Prints the errors of `profile` on the cells that only `other` has. Returns the exit code.
int compare_profiles_command(const Program& program, const std::string& profile,
                             const std::string& other);

/// Writes a profile of an earlier format in today's format. Returns the exit code.
int convert_profile_command(const std::string& profile, const std::string& out);

struct ExplainCommandOptions {
  std::string profile;
  std::string model;
  /// The preset whose values the profile overrides. Empty: the profile alone.
  std::string hardware;
  std::int64_t gpus = 1;
  bool roofline = false;
  std::int64_t history = 2048;
  std::int64_t prompt = 128;
};
/// Prints how many tokens a load can hide behind a prefill, and read buffer sizes. Returns the exit
/// code.
int explain_command(const Program& program, const ExplainCommandOptions& options);

}  // namespace kvtier::cli
