#pragma once

#include <memory>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"

/// Plain stores: one object per block, or per node of a radix tree where that is the unit of
/// eviction, or a set of blocks per entry. Slow, and right by inspection: what other stores do is
/// compared with them.
namespace kvtier {

[[nodiscard]] std::vector<std::unique_ptr<Store>> make_reference_blocks(
    const StoreRules& rules, const Streams& streams, const PolicyRegistry& registry,
    std::size_t instances);
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_reference_nodes(
    const StoreRules& rules, const Streams& streams, const PolicyRegistry& registry,
    std::size_t instances);

}  // namespace kvtier
