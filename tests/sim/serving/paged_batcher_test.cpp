#include "sim/serving/paged_batcher.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sim/serving/result.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

constexpr SimDuration kPerToken = kMillisecond;
constexpr SimDuration kIteration = kMillisecond * 10;

void expect_times(const RequestRecord& r, std::int64_t arrived, std::int64_t admitted,
                  std::int64_t first_token, std::int64_t finished) {
  EXPECT_EQ(r.arrived, at_ms(arrived));
  EXPECT_EQ(r.admitted, at_ms(admitted));
  EXPECT_EQ(r.first_token, at_ms(first_token));
  EXPECT_EQ(r.finished, at_ms(finished));
}

/// Blocks of one token, as many as `blocks`. An iteration takes 1 ms a token of its prompts, and
/// 10 ms more if requests decode in it.
RunConfig paged_config(Batching batching, Tokens window, std::int64_t blocks) {
  RunConfig config = tiny_config(window);
  config.system.batching = batching;
  config.system.paging = PagingConfig{.block_size = Tokens(1)};
  config.serving.slots = 4;
  config.serving.token_budget = window;
  config.serving.kv_memory = kv(blocks);
  return config;
}

/// With sessions kept in HBM and, if asked, host memory.
RunConfig keeping(RunConfig config, bool host) {
  HbmTierConfig hbm;
  static_cast<TierConfig&>(hbm) = tier("tokens_times_idle");
  config.system.tiers.hbm = hbm;
  if (host) {
    config.system.tiers.dram = tier("tokens_times_idle");
  }
  return config;
}

constexpr DecodeStepping kSteppings[] = {DecodeStepping::closed_form,
                                         DecodeStepping::per_iteration};

TEST(PagedBatcher, APromptJoinsTheDecodeOfTheOthers) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(paged_config(Batching::unified, Tokens(50), 100), kPerToken, kIteration,
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

TEST(PagedBatcher, ASeparatePrefillBlocksTheDecodeOfTheOthers) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(paged_config(Batching::separate, Tokens(50), 100), kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(25, {turn(4, 3)})}, stepping);
    run.run();
    // B's prompt 30..34; then both decode 34..44 and 44..54, the last of each.
    expect_times(run.request(0, 0), 0, 0, 10, 54);
    expect_times(run.request(1, 0), 25, 30, 34, 54);
  }
}

TEST(PagedBatcher, AnIterationComputesNoMoreThanTheTokenBudget) {
  // A runs alone at first. At 10 it decodes (1 token) and B (8) fits into 20 beside it. With 11
  // more C fits, too: 1 + 8 + 11 = 20; with 12 it waits for the next iteration.
  for (const std::int64_t tokens : {11, 12}) {
    ScriptedRun run(
        paged_config(Batching::unified, Tokens(20), 100), kPerToken, kIteration,
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

TEST(PagedBatcher, SeparatePromptsShareAnIterationWithinTheTokenBudget) {
  // 8 + 12 = 20 tokens go together; one more waits, though the running requests do not count.
  for (const std::int64_t tokens : {12, 13}) {
    ScriptedRun run(
        paged_config(Batching::separate, Tokens(20), 100), kPerToken, kIteration,
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

TEST(PagedBatcher, OutOfBlocksTheLatestIsSuspendedAndComesBackBeforeTheQueue) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(paged_config(Batching::separate, Tokens(20), 20), kPerToken, kIteration,
                    {session(0, {turn(8, 8)}), session(1, {turn(6, 8)}), session(20, {turn(2, 1)})},
                    stepping);
    run.run();
    // A 0..8, B 8..14: 9 + 7 blocks. Two iterations of both fill the 20 at 34. C needs 3 from 20 on
    // and finds 2 at 24. At 34 B (9 tokens, 3 of them its own) goes, and A decodes alone: 5 more by
    // 84. C does not pass B, who could not come back before: it needs 10.
    expect_times(run.request(0, 0), 0, 0, 8, 84);
    // 9 tokens computed again, with C's 2: 84..95; that is B's fourth, and four more take 40 ms.
    expect_times(run.request(1, 0), 1, 8, 14, 135);
    expect_times(run.request(2, 0), 20, 84, 95, 95);
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
    EXPECT_EQ(run.request(1, 0).found.reused, Tokens(0));
  }
}

TEST(PagedBatcher, TheLatestArrivalsAreSuspendedAndTheEarliestOfThemReturnsFirst) {
  RunConfig config = paged_config(Batching::separate, Tokens(18), 18);
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(4, 14)}), session(1, {turn(3, 9)}), session(2, {turn(3, 8)})});
  run.run();
  // A 0..4, B and C 4..10: 5 + 4 + 4 blocks. After one iteration they have 16, and 2 are left for
  // three: C (5 tokens) is suspended at 20. A and B go from 6 + 5 blocks to 9 + 8 by 50, where B is
  // suspended, too. A has 9 iterations left. At 140 B (8) and C (5) are computed again, 13 ms, for
  // the sixth and the third token; after one iteration they have 10 + 7, and C goes once more at
  // 163. B ends with its ninth at 183. C's 7 tokens take 7 ms, for the fifth, and three more
  // follow.
  expect_times(run.request(0, 0), 0, 0, 4, 140);
  expect_times(run.request(1, 0), 1, 4, 10, 183);
  expect_times(run.request(2, 0), 2, 4, 10, 220);
  EXPECT_EQ(run.instance.batcher().preemptions(), 3);
}

