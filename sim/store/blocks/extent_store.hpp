#pragma once

#include <memory>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Stores of so many instances whose unit is the block, and which keep neighbouring blocks in the
/// same state as one object: a request costs O(extents on its path). Pools that are `shared` are
/// one. The streams outlive them.
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_extent_stores(const StoreRules& rules,
                                                                     const Streams& streams,
                                                                     const PolicyRegistry& registry,
                                                                     std::size_t instances);

}  // namespace kvtier
