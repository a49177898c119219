#include "sim/serving/config.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "hw/profile/described_gpu.hpp"
#include "hw/profile/profile_timing.hpp"
#include "sim/backend/backend.hpp"
#include "sim/core/text.hpp"
#include "sim/policy/routing.hpp"
#include "sim/serving/read_buffer.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/check_rules.hpp"

namespace kvtier {
namespace {

template <class Interface>
void check_policy(const PolicyChoice& choice, const std::vector<PolicyKind<Interface>>& kinds,
                  OfferedKnowledge offered, const std::string& pointer, Problems& problems) {
  const PolicyKind<Interface>* kind = find_policy(kinds, choice.name);
  if (kind == nullptr) {
    std::vector<std::string> names;
    for (const auto& known : kinds) {
      names.push_back(known.name);
    }
    problems.add(pointer, fmt::format("expected one of {}, got {}{}", fmt::join(names, ", "),
                                      quote_text(choice.name), suggestion(choice.name, names)));
    return;
  }
  std::vector<std::string> known;
  for (const PolicyParameter& parameter : kind->parameters) {
    known.push_back(parameter.name);
    const auto given = choice.parameters.find(parameter.name);
    if (given != choice.parameters.end() &&
        (given->second < parameter.minimum || given->second > parameter.maximum)) {
      problems.add(pointer + "/" + parameter.name,
                   fmt::format("expected {} from {} to {}, got {}", parameter.unit,
                               parameter.minimum, parameter.maximum, given->second));
    }
  }
  for (const auto& [name, value] : choice.parameters) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      problems.add(
          pointer + "/" + escape_pointer(name),
          fmt::format("policy {} has no such parameter{}", choice.name, suggestion(name, known)));
    }
  }
  if (kind->knowledge == Knowledge::look_ahead && offered == OfferedKnowledge::online) {
    problems.add(
        pointer,
        fmt::format("policy {} needs look_ahead knowledge, but /serving/knowledge offers online",
                    choice.name));
  }
}

void check_tier(const RunConfig& config, const TierConfig& tier, Bytes capacity,
                const std::string& pointer, Problems& problems) {
  if (capacity.value > 0 && tier.free_buffer >= capacity) {
    problems.add(pointer + "/free_buffer",
                 fmt::format("expected less than the capacity, {}, got {}",
                             format_quantity(capacity), format_quantity(tier.free_buffer)));
  }
  if (tier.block_size > config.model.context_window) {
    problems.add(pointer + "/block_size",
                 fmt::format("expected at most the context window, {}, got {}",
                             format_quantity(config.model.context_window),
                             format_quantity(tier.block_size)));
  }
  const Bytes window = stored_kv_bytes_per_token(config) * config.model.context_window.value;
  if (config.serving.kv_reservation == Reservation::context_window && window > capacity) {
    problems.add(
        pointer,
        fmt::format("one reserved context window takes {} bytes, more than the capacity, {}",
                    window.value, format_quantity(capacity)));
  }
}

/// A state cannot be made from KV: a stored context without it is of no use.
void check_resuming(const RunConfig& config, Problems& problems) {
  const ModelConfig& model = config.model;
  if (config.system.tiers.count() > 0 && model.state && !model.resume_every) {
    problems.add("/model/resume_every",
                 "expected the distance of stored states, such as \"4096tokens\": the model has "
                 "state layers, and the system stores KV, got \"none\"");
  }
  if (kv_bytes_per_token(model).value == 0) {
    problems.add("/model/attention",
                 "expected a layer that keeps tokens, or /model/resume_every: the model has no KV");
  }
  if (model.resume_every && *model.resume_every > model.context_window) {
    problems.add(
        "/model/resume_every",
        fmt::format("expected at most the context window, {}, got {}",
                    format_quantity(model.context_window), format_quantity(*model.resume_every)));
  }
}

void check_compression(const SystemConfig& system, Problems& problems) {
  if (!system.compression) {
    return;
  }
  if (system.tiers.count() == 0) {
    problems.add("/system/compression", "the system stores no KV, expected \"none\"");
  }
  if (system.compression->sparsity.empty()) {
    problems.add("/system/compression/sparsity", "expected at least one number");
  }
}

