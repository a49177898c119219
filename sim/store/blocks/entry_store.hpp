#pragma once

#include <memory>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Stores of so many instances whose units are entries (has_entries). Pools that are `shared` are
/// one. `streams` and `registry` outlive them.
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_entry_stores(const StoreRules& rules,
                                                                    const Streams& streams,
                                                                    const PolicyRegistry& registry,
                                                                    std::size_t instances);

}  // namespace kvtier
