#pragma once

#include <memory>

#include "sim/store/store.hpp"

namespace kvtier {

/// A store in one pool whose unit of eviction is a node of a radix tree, with the borders that
/// requests made (EvictionUnit::node). The streams outlive it.
[[nodiscard]] std::unique_ptr<Store> make_node_store(const StoreRules& rules,
                                                     const Streams& streams);

}  // namespace kvtier
