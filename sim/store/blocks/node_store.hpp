#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Stores of instances whose unit of eviction is a node of a radix tree, with the borders that
/// requests made (EvictionUnit::node): in one pool, in two, or with storage of blocks behind the
/// two. The streams outlive them.
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_node_stores(const StoreRules& rules,
                                                                   const Streams& streams,
                                                                   const PolicyRegistry& registry,
                                                                   std::size_t instances);

}  // namespace kvtier
