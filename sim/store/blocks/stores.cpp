#include "sim/store/blocks/stores.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/blocks/entry_store.hpp"
#include "sim/store/blocks/extent_store.hpp"
#include "sim/store/blocks/node_store.hpp"
#include "sim/store/reference/reference_store.hpp"

namespace kvtier {
namespace {

void check_nodes(const StoreRules& rules) {
  const auto& [first, pools, edges] = std::tie(rules.pools.front(), rules.pools, rules.edges);
  KVTIER_ASSERT(rules.requests_in_first && pools.size() <= 3,
                "running requests share nodes, which are in three pools at most");
  KVTIER_ASSERT(pools.size() < 2 || (pools[1].unit == EvictionUnit::node && !pools[1].shared &&
                                     pools[1].eviction == first.eviction &&
                                     (first.eviction == "lru" || first.eviction == "lfu")),
                "one order, lru or lfu, chooses the nodes that leave both pools");
  for (std::size_t i = 0; i < std::min<std::size_t>(pools.size(), 2); ++i) {
    KVTIER_ASSERT(!pools[i].ttl && pools[i].lease.ns == 0, "nodes have no age");
  }
  KVTIER_ASSERT(pools.size() < 3 ||
                    (pools[2].unit == EvictionUnit::block && edges[1].write == Write::with_compute),
                "storage behind nodes has blocks, and takes all that comes into the second pool");
  for (const EdgeRules& edge : edges) {
    KVTIER_ASSERT(!edge.exclusive && edge.promotes && !edge.prompts_only,
                  "nodes keep their copies, are loaded, and may be of responses");
  }
}

/// Rules that only some stores of blocks have.
void check_rules_of_blocks(const StoreRules& rules) {
  const bool blocks = rules.pools.front().unit == EvictionUnit::block;
  for (const PoolRules& pool : rules.pools) {
    KVTIER_ASSERT(pool.retention.empty() || (blocks && pool.eviction == "lru"),
                  "lru chooses among blocks of one priority");
    KVTIER_ASSERT(!pool.leaves_only || (blocks && pool.eviction != "arc"),
                  "blocks leave behind those that follow them");
    KVTIER_ASSERT(!pool.relief || blocks, "blocks leave before a pool is full");
  }
  for (std::size_t i = 0; i < rules.edges.size(); ++i) {
    KVTIER_ASSERT(!rules.edges[i].frequency ||
                      (blocks && i > 0 && rules.edges[i].write == Write::with_compute &&
                       !rules.edges[i].exclusive),
                  "blocks that come into a pool behind the first one are counted");
    KVTIER_ASSERT(!rules.edges[i].timed || (blocks && rules.requests_in_first),
                  "moves of blocks behind running requests take time");
  }
  for (std::size_t i = 0; i < rules.pools.size(); ++i) {
    KVTIER_ASSERT(rules.pools[i].allocation == Allocation::block ||
                      (blocks && (rules.requests_in_first
                                      ? i == 1 && !is_offload(rules) && !has_victims_behind(rules)
                                      : i == 0)),
                  "requests write blocks themselves where a write takes memory at once");
  }
  KVTIER_ASSERT(!is_offload(rules) || rules.pools[1].retention.empty(),
                "an offload has one order for all blocks");
  const bool victims_behind = has_victims_behind(rules);
  KVTIER_ASSERT(
      !rules.partial_reuse ||
          (blocks && rules.requests_in_first && rules.keyless == Keyless::in_order &&
           rules.duplicates == Duplicates::merged && (rules.pools.size() == 1 || victims_behind)),
      "parts of blocks are reused in the first pool");
  KVTIER_ASSERT(
      !victims_behind || (rules.pools.size() == 2 && rules.edges[0].write == Write::on_eviction &&
                          rules.duplicates == Duplicates::merged && !rules.pools[1].shared &&
                          rules.pools[1].block == rules.pools[0].block),
      "one pool has what the first one evicts");
}

void check(const StoreRules& rules) {
  const PoolRules& first = rules.pools.front();
  KVTIER_ASSERT(rules.edges.size() + 1 == rules.pools.size(), "an edge joins two pools");
  const bool larger_behind = rules.requests_in_first && first.unit == EvictionUnit::block;
  const bool nodes = first.unit == EvictionUnit::node;
  const bool one_kind =
      std::all_of(rules.pools.begin(), rules.pools.end(), [&](const PoolRules& pool) {
        return pool.unit == first.unit || (has_entries(pool.unit) && has_entries(first.unit));
      });
  KVTIER_ASSERT(one_kind || nodes, "all pools have one kind of unit");
  KVTIER_ASSERT(std::all_of(rules.pools.begin() + 1, rules.pools.end(),
                            [&](const PoolRules& pool) {
                              return pool.block == rules.pools[1].block &&
                                     pool.block.value % first.block.value == 0 &&
                                     (larger_behind || pool.block == first.block);
                            }),
                "all pools have blocks of one size, or of several of the first one's");
  KVTIER_ASSERT(!rules.requests_in_first || has_entries(first.unit) || nodes ||
                    rules.edges.empty() ||
                    (rules.edges[0].write == Write::on_eviction) == rules.edges[0].exclusive,
                "behind a pool with running requests is one that is written with compute, or one "
                "that has what leaves");
  KVTIER_ASSERT(!rules.requests_in_first || !first.shared,
                "requests run in a pool of their instance");
  if (nodes) {
    check_nodes(rules);
  }
  check_rules_of_blocks(rules);
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
  return unit == EvictionUnit::node ? make_node_stores(rules, streams, instances)
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
  return unit == EvictionUnit::node ? make_reference_nodes(rules, streams, instances)
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
