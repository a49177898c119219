#include "sim/store/stores.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/entry_store.hpp"
#include "sim/store/extent_store.hpp"
#include "sim/store/node_store.hpp"
#include "sim/store/reference_store.hpp"

namespace kvtier {
namespace {

/// A store by itself, as all of them.
std::vector<std::unique_ptr<Store>> alone(std::unique_ptr<Store> store, std::size_t instances) {
  KVTIER_ASSERT(instances == 1, "nodes are in a pool of one instance");
  std::vector<std::unique_ptr<Store>> stores;
  stores.push_back(std::move(store));
  return stores;
}

void check(const StoreRules& rules) {
  const PoolRules& first = rules.pools.front();
  KVTIER_ASSERT(rules.edges.size() + 1 == rules.pools.size(), "an edge joins two pools");
  const bool larger_behind = rules.requests_in_first && first.unit == EvictionUnit::block;
  KVTIER_ASSERT(std::all_of(rules.pools.begin(), rules.pools.end(),
                            [&](const PoolRules& pool) {
                              return pool.unit == first.unit ||
                                     (has_entries(pool.unit) && has_entries(first.unit));
                            }),
                "all pools have one kind of unit");
  KVTIER_ASSERT(std::all_of(rules.pools.begin() + 1, rules.pools.end(),
                            [&](const PoolRules& pool) {
                              return pool.block == rules.pools[1].block &&
                                     pool.block.value % first.block.value == 0 &&
                                     (larger_behind || pool.block == first.block);
                            }),
                "all pools have blocks of one size, or of several of the first one's");
  KVTIER_ASSERT(!rules.requests_in_first || has_entries(first.unit) || rules.edges.empty() ||
                    (rules.edges[0].write != Write::on_eviction && !rules.edges[0].exclusive),
                "behind a pool with running requests is one that is written with compute");
  KVTIER_ASSERT(!rules.requests_in_first || !first.shared,
                "requests run in a pool of their instance");
  KVTIER_ASSERT(
      first.unit != EvictionUnit::node ||
          (rules.edges.empty() && rules.requests_in_first && !first.ttl && first.lease.ns == 0),
      "nodes are in one pool, which running requests share, and have no age");
}

}  // namespace

void Store::abandon(RequestId) { KVTIER_ASSERT(false, "only nodes are not published"); }
void Store::make_empty(std::int64_t) { KVTIER_ASSERT(false, "only nodes leave for nobody"); }
Match Store::refresh(const Context& context) { return match(context); }

std::vector<std::unique_ptr<Store>> make_stores(const StoreRules& rules, const Streams& streams,
                                                const PolicyRegistry& registry,
                                                std::size_t instances) {
  check(rules);
  const EvictionUnit unit = rules.pools.front().unit;
  if (has_entries(unit)) {
    return make_entry_stores(rules, streams, registry, instances);
  }
  return unit == EvictionUnit::node ? alone(make_node_store(rules, streams), instances)
                                    : make_extent_stores(rules, streams, instances);
}

std::vector<std::unique_ptr<Store>> make_reference_stores(const StoreRules& rules,
                                                          const Streams& streams,
                                                          const PolicyRegistry& registry,
                                                          std::size_t instances) {
  check(rules);
  const EvictionUnit unit = rules.pools.front().unit;
  if (has_entries(unit)) {
    return make_reference_entries(rules, streams, registry, instances);
  }
  return unit == EvictionUnit::node ? alone(make_reference_nodes(rules, streams), instances)
                                    : make_reference_blocks(rules, streams, instances);
}

std::unique_ptr<Store> make_store(const StoreRules& rules, const Streams& streams,
                                  const PolicyRegistry& registry) {
  return std::move(make_stores(rules, streams, registry, 1).front());
}

std::unique_ptr<Store> make_reference_store(const StoreRules& rules, const Streams& streams,
                                            const PolicyRegistry& registry) {
  return std::move(make_reference_stores(rules, streams, registry, 1).front());
}

}  // namespace kvtier
