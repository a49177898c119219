#include "sim/replay/block_replay.hpp"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "sim/replay/block_curve.hpp"
#include "sim/replay/untimed.hpp"
#include "tests/sim/replay/named_source.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

TierConfig blocks_tier(std::int64_t capacity, std::int64_t block) {
  TierConfig added = tier();
  added.block_size = Tokens(block);
  added.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, capacity}};
  return added;
}
HbmTierConfig hbm_tier(std::int64_t capacity, std::int64_t block) {
  HbmTierConfig hbm;
  static_cast<TierConfig&>(hbm) = blocks_tier(capacity, block);
  return hbm;
}

RunConfig blocks_config(std::int64_t capacity, std::int64_t block) {
  RunConfig config = tiny_config();
  config.system.blocks = BlocksConfig{};
  config.system.tiers.dram = blocks_tier(capacity, block);
  return config;
}

/// Problems that an untimed replay of the config meets.
std::string refused(const RunConfig& config) {
  try {
    static_cast<void>(simulate_untimed(config, builtin_policies()));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

class Requests final : public RunObserver {
 public:
  void on_request(const RequestRecord& request) override { all.push_back(request); }
  std::vector<RequestRecord> all;
};

TEST(BlockReplay, RefusesKeysOfClustersThatNeedAClock) {
  RunConfig config = blocks_config(100, 4);
  config.cluster.instances = 2;
  config.cluster.report_interval = SimDuration(1'000'000'000);
  const std::string interval =
      "/cluster/report_interval: expected 0s, an untimed replay has no clock, got 1s";
  EXPECT_NE(refused(config).find(interval), std::string::npos) << refused(config);
  config.cluster.disaggregation = DisaggregationConfig{};
  config.cluster.network = NetworkConfig{.rate = BytesPerSecond(1e6)};
  for (const char* key : {"disaggregation", "network"}) {
    const std::string line =
        std::string("/cluster/") + key + ": expected \"none\", an untimed replay has no clock";
    EXPECT_NE(refused(config).find(line), std::string::npos) << refused(config);
  }
}

TEST(BlockReplay, FindsThePrefixOfAnyEarlierRequest) {
  // Blocks 1 2 3, then 1 2 4, then the first again with its last token cut off.
  NamedSource source({{{1, 2, 3}, Tokens(12)}, {{1, 2, 4}, Tokens(12)}, {{1, 2, 3}, Tokens(12)}},
                     {.block = Tokens(4)});
  Requests requests;
  RunConfig config = blocks_config(100, 4);
  const Json metrics =
      replay_blocks(config, source, builtin_policies(), {.observer = &requests})["metrics"];
  ASSERT_EQ(requests.all.size(), 3U);
  EXPECT_EQ(requests.all[0].prompt_found[1], Tokens(0));
  EXPECT_EQ(requests.all[1].prompt_found[1], Tokens(8));
  EXPECT_EQ(requests.all[2].prompt_found[1], Tokens(8));  // all but the last token's block
  EXPECT_EQ(metrics["turns"], 3);
  EXPECT_EQ(metrics["requests_with_hits"], 2);
  EXPECT_EQ(metrics["hit_tokens"]["dram"], 16);
  EXPECT_EQ(metrics["hit_blocks"]["total"], 4);
  EXPECT_EQ(metrics["prompt_blocks"], 9);
  EXPECT_EQ(metrics["tiers"]["dram"]["resident_blocks"], 4);
  EXPECT_EQ(metrics["hit_rate"]["prompt_tokens"]["total"], 16.0 / 36);
}

TEST(BlockReplay, StoresResponsesOrNot) {
  const auto resident = [](bool responses) {
    NamedSource source({{{1}, Tokens(4), Tokens(9)}}, {.block = Tokens(4)});
    RunConfig config = blocks_config(100, 4);
    config.system.blocks->responses = responses;
    return replay_blocks(config, source, builtin_policies(),
                         {})["metrics"]["tiers"]["dram"]["resident_blocks"];
  };
  EXPECT_EQ(resident(true), 3);  // 4 + 9 - 1 tokens
  EXPECT_EQ(resident(false), 1);
}

TEST(BlockReplay, RunningRequestsShareATierInHbm) {
  RunConfig config = tiny_config();
  config.system.blocks = BlocksConfig{};
  config.system.tiers.hbm = hbm_tier(3, 4);
  NamedSource fits({{{1, 2}, Tokens(8), Tokens(1)}, {{1, 2}, Tokens(8), Tokens(1)}},
                   {.block = Tokens(4)});
  EXPECT_EQ(replay_blocks(config, fits, builtin_policies(), {})["metrics"]["hit_tokens"]["hbm"], 4);
  NamedSource too_long({{{1, 2}, Tokens(8), Tokens(9)}}, {.block = Tokens(4)});
  try {
    static_cast<void>(replay_blocks(config, too_long, builtin_policies(), {}));
    FAIL() << "it has no room";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "/system/tiers/hbm: expected room for each turn by itself, got 3 blocks of 4 "
                 "tokens, but turn 0 of session 0 takes 16 tokens");
  }
}

TEST(BlockReplay, ARoundFindsAllBlocksOfTheRoundsBefore) {
  for (const std::int64_t block : {1, 4, 16, 100}) {
    for (const std::int64_t prefix : {0, 37}) {
      for (const std::int64_t own : {0, 9}) {
        RunConfig config = blocks_config(1000000, block);
        config.workload.generator = Generator::multi_turn;
        config.workload.sessions = 8;
        config.workload.multi_turn = {.rounds = 6,
                                      .common_prefix_tokens = Tokens(prefix),
                                      .client_prefix_tokens = Tokens(own),
                                      .user_tokens = Tokens(50),
                                      .response_tokens = Tokens(23)};
        config.model.context_window = Tokens(4096);
        Requests requests;
        static_cast<void>(simulate_untimed(config, builtin_policies(), {.observer = &requests}));
        ASSERT_EQ(requests.all.size(), 48U);
        for (const RequestRecord& request : requests.all) {
          // The round before left KV of all of its tokens but the last one: its prompt and 22 of
          // its response. A first round finds the prefix, if another client was there before.
          const std::int64_t stored = request.turn > 0 ? prefix + own + request.turn * 73 - 1
                                      : &request == &requests.all.front() ? 0
                                                                          : prefix;
          EXPECT_EQ(request.prompt(), Tokens(prefix + own + request.turn * 73 + 50));
          EXPECT_EQ(request.prompt_found[1], Tokens(stored / block * block))
              << "round " << request.turn << ", blocks of " << block;
        }
      }
    }
  }
}

TEST(BlockReplay, SystemsOfSessionsRefuseGeneratorsThatNameTheirTokens) {
  RunConfig config = tiny_config();
  config.system.tiers.dram = tier();
  config.workload.generator = Generator::rag;
  EXPECT_EQ(refused(config),
            "/workload/generator: its requests share blocks, which only a system of blocks "
            "(/system/blocks) finds");
  config = blocks_config(100, 4);
  config.workload.generator = Generator::rag;
  config.system.blocks->partial_blocks = true;
  config.system.blocks->responses = false;
  EXPECT_EQ(refused(config),
            "/system/blocks/partial_blocks: expected false, but for a trace "
            "that names its blocks");
}

MixMember mixed(const char* name, double weight, Generator generator) {
  MixMember member{.name = name, .weight = weight};
  (*member.workload).generator = generator;
  return member;
}

TEST(BlockReplay, SaysWhatEachWorkloadOfAMixFinds) {
  RunConfig config = blocks_config(200000, 16);
  config.workload.generator.reset();
  config.workload.sessions = 400;
  config.workload.mix.push_back(mixed("clients", 1, Generator::multi_turn));
  config.workload.mix.push_back(mixed("groups", 3, Generator::shared_prefixes));
  const Json metrics = simulate_untimed(config, builtin_policies())["metrics"];
  const Json& clients = metrics["classes"]["clients"];
  const Json& groups = metrics["classes"]["groups"];
  for (const char* sum : {"turns", "requests_with_hits", "prompt_tokens", "prompt_blocks"}) {
    EXPECT_EQ(clients[sum].get<int>() + groups[sum].get<int>(), metrics[sum].get<int>()) << sum;
  }
  EXPECT_EQ(clients["hit_tokens"]["total"].get<int>() + groups["hit_tokens"]["total"].get<int>(),
            metrics["hit_tokens"]["total"].get<int>());
  // A client finds all of the rounds before, but for the last block: of 5 rounds of 512 + 64 tokens
  // the prompts have 8,320 tokens, and 4 find 5,760 less a block each.
  EXPECT_EQ(clients["hit_rate"]["requests_with_hits"], 0.8);
  EXPECT_NEAR(clients["hit_rate"]["prompt_tokens"]["total"].get<double>(), 5696.0 / 8320, 0.001);
  EXPECT_GT(groups["hit_rate"]["requests_with_hits"].get<double>(), 0.8);
  EXPECT_LT(groups["hit_rate"]["requests_with_hits"].get<double>(), 1);
}

TEST(UntimedReplay, SaysWhatEachWorkloadOfAMixFinds) {
  RunConfig config = tiny_config();
  config.workload.generator.reset();
  config.workload.sessions = 100;
  config.workload.mix.push_back(mixed("chat", 1, Generator::sharegpt));
  config.workload.mix.push_back(mixed("documents", 1, Generator::long_documents));
  (*config.workload.mix[1].workload).long_documents = {.document_tokens_min = Tokens(50),
                                                       .document_tokens_max = Tokens(60)};
  const Json metrics = simulate_untimed(config, builtin_policies())["metrics"];
  EXPECT_EQ(metrics["classes"]["chat"]["turns"].get<int>() +
                metrics["classes"]["documents"]["turns"].get<int>(),
            metrics["turns"].get<int>());
  EXPECT_TRUE(metrics["classes"]["chat"]["hit_rate"].contains("prompt_tokens"));
}

TEST(BlockReplay, RefusesRulesThatNeedOthers) {
  RunConfig config = blocks_config(100, 4);
  BlocksConfig& blocks = *config.system.blocks;
  blocks.hit_cap_behind = HitCap::last_token;
  blocks.partial_reuse = blocks.whole_response = blocks.delays_duplicates = true;
  config.system.tiers.dram->eviction.name = "fifo";
  BlockTierConfig& tier = *config.system.tiers.dram->blocks;
  tier.pool.retention = {{.from = Tokens(4), .to = Tokens(8), .priority = 1},
                         {.from = Tokens(2), .to = std::nullopt, .priority = 2}};
  tier.pool.relief = Relief{.from = 0.5, .share = 0.1};
  tier.pool.lease_newcomers = false;
  tier.edge.least_priority = 30;
  tier.edge.frequency = FrequencyFilter{};
  tier.bucket = BucketConfig{};
  tier.pool.round = 2;
  EXPECT_EQ(
      refused(config),
      "/system/blocks/whole_response: expected false, but with a tier in hbm and not for nodes "
      "with "
      "batching separate\n"
      "/system/blocks/delays_duplicates: expected false, but with batching unified, a tier in hbm "
      "and found_from computed\n"
      "/system/tiers/dram/blocks/bucket: expected \"none\", but for blocks with fifo, in whose "
      "order buckets fill, and without a round\n"
      "/system/tiers/dram/blocks/least_priority: expected its default for the fastest tier: "
      "nothing is above it\n"
      "/system/tiers/dram/blocks/frequency: expected its default for the fastest tier: nothing is "
      "above it\n"
      "/system/blocks/longest_hit_behind: expected prompt, but with a tier behind one of blocks in "
      "hbm that keeps its blocks when they are found\n"
      "/system/blocks/partial_reuse: expected false, but with a tier of blocks in hbm alone, or "
      "before one that has what leaves it, with keyless in_order and duplicates merged\n"
      "/system/tiers/dram/blocks/retention: expected no ranges, but for blocks with lru and "
      "without an admission policy, and not where uses count at the end behind hbm\n"
      "/system/tiers/dram/blocks/retention/1: expected a range that begins where the one before "
      "ends, or later, and is not empty\n"
      "/system/tiers/dram/blocks/relief/in_background: expected true, but behind a tier of blocks "
      "in hbm where uses count at the look-up\n"
      "/system/tiers/dram/blocks/lease_newcomers: expected true without a lease");
  RunConfig entries = blocks_config(100, 4);
  entries.system.blocks->unit = EvictionUnit::sequence;
  entries.system.tiers.dram->blocks->pool.leaves_only = true;
  EXPECT_EQ(refused(entries),
            "/system/tiers/dram/blocks/leaves_only: expected false, but for blocks");
  RunConfig victims = blocks_config(100, 4);
  victims.system.tiers.hbm = hbm_tier(100, 4);
  victims.system.tiers.dram->inclusive = false;
  victims.system.tiers.dram->write = WriteMoment::on_evict;
  victims.system.tiers.dram->block_size = Tokens(8);
  victims.system.tiers.dram->blocks->after_uses = 2;
  victims.system.tiers.dram->blocks->pool.touch = Touch::lookup;
  victims.system.tiers.ssd = blocks_tier(100, 8);
  victims.system.blocks->duplicates = Duplicates::kept;
  EXPECT_EQ(refused(victims),
            "/system/blocks/duplicates: expected merged before a tier that has what leaves hbm\n"
            "/system/load/wait: expected batch before a tier that has what leaves hbm: its blocks "
            "are found in hbm at once\n"
            "/system/tiers: expected one tier behind hbm that has what leaves it\n"
            "/system/tiers/dram/blocks/after_uses: expected \"none\" for a tier that has what "
            "leaves hbm\n"
            "/system/tiers/dram/blocks/touch: expected end for a tier that has what leaves hbm: "
            "what is found leaves it\n"
            "/system/tiers/dram/block_size: expected that of the fastest tier");
}

TEST(BlockReplay, RefusesKeysThatAStoreOfBlocksLacks) {
  RunConfig config = blocks_config(100, 4);
  config.system.tiers.dram->eviction.name = "s3fifo";
  config.system.tiers.dram->admission.name = "second_hit";
  config.system.tiers.dram->blocks->after_uses = 2;
  config.system.blocks->partial_blocks = true;
  EXPECT_EQ(refused(config),
            "/system/blocks/responses: expected false where partial blocks have keys\n"
            "/system/tiers/dram/blocks/after_uses: expected \"none\" for the fastest tier: nothing "
            "is above it");
  RunConfig nodes = blocks_config(100, 4);
  nodes.system.blocks->unit = EvictionUnit::node;
  EXPECT_EQ(refused(nodes),
            "/system/blocks/unit: expected block, tail or sequence, since nodes "
            "need a tier in hbm");
  nodes.system.tiers.hbm = hbm_tier(100, 4);
  nodes.system.tiers.hbm->eviction.name = "fifo";
  nodes.system.tiers.hbm->blocks->pool.touch = Touch::lookup;
  nodes.system.tiers.hbm->blocks->pool.lease = SimDuration(1);
  nodes.system.tiers.hbm->blocks->pool.round = 2;
  nodes.system.tiers.hbm->ttl = SimDuration(1);
  nodes.system.tiers.dram->block_size = Tokens(8);
  EXPECT_EQ(refused(nodes),
            "/system/tiers/hbm/blocks/lease: expected 0s in hbm, whose blocks requests need\n"
            "/system/tiers/hbm/blocks/touch: expected end: running requests hold what they find\n"
            "/system/tiers/hbm/ttl: expected \"none\" for nodes\n"
            "/system/tiers/hbm/blocks/round: expected 1 for nodes\n"
            "/system/tiers/dram/inclusive: expected true behind a tier of blocks in hbm\n"
            "/system/tiers/dram/block_size: expected that of the fastest tier");
  RunConfig entries = blocks_config(100, 4);
  entries.system.blocks->unit = EvictionUnit::sequence;
  entries.system.blocks->duplicates = Duplicates::kept;
  entries.system.blocks->keyless = Keyless::in_order;
  entries.system.tiers.dram->eviction.name = "tokens_times_idle";
  EXPECT_EQ(refused(entries),
            "/system/blocks/duplicates: expected merged for extents and "
            "sequences\n"
            "/system/blocks/keyless: expected first for extents and "
            "sequences\n"
            "/system/tiers/dram/eviction: expected a policy of whole entries "
            "for sequences");
  entries = blocks_config(100, 4);
  entries.system.blocks->unit = EvictionUnit::tail;
  entries.system.tiers.dram->eviction.name = "belady";
  EXPECT_EQ(refused(entries),
            "/system/tiers/dram/eviction: expected a policy that does not know the future: which "
            "blocks are used next depends on the run");
  RunConfig nothing = blocks_config(100, 4);
  nothing.system.blocks->publication = Publication::never;
  EXPECT_EQ(refused(nothing),
            "/system/blocks/found_from: expected another moment than never without a tier in hbm: "
            "nothing would be stored");
  nothing.system.tiers.hbm = hbm_tier(100, 4);
  nothing.system.blocks->keyless = Keyless::in_order;
  nothing.system.tiers.dram->inclusive = false;
  nothing.system.load.wait = LoadWait::batch;
  EXPECT_EQ(refused(nothing),
            "/system/blocks/found_from: expected another moment than never before a tier that has "
            "what leaves hbm: nothing would\n"
            "/system/blocks/keyless: expected first where hbm keeps nothing (found_from never): "
            "all of its blocks have no key");
  RunConfig sessions = tiny_config();
  sessions.system.tiers.dram = blocks_tier(1, 4);
  EXPECT_EQ(refused(sessions),
            "/system/tiers/dram/blocks: expected \"none\" without /system/blocks");
  RunConfig unnamed = blocks_config(100, 4);
  unnamed.system.blocks->partial_blocks = true;
  unnamed.system.blocks->responses = false;
  EXPECT_EQ(refused(unnamed),
            "/system/blocks/partial_blocks: expected false: only a trace that names its blocks "
            "tells equal partial blocks");
  RunConfig small = blocks_config(1, 4);
  small.system.tiers.dram->blocks->capacity = KvSize{KvSize::Unit::tokens, 3};
  EXPECT_EQ(refused(small),
            "/system/tiers/dram/blocks/capacity: expected at least one block of 4tokens, got "
            "3tokens");
  EXPECT_THROW(static_cast<void>(simulate(blocks_config(100, 4), builtin_policies())), ConfigError);
}

/// Sessions with and without shared prompts, in one to three tiers of any rules.
RunConfig random_blocks(std::uint64_t seed) {
  RandomStream random(seed, "blocks");
  RunConfig config = tiny_config(Tokens(random.index(2) == 0 ? 400 : 4000));
  config.seed = static_cast<std::int64_t>(seed);
  if (random.index(2) == 0) {
    config.workload.generator = Generator::shared_prompts;
    config.workload.shared_prompts.tokens_max = Tokens(300);
    config.workload.shared_prompts.tokens_min = Tokens(10);
  }
  config.workload.sessions = 40;
  config.workload.warmup_turns = random.index(20);
  BlocksConfig blocks;
  blocks.hit_cap = random.index(2) == 0 ? HitCap::none : HitCap::last_token;
  blocks.responses = random.index(3) > 0;
  config.system.blocks = blocks;
  const std::int64_t block = std::int64_t{1} << random.index(7);
  const auto next_tier = [&] {
    TierConfig added = blocks_tier(1 + random.index(3000 / block + 5), block);
    constexpr std::array kOrders{"lru", "fifo", "lfu"};
    added.eviction.name = kOrders[static_cast<std::size_t>(random.index(3))];
    added.inclusive = random.index(2) == 0;
    added.write = random.index(2) == 0 ? WriteMoment::on_create : WriteMoment::on_evict;
    added.blocks->pool.touch = random.index(2) == 0 ? Touch::lookup : Touch::end;
    added.blocks->pool.insertion = random.index(2) == 0 ? End::tail : End::head;
    added.blocks->edge.promotes = random.index(2) == 0;
    added.blocks->edge.no_room = random.index(2) == 0 ? NoRoom::evict : NoRoom::skip;
    if (random.index(4) == 0) {
      added.ttl = SimDuration(1 + 1'000'000'000 * random.index(100));
    }
    if (random.index(6) == 0) {
      added.blocks->pool.lease = SimDuration(1'000'000'000 * random.index(20));
    }
    if (random.index(4) == 0) {
      added.blocks->pool.round = 1 + random.index(5);
    }
    if (has_entries(config.system.blocks->unit)) {
      constexpr std::array kPolicies{"lru", "sieve", "gdsf", "arc", "scheduler_aware", "s3fifo"};
      added.eviction.name = kPolicies[static_cast<std::size_t>(random.index(6))];
      added.admission.name = random.index(3) == 0 ? "second_hit" : kAlwaysAdmitted;
    }
    return added;
  };
  constexpr std::array kUnits{EvictionUnit::block, EvictionUnit::tail, EvictionUnit::sequence};
  config.system.blocks->unit = kUnits[static_cast<std::size_t>(random.index(3))];
  if (random.index(4) == 0) {
    // Requests that run take its blocks.
    HbmTierConfig hbm;
    static_cast<TierConfig&>(hbm) = next_tier();
    hbm.blocks->edge = {};
    hbm.blocks->pool.touch = Touch::end;
    hbm.blocks->pool.lease = SimDuration(0);  // it would leave no room
    if (config.system.blocks->unit == EvictionUnit::block && random.index(2) == 0) {
      config.system.blocks->unit = EvictionUnit::node;
      hbm.ttl.reset();
      hbm.blocks->pool.round = 1;
      config.system.blocks->whole_need = random.index(2) == 0;
      config.system.blocks->one_block_more = random.index(2) == 0;
      hbm.eviction.name = random.index(2) == 0 ? "lru" : "lfu";
    }
    hbm.blocks->capacity->count += config.model.context_window.value / block + 1;
    config.system.tiers.hbm = hbm;
    const bool entries = has_entries(config.system.blocks->unit);
    config.system.blocks->duplicates =
        !entries && random.index(2) == 0 ? Duplicates::kept : Duplicates::merged;
    config.system.blocks->keyless =
        entries || random.index(2) == 0 ? Keyless::first : Keyless::in_order;
    constexpr std::array kMoments{Publication::scheduling, Publication::computed, Publication::end,
                                  Publication::never};
    const bool has_keys = config.system.blocks->unit == EvictionUnit::node ||
                          config.system.blocks->keyless == Keyless::in_order;
    config.system.blocks->publication =
        kMoments[static_cast<std::size_t>(random.index(has_keys ? 3 : 4))];
    if (random.index(2) == 0) {
      config.system.blocks->chunk = Tokens(1 + random.index(500));
    }
    if (config.system.blocks->unit == EvictionUnit::node || random.index(2) == 0) {
      return config;
    }
    config.system.tiers.dram = next_tier();
    config.system.tiers.dram->inclusive = true;
    config.system.tiers.dram->write = WriteMoment::on_create;
    config.system.tiers.dram->blocks->pool.touch = Touch::end;
    config.system.tiers.dram->blocks->edge.responses = static_cast<Responses>(random.index(3));
    if (random.index(2) == 0) {
      config.system.tiers.dram->eviction.name = "arc";
    }
  } else {
    config.system.tiers.dram = next_tier();
    config.system.tiers.dram->blocks->edge = {};
  }
  config.hardware.cxl = CxlConfig{.capacity = Bytes(1000000), .price = {}, .bandwidth = {}};
  set_rates(config.hardware.cxl->bandwidth, limits(5e5, 5e5, 1e6));
  if (random.index(2) == 0) {
    config.system.tiers.cxl = next_tier();
  }
  if (random.index(2) == 0) {
    config.system.tiers.ssd = next_tier();
    if (random.index(3) == 0) {
      config.system.tiers.ssd->blocks->after_uses = 1 + random.index(3);
    }
  }
  return config;
}

TEST(BlockReplay, ExtentsGiveTheBytesOfThePlainStore) {
  const char* cases = std::getenv("KVTIER_TEST_CASES");
  const std::uint64_t last = cases == nullptr ? 100 : std::strtoull(cases, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= last; ++seed) {
    const RunConfig config = random_blocks(seed);
    const Json fast = simulate_untimed(config, builtin_policies());
    const Json plain =
        simulate_untimed(config, builtin_policies(), {.stepping = DecodeStepping::per_iteration});
    ASSERT_EQ(fast.dump(), plain.dump()) << "seed " << seed;
  }
}

TEST(BlockReplay, TheCurveIsThatOfReplays) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    RunConfig config = random_blocks(seed);
    config.workload.warmup_turns = 0;
    config.system.tiers.cxl.reset();
    config.system.tiers.ssd.reset();
    if (config.system.tiers.hbm) {
      continue;
    }
    TierConfig& dram = *config.system.tiers.dram;
    dram = blocks_tier(dram.blocks->capacity->count, dram.block_size.value);
    config.system.blocks->unit = EvictionUnit::block;
    config.system.blocks->hit_cap = HitCap::none;
    config.system.blocks->responses = true;
    const Json metrics = simulate_untimed(config, builtin_policies())["metrics"];
    const TurnFitter fitter(config);
    const Json curve = block_curve(
        [&] { return make_source(config.workload, seed, {}); }, &fitter,
        {.block = dram.block_size, .capacities = {*dram.blocks->capacity}, .belady = true});
    const Json& row = curve["rows"][0];
    ASSERT_EQ(row["hit_blocks"], metrics["hit_blocks"]["total"]) << "seed " << seed;
    ASSERT_EQ(row["blocks"], metrics["prompt_blocks"]) << "seed " << seed;
    ASSERT_EQ(row["hit_tokens"], metrics["hit_tokens"]["total"]) << "seed " << seed;
    ASSERT_GE(row["belady"]["hit_blocks"], row["hit_blocks"]) << "seed " << seed;
  }
}

TEST(BlockReplay, NoSystemFindsMoreBlocksThanTheBound) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const RunConfig config = random_blocks(seed);
    const Json result = simulate_untimed(config, builtin_policies());
    const auto source = make_source(config.workload, seed, {});
    const Json bound = bound_of_blocks(config, *source, result);
    ASSERT_GE(bound["hit_blocks"], result["metrics"]["hit_blocks"]["total"]) << "seed " << seed;
    ASSERT_LE(bound["hit_blocks"], result["metrics"]["prompt_blocks"]) << "seed " << seed;
  }
}

