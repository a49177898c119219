#include "sim/serving/config.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

RunConfig two_tiers() {
  RunConfig config = tiny_config();
  config.system.tiers.dram = tier();
  config.system.tiers.ssd = tier("lru", true);
  return config;
}

TEST(CheckRunConfig, AcceptsAValidConfig) {
  EXPECT_EQ(problems_of(tiny_config()), Lines{});
  EXPECT_EQ(problems_of(two_tiers()), Lines{});
}

TEST(CheckRunConfig, SuggestsThePolicyThatWasMeant) {
  RunConfig config = two_tiers();
  config.system.tiers.dram->eviction.name = "lruu";
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/dram/eviction: expected one of fifo, lru, scheduler_aware, "
                  "tokens_times_idle, window_score, lfu, mru, slru, arc, s3fifo, sieve, gdsf, "
                  "seconds_saved, session_fifo, belady, got \"lruu\" (did you mean \"lru\"?)"});
  config = two_tiers();
  config.system.order.name = "zzz";
  EXPECT_EQ(problems_of(config), Lines{"/system/order: expected one of fcfs, longest_prefix, "
                                       "priority, shuffled_window, got \"zzz\""});
  config = two_tiers();
  config.system.prefetch.name = "lookahead";
  EXPECT_EQ(problems_of(config), Lines{"/system/prefetch: expected one of none, look_ahead, "
                                       "deadline, got \"lookahead\" (did you "
                                       "mean \"look_ahead\"?)"});
}

TEST(CheckRunConfig, RefusesAParameterThePolicyDoesNotHave) {
  RunConfig config = two_tiers();
  config.system.tiers.ssd->eviction = {.name = "scheduler_aware", .parameters = {{"windw", 3}}};
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/ssd/eviction/windw: policy scheduler_aware has no such parameter "
                  "(did you mean \"window\"?)"});
  config.system.tiers.ssd->eviction = {.name = "lru", .parameters = {{"window", 3}}};
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/ssd/eviction/window: policy lru has no such parameter"});
}

TEST(CheckRunConfig, RefusesAParameterOutOfItsRange) {
  RunConfig config = two_tiers();
  config.system.prefetch = {.name = "look_ahead", .parameters = {{"window", -1}}};
  EXPECT_EQ(problems_of(config),
            Lines{"/system/prefetch/window: expected requests from 0 to 1000000000000, got -1"});
}

TEST(CheckRunConfig, RefusesATierThatIsNotInstalled) {
  RunConfig config = two_tiers();
  config.hardware.ssd.reset();
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/ssd: the system uses a tier that is not installed (/hardware/ssd "
                  "is \"none\")"});
  config = two_tiers();
  config.hardware.dram.reset();
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/dram: the system uses a tier that is not installed "
                  "(/hardware/dram is \"none\")"});
}

TEST(CheckRunConfig, RefusesAPolicyThatNeedsMoreThanIsOffered) {
  RunConfig config = two_tiers();
  config.serving.knowledge = OfferedKnowledge::online;
  EXPECT_EQ(problems_of(config), Lines{});
  config.system.tiers.dram->eviction.name = "scheduler_aware";
  config.system.prefetch.name = "look_ahead";
  EXPECT_EQ(problems_of(config),
            (Lines{"/system/prefetch: policy look_ahead needs look_ahead knowledge, but "
                   "/serving/knowledge offers online",
                   "/system/tiers/dram/eviction: policy scheduler_aware needs look_ahead "
                   "knowledge, but /serving/knowledge offers online"}));
}

TEST(CheckRunConfig, RefusesPrefetchWithoutTwoTiers) {
  for (const bool dram : {false, true}) {
    RunConfig config = two_tiers();
    config.system.prefetch.name = "look_ahead";
    EXPECT_EQ(problems_of(config), Lines{});
    (dram ? config.system.tiers.ssd : config.system.tiers.dram).reset();
    EXPECT_EQ(problems_of(config),
              Lines{"/system/prefetch: policy look_ahead fetches from a slower tier to the "
                    "fastest, but the system uses one tier alone"});
  }
}

TEST(CheckRunConfig, RefusesAModelThatDoesNotFit) {
  RunConfig config = tiny_config();
  config.model.layers = 1000;
  config.model.hidden_size = 10000;
  // Per layer 2 x 10,000 x 50 for Q and the output, as much for K and V, and for the MLP: 3M
  // elements of 2 bytes; 1,000 layers: 5.6 GiB.
  EXPECT_EQ(problems_of(config),
            Lines{"/hardware/hbm/capacity: model tiny needs 5.6GiB for its weights and more for "
                  "KV, but 1 x 0.9GiB of HBM hold 0.9GiB"});
}