/// Batching and HBM of a system of sessions.
void check_batching(const SystemConfig& system, Problems& problems) {
  if (system.blocks) {
    return;
  }
  if (system.batching != Batching::prefill_first) {
    problems.add("/system/blocks", fmt::format("batching {} needs KV in blocks, got \"none\"",
                                               write_value(system.batching).get<std::string>()));
  }
  if (system.tiers.hbm && !system.tiers.hbm->capacity) {
    problems.add("/system/tiers/hbm/capacity", "expected a size without /system/blocks");
  }
}

/// A system of blocks uses what a store of them has, and nothing of the others.
void check_blocks(const RunConfig& config, const PolicyRegistry& registry, Problems& problems) {
  const SystemConfig& system = config.system;
  if (!system.blocks) {
    for_each_tier(system.tiers, [&](const char* name, const TierConfig& tier) {
      const std::string pointer = std::string("/system/tiers/") + name;
      if (tier.blocks) {
        problems.add(pointer + "/blocks", "expected \"none\" without /system/blocks");
      }
      const auto* kind = find_policy(registry.eviction, tier.eviction.name);
      if (kind != nullptr && kind->parts_of_entries) {
        problems.add(pointer + "/eviction",
                     fmt::format("expected a policy of whole entries: {} evicts parts of entries, "
                                 "which needs /system/blocks with unit tail",
                                 kind->name));
      }
    });
    if (stores_sessions(system) && generates_names(config.workload)) {
      problems.add(
          config.workload.mix.empty() ? "/workload/generator" : "/workload/mix",
          "its requests share blocks, which only a system of blocks (/system/blocks) finds");
    }
    return;
  }
  const auto refuse = [&](bool wrong, const std::string& pointer, const char* expected) {
    if (wrong) {
      problems.add(pointer, fmt::format("expected {}", expected));
    }
  };
  refuse(system.tiers.count() == 0, "/system/tiers", "at least one tier with /system/blocks");
  refuse(system.sharing != Sharing::none, "/system/sharing",
         "\"none\" with /system/blocks, which are shared anyway");
  refuse(system.compression && system.tiers.hbm && system.tiers.count() == 1, "/system/compression",
         "\"none\" without a tier behind hbm, where blocks are not compressed");
  refuse(system.prefetch.name != kNoPrefetch && !prefetches_to(rules_of(config)),
         "/system/prefetch",
         "none with /system/blocks, but for blocks, tails and sequences with a tier in hbm and "
         "either one behind it, if hbm keeps what it has (found_from), or two, of which the first "
         "keeps its blocks when they are found");
  refuse(system.blocks->partial_blocks && generates_names(config.workload),
         "/system/blocks/partial_blocks", "false, but for a trace that names its blocks");
  refuse(system.blocks->partial_blocks && system.blocks->responses, "/system/blocks/responses",
         "false where partial blocks have keys");
  if (system.blocks->unit == EvictionUnit::node && system.tiers.count() == 3 &&
      system.batching == Batching::separate) {
    refuse(system.order.name != "fcfs" && system.order.name != "longest_prefix", "/system/order",
           "fcfs or longest_prefix where requests are passed over while KV is fetched");
  }
  const bool is_tree = system.blocks->unit == EvictionUnit::node;
  refuse(system.blocks->whole_response &&
             (!system.tiers.hbm || (is_tree && system.batching == Batching::separate)),
         "/system/blocks/whole_response",
         "false, but with a tier in hbm and not for nodes with batching separate");
  const bool is_unified = system.batching == Batching::unified && system.tiers.hbm;
  refuse(system.blocks->delays_duplicates &&
             (!is_unified || system.blocks->publication != Publication::computed),
         "/system/blocks/delays_duplicates",
         "false, but with batching unified, a tier in hbm and found_from computed");
  refuse(system.blocks->whole_prompts && is_tree && system.batching == Batching::separate,
         "/system/blocks/whole_prompts", "false for nodes with batching separate");
  refuse(system.blocks->whole_prompts && system.blocks->chunk.has_value(), "/system/blocks/chunk",
         "\"none\" with whole_prompts");
  bool first = true;
  for_each_tier(system.tiers, [&](const char* name, const TierConfig& tier) {
    const std::string pointer = std::string("/system/tiers/") + name;
    const BlockTierConfig blocks = tier.blocks.value_or(BlockTierConfig{});
    refuse(tier.free_buffer.value != 0, pointer + "/free_buffer", "0B with /system/blocks");
    refuse(blocks.bucket && (system.blocks->unit != EvictionUnit::block ||
                             tier.eviction.name != "fifo" || blocks.pool.round != 1),
           pointer + "/blocks/bucket",
           "\"none\", but for blocks with fifo, in whose order buckets fill, and without a round");
    if (first) {
      refuse(blocks.after_uses.has_value(), pointer + "/blocks/after_uses",
             "\"none\" for the fastest tier: nothing is above it");
      const Json defaults = write_value(EdgeRules{});
      const Json set = write_value(blocks.edge);
      for (const auto& [key, value] : set.items()) {
        refuse(value != defaults[key], fmt::format("{}/blocks/{}", pointer, key),
               "its default for the fastest tier: nothing is above it");
      }
    }
    first = false;
  });
  if (system.tiers.count() > 0) {
    check_rules(rules_of(config), registry, problems);
  }
}

