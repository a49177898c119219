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
  /// LRU takes one pass for all capacities, other policies one store per capacity. lru, fifo and
  /// lfu evict single blocks, other policies of the registry tails of extents.
  std::string policy = "lru";
  /// Capacities of the curve; empty: four for each doubling, as far as the curve rises (LRU).
  std::vector<KvSize> capacities;
  /// Bytes of a token; zero without a model.
  Bytes bytes_per_token;
  /// Facts that the policy may ask for.
  TierFacts facts{};
  /// Share of the streams that is sampled; LRU only.
  double sampling_rate = 1;
  /// Also counts a prompt's last block if it is not full, in a trace that names its blocks.
  bool partial_blocks = false;
  /// Adds the hits of Belady's choice at each capacity, an upper bound for all policies. Holds the
  /// trace in memory.
  bool belady = false;
};

/// Hits of one tier of blocks as a function of its size: `kvtier.block_curve/1`.
///
///     {"policy", "block_tokens", "sampling": {"rate"}, "requests", "blocks", "tokens",
///      "ideal": {"hit_blocks", "hit_tokens", "hit_rate": {"blocks", "tokens"}},
///      "rows": [{"capacity_blocks", "capacity_tokens", "capacity_bytes", "hit_blocks",
///                "hit_tokens", "blocks", "tokens", "hit_rate": {"blocks", "tokens"},
///                "belady": {"hit_blocks", "hit_rate": {"blocks"}}}]}
///
/// Requests come in the order of an untimed replay. Each is looked up, then its blocks are used
/// from the last to the first. Blocks that the recorded server had (see SessionSpec) are used, but
/// count as neither needed nor hit; capacities below that server's are then meaningless. Responses
/// whose tokens the trace does not name are not stored. `ideal` is a tier without limit.
/// "capacity_bytes" needs bytes_per_token. `open` gives the sessions, once for each pass. Throws
/// ConfigError.
[[nodiscard]] Json block_curve(const std::function<std::unique_ptr<SessionSource>()>& open,
                               const TurnFitter* fitter, const BlockCurveOptions& options,
                               const PolicyRegistry& registry = {},
                               const std::function<void(std::int64_t)>& progress = {});

}  // namespace kvtier