TEST(CheckRunConfig, RefusesHbmThatLeavesLessThanOneWindow) {
  RunConfig config = tiny_config(Tokens(2000000));
  // 1 GB - 0.4 MB of weights; a window takes 2 GB.
  EXPECT_EQ(problems_of(config),
            Lines{"/hardware/hbm/capacity: the weights and the read and write buffers leave "
                  "0.93GiB for KV, but one context window of tiny takes 1.86GiB"});
}

TEST(CheckRunConfig, BatchingAndHbmWithoutASizeNeedBlocks) {
  RunConfig config = tiny_config();
  config.system.batching = Batching::separate;
  EXPECT_EQ(problems_of(config),
            Lines{"/system/blocks: batching separate needs KV in blocks, got \"none\""});
  config.system.batching = Batching::prefill_first;
  config.system.tiers.hbm.emplace();
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/hbm/capacity: expected a size without /system/blocks"});
}

TEST(CheckRunConfig, RefusesAPolicyOfPartsOfEntriesWithoutBlocks) {
  RunConfig config = two_tiers();
  config.system.tiers.dram->eviction.name = "tokens_times_idle";
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/dram/eviction: expected a policy of whole entries: "
                  "tokens_times_idle evicts parts of entries, which needs /system/blocks with unit "
                  "tail"});
}

TEST(CheckRunConfig, KvMemoryLimitsTheHbmBesideTheWeights) {
  RunConfig config = tiny_config(Tokens(100));
  config.serving.kv_memory = kv(150);
  EXPECT_EQ(running_kv_capacity(config), kv(150));
  config.serving.kv_memory = Bytes(999999999);
  EXPECT_EQ(running_kv_capacity(config), config.hardware.hbm.capacity - weight_bytes(config.model));
}

TEST(TokenBudget, IsAContextWindowButAtLeastThatOfVllm) {
  EXPECT_EQ(token_budget(tiny_config(Tokens(100))), Tokens(2560));
  EXPECT_EQ(token_budget(tiny_config(Tokens(4096))), Tokens(4096));
  RunConfig config = tiny_config();
  config.serving.token_budget = Tokens(7);
  EXPECT_EQ(token_budget(config), Tokens(7));
}

TEST(CheckRunConfig, TheBuffersOfASystemThatStoresTakeHbm) {
  RunConfig config = two_tiers();
  const Bytes free = config.hardware.hbm.capacity - weight_bytes(config.model);
  config.system.load.buffers = 3;
  // 100 MB of write buffer, and 3 layers of 200 bytes for 1,000 tokens.
  EXPECT_EQ(running_kv_capacity(config), free - Bytes(100000000) - Bytes(600000));
  config.system.load.buffers = 1000;  // no more than there are layers
  EXPECT_EQ(running_kv_capacity(config), free - Bytes(100000000) - kv(1000));
  // The longest history loads for five times as long as one new token computes.
  config.system.load.buffers.reset();
  EXPECT_EQ(running_kv_capacity(config), free - Bytes(100000000) - kv(1000));
  config.system.load.discipline = LoadDiscipline::blocking;  // nothing is loaded ahead
  EXPECT_EQ(running_kv_capacity(config), free - Bytes(100000000));
  config.system.save.write_buffer = free;
  EXPECT_EQ(running_kv_capacity(config), Bytes(0));
  EXPECT_EQ(problems_of(config).size(), 1U);
  config.system.tiers = {};
  EXPECT_EQ(running_kv_capacity(config), free);
}

TEST(CheckRunConfig, RefusesAFreeBufferAsLargeAsTheTier) {
  RunConfig config = two_tiers();
  config.system.tiers.dram->free_buffer = Bytes(1000000);
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/dram/free_buffer: expected less than the capacity, 1MB, got "
                  "1MB"});
  config.system.tiers.dram->free_buffer = Bytes(999999);
  EXPECT_EQ(problems_of(config), Lines{});
}

TEST(CheckRunConfig, RefusesBlocksAndReservationsThatDoNotFit) {
  RunConfig config = two_tiers();
  config.system.tiers.ssd->block_size = Tokens(1001);
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/ssd/block_size: expected at most the context window, 1000tokens, "
                  "got 1001tokens"});
  config = two_tiers();
  config.serving.kv_reservation = Reservation::context_window;
  EXPECT_EQ(problems_of(config), Lines{});
  config.hardware.dram->capacity = Bytes(999999);
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/dram: one reserved context window takes 1000000 bytes, more than "
                  "the capacity, 999999B"});
}

TEST(CheckRunConfig, RefusesAWindowOfOneTokenAndKeptTokensThatFillIt) {
  RunConfig config = tiny_config(Tokens(1));
  EXPECT_EQ(problems_of(config), Lines{"/model/context_window: expected at least 2 tokens"});
  config = tiny_config();
  config.serving.keep_first_tokens = Tokens(1000);
  EXPECT_EQ(problems_of(config),
            Lines{"/serving/keep_first_tokens: expected less than the context window, 1000tokens, "
                  "got 1000tokens"});
}