/// Returns whether the router is told which blocks instances store; true for one with problems.
bool check_router(const RunConfig& config, const PolicyChoice& router, std::int64_t instances,
                  const std::string& pointer, const PolicyRegistry& registry, Problems& problems) {
  const std::size_t before = problems.lines().size();
  check_policy(router, registry.routing, config.serving.knowledge, pointer, problems);
  const auto* kind = find_policy(registry.routing, router.name);
  if (kind == nullptr || problems.lines().size() > before) {
    return true;
  }
  const RoutingNeeds needs = kind->make(router.parameters)->needs();
  if (instances > needs.instances_max) {
    problems.add(pointer, fmt::format("expected a router of {} instances, the index of {} holds {}",
                                      instances, kind->name, needs.instances_max));
  }
  const std::optional<BlocksConfig>& blocks = config.system.blocks;
  if (needs.block_events && is_cluster(config) &&
      (stores_sessions(config.system) || (blocks && blocks->unit == EvictionUnit::node))) {
    problems.add(pointer, fmt::format("router {} is told which blocks instances store: expected a "
                                      "system with /system/blocks, whose unit is not node",
                                      kind->name));
  } else if (needs.block_events && is_cluster(config)) {
    // A router knows blocks of one size.
    std::vector<std::string> sizes;
    bool differ = false;
    std::optional<Tokens> size;
    for_each_tier(config.system.tiers, [&](const char* name, const TierConfig& tier) {
      if (is_shared(config, name)) {
        return;
      }
      sizes.push_back(fmt::format("{} {}", name, format_quantity(tier.block_size)));
      differ = differ || tier.block_size != size.value_or(tier.block_size);
      size = tier.block_size;
    });
    if (differ) {
      problems.add(pointer, fmt::format("router {} is told which blocks instances store: expected "
                                        "tiers with one block_size, got {}",
                                        kind->name, fmt::join(sizes, ", ")));
    }
  } else if (needs.blocks && is_cluster(config) && stores_sessions(config.system)) {
    problems.add(pointer, fmt::format("router {} needs the blocks of prompts: expected a system "
                                      "with /system/blocks",
                                      kind->name));
  }
  return needs.block_events;
}

/// A network has places for so many and a shared tier.
constexpr std::int64_t kMostNetworkedInstances = 255;

/// Whether a request waits for blocks that come over a network while others run.
bool moves_blocks_by_request(const SystemConfig& system) {
  return system.blocks && system.blocks->unit != EvictionUnit::node &&
         load_wait(system) == LoadWait::request;
}

/// Returns what check_router does for the router of decode instances.
bool check_disaggregation(const RunConfig& config, const PolicyRegistry& registry,
                          Problems& problems) {
  const DisaggregationConfig& apart = *config.cluster.disaggregation;
  const std::string pointer = "/cluster/disaggregation";
  if (apart.prefill >= config.cluster.instances) {
    problems.add(pointer + "/prefill",
                 fmt::format("expected fewer than the {} instances, the others decode, got {}",
                             config.cluster.instances, apart.prefill));
  }
  const bool is_told =
      check_router(config, apart.decode_router, config.cluster.instances - apart.prefill,
                   pointer + "/decode_router", registry, problems);
  if (!config.cluster.network) {
    problems.add("/cluster/network",
                 "expected a network, over which the KV of prompts goes, got \"none\"");
  }
  const SystemConfig& system = config.system;
  if (!moves_blocks_by_request(system) || !system.tiers.hbm || system.tiers.count() > 1) {
    problems.add(pointer,
                 "expected a system with /system/blocks, whose unit is not node, with "
                 "/system/load/wait request and hbm as its only tier");
  }
  if (system.blocks && system.blocks->whole_response) {
    problems.add("/system/blocks/whole_response", "with /cluster/disaggregation expected false");
  }
  const DisaggregationConfig defaults;
  const std::string decide = write_value(apart.decide).get<std::string>();
  const auto keep_default = [&](const char* key, const auto& wanted, const auto& got) {
    if (wanted != got) {
      problems.add(pointer + "/" + key,
                   fmt::format("expected {} with decide {}, got {}", json_text(write_value(wanted)),
                               decide, json_text(write_value(got))));
    }
  };
  if (!apart.asks_net_new()) {
    keep_default("net_new_tokens", defaults.net_new_tokens, apart.net_new_tokens);
    keep_default("net_new_share", defaults.net_new_share, apart.net_new_share);
  }
  if (!apart.asks_load()) {
    keep_default("waiting_tokens", defaults.waiting_tokens, apart.waiting_tokens);
  }
  if (!config.cluster.lost.empty()) {
    problems.add("/cluster/lost", "with /cluster/disaggregation expected none");
  }
  return is_told;
}

