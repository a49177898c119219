#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/serving/simulate.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Options of a curve: the hits of one tier over its capacity. The tier caches whole sessions
/// (miss_ratio_curve.hpp) or blocks that any request may share (block_curve.hpp).
struct HitCurveOptions {
  /// Tokens of a block. Default: the blocks that the workload names, or else 16 tokens. Sessions of
  /// a config that names no tokens are cached whole.
  std::optional<std::int64_t> block;
  /// Leave out a prompt's last block if it is not full, even if the trace names it.
  bool whole_blocks = false;
  /// For blocks: an eviction policy.
  std::string policy = "lru";
  /// For blocks: add Belady's choice.
  bool bound = false;
  /// Share of the sessions, or streams of blocks, that is sampled.
  double sampling_rate = 1;
  /// Capacities as text: "64GiB", and for blocks "5Mitokens" or "1000blocks". Empty: four for each
  /// doubling.
  std::vector<std::string> capacities;
  /// Prefix of the names of these options in messages.
  std::string prefix = "--";
};

/// Whether the file of a curve is a config. Otherwise it is a trace.
[[nodiscard]] bool is_config_file(const std::string& path);

/// The curve of a config's /workload: `kvtier.block_curve/1`, with the config, or
/// `kvtier.miss_ratio_curve/1`. Throws ConfigError.
[[nodiscard]] Json hit_curve(const RunConfig& config, const PolicyRegistry& registry,
                             const HitCurveOptions& options, const RunOptions& run);
/// The curve of a trace, in blocks: `kvtier.block_curve/1`. Throws ConfigError.
[[nodiscard]] Json hit_curve(const std::string& trace, const ImportOptions& import,
                             const PolicyRegistry& registry, const HitCurveOptions& options,
                             const RunOptions& run);

}  // namespace kvtier
