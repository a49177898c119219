#pragma once

#include <memory>

#include "sim/store/store.hpp"

namespace kvtier {

/// A store that keeps neighbouring blocks in the same state as one object, or those of a node where
/// that is the unit of eviction: a request costs O(extents on its path). The streams outlive it.
[[nodiscard]] std::unique_ptr<Store> make_extent_store(const StoreRules& rules,
                                                       const Streams& streams);

}  // namespace kvtier