void check_shared_tier(const RunConfig& config, Problems& problems) {
  const ClusterConfig& cluster = config.cluster;
  const SystemConfig& system = config.system;
  const std::string pointer = "/cluster/shared";
  if (!moves_blocks_by_request(system)) {
    problems.add(pointer,
                 "expected a system with /system/blocks, whose unit is not node, with "
                 "/system/load/wait request");
  }
  std::string slowest;
  for_each_tier(system.tiers, [&](const char* name, const TierConfig&) { slowest = name; });
  if (system.tiers.count() < 2 || slowest != to_string(cluster.shared->tier)) {
    problems.add(pointer + "/tier",
                 fmt::format("expected the slowest of at least two tiers of the system, whose "
                             "slowest one is {}, got \"{}\"",
                             slowest.empty() ? "none" : slowest, to_string(cluster.shared->tier)));
  }
  if (!cluster.shared->capacity && cluster.shared->rate) {
    problems.add(pointer + "/rate",
                 "expected \"network\": segments are reached over the links of the instances");
  }
  if (!cluster.network) {
    problems.add("/cluster/network",
                 "expected a network, over which the shared tier is reached, got \"none\"");
  }
  if (!cluster.lost.empty()) {
    problems.add("/cluster/lost", "with /cluster/shared expected none");
  }
  if (cluster.disaggregation) {
    problems.add(pointer, "with /cluster/disaggregation expected \"none\"");
  }
}

void check_cluster(const RunConfig& config, const PolicyRegistry& registry, Problems& problems) {
  const ClusterConfig& cluster = config.cluster;
  bool is_told =
      check_router(config, cluster.router,
                   cluster.disaggregation ? cluster.disaggregation->prefill : cluster.instances,
                   "/cluster/router", registry, problems);
  if (cluster.disaggregation) {
    is_told = check_disaggregation(config, registry, problems) || is_told;
  } else if (cluster.network && !cluster.shared) {
    problems.add("/cluster/network",
                 "expected \"none\": nothing crosses it without /cluster/shared or "
                 "/cluster/disaggregation");
  }
  if (cluster.shared) {
    check_shared_tier(config, problems);
  }
  if (cluster.network && cluster.instances > kMostNetworkedInstances) {
    problems.add("/cluster/instances",
                 fmt::format("with /cluster/network expected at most {}, got {}",
                             kMostNetworkedInstances, cluster.instances));
  }
  if (cluster.event_delay.ns > 0 && !is_told) {
    problems.add("/cluster/event_delay",
                 fmt::format("expected 0s: router {} is not told which blocks instances store",
                             cluster.router.name));
  }
  const auto check_instance = [&](std::int64_t instance, const std::string& pointer) {
    if (instance >= cluster.instances) {
      problems.add(pointer + "/instance", fmt::format("expected less than the {} instances, got {}",
                                                      cluster.instances, instance));
    }
  };
  for (std::size_t i = 0; i < cluster.lost.size(); ++i) {
    const LostInstanceConfig& lost = cluster.lost[i];
    const std::string pointer = fmt::format("/cluster/lost/{}", i);
    check_instance(lost.instance, pointer);
    if (lost.back && *lost.back <= lost.at) {
      problems.add(pointer + "/back",
                   fmt::format("expected a time after {}, got {}", format_quantity(lost.at),
                               format_quantity(*lost.back)));
    }
    for (std::size_t j = 0; j < i; ++j) {
      const LostInstanceConfig& other = cluster.lost[j];
      if (other.instance == lost.instance && (!other.back || *other.back >= lost.at) &&
          (!lost.back || *lost.back >= other.at)) {
        problems.add(pointer, fmt::format("instance {} is lost already at that time "
                                          "(/cluster/lost/{})",
                                          lost.instance, j));
      }
    }
  }
  if (!cluster.lost.empty() && stores_sessions(config.system)) {
    problems.add("/cluster/lost",
                 "expected none: a system that stores the KV of sessions, without /system/blocks, "
                 "keeps each session on its instance");
  }
  for (std::size_t i = 0; i < cluster.slow.size(); ++i) {
    const SlowInstanceConfig& slow = cluster.slow[i];
    const std::string pointer = fmt::format("/cluster/slow/{}", i);
    check_instance(slow.instance, pointer);
    if (slow.until && *slow.until <= slow.from) {
      problems.add(pointer + "/until",
                   fmt::format("expected a time after {}, got {}", format_quantity(slow.from),
                               format_quantity(*slow.until)));
    }
  }
}

