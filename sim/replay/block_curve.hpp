#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/kv_size.hpp"
#include "sim/policy/policy.hpp"
#include "sim/serving/history.hpp"
#include "traces/session.hpp"

namespace kvtier {

struct BlockCurveOptions {
  Tokens block{16};
  /// LRU at all capacities takes one pass, others one store for each. lru, fifo and lfu evict
  /// single blocks, other policies of the registry the tails of extents.
  std::string policy = "lru";
  /// Wanted capacities; empty: four for each doubling, as far as the curve rises (LRU).
  std::vector<KvSize> capacities;
  /// Bytes of a token; zero where no model says so.
  Bytes bytes_per_token;
  /// Share of the streams that is looked at; LRU only.
  double sampling_rate = 1;
  /// The last block of a prompt counts although it is not full, in a trace that names its blocks.
  bool partial_blocks = false;
  /// Adds Belady's choice at each capacity: what no policy exceeds. Holds the trace in memory.
  bool belady = false;
};

/// Blocks that one tier of blocks hits, as a function of its size: `kvtier.block_curve/1`.
///
///     {"policy", "block_tokens", "sampling": {"rate"}, "requests", "blocks", "tokens",
///      "ideal": {"hit_blocks", "hit_tokens", "hit_rate": {"blocks", "tokens"}},
///      "rows": [{"capacity_blocks", "capacity_tokens", "capacity_bytes", "hit_blocks",
///                "hit_tokens", "blocks", "tokens", "hit_rate": {"blocks", "tokens"},
///                "belady": {"hit_blocks", "hit_rate": {"blocks"}}}]}
///
/// Requests come in the order of an untimed replay. Each is looked up, then its blocks are used
/// from the last to the first. Blocks that the recorded server had (see SessionSpec) are used, but
/// count as neither needed nor hit; capacities below that server's are then of no meaning. What the
/// trace does not say of responses is not stored. `ideal` is a tier without limit. "capacity_bytes"
/// is there where bytes_per_token is. `open` gives the sessions, once for each pass. Throws
/// ConfigError.
[[nodiscard]] Json block_curve(const std::function<std::unique_ptr<SessionSource>()>& open,
                               const TurnFitter* fitter, const BlockCurveOptions& options,
                               const PolicyRegistry& registry = {},
                               const std::function<void(std::int64_t)>& progress = {});

}  // namespace kvtier
