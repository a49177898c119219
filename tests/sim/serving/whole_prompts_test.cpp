/// Prompts that are not split, with the decode of the others (Pensieve) or before it (vLLM 0.2).
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "sim/serving/block_batcher.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// Blocks of one token, as many as `blocks`, of which nothing is kept. An iteration takes 1 ms a
/// token of its prompts, and 10 ms more if requests decode in it.
RunConfig whole_prompts(Batching batching, Tokens window, std::int64_t blocks) {
  RunConfig config = tiny_config(window);
  config.system.batching = batching;
  BlocksConfig& rules = config.system.blocks.emplace();
  rules.publication = Publication::never;
  rules.whole_prompts = true;
  config.system.tiers.hbm.emplace();
  config.system.tiers.hbm->block_size = Tokens(1);
  config.system.load.wait = LoadWait::batch;
  config.serving.slots = 4;
  config.serving.token_budget = window;
  config.serving.kv_memory = kv(blocks);
  return config;
}

/// With sessions kept in HBM and, if asked, host memory.
RunConfig keeping(RunConfig config, bool host) {
  BlocksConfig& rules = *config.system.blocks;
  rules.publication = Publication::end;
  rules.unit = EvictionUnit::tail;
  rules.duplicates = Duplicates::merged;
  rules.hit_cap = HitCap::last_token;
  config.system.tiers.hbm->eviction.name = "tokens_times_idle";
  if (host) {
    TierConfig& dram = config.system.tiers.dram.emplace(tier("tokens_times_idle"));
    dram.inclusive = false;
    dram.write = WriteMoment::on_evict;
    dram.block_size = Tokens(1);
  }
  return config;
}

TEST(WholePrompts, APromptJoinsTheDecodeOfTheOthers) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(whole_prompts(Batching::unified, Tokens(50), 100), kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(25, {turn(4, 3)})}, stepping);
    run.run();
    // A has its first token at 10 and decodes 10..20, 20..30. Then 4 + 10 ms for B's prompt and A's
    // fourth token, 30..44, and one iteration of both, 44..54, which is A's last. B's ends at 64.
    expect_times(run.request(0, 0), 0, 0, 10, 54);
    expect_times(run.request(1, 0), 25, 30, 44, 64);
    // 10 of the 14 ms are decode.
    EXPECT_EQ(run.request(1, 0).prefill_compute, for_ms(4));
    EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(14));
    EXPECT_EQ(run.instance.total_gpu_time().decode, for_ms(50));
  }
}

TEST(WholePrompts, ASeparatePrefillBlocksTheDecodeOfTheOthers) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(whole_prompts(Batching::separate, Tokens(50), 100), kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(25, {turn(4, 3)})}, stepping);
    run.run();
    // B's prompt 30..34; then both decode 34..44 and 44..54, the last of each.
    expect_times(run.request(0, 0), 0, 0, 10, 54);
    expect_times(run.request(1, 0), 25, 30, 34, 54);
  }
}

TEST(WholePrompts, APrefillRunsAloneWithPrefillFirst) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(whole_prompts(Batching::prefill_first, Tokens(50), 100), kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(0, {turn(4, 3)}), session(5, {turn(2, 1)})},
                    stepping);
    run.run();
    // Three prompts, one after the other, then the decode of the two that have more tokens.
    expect_times(run.request(0, 0), 0, 0, 10, 56);
    expect_times(run.request(1, 0), 0, 10, 14, 36);
    expect_times(run.request(2, 0), 5, 14, 16, 16);
  }
}

TEST(WholePrompts, RecomputingTakesTheSameTimesAsWithoutTiers) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    RandomStream random(seed, "recompute");
    const Tokens window(300);
    RunConfig blocks = whole_prompts(Batching::prefill_first, window,
                                     window.value * (1 + random.index(4)) + random.index(300));
    blocks.system.blocks->whole_response = true;
    blocks.serving.slots = 1 + random.index(6);
    blocks.seed = static_cast<std::int64_t>(seed);
    blocks.workload.sessions = 40;
    blocks.workload.arrival_rate = PerSecond(random.index(2) == 0 ? 0.2 : 5);
    RunConfig plain = blocks;
    plain.system.blocks.reset();
    plain.system.tiers = {};
    const Json of_blocks = simulate(blocks, builtin_policies())["metrics"];
    const Json of_sessions = simulate(plain, builtin_policies())["metrics"];
    for (const char* key : {"ttft_seconds", "queueing_seconds", "tpot_seconds", "gpu_seconds",
                            "normalized_latency_seconds_per_token"}) {
      EXPECT_EQ(of_blocks[key], of_sessions[key]) << key << ", seed " << seed;
    }
    EXPECT_EQ(of_blocks["lost_hits"]["capacity"], 0);
    EXPECT_GT(of_blocks["lost_hits"]["not_stored"], 0);
  }
}