void check_load(const SystemConfig& system, Problems& problems) {
  if (load_wait(system) == LoadWait::request && system.load.buffers != 0) {
    problems.add("/system/load/buffers",
                 "where requests wait for their own loads (/system/load/wait) expected 0: the read "
                 "buffer is for loads that a prefill waits for");
  }
}

void check_sharing(const RunConfig& config, Problems& problems) {
  const SystemConfig& system = config.system;
  if (system.sharing == Sharing::none) {
    return;
  }
  if (config.serving.kv_reservation == Reservation::context_window) {
    problems.add(
        "/serving/kv_reservation",
        "with /system/sharing expected exact: a prompt and what follows it share one window");
  }
  const TiersConfig& tiers = system.tiers;
  if (!tiers.hbm) {
    problems.add(
        "/system/sharing",
        "expected \"none\": prompts are shared in the tier in HBM, which the system has not");
  } else if (system.load.buffers != 0) {
    problems.add("/system/load/buffers", "with /system/sharing expected 0");
  }
}

}  // namespace

void add_of_group(const Problems& of_group, std::size_t group, Problems& problems) {
  const std::string pointer = fmt::format("/cluster/groups/{}", group);
  for (const std::string& line : of_group.lines()) {
    problems.add_line(pointer + (line.starts_with("/hardware") ? line : ": " + line));
  }
}

std::vector<std::optional<std::size_t>> instance_groups(const RunConfig& config) {
  std::vector<std::optional<std::size_t>> groups(
      static_cast<std::size_t>(config.cluster.instances));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::size_t g = 0; g < config.cluster.groups.size(); ++g) {
      if (config.cluster.groups[g].has(static_cast<std::int64_t>(i))) {
        groups[i] = g;
      }
    }
  }
  return groups;
}

std::map<std::optional<std::size_t>, std::int64_t> group_sizes(const RunConfig& config) {
  std::map<std::optional<std::size_t>, std::int64_t> sizes;
  for (const std::optional<std::size_t>& group : instance_groups(config)) {
    ++sizes[group];
  }
  return sizes;
}

RunConfig group_config(const RunConfig& config, std::optional<std::size_t> group) {
  RunConfig own = config;
  if (group) {
    const InstanceGroupConfig& values = config.cluster.groups[*group];
    if (values.hardware) {
      own.hardware = values.hardware->config;
    }
    own.serving.slots = values.slots.value_or(config.serving.slots);
    if (values.token_budget) {
      own.serving.token_budget = values.token_budget;
    }
  }
  return own;
}

LoadWait load_wait(const SystemConfig& system) {
  return system.load.wait.value_or(system.blocks ? LoadWait::request : LoadWait::batch);
}

bool waits_for_whole_load(const RunConfig& config, Medium from) {
  return config.system.load.discipline == LoadDiscipline::blocking ||
         (from == Medium::ssd && config.hardware.ssd && config.hardware.ssd->block > Bytes(0) &&
          config.hardware.ssd->block > kv_bytes_per_token_layer(config.model));
}

void check_one_instance(const RunConfig& config, const std::string& what, Problems& problems) {
  if (config.cluster.instances > 1) {
    problems.add("/cluster/instances", fmt::format("expected 1, {} is of one instance, got {}",
                                                   what, config.cluster.instances));
  } else if (is_cluster(config)) {
    problems.add("/cluster",
                 fmt::format("expected no lost and no slow instance, {} has none", what));
  }
}