TEST(CheckRunConfig, RefusesSharedPromptsThatLeaveNoRoom) {
  RunConfig config = tiny_config();
  config.workload.generator = Generator::shared_prompts;
  config.workload.shared_prompts.tokens_max = Tokens(998);
  EXPECT_EQ(problems_of(config), Lines{});
  config.workload.shared_prompts.tokens_max = Tokens(999);
  EXPECT_EQ(problems_of(config),
            Lines{"/workload/shared_prompts/tokens_max: expected at most 998tokens (2tokens less "
                  "than the context window), got 999tokens"});
  config.workload.generator = Generator::sharegpt;
  EXPECT_EQ(problems_of(config), Lines{});
}

TEST(CheckRunConfig, RefusesCompressionWithoutStoredKv) {
  RunConfig config = two_tiers();
  config.system.compression = CompressionConfig{.strength = 0.5};
  EXPECT_EQ(problems_of(config), Lines{});
  config.system.compression->sparsity.clear();
  EXPECT_EQ(problems_of(config),
            Lines{"/system/compression/sparsity: expected at least one number"});
  config = tiny_config();
  config.system.compression = CompressionConfig{.strength = 0.5};
  EXPECT_EQ(problems_of(config),
            Lines{"/system/compression: the system stores no KV, expected \"none\""});
}

TEST(CheckRunConfig, ReservesAWindowOfCompressedKv) {
  RunConfig config = two_tiers();
  config.serving.kv_reservation = Reservation::context_window;
  config.hardware.dram->capacity = Bytes(500000);
  config.system.compression = CompressionConfig{.strength = 1, .sparsity = {0.5}};
  EXPECT_EQ(problems_of(config), Lines{});
  config.hardware.dram->capacity = Bytes(499999);
  EXPECT_EQ(problems_of(config),
            Lines{"/system/tiers/dram: one reserved context window takes 500000 bytes, more than "
                  "the capacity, 499999B"});
}

TEST(CompressionConfig, NeedsAStrengthAndShares) {
  SystemConfig system;
  Problems problems;
  read_value(system, Json::parse(R"({"compression": {"sparsity": [0.5, 1.2]}})"), "/system",
             problems);
  EXPECT_EQ(problems.lines(),
            (Lines{"/system/compression/strength: missing key",
                   "/system/compression/sparsity/1: expected a number >= 0 and <= 1, got 1.2"}));
}

/// Stored bytes of a model with 200 bytes of KV in a layer.
std::vector<std::int64_t> stored_up_to(std::int64_t layers, double strength,
                                       std::vector<double> sparsity) {
  RunConfig config = tiny_config();
  config.model.layers = layers;
  config.system.compression =
      CompressionConfig{.strength = strength, .sparsity = std::move(sparsity)};
  std::vector<std::int64_t> bytes;
  for (const Bytes sum : stored_layer_sizes(config)) {
    bytes.push_back(sum.value);
  }
  return bytes;
}

TEST(StoredKv, KeepsTheShareThatSparsityLeaves) {
  using Sums = std::vector<std::int64_t>;
  // Half of 0.5 and of 1.0: 0.75 and 0.5 are kept.
  EXPECT_EQ(stored_up_to(2, 0.5, {0.5, 1.0}), (Sums{150, 250}));
  // 0, 1/4, 2/4, 3/4 and 1: the last layer keeps a byte.
  EXPECT_EQ(stored_up_to(5, 1, {0, 1}), (Sums{200, 350, 450, 500, 501}));
  // The second number is the middle layer's.
  EXPECT_EQ(stored_up_to(5, 1, {0, 0.5, 0.5}), (Sums{200, 350, 450, 550, 650}));
  EXPECT_EQ(stored_up_to(3, 1, {0.25}), (Sums{150, 300, 450}));
  EXPECT_EQ(stored_up_to(1, 1, {0.25, 0.75}), (Sums{150}));
  // More numbers than layers.
  EXPECT_EQ(stored_up_to(2, 1, {0.25, 0.5, 0.75}), (Sums{150, 200}));
  // 200 x 0.667 is 133.4, to whole bytes.
  EXPECT_EQ(stored_up_to(2, 1, {0.333}), (Sums{133, 266}));
  EXPECT_EQ(stored_up_to(2, 0, {0.5, 1.0}), (Sums{200, 400}));
}

TEST(StoredKv, IsAllOfItWithoutCompression) {
  const RunConfig config = tiny_config();
  EXPECT_EQ(stored_kv_bytes_per_token(config), kTokenBytes);
  EXPECT_EQ(stored_layer_sizes(config).front(), kTokenBytes / kLayers);
}

