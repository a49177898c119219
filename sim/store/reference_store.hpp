#pragma once

#include <memory>

#include "sim/store/store.hpp"

namespace kvtier {

/// A plain store: one object per block, or per node of a radix tree where that is the unit of
/// eviction. Slow, and right by inspection: what other stores do is compared with it. The streams
/// outlive it.
[[nodiscard]] std::unique_ptr<Store> make_reference_store(const StoreRules& rules,
                                                          const Streams& streams);

}  // namespace kvtier
