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

/// Hits of engines, and the traces on which they were found.
struct EnginesInput {
  /// Traces in Mooncake's format.
  std::vector<std::filesystem::path> traces;
  /// Folder of tables as OracleKind says.
  std::filesystem::path oracles;
  /// Files of kvtier.engine_tables/1.
  std::vector<std::filesystem::path> calls;
};
/// The sample that the program comes with (configs/engines).
[[nodiscard]] EnginesInput engines_sample(const ConfigDirectory& presets);

struct EnginesOptions {
  std::int64_t jobs = 1;
  /// Called with the runs done and all; may throw to end the work.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct EnginesResult {
  /// By file, of a file by capacity or table.
  std::vector<EngineComparison> files;
  /// Files whose names say nothing of how they were made.
  std::vector<std::string> unknown;
  /// Files of another trace than those given.
  std::vector<std::string> other_trace;
  /// A table of calls that the stores do not have.
  struct LeftOut {
    std::string name;
    std::string reason;
  };
  std::vector<LeftOut> not_run;

  [[nodiscard]] std::int64_t rows() const;
  [[nodiscard]] std::int64_t different() const;
};

/// Runs the requests of each known file on kvtier's own systems and compares every row. All files
/// are read before the first run. Throws ConfigError: an unreadable or malformed file, no file of
/// these traces.
[[nodiscard]] EnginesResult compare_engines(const EnginesInput& input,
                                            const ConfigDirectory& presets,
                                            const EnginesOptions& options = {});

/// `kvtier.engines_cache/1` and the table of the same.
[[nodiscard]] Json to_json(const EnginesResult& result);
[[nodiscard]] std::string to_table(const EnginesResult& result);

}  // namespace kvtier
