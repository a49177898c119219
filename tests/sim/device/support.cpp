#include "tests/sim/device/support.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/device/storage.hpp"
#include "sim/core/rng.hpp"
#include "sim/serving/store_rules.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// A drive's block is one layer of a token, or all four.
ModelConfig device_model(bool by_layers, Tokens window) {
  return {.name = "tiny",
          .layers = by_layers ? 2 : 4,
          .hidden_size = 64,
          .attention_heads = by_layers ? 16 : 4,
          .kv_heads = by_layers ? 16 : 4,
          .head_dim = 32,
          .intermediate_size = 64,
          .vocabulary_size = 64,
          .bytes_per_element = 4,
          .kv_bytes_per_element = 4,
          .context_window = window};
}

}  // namespace

RunConfig random_device_config(std::uint64_t seed) {
  RunConfig config = random_config(seed);
  config.cluster = {};  // a device is one instance
  const Bytes before = kv_bytes_per_token(config.model);
  config.model = device_model(seed % 2 == 0, config.model.context_window);
  const std::int64_t scale = (kv_bytes_per_token(config.model) + before - Bytes(1)) / before;
  SystemConfig& system = config.system;
  system.positions = KeyPositions::decoupled;
  system.load.wait.reset();
  if (system.tiers.hbm) {
    system.tiers.hbm->capacity = *system.tiers.hbm->capacity * scale;
    system.tiers.hbm->free_buffer = system.tiers.hbm->free_buffer * scale;
  }
  system.compression.reset();
  if (system.tiers.count() < 2) {
    system.prefetch = {.name = "none", .parameters = {}};
  }
  for (std::optional<TierConfig>* tier :
       {&system.tiers.dram, &system.tiers.cxl, &system.tiers.ssd}) {
    if (*tier) {
      (*tier)->free_buffer = (*tier)->free_buffer * scale;
    }
  }
  HardwareConfig& hardware = config.hardware;
  if (hardware.cxl) {
    hardware.cxl->capacity = hardware.cxl->capacity * scale;
  }
  hardware.dram->capacity = hardware.dram->capacity * scale;
  hardware.ssd->capacity = hardware.ssd->capacity * scale;
  hardware.ssd->block = Bytes(kStorageAlignment);
  hardware.hbm.capacity = hardware.hbm.capacity * scale;
  system.save.write_buffer = system.save.write_buffer * scale;
  config.workload.sessions = std::min<std::int64_t>(config.workload.sessions.value_or(15), 15);
  return config;
}

RunConfig crowded_config(Medium first, Medium second) {
  RunConfig config = tiny_config(Tokens(120));
  config.model = device_model(false, config.model.context_window);
  const Bytes context = kv_bytes_per_token(config.model) * config.model.context_window.value;
  config.system.save.write_buffer = 10 * context;
  config.hardware.ssd->block = Bytes(kStorageAlignment);
  config.hardware.cxl =
      CxlConfig{.price = DollarsPerGibHour(1), .bandwidth = config.hardware.ssd->bandwidth};
  SystemConfig& system = config.system;
  const auto use = [&](Medium medium, Bytes capacity) {
    switch (medium) {
      case Medium::hbm:
        system.tiers.hbm.emplace();
        static_cast<TierConfig&>(*system.tiers.hbm) = tier();
        system.tiers.hbm->capacity = capacity;
        break;
      case Medium::dram:
        system.tiers.dram = tier();
        config.hardware.dram->capacity = capacity;
        break;
      case Medium::cxl:
        system.tiers.cxl = tier();
        config.hardware.cxl->capacity = capacity;
        break;
      case Medium::ssd:
        system.tiers.ssd = tier();
        config.hardware.ssd->capacity = capacity;
        break;
    }
  };
  use(first, 3 * context);
  use(second, 100 * context);
  system.prefetch.name = "look_ahead";
  config.workload.sessions = 15;
  config.workload.arrival_rate = PerSecond(1000);
  config.workload.think_time.mean = for_ms(100);
  config.workload.sharegpt.user_tokens_median = 10;
  config.workload.sharegpt.assistant_tokens_median = 10;
  config.workload.sharegpt.message_cap = Tokens(40);
  return config;
}

RunConfig crowded_car_config(std::int64_t prompts) {
  RunConfig config = crowded_config(Medium::hbm, Medium::cxl);
  SystemConfig& system = config.system;
  system.order = {.name = "shuffled_window", .parameters = {{"requests", 8}}};
  system.tiers.hbm->eviction.name = "window_score";
  system.tiers.cxl->eviction.name = "window_score";
  system.tiers.hbm->free_buffer = *system.tiers.hbm->capacity / 10;
  system.prefetch.name = "deadline";
  system.sharing = Sharing::prompts;
  system.load.buffers = 0;
  config.serving.slots = 3;
  config.workload.generator = Generator::shared_prompts;
  config.workload.shared_prompts = {.prompts = prompts,
                                    .tokens_min = Tokens(30),
                                    .tokens_max = Tokens(30),
                                    .popularity_exponent = 1};
  return config;
}

