#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/serving/config.hpp"

namespace kvtier {

/// Times of loading the KV of a context from one tier. Loading `tokens[i]` takes `loads[i]`, from
/// the command to the last byte, without other transfers.
struct TierBreakEven {
  Medium tier;
  BytesPerSecond rate;
  /// The link that limits the rate.
  std::string slowest_link;
  std::vector<SimDuration> loads;
  /// Ranges of tokens (first, last) in which loading is faster than recomputing, ascending. Their
  /// ends are exact if the faster way changes at most once between two listed lengths.
  std::vector<std::pair<Tokens, Tokens>> loading_wins;
};

/// Times of loading the KV of a context and of recomputing it, on an idle server.
struct BreakEven {
  std::string model;
  std::string hardware;
  std::string system;
  /// The source of prefill times: the roofline or a profile.
  std::string times;
  Bytes kv_bytes_per_token;
  /// Context lengths: 512 tokens, 1024, ..., and the context window.
  std::vector<Tokens> tokens;
  /// Time of the prefill of all tokens, in the iterations in which the system computes them.
  std::vector<SimDuration> recompute;
  /// For each length, whether the time of its prefill is extrapolated.
  std::vector<bool> extrapolated;
  /// The installed tiers, fastest first.
  std::vector<TierBreakEven> tiers;
};

/// Compares load and recompute times. KV has the size that the system stores, and uses the links of
/// a simulation. Throws ConfigError for hardware without DRAM, CXL and SSD.
[[nodiscard]] BreakEven break_even(const RunConfig& config);

/// The result as JSON (`kvtier.breakeven/1`).
[[nodiscard]] Json to_json(const BreakEven& found);
/// The result as a table.
[[nodiscard]] std::string to_table(const BreakEven& found);

}  // namespace kvtier