TEST(PagedBatcher, DecodesMayTakeTheReserveAndPromptsNotWhileOthersRun) {
  RunConfig config = paged_config(Batching::unified, Tokens(30), 30);
  config.system.paging->decode_reserve = 0.2;  // 6 blocks
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 10)}), session(1, {turn(12, 1)})});
  run.run();
  // At 10 A has 11 blocks and takes one more; B needs 13, and 30 - 12 - 13 = 5 < 6. A ends at 100.
  expect_times(run.request(0, 0), 0, 0, 10, 100);
  expect_times(run.request(1, 0), 1, 100, 112, 112);
}

TEST(PagedBatcher, AKeptSessionComputesItsNewTokensOnly) {
  for (const bool host : {false, true}) {
    ScriptedRun run(keeping(paged_config(Batching::unified, Tokens(50), 100), host), kPerToken,
                    kIteration, {session(0, {turn(10, 5), turn(3, 2, 100)})});
    run.run();
    const RequestRecord& r = run.request(0, 1);
    // 15 tokens are in HBM; the second turn computes 3.
    expect_times(r, 150, 150, 153, 163);
    EXPECT_EQ(r.found.reused, Tokens(15));
    EXPECT_EQ(r.found.medium, Medium::hbm);
    EXPECT_EQ(r.exposed_load, SimDuration(0));
  }
}

/// A session of 15 tokens is pushed out by one of 18 among 20 blocks.
std::vector<SessionSpec> two_sessions() {
  return {session(0, {turn(10, 5), turn(3, 2, 300)}), session(100, {turn(16, 2)})};
}

TEST(PagedBatcher, WithoutHostMemoryAHeadStaysAndTheTailIsComputedWithThePrompt) {
  ScriptedRun run(keeping(paged_config(Batching::unified, Tokens(20), 20), false), kPerToken,
                  kIteration, two_sessions());
  run.run();
  // At 100 the second needs 17 of the 5 that are free: the first is halved from 15 to 7, and to 3.
  // At 116 it needs the 18th, so of the 3 tokens one is left.
  expect_times(run.request(1, 0), 100, 100, 116, 126);
  // Its second turn, at 350, finds 1 of 15 and computes 14 + 3 after it.
  const RequestRecord& r = run.request(0, 1);
  expect_times(r, 350, 350, 367, 377);
  EXPECT_EQ(r.found.reused, Tokens(1));
  EXPECT_EQ(r.found.cause, LossCause::capacity);
  EXPECT_EQ(run.instance.turns().partial_turns, 1);
}

