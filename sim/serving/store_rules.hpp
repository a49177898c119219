#pragma once

#include <string>

#include "sim/backend/backend.hpp"
#include "sim/serving/config.hpp"
#include "sim/store/rules.hpp"
#include "sim/store/sessions/store_facts.hpp"

namespace kvtier {

/// The facts about a run that the store of its sessions needs. The config outlives them.
[[nodiscard]] StoreFacts store_facts(const RunConfig& config);

/// The rules that the keys of a system of blocks (SystemConfig::blocks) set, without capacities.
[[nodiscard]] StoreRules rules_of(const RunConfig& config);
/// Whether the store keeps the KV behind a cut in a history (Store::cut). A source that names its
/// tokens has no histories to cut.
[[nodiscard]] bool keeps_kv_behind_cuts(const RunConfig& config, SessionSource& source);

/// The rules of a system of blocks. Throws ConfigError for a tier without room for a block.
[[nodiscard]] StoreRules store_rules(const RunConfig& config);

/// The same where writes take time: for timed runs.
[[nodiscard]] StoreRules timed_store_rules(const RunConfig& config);

/// Bytes of the tier of /cluster/shared.
[[nodiscard]] Bytes shared_capacity(const RunConfig& config);

/// The medium of a tier with this name.
[[nodiscard]] Medium medium_of(const std::string& name);

}  // namespace kvtier
