#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/serving/config.hpp"

namespace kvtier {

/// Loading the KV of a context from one tier. A context of `tokens[i]` takes `loads[i]`, from the
/// command to the last byte, when nothing else moves.
struct TierBreakEven {
  Medium tier;
  BytesPerSecond rate;
  /// The link that limits the rate.
  std::string slowest_link;
  std::vector<SimDuration> loads;
  /// Ranges of tokens, first and last, in which loading is faster than recomputing, ascending.
  /// Their ends are exact between the listed lengths around them.
  std::vector<std::pair<Tokens, Tokens>> loading_wins;
};

/// Loading the KV of a context against recomputing it, on an idle server.
struct BreakEven {
  std::string model;
  std::string hardware;
  std::string system;
  /// The source of the times of prefills.
  std::string times;
  Bytes kv_bytes_per_token;
  /// 512 tokens, twice as many, and so on, and the context window.
  std::vector<Tokens> tokens;
  /// One prefill of all tokens, without past ones.
  std::vector<SimDuration> recompute;
  /// Lengths whose prefill lies outside of what the profile measured.
  std::vector<bool> extrapolated;
  /// The installed tiers, fastest first.
  std::vector<TierBreakEven> tiers;
};

/// KV has the bytes that the system stores, and moves over the links that a simulation has. Throws
/// ConfigError for hardware without a tier behind HBM.
[[nodiscard]] BreakEven break_even(const RunConfig& config);

/// `kvtier.breakeven/1`.
[[nodiscard]] Json to_json(const BreakEven& found);
/// The table that users see.
[[nodiscard]] std::string to_table(const BreakEven& found);

}  // namespace kvtier
