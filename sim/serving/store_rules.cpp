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
    return config.system.tiers.hbm->capacity.value_or(kv_room(config));
  }
  return name == "dram"  ? config.hardware.dram->capacity
         : name == "cxl" ? config.hardware.cxl->capacity
                         : config.hardware.ssd->capacity;
}

/// Blocks that leave at once: those of a bucket, as many as fit in one.
std::int64_t round_of(const BlockTierConfig& blocks, Tokens block, Bytes bytes_per_token) {
  if (!blocks.bucket) {
    return blocks.round;
  }
  const std::int64_t fit = blocks.bucket->size.value / (bytes_per_token * block.value).value;
  return std::max<std::int64_t>(1, std::min(fit, blocks.bucket->blocks));
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
  if (const auto& paging = config.system.paging) {
    facts.splits = true;
    facts.loads_first = paging->swap_in_first;
    if (facts.hbm.is_shared) {
      const Bytes block = kv_bytes_per_token(config.model) * paging->block_size.value;
      const std::int64_t blocks = facts.hbm.capacity / block;
      facts.hbm.capacity = block * blocks;
      facts.saved_ahead =
          block * static_cast<std::int64_t>(static_cast<double>(blocks) * paging->swap_out_below);
    }
  }
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

StoreRules store_rules(const RunConfig& config) {
  const BlocksConfig& blocks = *config.system.blocks;
  StoreRules rules;
  rules.bytes_per_token = kv_bytes_per_token(config.model);
  rules.hit_cap = blocks.longest_hit;
  rules.hit_cap_behind = blocks.longest_hit_behind;
  rules.partial_reuse = blocks.partial_reuse;
  rules.publication = blocks.found_from;
  rules.duplicates = blocks.duplicates;
  rules.keyless = blocks.keyless;
  rules.requests_in_first = config.system.tiers.hbm.has_value();
  rules.loads_alone = load_wait(config.system) == LoadWait::request;
  Problems problems;
  for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
    const BlockTierConfig of_blocks = tier.blocks.value_or(BlockTierConfig{});
    const KvSize size = of_blocks.capacity.value_or(
        KvSize{KvSize::Unit::bytes, of_blocks.capacity ? 0 : installed(config, name).value});
    PoolRules pool{.name = name,
                   .capacity = blocks_of(size, tier.block_size, kv_bytes_per_token(config.model)),
                   .block = tier.block_size,
                   .unit = blocks.unit,
                   .eviction = tier.eviction.name,
                   .eviction_parameters = tier.eviction.parameters,
                   .retention = of_blocks.retention,
                   .leaves_only = of_blocks.leaves_only,
                   .relief = of_blocks.relief,
                   .admission = tier.admission.name,
                   .admission_parameters = tier.admission.parameters,
                   .ttl = tier.ttl,
                   .lease = of_blocks.lease,
                   .lease_newcomers = of_blocks.lease_newcomers,
                   .round = round_of(of_blocks, tier.block_size, rules.bytes_per_token),
                   .shared = is_shared(config, name),
                   .insertion = of_blocks.insertion,
                   .touch = of_blocks.touch,
                   .allocation = of_blocks.allocation,
                   .whole_need = blocks.whole_need,
                   .one_block_more = blocks.one_block_more};
    if (pool.shared) {
      const std::optional<KvSize>& own = config.cluster.shared->capacity;
      pool.capacity = own ? blocks_of(*own, tier.block_size, rules.bytes_per_token)
                          : pool.capacity * config.cluster.instances;
    }
    if (has_entries(pool.unit)) {
      pool.facts = tier_facts(store_facts(config), medium_of(name));
    }
    if (pool.capacity == 0) {
      const bool of_cluster = pool.shared && config.cluster.shared->capacity;
      problems.add(
          of_cluster ? std::string("/cluster/shared/capacity")
                     : std::string("/system/tiers/") + name + "/blocks/capacity",
          fmt::format("expected at least one block of {}, got {}", format_quantity(tier.block_size),
                      format_kv_size(of_cluster ? *config.cluster.shared->capacity : size)));
    }
    if (!rules.pools.empty()) {
      rules.edges.push_back(
          {.write = of_blocks.after_uses                   ? Write::after_uses
                    : tier.write == WriteMoment::on_create ? Write::with_compute
                                                           : Write::on_eviction,
           .uses = of_blocks.after_uses.value_or(2),
           .frequency = of_blocks.frequency,
           .least_priority = of_blocks.least_priority,
           .exclusive = !tier.inclusive,
           .no_room = of_blocks.no_room,
           .promotes = of_blocks.promotes,
           .prompts_only = of_blocks.prompts_only && blocks.unit != EvictionUnit::node,
           .least_load = of_blocks.least_load,
           .most_in_flight = of_blocks.most_in_flight});
    }
    if (pool.unit == EvictionUnit::node && rules.pools.size() == 2) {
      // Storage keeps the pages of nodes, each by itself.
      pool.unit = EvictionUnit::block;
    }
    rules.pools.push_back(pool);
  });
  problems.throw_if_any();
  return rules;
}

StoreRules timed_store_rules(const RunConfig& config) {
  StoreRules rules = store_rules(config);
  const bool blocks = rules.pools.front().unit == EvictionUnit::block;
  for (EdgeRules& edge : rules.edges) {
    edge.timed = blocks && rules.requests_in_first;
  }
  if (!rules.edges.empty()) {
    rules.edges.front().stalls = config.system.save.mode == SaveMode::blocking;
  }
  return rules;
}

Bytes shared_capacity(const RunConfig& config) {
  const StoreRules rules = store_rules(config);
  const PoolRules& shared = rules.pools.back();
  return rules.bytes_per_token * shared.block.value * shared.capacity;
}

}  // namespace kvtier
