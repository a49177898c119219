#include "sim/engine/store_rules.hpp"

#include <string>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/engine/pool.hpp"

namespace kvtier {
namespace {

/// Bytes of a tier where the system does not say how much of it is for blocks.
Bytes installed(const RunConfig& config, const std::string& name) {
  if (name == "hbm") {
    return config.system.tiers.hbm->capacity.value_or(kv_capacity(config.model, config.hardware));
  }
  return name == "dram"  ? config.hardware.dram->capacity
         : name == "cxl" ? config.hardware.cxl->capacity
                         : config.hardware.ssd->capacity;
}

}  // namespace

Medium medium_of(const std::string& name) {
  return name == "hbm"    ? Medium::hbm
         : name == "dram" ? Medium::dram
         : name == "cxl"  ? Medium::cxl
                          : Medium::ssd;
}

StoreRules store_rules(const RunConfig& config) {
  const BlocksConfig& blocks = *config.system.blocks;
  StoreRules rules;
  rules.bytes_per_token = kv_bytes_per_token(config.model);
  rules.hit_cap = blocks.longest_hit;
  rules.publication = blocks.found_from;
  rules.duplicates = blocks.duplicates;
  rules.keyless = blocks.keyless;
  rules.requests_in_first = config.system.tiers.hbm.has_value();
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
                   .admission = tier.admission.name,
                   .admission_parameters = tier.admission.parameters,
                   .ttl = tier.ttl,
                   .lease = of_blocks.lease,
                   .round = of_blocks.round,
                   .insertion = of_blocks.insertion,
                   .touch = of_blocks.touch,
                   .whole_need = blocks.whole_need,
                   .one_block_more = blocks.one_block_more};
    if (has_entries(pool.unit)) {
      pool.facts = tier_facts(config, medium_of(name));
    }
    if (pool.capacity == 0) {
      problems.add(std::string("/system/tiers/") + name + "/blocks/capacity",
                   fmt::format("expected at least one block of {}, got {}",
                               format_quantity(tier.block_size), format_kv_size(size)));
    }
    if (!rules.pools.empty()) {
      rules.edges.push_back({.write = of_blocks.after_uses                   ? Write::after_uses
                                      : tier.write == WriteMoment::on_create ? Write::with_compute
                                                                             : Write::on_eviction,
                             .uses = of_blocks.after_uses.value_or(2),
                             .exclusive = !tier.inclusive,
                             .no_room = of_blocks.no_room,
                             .promotes = of_blocks.promotes,
                             .prompts_only = of_blocks.prompts_only});
    }
    rules.pools.push_back(pool);
  });
  problems.throw_if_any();
  return rules;
}

}  // namespace kvtier
