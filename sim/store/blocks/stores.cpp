#include "sim/store/blocks/stores.hpp"

#include <utility>

#include "sim/core/assert.hpp"
#include "sim/store/blocks/extent_store.hpp"
#include "sim/store/blocks/node_store.hpp"
#include "sim/store/check_rules.hpp"
#include "sim/store/reference/reference_store.hpp"

namespace kvtier {
namespace {

void check(const StoreRules& rules, const PolicyRegistry& registry) {
  KVTIER_ASSERT(rules.edges.size() + 1 == rules.pools.size(), "an edge joins two pools");
  const PoolRules& first = rules.pools.front();
  for (std::size_t i = 1; i < rules.pools.size(); ++i) {
    const bool is_storage = i == 2 && first.unit == EvictionUnit::node;
    const EvictionUnit unit = rules.pools[i].unit;
    KVTIER_ASSERT(is_storage ? unit == EvictionUnit::block
                             : unit == first.unit || (has_entries(unit) && has_entries(first.unit)),
                  "all pools have one kind of unit, and storage behind nodes has blocks");
    KVTIER_ASSERT(
        !rules.edges[i - 1].timed || (first.unit != EvictionUnit::node && rules.requests_in_first),
        "copies of blocks behind running requests take time");
  }
  KVTIER_ASSERT(!rules.requests_in_first || !first.shared,
                "requests run in a pool of their instance");
  KVTIER_ASSERT(rules.pools.size() < 2 || !rules.pools[1].shared ||
                    (first.unit != EvictionUnit::node && !has_victims_behind(rules)),
                "one instance has the nodes or the victims behind its first pool");
  Problems problems;
  check_rules(rules, registry, problems);
  KVTIER_ASSERT(problems.empty(), problems.empty() ? "" : problems.lines().front().c_str());
}

/// Policies of a first pool that keeps nothing have nothing to choose: they are not made.
StoreRules in_use(StoreRules rules) {
  if (rules.requests_in_first && rules.publication == Publication::never) {
    rules.pools.front().eviction = "lru";
    rules.pools.front().eviction_parameters.clear();
    rules.pools.front().admission = kAlwaysAdmitted;
    rules.pools.front().admission_parameters.clear();
    rules.pools.front().unit =
        has_entries(rules.pools.front().unit) ? EvictionUnit::block : rules.pools.front().unit;
  }
  return rules;
}

}  // namespace

void Store::cut(StreamId, Tokens, Tokens) {
  KVTIER_ASSERT(false, "the store keeps no KV behind cuts");
}
void Store::abandon(RequestId) { KVTIER_ASSERT(false, "only nodes are not published"); }
void Store::make_empty(std::int64_t) { KVTIER_ASSERT(false, "only nodes leave without a request"); }
Match Store::refresh(const Context& context) { return match(context); }

std::vector<std::unique_ptr<Store>> make_stores(const StoreRules& rules, const Streams& streams,
                                                const PolicyRegistry& registry,
                                                std::size_t instances) {
  check(rules, registry);
  const EvictionUnit unit = rules.pools.front().unit;
  return unit == EvictionUnit::node
             ? make_node_stores(rules, streams, registry, instances)
             : make_extent_stores(in_use(rules), streams, registry, instances);
}

std::vector<std::unique_ptr<Store>> make_reference_stores(const StoreRules& rules,
                                                          const Streams& streams,
                                                          const PolicyRegistry& registry,
                                                          std::size_t instances) {
  check(rules, registry);
  const EvictionUnit unit = rules.pools.front().unit;
  return unit == EvictionUnit::node
             ? make_reference_nodes(rules, streams, registry, instances)
             : make_reference_blocks(in_use(rules), streams, registry, instances);
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
