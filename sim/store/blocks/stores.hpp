#pragma once

#include <memory>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Stores of so many instances. Pools that are `shared` are one. The pools' policies are made from
/// the registry, which may be empty if units are blocks or nodes. The streams outlive the stores.
/// Throws InvariantError for rules that contradict each other.
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_stores(const StoreRules& rules,
                                                              const Streams& streams,
                                                              const PolicyRegistry& registry,
                                                              std::size_t instances);
/// A plain store of blocks, nodes or entries: slow, and right by inspection.
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_reference_stores(
    const StoreRules& rules, const Streams& streams, const PolicyRegistry& registry,
    std::size_t instances);

/// One instance.
[[nodiscard]] std::unique_ptr<Store> make_store(const StoreRules& rules, const Streams& streams,
                                                const PolicyRegistry& registry = {});
[[nodiscard]] std::unique_ptr<Store> make_reference_store(const StoreRules& rules,
                                                          const Streams& streams,
                                                          const PolicyRegistry& registry = {});

}  // namespace kvtier
