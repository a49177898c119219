#include "sim/store/check_rules.hpp"

#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace kvtier {
namespace {

class Checks {
 public:
  Checks(const StoreRules& rules, const PolicyRegistry& registry, Problems& problems)
      : rules_(rules), registry_(registry), problems_(problems) {}

  void run() {
    check_store();
    for (std::size_t i = 0; i < rules_.pools.size(); ++i) {
      check_policies(i);
      check_blocks(i);
      if (i > 0) {
        check_edge(i);
      }
      if (rules_.requests_in_first) {
        check_behind_requests(i);
      }
      if (nodes_) {
        check_nodes(i);
      }
      check_size(i);
    }
  }

 private:
  void refuse(bool wrong, const std::string& pointer, const char* expected) {
    if (wrong) {
      problems_.add(pointer, fmt::format("expected {}", expected));
    }
  }
  void refuse(bool wrong, std::size_t pool, const std::string& key, const char* expected) {
    refuse(wrong, fmt::format("/system/tiers/{}/{}", rules_.pools[pool].name, key), expected);
  }

  // ---- Places of pools ----

  [[nodiscard]] bool is_second(std::size_t i) const { return rules_.requests_in_first && i == 1; }
  [[nodiscard]] bool is_third(std::size_t i) const { return rules_.requests_in_first && i > 1; }
  /// A node of the tree is in the first two pools.
  [[nodiscard]] bool is_tree(std::size_t i) const { return nodes_ && i < 2; }
  [[nodiscard]] bool is_offload_at(std::size_t i) const { return is_second(i) && offload_; }

  void check_store() {
    const std::size_t pools = rules_.pools.size();
    const bool in_first = rules_.requests_in_first;
    refuse(
        rules_.hit_cap_behind != HitCap::none && (nodes_ || !in_first || pools == 1 || victims_),
        "/system/blocks/longest_hit_behind",
        "prompt, but with a tier behind one of blocks in hbm that keeps its blocks when they are "
        "found");
    refuse(rules_.partial_reuse &&
               (!blocks_ || !in_first || rules_.keyless != Keyless::in_order ||
                rules_.duplicates != Duplicates::merged || (pools > 1 && !victims_)),
           "/system/blocks/partial_reuse",
           "false, but with a tier of blocks in hbm alone, or before one that has what leaves it, "
           "with keyless in_order and duplicates merged");
    refuse(victims_ && rules_.duplicates != Duplicates::merged, "/system/blocks/duplicates",
           "merged before a tier that has what leaves hbm");
    // The store gives loaded blocks to the request at once, and others would find them too early.
    refuse(victims_ && rules_.loads_alone, "/system/load/wait",
           "batch before a tier that has what leaves hbm: its blocks are found in hbm at once");
    refuse(victims_ && pools > 2, "/system/tiers", "one tier behind hbm that has what leaves it");
    refuse(nodes_ && !in_first, "/system/blocks/unit",
           "block, tail or sequence, since nodes need a tier in hbm");
    refuse(nodes_ && pools > 3, "/system/tiers", "at most two behind hbm for nodes");
    check_never();
    refuse(entries_ && rules_.duplicates == Duplicates::kept, "/system/blocks/duplicates",
           "merged for extents and sequences");
    refuse(entries_ && rules_.keyless == Keyless::in_order, "/system/blocks/keyless",
           "first for extents and sequences");
  }

  /// A first pool that keeps nothing.
  void check_never() {
    if (rules_.publication != Publication::never) {
      return;
    }
    const std::string pointer = "/system/blocks/found_from";
    refuse(!rules_.requests_in_first, pointer,
           "another moment than never without a tier in hbm: nothing would be stored");
    refuse(nodes_, pointer, "another moment than never for nodes, which are what requests publish");
    refuse(victims_, pointer,
           "another moment than never before a tier that has what leaves hbm: nothing would");
    refuse(rules_.keyless == Keyless::in_order, "/system/blocks/keyless",
           "first where hbm keeps nothing (found_from never): all of its blocks have no key");
  }

