#pragma once

#include <array>
#include <functional>

#include "sim/backend/topology.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/policy.hpp"
#include "sim/store/tier_config.hpp"

namespace kvtier {

/// The facts about a run that a store of sessions needs.
struct StoreFacts {
  Topology topology;
  TiersConfig tiers;
  /// By medium, of what is installed outside of HBM.
  std::array<Bytes, kMedia> capacity{};
  KvShares hbm;
  /// Stored KV of one token, all layers.
  Bytes bytes_per_token;
  /// The account of a copy of any length. Zero: accounts follow the length.
  Bytes window_account;
  PolicyChoice prefetch;
  SaveMode save = SaveMode::async;
  /// How long a prefill of so many tokens takes if nothing else runs.
  std::function<SimDuration(Tokens)> recompute;
};

/// The facts that a tier's policy gets. A duration is computed when the policy asks for it.
[[nodiscard]] TierFacts tier_facts(const StoreFacts& facts, Medium medium);

}  // namespace kvtier
