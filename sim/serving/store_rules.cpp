#include "sim/serving/store_rules.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "hw/profile/profile_timing.hpp"
#include "sim/core/errors.hpp"
#include "sim/serving/prompt_prefill.hpp"

namespace kvtier {
namespace {

/// Bytes of a tier where the system does not say how much of it is for blocks.
Bytes installed(const RunConfig& config, const std::string& name) {
  if (name == "hbm") {
    return config.system.tiers.hbm->capacity.value_or(running_kv_capacity(config));
  }
  return name == "dram"  ? config.hardware.dram->capacity
         : name == "cxl" ? config.hardware.cxl->capacity
                         : config.hardware.ssd->capacity;
}

/// Blocks that leave at once: those of a bucket, as many as fit in one.
std::int64_t round_of(const BlockTierConfig& blocks, Tokens block, Bytes bytes_per_token) {
  if (!blocks.bucket) {
    return blocks.pool.round;
  }
  const std::int64_t fit = blocks.bucket->size.value / (bytes_per_token * block.value).value;
  return std::max<std::int64_t>(1, std::min(fit, blocks.bucket->blocks));
}

bool reserves_windows(const RunConfig& config, const StoreRules& rules, const PoolRules& pool) {
  const bool is_for_requests = rules.requests_in_first && &pool == &rules.pools.front();
  return (!is_for_requests || pool.idle) &&
         config.serving.kv_reservation == Reservation::context_window &&
         pool.unit == EvictionUnit::sequence && pool.allocation == Allocation::block &&
         !is_offload(rules);
}

}  // namespace

Medium medium_of(const std::string& name) {
  return name == "hbm"    ? Medium::hbm
         : name == "dram" ? Medium::dram
         : name == "cxl"  ? Medium::cxl
                          : Medium::ssd;
}

StoreFacts store_facts(const RunConfig& config) {
  const HardwareConfig& hardware = config.hardware;
  StoreFacts facts{.topology = server_topology(hardware),
                   .tiers = config.system.tiers,
                   .hbm = hbm_shares(config),
                   .bytes_per_token = stored_kv_bytes_per_token(config),
                   .prefetch = config.system.prefetch,
                   .save = config.system.save.mode};
  const auto install = [&](Medium medium, const auto& memory) {
    if (memory) {
      facts.capacity[static_cast<std::size_t>(medium)] = memory->capacity;
    }
  };
  install(Medium::dram, hardware.dram);
  install(Medium::cxl, hardware.cxl);
  install(Medium::ssd, hardware.ssd);
  if (config.serving.kv_reservation == Reservation::context_window) {
    facts.window_account = facts.bytes_per_token * config.model.context_window.value;
  }
  // Few policies ask, so the timing model is made when one does.
  facts.recompute = [&config, timing = std::shared_ptr<TimingModel>()](Tokens tokens) mutable {
    if (timing == nullptr) {
      timing = make_timing(config.model, config.hardware, config.system.positions,
                           config.serving.slots, config.system.engine);
    }
    return prompt_prefill(config, *timing, tokens).time;
  };
  return facts;
}

StoreRules rules_of(const RunConfig& config) {
  const BlocksConfig& blocks = *config.system.blocks;
  StoreRules rules;
  static_cast<SharingRules&>(rules) = blocks;
  rules.requests_in_first = config.system.tiers.hbm.has_value();
  rules.loads_alone = load_wait(config.system) == LoadWait::request;
  for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
    const BlockTierConfig of_blocks = tier.blocks.value_or(BlockTierConfig{});
    PoolRules pool = of_blocks.pool;
    pool.name = name;
    pool.block = tier.block_size;
    pool.unit = blocks.unit;
    pool.eviction = tier.eviction.name;
    pool.eviction_parameters = tier.eviction.parameters;
    pool.admission = tier.admission.name;
    pool.admission_parameters = tier.admission.parameters;
    pool.ttl = tier.ttl;
    pool.shared = is_shared(config, name);
    if (of_blocks.idle) {
      pool.idle = 0;  // its blocks are counted when their size is known
    }
    if (pool.unit == EvictionUnit::node && rules.pools.size() == 2) {
      // Storage keeps the pages of nodes, each by itself.
      pool.unit = EvictionUnit::block;
    }
    if (!rules.pools.empty()) {
      EdgeRules edge = of_blocks.edge;
      edge.write = of_blocks.after_uses                   ? Write::after_uses
                   : tier.write == WriteMoment::on_create ? Write::on_create
                                                          : Write::on_evict;
      edge.uses = of_blocks.after_uses.value_or(edge.uses);
      edge.exclusive = !tier.inclusive;
      rules.edges.push_back(edge);
    }
    rules.pools.push_back(pool);
  });
  return rules;
}

bool keeps_kv_behind_cuts(const RunConfig& config, SessionSource& source) {
  return config.system.positions == KeyPositions::decoupled && source.streams() == nullptr &&
         keeps_kv_behind_cuts(rules_of(config));
}

StoreRules store_rules(const RunConfig& config) {
  StoreRules rules = rules_of(config);
  rules.bytes_per_token = kv_bytes_per_token(config.model);
  const Bytes behind = stored_kv_bytes_per_token(config);
  Problems problems;
  std::size_t i = 0;
  for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
    PoolRules& pool = rules.pools[i++];
    const BlockTierConfig of_blocks = tier.blocks.value_or(BlockTierConfig{});
    const KvSize size = of_blocks.capacity.value_or(
        KvSize{KvSize::Unit::bytes, of_blocks.capacity ? 0 : installed(config, name).value});
    const bool own = pool.shared && config.cluster.shared->capacity;
    const KvSize wanted = own ? *config.cluster.shared->capacity : size;
    const Bytes bytes = medium_of(name) == Medium::hbm ? rules.bytes_per_token : behind;
    pool.capacity =
        blocks_of(wanted, pool.block, bytes) * (pool.shared && !own ? config.cluster.instances : 1);
    if (of_blocks.idle) {
      pool.idle = blocks_of(*of_blocks.idle, pool.block, bytes);
    }
    if (reserves_windows(config, rules, pool)) {
      pool.reserved = (config.model.context_window.value + pool.block.value - 1) / pool.block.value;
    }
    pool.round = round_of(of_blocks, pool.block, bytes);
    pool.facts = tier_facts(store_facts(config), medium_of(name));
    if (pool.capacity == 0) {
      problems.add(own ? std::string("/cluster/shared/capacity")
                       : fmt::format("/system/tiers/{}/blocks/capacity", name),
                   fmt::format("expected at least one block of {}, got {}",
                               format_quantity(pool.block), format_kv_size(wanted)));
    }
  });
  problems.throw_if_any();
  return rules;
}

StoreRules timed_store_rules(const RunConfig& config) {
  StoreRules rules = store_rules(config);
  const bool nodes = rules.pools.front().unit == EvictionUnit::node;
  for (EdgeRules& edge : rules.edges) {
    edge.timed = !nodes && rules.requests_in_first;
  }
  if (!rules.edges.empty()) {
    rules.edges.front().stalls = config.system.save.mode == SaveMode::blocking;
  }
  return rules;
}

Bytes shared_capacity(const RunConfig& config) {
  const StoreRules rules = store_rules(config);
  const PoolRules& shared = rules.pools.back();
  return stored_kv_bytes_per_token(config) * shared.block.value * shared.capacity;
}

}  // namespace kvtier