  void check_policies(std::size_t i) {
    const PoolRules& pool = rules_.pools[i];
    const auto* kind = find_policy(registry_.eviction, pool.eviction);
    refuse(kind != nullptr && kind->knowledge == Knowledge::oracle, i, "eviction",
           "a policy that does not know the future: which blocks are used next depends on the run");
    refuse(kind != nullptr && kind->knowledge == Knowledge::look_ahead && pool.shared, i,
           "eviction", "a policy that does not look ahead: each instance has a queue of its own");
    refuse(kind != nullptr && kind->parts_of_entries && pool.unit == EvictionUnit::sequence, i,
           "eviction", "a policy of whole entries for sequences");
  }

  /// Rules of blocks, and of the order in which they leave.
  void check_blocks(std::size_t i) {
    const PoolRules& pool = rules_.pools[i];
    refuse(!pool.retention.empty() &&
               (!blocks_ || pool.eviction != "lru" || is_offload_at(i) || filters_admission(pool)),
           i, "blocks/retention",
           "no ranges, but for blocks with lru and without an admission policy, and not where uses "
           "count at the end behind hbm");
    check_ranges(i);
    refuse(pool.idle && (i > 0 || !rules_.requests_in_first || nodes_ ||
                         rules_.publication == Publication::never),
           i, "blocks/idle", "\"none\", but for blocks, tails and sequences that hbm keeps");
    refuse(pool.idle && victims_ &&
               (rules_.partial_reuse || pool.ttl || rules_.keyless != Keyless::first),
           i, "blocks/idle",
           "\"none\" before a tier that has what leaves hbm, but without ttl in hbm and "
           "partial_reuse, and with keyless first");
    refuse(pool.leaves_only && !blocks_, i, "blocks/leaves_only", "false, but for blocks");
    refuse(pool.relief && nodes_, i, "blocks/relief", "\"none\" for nodes");
    if (pool.relief && !pool.relief->in_background) {
      refuse(i == 0 || !rules_.requests_in_first || victims_ || is_offload_at(i), i,
             "blocks/relief/in_background",
             "true, but behind a tier of blocks in hbm where uses count at the look-up");
      refuse(is_third(i) && (offload_ || rules_.edges[i - 1].write != Write::on_create), i,
             "blocks/relief/in_background",
             "true, but for a tier that is written on_create behind one where uses count at the "
             "look-up");
    }
    refuse(
        pool.allocation == Allocation::write &&
            (nodes_ || (rules_.requests_in_first ? !is_second(i) || victims_ || offload_ : i > 0)),
        i, "blocks/allocation",
        "per_block, but in the first tier without one in hbm, or in the tier behind "
        "hbm where uses count at the look-up");
    refuse(!pool.lease_newcomers && pool.lease.ns == 0, i, "blocks/lease_newcomers",
           "true without a lease");
  }

  void check_ranges(std::size_t i) {
    std::int64_t end = 0;
    const std::vector<Retention>& ranges = rules_.pools[i].retention;
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      const bool in_order = ranges[r].from.value >= end && end >= 0 &&
                            (!ranges[r].to || ranges[r].to->value > ranges[r].from.value);
      refuse(!in_order, i, fmt::format("blocks/retention/{}", r),
             "a range that begins where the one before ends, or later, and is not empty");
      end = ranges[r].to ? ranges[r].to->value : -1;
    }
  }

  void check_edge(std::size_t i) {
    const EdgeRules& edge = rules_.edges[i - 1];
    refuse(edge.least_priority > 0 && (edge.write != Write::on_evict || !blocks_), i,
           "blocks/least_priority",
           "0, but for blocks that are written when they leave the tier above");
    refuse(edge.frequency &&
               (nodes_ || !is_third(i) || edge.exclusive || edge.write != Write::on_create),
           i, "blocks/frequency",
           "\"none\", but for an inclusive tier behind two others from hbm on, written on_create");
    refuse(edge.least_load.value > 0 && !nodes_, i, "blocks/least_load", "0, but behind nodes");
    refuse(edge.ahead > 0 && (!is_second(i) || !victims_ || rules_.partial_reuse ||
                              rules_.pools[0].ttl || rules_.keyless != Keyless::first),
           i, "blocks/ahead",
           "0, but for a tier that has what leaves hbm, without ttl in hbm and partial_reuse, and "
           "with keyless first");
    refuse(edge.most_in_flight < 1 && (!nodes_ || i < 2), i, "blocks/most_in_flight",
           "1, but for the storage behind nodes");
  }