/// HBM finds all but the last token of a prompt, so one of its two blocks, and the tier behind
/// both.
TEST(BlockReplay, TheBoundCountsLastBlocksThatATierBehindFinds) {
  RunConfig config = tiny_config();
  config.system.blocks = BlocksConfig{};
  config.system.tiers.hbm = hbm_tier(10, 4);
  config.system.tiers.dram = blocks_tier(10, 4);
  config.system.tiers.dram->inclusive = true;
  config.system.tiers.dram->write = WriteMoment::on_create;
  const std::vector<NamedSource::Request> requests{{{1, 2}, Tokens(8)}, {{1, 2}, Tokens(8)}};
  const auto bound = [&] {
    NamedSource run(requests, {.block = Tokens(4)});
    const Json result = replay_blocks(config, run, builtin_policies(), {});
    NamedSource same(requests, {.block = Tokens(4)});
    const Json of_run = bound_of_blocks(config, same, result);
    EXPECT_LE(result["metrics"]["hit_blocks"]["total"], of_run["hit_blocks"]);
    return of_run["hit_blocks"];
  };
  EXPECT_EQ(bound(), 2);
  config.system.blocks->hit_cap_behind = HitCap::last_token;
  EXPECT_EQ(bound(), 1);
}

/// One block fits. Two requests hold theirs outside, and each ends when the next request for the
/// same block comes.
TEST(BlockReplay, TheBoundCountsWhatRequestsHoldOutsideOfTheTiers) {
  RunConfig config = blocks_config(1, 4);
  config.system.blocks->hit_cap = HitCap::none;
  config.serving.hold_requests = 2;
  const std::vector<NamedSource::Request> requests{
      {{1}, Tokens(4)}, {{2}, Tokens(4)}, {{1}, Tokens(4)}, {{2}, Tokens(4)}};
  NamedSource run(requests, {.block = Tokens(4)});
  const Json result = replay_blocks(config, run, builtin_policies(), {});
  NamedSource same(requests, {.block = Tokens(4)});
  EXPECT_EQ(result["metrics"]["hit_blocks"]["total"], 2);
  EXPECT_EQ(bound_of_blocks(config, same, result)["hit_blocks"], 2);
}