TEST(WholePrompts, AnIterationComputesNoMoreThanTheTokenBudget) {
  // A runs alone at first. At 10 it decodes (1 token) and B (8) fits into 20 beside it. With 11
  // more C fits, too: 1 + 8 + 11 = 20; with 12 it waits for the next iteration.
  for (const std::int64_t tokens : {11, 12}) {
    ScriptedRun run(
        whole_prompts(Batching::unified, Tokens(20), 100), kPerToken, kIteration,
        {session(0, {turn(10, 3)}), session(1, {turn(8, 2)}), session(2, {turn(tokens, 1)})});
    run.run();
    if (tokens == 11) {
      // One iteration of 8 + 11 + 10 ms.
      expect_times(run.request(1, 0), 1, 10, 39, 49);
      expect_times(run.request(2, 0), 2, 10, 39, 39);
    } else {
      // 8 + 10 ms, then 12 + 10: A and B decode in it.
      expect_times(run.request(1, 0), 1, 10, 28, 50);
      expect_times(run.request(2, 0), 2, 28, 50, 50);
    }
  }
}

TEST(WholePrompts, OneOfMoreThanTheTokenBudgetHasNoOtherBesideIt) {
  RunConfig config = whole_prompts(Batching::unified, Tokens(50), 100);
  config.serving.token_budget = Tokens(20);
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(5, 3)}), session(1, {turn(30, 2)}), session(2, {turn(4, 1)})});
  run.run();
  // A 0..5. B's 30 tokens with A's second: 5..45. Then C's 4 with A's third and B's second: 45..59.
  expect_times(run.request(0, 0), 0, 0, 5, 59);
  expect_times(run.request(1, 0), 1, 5, 45, 59);
  expect_times(run.request(2, 0), 2, 45, 59, 59);
}

TEST(WholePrompts, SeparatePromptsShareAnIterationWithinTheTokenBudget) {
  // 8 + 12 = 20 tokens go together; one more waits, though the running requests do not count.
  for (const std::int64_t tokens : {12, 13}) {
    ScriptedRun run(
        whole_prompts(Batching::separate, Tokens(20), 100), kPerToken, kIteration,
        {session(0, {turn(10, 3)}), session(1, {turn(8, 1)}), session(2, {turn(tokens, 1)})});
    run.run();
    if (tokens == 12) {
      expect_times(run.request(1, 0), 1, 10, 30, 30);
      expect_times(run.request(2, 0), 2, 10, 30, 30);
    } else {
      expect_times(run.request(1, 0), 1, 10, 18, 18);
      expect_times(run.request(2, 0), 2, 18, 31, 31);
    }
  }
}

TEST(WholePrompts, OutOfBlocksTheLatestIsPreemptedAndComesBackBeforeTheQueue) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(whole_prompts(Batching::separate, Tokens(20), 20), kPerToken, kIteration,
                    {session(0, {turn(8, 8)}), session(1, {turn(6, 8)}), session(20, {turn(5, 1)})},
                    stepping);
    run.run();
    // A 0..8, B 8..14: 8 + 6 blocks. Three iterations of both fill the 20 at 44; from 24 on C needs
    // 5 and finds 4. At 44 B gives its 9 back, and A decodes alone: 4 more by 84. C does not pass
    // B, which needs 10: 6 of its prompt and 4 of its response.
    expect_times(run.request(0, 0), 0, 0, 8, 84);
    // 10 tokens and C's 5: 84..99; that is B's fifth, and three more take 30 ms.
    expect_times(run.request(1, 0), 1, 8, 14, 129);
    expect_times(run.request(2, 0), 20, 84, 99, 99);
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
    EXPECT_EQ(run.request(1, 0).found.reused, Tokens(0));
  }
}

TEST(WholePrompts, TheLatestIsPreemptedAndTheOneThatLostMemoryLastReturnsFirst) {
  RunConfig config = whole_prompts(Batching::separate, Tokens(18), 18);
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(4, 14)}), session(1, {turn(3, 9)}), session(2, {turn(3, 8)})});
  run.run();
  // A 0..4, B and C 4..10: 10 blocks. After two iterations they have 16, and 2 are left for three:
  // C is preempted at 30, and B at 60. A ends at 140. Then B (9 tokens) and C (6) are computed
  // again, 15 ms; after one iteration they have 17, and C goes once more at 165. B ends with its
  // ninth at 175. C's 8 tokens take 8 ms, for the sixth, and two more follow.
  expect_times(run.request(0, 0), 0, 0, 4, 140);
  expect_times(run.request(1, 0), 1, 4, 10, 175);
  expect_times(run.request(2, 0), 2, 4, 10, 203);
  EXPECT_EQ(run.instance.batcher().preemptions(), 3);
}

