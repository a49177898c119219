#pragma once

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "sim/study/engines/comparison.hpp"

namespace kvtier {

/// A sequence of calls of an engine's cache and their results, as configs/engines/README.md
/// describes it.
struct EngineTable {
  std::string name;
  Json system;
  Json calls;
  /// Why the stores do not make the calls; empty if they do.
  std::string not_executed{};
};

struct EngineTables {
  std::string engine;
  std::vector<EngineTable> tables;
};
/// Reads a file of kvtier.engine_tables/1. Throws ConfigError.
[[nodiscard]] EngineTables read_engine_tables(const std::filesystem::path& path);

/// Why no store makes the calls of a table: as the table says, or because of a call that it has.
struct NotRun {
  std::string reason;
};

/// Makes the calls on the store that runs use and on the plain one. A row is a call that expects
/// something; it differs if either store differs. Throws ConfigError for a malformed table.
[[nodiscard]] std::variant<EngineComparison, NotRun> compare_with_calls(
    const EngineTable& table, const ConfigDirectory& presets);

}  // namespace kvtier
