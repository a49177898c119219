#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/engines/comparison.hpp"

namespace kvtier {

/// Tables of engines' results, and the traces that they were made from.
struct EnginesInput {
  /// Traces in Mooncake's format.
  std::vector<std::filesystem::path> traces;
  /// Folder of tables, with names as in OracleKind.
  std::filesystem::path oracles;
  /// Files of kvtier.engine_tables/1.
  std::vector<std::filesystem::path> calls;
};
/// The sample that comes with the program (configs/engines).
[[nodiscard]] EnginesInput engines_sample(const ConfigDirectory& presets);

struct EnginesOptions {
  std::int64_t jobs = 1;
  /// Called with the runs done and the number of all runs; may throw to stop.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct EnginesResult {
  /// Sorted by file, then by capacity or table.
  std::vector<EngineComparison> files;
  /// Files with unknown names.
  std::vector<std::string> unknown;
  /// Files that were made from other traces.
  std::vector<std::string> other_trace;
  /// A table with calls that the stores do not have.
  struct LeftOut {
    std::string name;
    std::string reason;
  };
  std::vector<LeftOut> not_run;

  [[nodiscard]] std::int64_t rows() const;
  [[nodiscard]] std::int64_t different() const;
};

/// Runs the requests of each known table on kvtier's own systems and compares every row. All tables
/// of requests are read before the first run. Throws ConfigError for a malformed file, and if no
/// table was made from these traces.
[[nodiscard]] EnginesResult compare_engines(const EnginesInput& input,
                                            const ConfigDirectory& presets,
                                            const EnginesOptions& options = {});

/// The result as JSON (`kvtier.engines_cache/1`) and as a table.
[[nodiscard]] Json to_json(const EnginesResult& result);
[[nodiscard]] std::string to_table(const EnginesResult& result);

}  // namespace kvtier