/// HBM of each GPU that the engine does not use.
Bytes unused_hbm(const RunConfig& config) {
  const std::optional<EngineConfig>& engine = config.system.engine;
  if (!engine) {
    return Bytes(0);
  }
  const double card = static_cast<double>(config.hardware.hbm.capacity.value);
  return Bytes(std::llround(card * (1 - engine->memory_share))) +
         engine->reserved_memory.value_or(
             engine_memory(config.model, config.hardware, config.serving.token_budget));
}

bool stores_sessions(const SystemConfig& system) {
  return !system.blocks && system.tiers.count() > 0;
}

Bytes kv_room(const RunConfig& config) {
  const std::int64_t slots = config.serving.slots;
  const double share = config.system.engine ? config.system.engine->kv_share : 1;
  const Bytes left(std::llround(
      share * static_cast<double>(
                  kv_capacity(config.model, config.hardware, slots, unused_hbm(config)).value)));
  if (!config.serving.kv_memory) {
    return left;
  }
  const Bytes beside_tokens = kv_bytes_per_request(config.model) * slots;
  return std::min(left, std::max(Bytes(0), *config.serving.kv_memory - beside_tokens));
}

KvShares hbm_shares(const RunConfig& config) {
  const Bytes free = kv_room(config);
  const TiersConfig& tiers = config.system.tiers;
  if (tiers.count() == 0) {
    return {.capacity = free};
  }
  if (config.system.blocks) {
    // KV of ended requests stands in the buffer until it is saved, if HBM keeps nothing.
    const bool leaves_at_once = config.system.blocks->publication == Publication::never ||
                                (tiers.hbm && tiers.hbm->blocks && tiers.hbm->blocks->idle);
    const bool is_buffered =
        leaves_at_once && tiers.count() > 1 && config.system.save.mode == SaveMode::async;
    return {.capacity = free,
            .write_buffer = is_buffered ? config.system.save.write_buffer : Bytes(0)};
  }
  return {.capacity = free,
          .stored = tiers.hbm ? std::min(tiers.hbm->capacity.value_or(free), free) : Bytes(0),
          .read_buffer = ReadBuffer(config).capacity(),
          .write_buffer = config.system.save.write_buffer};
}

void fit_context_window(RunConfig& config) {
  constexpr Tokens kLeast(2048);
  Problems problems;
  check_model(config.model, "", problems);
  Tokens window = config.model.context_window;
  for (const auto& [group, instances] : group_sizes(config)) {
    const RunConfig alike = group_config(config, group);
    check_parallel(config.model, alike.hardware, problems);
    const std::optional<EngineConfig>& engine = alike.system.engine;
    if (!problems.empty() || !engine || engine->reserved_memory || alike.serving.kv_memory ||
        kv_bytes_per_token(alike.model).value == 0) {
      return;
    }
    const Tokens block = alike.system.tiers.hbm ? alike.system.tiers.hbm->block_size : Tokens(1);
    const Bytes of_rank(running_kv_capacity(alike).value / alike.hardware.parallel.attention_dp);
    window = std::min(window, block * (of_rank / (kv_bytes_per_token(alike.model) * block.value)));
  }
  if (window >= kLeast && window < config.model.context_window) {
    config.whole_window = config.model.context_window;
    config.model.context_window = window;
  }
}

std::int64_t stored_copies(const RunConfig& config, AttentionKind kind) {
  const std::optional<BlocksConfig>& blocks = config.system.blocks;
  const bool is_once =
      !blocks || (kind == AttentionKind::latent && blocks->latent_copies == LatentCopies::one);
  return is_once ? 1 : kv_copies(config.model, config.hardware, kind);
}

Bytes running_kv_capacity(const RunConfig& config) { return left_to_run(hbm_shares(config)); }

