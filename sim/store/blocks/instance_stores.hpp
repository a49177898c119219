#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/store/store.hpp"

namespace kvtier {

/// Stores of several instances. Each has pools of its own, made by `make_pool(i)`, and all have the
/// shared ones.
template <class OneStore, class Pool, class MakePool>
[[nodiscard]] std::vector<std::unique_ptr<Store>> make_instance_stores(const StoreRules& rules,
                                                                       const Streams& streams,
                                                                       std::size_t instances,
                                                                       const MakePool& make_pool) {
  std::vector<std::unique_ptr<Store>> stores;
  std::vector<std::shared_ptr<Pool>> pools(rules.pools.size());
  for (std::size_t instance = 0; instance < instances; ++instance) {
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      if (instance == 0 || !rules.pools[i].shared) {
        pools[i] = make_pool(i);
      }
    }
    stores.push_back(std::make_unique<OneStore>(rules, streams, pools));
  }
  return stores;
}

}  // namespace kvtier