TEST(BlockReplay, TheBoundOfOneTierIsReachedByAnLruThatHoldsAll) {
  const RunConfig config = blocks_config(100'000, 4);
  const Json result = simulate_untimed(config, builtin_policies());
  const auto source = make_source(config.workload, 1, {});
  const Json bound = bound_of_blocks(config, *source, result);
  EXPECT_EQ(bound["share_reached"]["blocks"], 1.0);
  EXPECT_GT(bound["hit_blocks"], 0);
}

TEST(BlockReplay, TheBoundOfAClusterIsOneGlobalPool) {
  const auto bound = [](std::int64_t instances, std::int64_t blocks) {
    RunConfig config = blocks_config(blocks, 4);
    config.cluster.instances = instances;
    config.cluster.router.name = "round_robin";
    const Json result = simulate_untimed(config, builtin_policies());
    const auto source = make_source(config.workload, 1, {});
    const Json own = bound_of_blocks(config, *source, result);
    EXPECT_GE(own["hit_blocks"], result["metrics"]["hit_blocks"]["total"]);
    return own["hit_blocks"];
  };
  EXPECT_EQ(bound(4, 25), bound(1, 100));
  EXPECT_LT(bound(1, 25), bound(1, 100));
}

TEST(BlockReplay, InstancesFindKvInASharedTier) {
  RunConfig config = blocks_config(5, 4);
  config.system.tiers.hbm = hbm_tier(10, 4);
  config.system.tiers.dram->inclusive = true;
  config.system.tiers.dram->write = WriteMoment::on_create;
  config.cluster.instances = 2;
  config.cluster.router.name = "round_robin";
  config.cluster.network = NetworkConfig{.rate = BytesPerSecond(1e9)};
  const auto found = [&] {
    NamedSource source({{{1, 2, 3}, Tokens(12)}, {{1, 2, 4}, Tokens(12)}}, {.block = Tokens(4)});
    return replay_blocks(config, source, builtin_policies(), {})["metrics"]["hit_tokens"]["dram"];
  };
  config.cluster.shared = SharedTierConfig{};
  EXPECT_EQ(found(), 8);
  config.cluster.shared.reset();
  config.cluster.network.reset();
  EXPECT_EQ(found(), 0);
}

}  // namespace
}  // namespace kvtier::test