TEST(WholePrompts, DecodesMayTakeTheWatermarkAndPromptsNotWhileOthersRun) {
  RunConfig config = whole_prompts(Batching::unified, Tokens(30), 30);
  config.system.blocks->watermark = 0.2;  // 6 blocks
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 10)}), session(1, {turn(14, 1)})});
  run.run();
  // At 10 A takes its 11th block; B needs 14, and 30 - 11 - 14 = 5 < 6. A ends at 100.
  expect_times(run.request(0, 0), 0, 0, 10, 100);
  expect_times(run.request(1, 0), 1, 100, 114, 114);
}

TEST(WholePrompts, AKeptSessionComputesItsNewTokensAndTheLastOneOnly) {
  for (const bool host : {false, true}) {
    ScriptedRun run(keeping(whole_prompts(Batching::unified, Tokens(50), 100), host), kPerToken,
                    kIteration, {session(0, {turn(10, 5), turn(3, 2, 100)})});
    run.run();
    const RequestRecord& r = run.request(0, 1);
    // KV of the response's last token does not exist: 14 tokens are in HBM, and 4 are computed.
    expect_times(r, 150, 150, 154, 164);
    EXPECT_EQ(r.found.reused, Tokens(14));
    EXPECT_EQ(r.found.medium, Medium::hbm);
    EXPECT_EQ(r.exposed_load, SimDuration(0));
  }
}

TEST(WholePrompts, WithoutHostMemoryAHeadStaysAndTheTailIsComputedWithThePrompt) {
  ScriptedRun run(keeping(whole_prompts(Batching::unified, Tokens(20), 20), false), kPerToken,
                  kIteration,
                  {session(0, {turn(10, 5), turn(3, 2, 300)}), session(100, {turn(16, 2)})});
  run.run();
  // At 100 the second needs 16 of the 6 blocks that are free: the first is halved from 14 to 7, and
  // to 3.
  expect_times(run.request(1, 0), 100, 100, 116, 126);
  // Its second turn, at 350, finds 3 of 15 and computes 12 + 3 behind them.
  const RequestRecord& r = run.request(0, 1);
  expect_times(r, 350, 350, 365, 375);
  EXPECT_EQ(r.found.reused, Tokens(3));
  EXPECT_EQ(r.found.cause, LossCause::capacity);
  EXPECT_EQ(run.instance.turns().partial_turns, 1);
}

/// Two sessions of 14 and 17 tokens in turn, among 20 blocks, before host memory.
TEST(WholePrompts, WhatLeavesHbmAheadOfNeedIsWrittenWhileOthersRun) {
  const auto end_of_second = [](double ahead) {
    RunConfig config = keeping(whole_prompts(Batching::unified, Tokens(20), 20), true);
    config.system.tiers.dram->blocks.emplace().edge.ahead = ahead;
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(10, 5), turn(3, 2, 300)}), session(100, {turn(16, 2)})});
    run.run();
    EXPECT_EQ(run.request(0, 1).found.reused, Tokens(14)) << "all whole blocks are found";
    return run.request(1, 0).first_token;
  };
  // Without, the second request waits at 100 until the blocks that it takes have been written.
  EXPECT_GT(end_of_second(0), at_ms(116));
  // Half of HBM was written before, or all of it.
  EXPECT_LT(end_of_second(0.5), end_of_second(0));
  EXPECT_EQ(end_of_second(1), at_ms(116));
}

TEST(WholePrompts, ASuspendedRequestKeepsItsKvAndContinues) {
  RunConfig config = keeping(whole_prompts(Batching::unified, Tokens(20), 20), false);
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(8, 8)}), session(1, {turn(8, 4)})});
  run.run();
  // A 0..8. B joins at 8: A takes its 10th block and B 9, 18 ms to 26. Nothing is left for both but
  // one: B's KV of 8 tokens stays, and A takes from it what it needs: 6 more tokens.
  EXPECT_EQ(run.instance.batcher().preemptions(), 1);
  EXPECT_EQ(run.request(0, 0).finished, at_ms(26 + 60));
  EXPECT_EQ(run.request(1, 0).first_token, at_ms(26));
  EXPECT_GT(run.request(1, 0).finished, run.request(0, 0).finished);
}

}  // namespace
}  // namespace kvtier::test