TEST(StoredKv, InterpolatesCarsSparsityBetweenItsEnds) {
  // 40 layers from 0.60 to 0.95: 0.775 on average.
  RunConfig config = tiny_config();
  config.model.layers = 40;
  config.model.head_dim = 5000;
  config.system.compression = CompressionConfig{.strength = 1};
  const double kept = static_cast<double>(stored_kv_bytes_per_token(config).value) /
                      static_cast<double>(kv_bytes_per_token(config.model).value);
  EXPECT_NEAR(kept, 0.225, 1e-5);
}

TEST(CheckRunConfig, ReportsEveryProblemAtOnce) {
  RunConfig config = two_tiers();
  config.system.order.name = "fcsf";
  config.system.tiers.dram->eviction.name = "lur";
  config.hardware.ssd.reset();
  config.serving.keep_first_tokens = Tokens(5000);
  const Lines lines = problems_of(config);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].find("/system/order: "), 0U);
  EXPECT_EQ(lines[1].find("/system/tiers/dram/eviction: "), 0U);
  EXPECT_EQ(lines[2].find("/system/tiers/ssd: "), 0U);
  EXPECT_EQ(lines[3].find("/serving/keep_first_tokens: "), 0U);
}

TEST(LongTurns, AreClampedForGeneratorsAndErrorsForTracesUnlessSaid) {
  RunConfig config = tiny_config();
  EXPECT_TRUE(clamps_long_turns(config));
  config.workload.generator.reset();
  config.workload.trace = "trace.csv";
  EXPECT_FALSE(clamps_long_turns(config));
  config.serving.long_turn = LongTurn::clamp;
  EXPECT_TRUE(clamps_long_turns(config));
}

// ---- Policy choices ----

PolicyChoice read(const std::string& text, Lines* problems_found = nullptr) {
  PolicyChoice choice;
  Problems problems;
  read_value(choice, parse_json_strictly(text, "test"), "/x", problems);
  if (problems_found != nullptr) {
    *problems_found = problems.lines();
  } else {
    EXPECT_EQ(problems.lines(), Lines{});
  }
  return choice;
}

TEST(PolicyChoice, IsANameOrAnObjectWithParameters) {
  EXPECT_EQ(read("\"lru\"").name, "lru");
  const PolicyChoice choice = read(R"({"policy": "look_ahead", "window": 64})");
  EXPECT_EQ(choice.name, "look_ahead");
  EXPECT_EQ(choice.parameters, (PolicyParameters{{"window", 64}}));
  // "auto" sets no parameter: the policy computes the value itself.
  EXPECT_TRUE(read(R"({"policy": "look_ahead", "window": "auto"})").parameters.empty());
}

TEST(PolicyChoice, IsWrittenAsItIsRead) {
  EXPECT_EQ(write_config(read("\"lru\"")).dump(), "\"lru\"");
  EXPECT_EQ(write_config(read(R"({"policy": "lru"})")).dump(), "\"lru\"");
  const Json json = write_config(read(R"({"policy": "look_ahead", "window": 64})"));
  EXPECT_EQ(json["policy"], "look_ahead");
  EXPECT_EQ(json["window"].get<double>(), 64);
  EXPECT_EQ(write_config(read(json.dump())).dump(), json.dump());
}

TEST(PolicyChoice, SaysWhatItExpects) {
  Lines lines;
  read("3", &lines);
  EXPECT_EQ(lines, Lines{"/x: expected a policy's name or {\"policy\": NAME, parameters}, got 3"});
  read(R"({"window": 3})", &lines);
  EXPECT_EQ(lines, Lines{"/x: expected a policy's name or {\"policy\": NAME, parameters}, got "
                         "{\"window\":3}"});
  read(R"({"policy": "look_ahead", "window": "wide", "a/b": true})", &lines);
  EXPECT_EQ(lines, (Lines{"/x/window: expected a number or \"auto\", got \"wide\"",
                          "/x/a~1b: expected a number or \"auto\", got true"}));
}

TEST(LoadByLayers, NeedsADriveWhoseBlocksHoldNoMoreThanOneLayersKv) {
  RunConfig config = tiny_config();
  const Bytes row = kv_bytes_per_token_layer(config.model);
  const auto waits = [&config](Bytes block, Medium from) {
    config.hardware.ssd->block = block;
    return waits_for_whole_load(config, from);
  };
  EXPECT_FALSE(waits(Bytes(0), Medium::ssd));
  EXPECT_FALSE(waits(row, Medium::ssd));
  EXPECT_TRUE(waits(row + Bytes(1), Medium::ssd));
  EXPECT_FALSE(waits(row + Bytes(1), Medium::dram));
  config.system.load.discipline = LoadDiscipline::blocking;
  EXPECT_TRUE(waits(Bytes(0), Medium::dram));
}

}  // namespace
}  // namespace kvtier::test