std::vector<Bytes> stored_layer_sizes(const RunConfig& config) {
  const std::int64_t layers = config.model.layers;
  const std::optional<CompressionConfig>& compression = config.system.compression;
  const auto stored = [&](std::int64_t layer) {
    const Bytes whole = kv_bytes_per_token_layer(config.model, layer) *
                        stored_copies(config, layer_kind(config.model, layer).attention);
    if (!compression || compression->sparsity.empty()) {
      return whole;
    }
    const std::vector<double>& sparsity = compression->sparsity;
    const std::int64_t steps = std::ssize(sparsity) - 1;
    // Layer `layer` of 0 .. layers-1 lies at a whole step and a rest, in layers-1 parts of one.
    const std::int64_t parts = std::max<std::int64_t>(1, layers - 1);
    const auto step = static_cast<std::size_t>(layer * steps / parts);
    const double rest = static_cast<double>(layer * steps % parts) / static_cast<double>(parts);
    const double next = step + 1 < sparsity.size() ? sparsity[step + 1] : sparsity[step];
    const double here = sparsity[step] + rest * (next - sparsity[step]);
    const double kept = static_cast<double>(whole.value) * (1 - here * compression->strength);
    return Bytes(std::max<std::int64_t>(1, std::llround(kept)));
  };
  std::vector<Bytes> sums;
  Bytes sum;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    sum += stored(layer);
    sums.push_back(sum);
  }
  return sums;
}

bool has_unequal_layers(const RunConfig& config) {
  const ModelConfig& model = config.model;
  if (config.system.compression) {
    return true;
  }
  const Bytes first = kv_bytes_per_token_layer(model, 0);
  return kv_bytes_per_token(model) != first * model.layers ||
         kv_bytes_per_token_layer(model) != first;
}

Bytes stored_kv_bytes_per_token(const RunConfig& config) {
  return stored_layer_sizes(config).back();
}

Tokens token_budget(const RunConfig& config) {
  constexpr Tokens kLeast(2560);
  return config.serving.token_budget.value_or(std::max(kLeast, config.model.context_window));
}

bool filters_admission(const SystemConfig& system) {
  bool filters = false;
  for_each_tier(system.tiers, [&](const char*, const TierConfig& tier) {
    filters = filters || tier.admission.name != kAlwaysAdmitted;
  });
  return filters;
}

bool clamps_long_turns(const RunConfig& config) {
  if (config.serving.long_turn) {
    return *config.serving.long_turn == LongTurn::clamp;
  }
  return !config.workload.trace.has_value();
}