TEST(PagedBatcher, KvInHostMemoryIsLoadedLayerByLayer) {
  ScriptedRun run(keeping(paged_config(Batching::unified, Tokens(20), 20), true), kPerToken,
                  kIteration, two_sessions());
  run.run();
  // At 100 nothing runs; the second waits until 8 tokens (8 ms) and 4 (of 7) are copied: 15 -> 7 ->
  // 3, 17 blocks at 112. At 128 it needs one more and waits for 2 of the 3 tokens to be copied, of
  // which one is then overwritten: it decodes 130..140.
  expect_times(run.request(1, 0), 100, 112, 128, 140);
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.found.reused, Tokens(15));
  EXPECT_EQ(r.found.in_hbm(), Tokens(2));
  EXPECT_EQ(r.found.medium, Medium::dram);
  // 13 tokens load in 13 ms; the fifth layer computes its 3 / 5 ms after that.
  EXPECT_EQ(r.first_token - r.admitted, SimDuration(13600000));
  EXPECT_EQ(r.exposed_load, SimDuration(10600000));
  // A hit over two tiers counts by its tokens: 2 / 15 in HBM.
  const TurnMetrics& turns = run.instance.turns();
  EXPECT_EQ(turns.full_hits[1], 1);
  EXPECT_DOUBLE_EQ(turns.full_hits_nearer[1][0], 2.0 / 15);
  EXPECT_EQ(turns.reused_tokens[0], Tokens(2));
  EXPECT_EQ(turns.reused_tokens[1], Tokens(13));
  const Json hits = hits_report(turns, {}, {})["hit_rate"]["all_turns"];
  EXPECT_DOUBLE_EQ(hits["total"].get<double>(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(hits["hbm"].get<double>(), 2.0 / 45);
  EXPECT_DOUBLE_EQ(hits["dram"].get<double>(), 13.0 / 45);
}

TEST(PagedBatcher, ASuspendedRequestKeepsItsKvAndContinues) {
  RunConfig config = keeping(paged_config(Batching::unified, Tokens(20), 20), false);
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

/// Turns save to DRAM, without a tier in HBM, through a write buffer of 20 tokens.
RunConfig saving_to_dram(std::int64_t dram_tokens) {
  RunConfig config = paged_config(Batching::unified, Tokens(50), 120);
  config.system.save.write_buffer = kv(20);
  config.system.tiers.dram = tier("tokens_times_idle");
  config.hardware.dram->capacity = kv(dram_tokens);
  return config;
}

TEST(PagedBatcher, WithoutATierInHbmTurnsSaveToDramAndLoadFromIt) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(saving_to_dram(100), kPerToken, kIteration,
                    {session(0, {turn(10, 5), turn(3, 2, 100)})}, stepping);
    run.run();
    const RequestRecord& r = run.request(0, 1);
    EXPECT_EQ(r.found.reused, Tokens(15));
    EXPECT_EQ(r.found.medium, Medium::dram);
    // 15 tokens load in 15 ms; the fifth layer computes its 3 / 5 ms after that.
    EXPECT_EQ(r.admitted, at_ms(150));
    EXPECT_EQ(r.first_token - r.admitted, SimDuration(15600000));
    EXPECT_EQ(r.exposed_load, SimDuration(12600000));
    EXPECT_EQ(run.backend.link_counters("pcie").forward, kv(15));
    EXPECT_EQ(run.backend.link_counters("pcie").backward, kv(15 + 20));
    EXPECT_EQ(run.instance.batcher().counters(0).occupancy_peak, kv(20));
  }
}

TEST(PagedBatcher, AnIterationLoadsFromDramAndTheSsdAtOnce) {
  RunConfig config = saving_to_dram(20);
  config.system.tiers.ssd = tier("tokens_times_idle");
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(10, 5), turn(3, 2, 150)}), session(100, {turn(12, 1)})},
                    stepping);
    run.run();
    // The second's 13 tokens are 8 too many for DRAM: of 15 tokens the first keeps 7 there.
    const RequestRecord& r = run.request(0, 1);
    EXPECT_EQ(r.found.reused, Tokens(15));
    EXPECT_EQ(r.found.medium, Medium::ssd);
    EXPECT_EQ(r.found.nearer[1], Tokens(7));
    EXPECT_EQ(r.found.there(), Tokens(8));
    // 7 and 8 tokens share the host link: 15 ms, and 3 / 5 ms for the fifth layer.
    EXPECT_EQ(r.first_token - r.admitted, SimDuration(15600000));
    EXPECT_EQ(r.exposed_load, SimDuration(12600000));
    EXPECT_EQ(run.instance.batcher().loaded_bytes(Medium::dram), kv(7));
    EXPECT_EQ(run.instance.batcher().loaded_bytes(Medium::ssd), kv(8));
  }
}

