#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "sim/study/engines/comparison.hpp"

namespace kvtier {

/// A sequence of calls of an engine's cache and their results (configs/engines/README.md).
struct EngineTable {
  std::string name;
  Json system;
  Json calls;
  /// Why the stores cannot make the calls; empty if they can.
  std::string not_executed{};
};

struct EngineTables {
  std::string engine;
  std::vector<EngineTable> tables;
};
/// Reads a file of kvtier.engine_tables/1. Throws ConfigError.
[[nodiscard]] EngineTables read_engine_tables(const std::filesystem::path& path);

/// Why the stores cannot make the calls of a table: its `not_executed`, or an unsupported call.
struct NotRun {
  std::string reason;
};

/// Makes the calls on the extent store and on the reference store. Each call with expected results
/// is a row, which differs if either store differs. Throws ConfigError for a malformed table.
[[nodiscard]] std::variant<EngineComparison, NotRun> compare_with_calls(
    const EngineTable& table, const ConfigDirectory& presets);

}  // namespace kvtier