namespace {

/// The checks of check_run_config after the model's shape. Without `has_shape` the model is a
/// stand-in and not checked.
void check_with_model(const RunConfig& config, const PolicyRegistry& registry, bool has_shape,
                      Problems& problems) {
  check_hardware(config.hardware, "/hardware", problems);
  if (has_shape) {
    check_parallel(config.model, config.hardware, problems);
  }
  const bool can_be_timed = problems.empty();
  check(config.workload, "/workload", problems);
  const std::size_t before = problems.lines().size();
  if (has_shape) {
    check_fits(config.model, config.hardware, problems);
    check_resuming(config, problems);
    check_measured_gpu(config.model, config.hardware, problems);
    check_profile_timing(config.model, config.hardware, problems);
  }
  const OfferedKnowledge offered = config.serving.knowledge;
  const TiersConfig& tiers = config.system.tiers;
  check_policy(config.system.order, registry.order, offered, "/system/order", problems);
  check_policy(config.system.prefetch, registry.prefetch, offered, "/system/prefetch", problems);
  if (config.system.prefetch.name != "none" && tiers.count() < 2) {
    problems.add("/system/prefetch",
                 fmt::format("policy {} fetches from a slower tier to the fastest, but the system "
                             "uses {}",
                             config.system.prefetch.name,
                             tiers.count() == 0 ? "no tier" : "one tier alone"));
  }
  const auto tier = [&](const char* name, const std::optional<TierConfig>& used,
                        std::optional<Bytes> installed) {
    const std::string pointer = std::string("/system/tiers/") + name;
    if (!used) {
      return;
    }
    check_policy(used->eviction, registry.eviction, offered, pointer + "/eviction", problems);
    check_policy(used->admission, registry.admission, offered, pointer + "/admission", problems);
    if (!installed) {
      problems.add(
          pointer,
          fmt::format("the system uses a tier that is not installed (/hardware/{} is \"none\")",
                      name));
      return;
    }
    check_tier(config, *used, *installed, pointer, problems);
  };
  if (tiers.hbm) {
    tier("hbm", *tiers.hbm, tiers.hbm->capacity.value_or(kv_room(config)));
  }
  tier("dram", tiers.dram,
       config.hardware.dram ? std::optional(config.hardware.dram->capacity) : std::nullopt);
  tier("cxl", tiers.cxl,
       config.hardware.cxl ? std::optional(config.hardware.cxl->capacity) : std::nullopt);
  tier("ssd", tiers.ssd,
       config.hardware.ssd ? std::optional(config.hardware.ssd->capacity) : std::nullopt);
  if (config.model.context_window < Tokens(2)) {
    problems.add("/model/context_window", "expected at least 2 tokens");
  }
  const Tokens longest_prompt = config.workload.shared_prompts.tokens_max;
  if (config.workload.generator == Generator::shared_prompts &&
      longest_prompt + kLeastRoom > config.model.context_window) {
    problems.add("/workload/shared_prompts/tokens_max",
                 fmt::format("expected at most {} ({} less than the context window), got {}",
                             format_quantity(config.model.context_window - kLeastRoom),
                             format_quantity(kLeastRoom), format_quantity(longest_prompt)));
  }
  check_blocks(config, registry, problems);
  check_batching(config.system, problems);
  check_cluster(config, registry, problems);
  check_load(config.system, problems);
  check_sharing(config, problems);
  check_compression(config.system, problems);
  const Bytes window = kv_bytes_per_token(config.model) * config.model.context_window.value;
  const auto fits = [&](const RunConfig& any) { return running_kv_capacity(any) >= window; };
  if (can_be_timed && problems.lines().size() == before && !fits(config)) {
    RunConfig with_all = config;
    with_all.serving.kv_memory.reset();
    RunConfig without = with_all;
    without.system.tiers.hbm.reset();
    problems.add(fits(with_all)  ? "/serving/kv_memory"
                 : fits(without) ? "/system/tiers/hbm/capacity"
                                 : "/hardware/hbm/capacity",
                 fmt::format("the weights{} and the read and write buffers leave {:.2f}GiB for "
                             "KV, but one context window of {} takes {:.2f}GiB",
                             tiers.hbm ? ", the hbm tier" : "",
                             static_cast<double>(running_kv_capacity(config).value) / (1 << 30),
                             config.model.name, static_cast<double>(window.value) / (1 << 30)));
  }
  if (config.serving.keep_first_tokens >= config.model.context_window) {
    problems.add("/serving/keep_first_tokens",
                 fmt::format("expected less than the context window, {}, got {}",
                             format_quantity(config.model.context_window),
                             format_quantity(config.serving.keep_first_tokens)));
  }
}

/// Each group by itself, as if all instances were of it.
void check_groups(const RunConfig& config, const PolicyRegistry& registry, Problems& problems) {
  const auto groups = instance_groups(config);
  for (std::size_t g = 0; g < config.cluster.groups.size(); ++g) {
    const InstanceGroupConfig& group = config.cluster.groups[g];
    const std::string pointer = fmt::format("/cluster/groups/{}", g);
    const std::int64_t last = group.first + group.instances.value_or(1) - 1;
    if (last >= config.cluster.instances) {
      problems.add(pointer,
                   fmt::format("expected instances with numbers less than {}, the last one is {}",
                               config.cluster.instances, last));
      continue;
    }
    if (std::find(groups.begin(), groups.end(), std::optional(g)) == groups.end()) {
      problems.add(pointer, "expected an instance that is of no later group");
      continue;
    }
    RunConfig alike = group_config(config, g);
    alike.cluster = ClusterConfig{};
    Problems of_group;
    check_with_model(alike, registry, true, of_group);
    add_of_group(of_group, g, problems);
  }
  if (config.cluster.shared && !config.cluster.groups.empty()) {
    problems.add("/cluster/groups", "with /cluster/shared expected none");
  }
}

}  // namespace

void check_run_config(const RunConfig& config, const PolicyRegistry& registry, Problems& problems) {
  const std::size_t before = problems.lines().size();
  check_model(config.model, "/model", problems);
  if (problems.lines().size() == before) {
    check_with_model(config, registry, true, problems);
    if (problems.lines().size() == before) {
      check_groups(config, registry, problems);
    }
    return;
  }
  // A shape with problems cannot be asked for bytes.
  RunConfig rest = config;
  rest.model = ModelConfig{.name = config.model.name,
                           .source = config.model.source,
                           .layers = 1,
                           .hidden_size = 1,
                           .attention_heads = 1,
                           .kv_heads = 1,
                           .head_dim = 1,
                           .intermediate_size = 1,
                           .vocabulary_size = 1,
                           .context_window = config.model.context_window};
  check_with_model(rest, registry, false, problems);
}

Json write_value(const RunConfig& config) { return write_value<RunConfig>(config); }

}  // namespace kvtier