  /// Pools of requests, and those behind them.
  void check_behind_requests(std::size_t i) {
    const PoolRules& pool = rules_.pools[i];
    if (i == 0) {
      refuse(pool.lease.ns > 0, i, "blocks/lease", "0s in hbm, whose blocks requests need");
      refuse(pool.touch == Touch::lookup, i, "blocks/touch",
             "end: running requests hold what they find");
    }
    if (i != 1) {
      return;
    }
    const EdgeRules& edge = rules_.edges[0];
    if (victims_) {
      refuse(edge.write == Write::on_create, i, "inclusive",
             "true behind a tier of blocks in hbm, but with write on_evict");
      refuse(edge.write == Write::after_uses, i, "blocks/after_uses",
             "\"none\" for a tier that has what leaves hbm");
      refuse(pool.touch == Touch::lookup, i, "blocks/touch",
             "end for a tier that has what leaves hbm: what is found leaves it");
      refuse(!edge.promotes, i, "blocks/promotes", "true for a tier that has what leaves hbm");
      return;
    }
    refuse(edge.write == Write::on_evict && !nodes_, i, "write",
           "on_create behind a tier of blocks in hbm");
    refuse(edge.exclusive, i, "inclusive", "true behind a tier of blocks in hbm");
    refuse(edge.write == Write::after_uses && pool.touch == Touch::lookup, i, "blocks/after_uses",
           "\"none\" where look-ups are uses");
  }

  void check_nodes(std::size_t i) {
    const PoolRules& pool = rules_.pools[i];
    if (is_tree(i)) {
      refuse(pool.ttl.has_value(), i, "ttl", "\"none\" for nodes");
      refuse(i > 0 && pool.lease.ns > 0, i, "blocks/lease", "0s for nodes");
      refuse(pool.round > 1, i, "blocks/round", "1 for nodes");
    }
    if (i == 0) {
      return;
    }
    const EdgeRules& edge = rules_.edges[i - 1];
    refuse(!edge.promotes, i, "blocks/promotes", "true for nodes");
    if (i > 1) {
      refuse(edge.write == Write::on_evict, i, "write", "on_create for the storage behind nodes");
      refuse(edge.write == Write::after_uses, i, "blocks/after_uses",
             "\"none\" for the storage behind nodes");
      refuse(edge.exclusive, i, "inclusive", "true for the storage behind nodes");
    }
  }

  void check_size(std::size_t i) {
    if (i == 0) {
      return;
    }
    const Tokens block = rules_.pools[i].block;
    const Tokens above = rules_.pools[i - 1].block;
    if (is_second(i) && !nodes_ && !victims_) {
      refuse(block.value % above.value != 0, i, "block_size", "a multiple of that of hbm");
    } else {
      refuse(block != above, i, "block_size",
             is_third(i) ? "that of the tier above" : "that of the fastest tier");
    }
  }

  const StoreRules& rules_;
  const PolicyRegistry& registry_;
  Problems& problems_;
  bool blocks_ = rules_.pools.front().unit == EvictionUnit::block;
  bool nodes_ = rules_.pools.front().unit == EvictionUnit::node;
  bool entries_ = has_entries(rules_.pools.front().unit);
  bool victims_ = has_victims_behind(rules_);
  bool offload_ = is_offload(rules_);
};

}  // namespace

void check_rules(const StoreRules& rules, const PolicyRegistry& registry, Problems& problems) {
  Checks(rules, registry, problems).run();
}

}  // namespace kvtier