namespace {

/// DRAM has what leaves HBM.
void take_victims(SystemConfig& system, double ahead, const std::string& eviction) {
  BlocksConfig& shared = *system.blocks;
  shared.duplicates = Duplicates::merged;
  shared.keyless = Keyless::first;
  system.load.wait = LoadWait::batch;
  system.tiers.hbm->eviction.name = eviction;
  TierConfig& tier = *system.tiers.dram;
  tier.eviction.name = eviction;
  tier.inclusive = false;
  tier.write = WriteMoment::on_evict;
  tier.block_size = system.tiers.hbm->block_size;
  tier.blocks->pool.touch = Touch::end;
  tier.blocks->edge.promotes = true;
  tier.blocks->edge.ahead = ahead;
}

}  // namespace

RunConfig random_block_config(std::uint64_t seed) {
  RandomStream stream(seed, "tests/random_block_config");
  const auto one_of = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() + stream.index(static_cast<std::int64_t>(values.size())));
  };
  const auto chance = [&](double share) { return stream.uniform() < share; };
  const Tokens window(one_of({60, 120}));
  RunConfig config = tiny_config(window);
  config.seed = static_cast<std::int64_t>(seed);
  config.model = device_model(chance(0.5), window);
  config.serving.slots = one_of({2, 4});
  const std::int64_t block = one_of({1, 4, 8});
  const std::int64_t blocks = window.value / block + 1;

  SystemConfig& system = config.system;
  const bool is_tree = chance(0.4);
  system.batching = is_tree ? Batching::separate : Batching::unified;
  BlocksConfig& shared = system.blocks.emplace();
  shared.unit = is_tree       ? EvictionUnit::node
                : chance(0.3) ? one_of({EvictionUnit::tail, EvictionUnit::sequence})
                              : EvictionUnit::block;
  const bool is_plain = shared.unit == EvictionUnit::block;
  shared.publication = is_tree || chance(0.5) ? Publication::computed : Publication::scheduling;
  shared.duplicates = !is_plain || chance(0.5) ? Duplicates::merged : Duplicates::kept;
  shared.keyless = !is_plain || chance(0.5) ? Keyless::first : Keyless::in_order;
  shared.chunk = chance(0.3) ? std::optional(Tokens(one_of({16, 30}))) : std::nullopt;
  shared.whole_need = chance(0.5);
  shared.storage_fetch = {
      .wait = one_of({FetchWait::best_effort, FetchWait::wait_complete, FetchWait::timeout}),
      .timeout = for_ms(one_of({1, 50})),
      .timeout_per_1024_tokens = for_ms(1),
      .batch = one_of({1, 3, 100})};
  const std::string eviction = is_tree ? one_of({"lru", "lfu"}) : one_of({"lru", "fifo", "lfu"});
  HbmTierConfig hbm;
  hbm.eviction.name = eviction;
  hbm.block_size = Tokens(block);
  hbm.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, one_of({2, 4}) * blocks}};
  system.tiers.hbm = hbm;
  const std::int64_t behind = stream.index(3);
  const std::int64_t size = is_tree ? block : block * one_of({1, 1, 2});
  const auto add = [&](std::optional<TierConfig>& added, std::int64_t capacity, bool is_first) {
    added = tier(is_tree && is_first ? eviction : one_of({"lru", "fifo"}), true);
    added->block_size = Tokens(size);
    const bool on_evict = is_tree && is_first && chance(0.4);
    added->write = on_evict ? WriteMoment::on_evict : WriteMoment::on_create;
    BlockTierConfig& kept = added->blocks.emplace();
    kept.capacity = KvSize{KvSize::Unit::blocks, capacity * blocks * block / size};
    kept.pool.touch = is_tree ? Touch::end : one_of({Touch::end, Touch::lookup});
    kept.after_uses = is_tree && !on_evict && is_first && chance(0.3)
                          ? std::optional(std::int64_t{2})
                          : std::nullopt;
    kept.edge.no_room = one_of({NoRoom::evict, NoRoom::skip});
    kept.edge.promotes = is_tree || chance(0.7);
    kept.edge.responses = is_tree ? Responses::never
                                  : one_of({Responses::never, Responses::computed, Responses::end});
  };
  if (behind > 0) {
    add(system.tiers.dram, one_of({3, 10}), true);
  }
  if (behind > 1) {
    add(system.tiers.ssd, one_of({5, 30}), false);
  }
  system.load.wait = !is_tree && chance(0.5) ? LoadWait::request : LoadWait::batch;
  if (!is_tree && behind == 1 && chance(0.4)) {
    shared.publication = one_of({Publication::scheduling, Publication::computed, Publication::end});
    const std::string order = one_of({"lru", "tokens_times_idle"});
    take_victims(system, one_of({0.0, 0.3, 0.7}),
                 shared.unit == EvictionUnit::sequence ? "lru" : order);
  }
  system.load.buffers = 0;
  system.save.mode = is_tree || chance(0.7) ? SaveMode::async : SaveMode::blocking;
  config.hardware.ssd->block = Bytes(kStorageAlignment);

  WorkloadConfig& workload = config.workload;
  workload.sessions = 20;
  workload.arrival_rate = PerSecond(one_of({5, 100}));
  workload.think_time.mean = for_ms(100);
  workload.generator = Generator::shared_prompts;
  workload.shared_prompts = {.prompts = one_of({1, 4}),
                             .tokens_min = Tokens(3),
                             .tokens_max = Tokens(30),
                             .popularity_exponent = 1};
  workload.sharegpt.turns_max = 5;
  workload.sharegpt.user_tokens_median = 8;
  workload.sharegpt.assistant_tokens_median = 8;
  workload.sharegpt.message_cap = Tokens(20);
  if (!is_tree && chance(0.3)) {
    shared.whole_prompts = true;
    shared.whole_response = chance(0.5);
    shared.chunk.reset();
    system.batching = one_of({Batching::unified, Batching::separate, Batching::prefill_first});
  }
  if (prefetches_to(rules_of(config)) && chance(0.7)) {
    system.prefetch.name = "look_ahead";
  }
  if (!is_tree && shared.publication != Publication::never && chance(0.3)) {
    system.tiers.hbm->blocks.emplace(system.tiers.hbm->blocks.value_or(BlockTierConfig{})).idle =
        KvSize{KvSize::Unit::tokens, window.value};
  }
  return config;
}

