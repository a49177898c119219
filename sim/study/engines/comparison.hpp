#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/store/rules.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/engines/hash_trace.hpp"
#include "sim/study/engines/oracle.hpp"

namespace kvtier {

/// A row that differs: expected and actual values by name.
struct EngineDifference {
  /// The request of a trace, or the call of a table of calls, from 0.
  std::int64_t row = 0;
  Json expected;
  Json got;
};

/// The comparison of one system with its engine's results.
struct EngineComparison {
  static constexpr std::int64_t kShown = 5;

  /// The file's name without extension.
  std::string name;
  /// Capacity of the tiers; for a table of calls, the table's name.
  std::string capacity;
  std::int64_t rows = 0;
  std::int64_t different = 0;
  /// The first kShown differences.
  std::vector<EngineDifference> first;

  void add_difference(EngineDifference difference);
};

/// One run of a table: its capacity, and the columns with its results.
struct OracleRun {
  std::string capacity;
  /// Capacity in tokens of the first tier.
  std::int64_t tokens = 0;
  struct Column {
    enum class Value : std::uint8_t {
      hit,
      hit_gpu,
      hit_cpu,
      host_match,
      evicted,
      evicted_tokens,
      forced
    };
    Value value = Value::hit;
    std::size_t place = 0;
  };
  std::vector<Column> columns;
};
/// The runs of a table. Throws ConfigError with `name` for an unknown column.
[[nodiscard]] std::vector<OracleRun> oracle_runs(const std::string& name, const OracleKind& kind,
                                                 const OracleTable& table);

/// The rules of the preset `vllm`, or `vllm_cpu_offload`, with some capacity. Throws ConfigError.
[[nodiscard]] StoreRules vllm_rules(const ConfigDirectory& presets, bool offloads);

/// Whether the table's requests are the trace's first ones, by their prompts' lengths.
[[nodiscard]] bool is_of(const OracleTable& table, const HashTrace& trace);

struct CompareOptions {
  /// Uses the reference stores, and steps through every iteration.
  bool reference = false;
  /// Once a stop is requested, the comparison ends by throwing Stopped.
  std::stop_token stop;
};

/// Runs the table's requests of `trace` and compares each with its row. The systems are the presets
/// `vllm` and `vllm_cpu_offload` with the run's capacities, or rules of SGLang and LMCache. Throws
/// ConfigError.
[[nodiscard]] EngineComparison compare_with_oracle(const std::string& name, const OracleKind& kind,
                                                   const OracleTable& table, const OracleRun& run,
                                                   const HashTrace& trace,
                                                   const ConfigDirectory& presets,
                                                   const CompareOptions& options = {});

}  // namespace kvtier