/// A session of 15 tokens comes back at 145, while another one decodes since 110.
ScriptedRun loading_beside_a_decode(LoadWait wait, DecodeStepping stepping) {
  RunConfig config = saving_to_dram(100);
  config.system.load.wait = wait;
  return {config,
          kPerToken,
          kIteration,
          {session(0, {turn(10, 5), turn(3, 2, 95)}), session(100, {turn(10, 20)})},
          stepping};
}

TEST(PagedBatcher, AnIterationWaitsForTheKvOfItsPrompts) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run = loading_beside_a_decode(LoadWait::batch, stepping);
    run.run();
    // At 150 one iteration has the prompt (3 ms) and the fifth token of the other (10 ms). Its KV
    // comes in 15 ms, and the fifth layer computes 13 / 5 ms after that.
    const RequestRecord& loads = run.request(0, 1);
    EXPECT_EQ(loads.admitted, at_ms(150));
    EXPECT_EQ(loads.first_token, SimTime(167600000));
    EXPECT_EQ(loads.finished, SimTime(177600000));
    EXPECT_EQ(loads.exposed_load, SimDuration(4600000));
    // 5 tokens at 150, 7 at 177.6, and 13 more.
    EXPECT_EQ(run.request(1, 0).finished, SimTime(307600000));
    EXPECT_EQ(run.instance.total_gpu_time().exposed_load, SimDuration(4600000));
  }
}

TEST(PagedBatcher, OthersDecodeWhileOnlyOneRequestWaitsForItsKv) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run = loading_beside_a_decode(LoadWait::request, stepping);
    run.run();
    // The KV is there at 165. The other decodes 150..160 and 160..170; then 3 + 10 ms.
    const RequestRecord& loads = run.request(0, 1);
    EXPECT_EQ(loads.admitted, at_ms(150));
    EXPECT_EQ(loads.first_token, at_ms(183));
    EXPECT_EQ(loads.finished, at_ms(193));
    EXPECT_EQ(loads.exposed_load, for_ms(15));
    // 5 tokens at 150, 9 at 193, and 11 more.
    EXPECT_EQ(run.request(1, 0).finished, at_ms(303));
    EXPECT_EQ(run.instance.total_gpu_time().exposed_load, SimDuration(0));
  }
}

/// Sessions on KV for a few of them and a link whose both ways together carry little more than one.
RunConfig crowded(bool loads_first) {
  RunConfig config = keeping(paged_config(Batching::unified, Tokens(300), 900), true);
  config.serving.slots = 8;
  config.system.paging = PagingConfig{.block_size = Tokens(4),
                                      .decode_reserve = 0.1,
                                      .swap_out_below = 0.5,
                                      .swap_in_first = loads_first};
  config.system.tiers.hbm->block_size = Tokens(4);
  config.system.tiers.dram->block_size = Tokens(4);
  config.hardware.dram->capacity = kv(5000);
  config.hardware.gpu.peak = FlopsPerSecond(1e9);
  set_rates(config.hardware.links.pcie, limits(1e6, 1e6, 1.1e6));
  config.workload.sessions = 150;
  config.workload.arrival_rate = PerSecond(0.4);
  config.workload.think_time.mean = for_ms(2000);
  config.workload.sharegpt.user_tokens_median = 10;
  config.workload.sharegpt.assistant_tokens_median = 15;
  return config;
}

TEST(PagedBatcher, LoadsWaitLessWhenCopiesToTheHostWaitForThem) {
  const auto waits = [](bool loads_first) {
    const Json result = simulate(crowded(loads_first), builtin_policies());
    EXPECT_GT(result["metrics"]["tiers"]["dram"]["read_bytes"].get<std::int64_t>(), 1000000);
    return result["metrics"]["gpu_seconds"]["exposed_load"].get<double>();
  };
  EXPECT_GT(waits(false), 1.05 * waits(true));
}

}  // namespace
}  // namespace kvtier::test