RunConfig random_victims_config(std::uint64_t seed) {
  for (std::uint64_t next = 1000 * seed;; ++next) {
    RunConfig config = random_block_config(next);
    if (has_victims_behind(store_rules(config))) {
      return config;
    }
  }
}

std::int64_t for_device_configs(std::uint64_t count,
                                const std::function<void(const RunConfig&)>& check,
                                RunConfig (*make)(std::uint64_t seed)) {
  const char* const first = std::getenv("KVTIER_TEST_FROM");
  const char* const number = std::getenv("KVTIER_TEST_CONFIGS");
  const std::uint64_t from = first != nullptr ? std::stoull(first) : 1;
  const std::uint64_t configs = number != nullptr ? std::stoull(number) : count;
  std::int64_t ran = 0;
  for (std::uint64_t seed = from; seed < from + configs; ++seed) {
    SCOPED_TRACE(fmt::format("random config {}", seed));
    ++ran;
    try {
      check(make(seed));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  return ran;
}

void expect_within_tiers(const KvStore& store, const RunConfig& config) {
  if (config.system.blocks) {
    for (const PoolRules& pool : store_rules(config).pools) {
      EXPECT_LE(store.held(medium_of(pool.name)), pool.capacity * pool.block.value) << pool.name;
    }
    return;
  }
  const TiersConfig& tiers = config.system.tiers;
  const HardwareConfig& hardware = config.hardware;
  const auto expect = [&](Medium medium, bool used, Bytes capacity) {
    EXPECT_LE(store.held(medium), used ? capacity / store.token_bytes() : 0) << to_string(medium);
  };
  const Bytes in_hbm = tiers.hbm ? *tiers.hbm->capacity : Bytes(0);
  expect(Medium::hbm, tiers.hbm.has_value(), in_hbm);
  expect(Medium::dram, tiers.dram.has_value(), hardware.dram->capacity);
  expect(Medium::cxl, tiers.cxl.has_value(), hardware.cxl ? hardware.cxl->capacity : Bytes(0));
  expect(Medium::ssd, tiers.ssd.has_value(), hardware.ssd->capacity);
}

void DecisionLines::on_decision(const Decision& d) {
  lines += fmt::format("{} {} {} {} {} {}\n", static_cast<int>(d.kind), static_cast<int>(d.tier),
                       d.key.value, d.tokens.value, d.time.ns, static_cast<int>(d.demand));
}

void DecisionLines::on_use(EntryKey key, SimTime now) {
  lines += fmt::format("use {} {}\n", key.value, now.ns);
}

void DecisionLines::on_block_decision(const BlockDecision& d) {
  lines += fmt::format("{} {} {} {} {} {}\n", static_cast<int>(d.kind), static_cast<int>(d.tier),
                       d.stream, d.begin.value, d.tokens.value, d.time.ns);
}

void TransferLog::on_transfer(const TransferRecord& t) {
  EXPECT_LE(t.begin, t.end);
  ++count;
  paths.insert({t.from, t.to});
  lines += fmt::format("{} {} {} {} {} {}\n", static_cast<int>(t.from), static_cast<int>(t.to),
                       t.key.value, t.bytes.value, t.begin.ns, t.end.ns);
}

}  // namespace kvtier::test
