#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Hits of one tier at all capacities, of whole sessions (miss_ratio_curve.hpp) or of blocks that
/// any request may share (block_curve.hpp).
struct HitCurveOptions {
  /// Tokens of a block; without it those of the trace, 16 tokens for other traces, and whole
  /// sessions for a config whose workload names no blocks.
  std::optional<std::int64_t> block;
  /// Leave out a prompt's last block if it is not full, even if the trace names it.
  bool whole_blocks = false;
  /// For blocks: an eviction policy of kvtier's.
  std::string policy = "lru";
  /// For blocks: add Belady's choice.
  bool bound = false;
  /// Share of the sessions, or streams of blocks, that is looked at.
  double sampling_rate = 1;
  /// As users write them: "64GiB", and for blocks "5Mitokens" or "1000blocks". Empty: four for each
  /// doubling.
  std::vector<std::string> capacities;
  /// Stands before the names of these options in messages.
  std::string prefix = "--";
};

/// Whether a file that a curve is asked of is a config; else it is a trace.
[[nodiscard]] bool is_config_file(const std::string& path);

/// The curve of a config's /workload: `kvtier.block_curve/1`, with the config, or
/// `kvtier.miss_ratio_curve/1`. Throws ConfigError.
[[nodiscard]] Json hit_curve(const RunConfig& config, const PolicyRegistry& registry,
                             const HitCurveOptions& options, const RunOptions& run);
/// The curve of a trace, in blocks: `kvtier.block_curve/1`. Throws ConfigError.
[[nodiscard]] Json hit_curve(const std::string& trace, const ImportOptions& import,
                             const HitCurveOptions& options, const RunOptions& run);

}  // namespace kvtier
