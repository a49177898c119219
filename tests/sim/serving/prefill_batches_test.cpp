#include "sim/serving/prefill_batches.hpp"

#include <cstdint>

#include <gtest/gtest.h>

#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

constexpr SimDuration kDecode = kMillisecond * 10;

/// SGLang's rules in HBM of so many tokens. A batch of prompts takes 1 ms a token, a decode 10 ms.
RunConfig sglang_config(std::int64_t tokens, Tokens chunk = Tokens(200)) {
  RunConfig config = tiny_config(Tokens(200));
  config.system.batching = Batching::separate;
  config.system.blocks = BlocksConfig{{.publication = Publication::computed}, EvictionUnit::node};
  config.system.blocks->chunk = chunk;
  config.system.blocks->response_room = {.share = 0.5, .least_share = 0.5};
  HbmTierConfig hbm;
  hbm.block_size = Tokens(1);
  hbm.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, tokens}};
  config.system.tiers.hbm = hbm;
  config.serving.slots = 4;
  return config;
}

TEST(PrefillBatches, PromptsComeBeforeTheDecodeOfTheOthers) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(sglang_config(100), kPerToken, kDecode,
                    {session(0, {turn(10, 5)}), session(25, {turn(4, 3)})}, stepping);
    run.run();
    // A has its first token at 10 and decodes until 30. B's prompt takes 30 to 34. Both decode
    // until 54.
    expect_times(run.request(0, 0), 0, 10, 54);
    expect_times(run.request(1, 0), 30, 34, 54);
    EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(14));
    EXPECT_EQ(run.instance.total_gpu_time().decode, for_ms(40));
  }
}

TEST(PrefillBatches, APromptThatIsCutGoesOnBeforeAnyDecode) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(sglang_config(100, Tokens(8)), kPerToken, kDecode,
                    {session(0, {turn(4, 4)}), session(1, {turn(20, 1)})}, stepping);
    run.run();
    // B's 20 tokens take three batches, 4 to 24. Then A decodes three times.
    expect_times(run.request(0, 0), 0, 4, 54);
    expect_times(run.request(1, 0), 4, 24, 24);
  }
}

TEST(PrefillBatches, TheRestOfACutPromptSharesItsBatch) {
  ScriptedRun run(sglang_config(100, Tokens(8)), kPerToken, kDecode,
                  {session(0, {turn(12, 1)}), session(0, {turn(3, 1)})});
  run.run();
  expect_times(run.request(0, 0), 0, 15, 15);
  expect_times(run.request(1, 0), 8, 15, 15);
}

TEST(PrefillBatches, ASecondPromptIsNotCutInTheSameBatch) {
  ScriptedRun run(sglang_config(100, Tokens(8)), kPerToken, kDecode,
                  {session(0, {turn(10, 1)}), session(0, {turn(9, 1)})});
  run.run();
  // 8 tokens of A; 2 of A and 6 of B, which is the only one that is cut then; 3 of B.
  expect_times(run.request(0, 0), 0, 16, 16);
  expect_times(run.request(1, 0), 8, 19, 19);
}

TEST(PrefillBatches, APromptIsAdmittedBesideTheExpectedSizeOfResponses) {
  for (const auto& [input, output, admitted] :
       {std::tuple{5, 5, 20}, std::tuple{10, 8, 20}, std::tuple{10, 9, 200}}) {
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(sglang_config(40), kPerToken, kDecode,
                      {session(0, {turn(10, 20)}), session(12, {turn(input, output)})}, stepping);
      run.run();
      // At 20 the first one has 11 tokens of KV and 18 to come: 40 - 11 - 9 = 20 are left. The
      // second asks for input + output + 1, which has to be less; or it waits for the first one's
      // end.
      EXPECT_EQ(run.request(1, 0).admitted, at_ms(admitted)) << input << " " << output;
    }
  }
}

TEST(PrefillBatches, ARequestWithoutRoomIsAdmittedWhenOneLeaves) {
  RunConfig config = sglang_config(40);
  config.system.blocks->response_room = {.share = 0, .least_share = 0};
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(
        config, kPerToken, kDecode,
        {session(0, {turn(5, 15)}), session(1, {turn(20, 3)}), session(26, {turn(15, 1)})},
        stepping);
    run.run();
    // At 35 the two that run leave 13 tokens, and the third asks for 17. The second one leaves at
    // 45, while the first one decodes.
    expect_times(run.request(1, 0), 5, 25, 45);
    expect_times(run.request(2, 0), 45, 60, 60);
    EXPECT_GT(run.request(0, 0).finished, at_ms(60));
  }
}

TEST(PrefillBatches, TheShortestResponseGivesWayWhenADecodeHasNoRoom) {
  RunConfig config = sglang_config(20);
  config.system.blocks->response_room = {.share = 0, .least_share = 0};
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kDecode,
                    {session(0, {turn(4, 10)}), session(1, {turn(4, 8)})}, stepping);
    run.run();
    // B asks for 13 of the 16 that A's prompt leaves, and is admitted at 4. Both decode from 8 on,
    // until at 68 all 20 are taken: B, with the later prompt of the same length, gives way. It
    // would need 13 of 20 - 11 at 78, and waits for A, which ends at 98. Its 11 tokens are computed
    // again: what was stored of its prompt has left.
    expect_times(run.request(0, 0), 0, 4, 98);
    EXPECT_EQ(run.request(1, 0).admitted, at_ms(4));
    EXPECT_EQ(run.request(1, 0).first_token, at_ms(8));
    EXPECT_EQ(run.request(1, 0).finished, at_ms(109));
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
  }
}

TEST(PrefillBatches, ThePromptIsFoundWhenItIsComputedAndTheResponseAtItsEnd) {
  SessionSpec first = session(0, {turn(10, 4)});
  const Context prompt{StreamId{0}, Tokens(10)};
  first.contents = {{.prompt = prompt, .whole = {prompt.stream, Tokens(13)}}};
  SessionSpec during = session(15, {turn(12, 1)});
  during.contents = {{.prompt = {prompt.stream, Tokens(12)}}};
  SessionSpec after = session(100, {turn(14, 1)});
  after.contents = {{.prompt = {prompt.stream, Tokens(14)}}};
  ScriptedRun run(sglang_config(100), kPerToken, kDecode, {first, during, after});
  run.run();
  // At 20 the first one's prompt is there, and nothing of its response; at 100 all 13 tokens.
  expect_times(run.request(1, 0), 20, 22, 22);
  expect_times(run.request(2, 0), 100, 101, 101);
}

TEST(PrefillBatches, TheLongestPrefixGoesFirstAndOneOfThoseThatBeginAlike) {
  RunConfig config = sglang_config(200);
  config.system.order.name = "longest_prefix";
  config.system.order.parameters = {{"stored", 0}, {"shared", 5}};
  config.serving.slots = 1;
  const auto named = [](std::int64_t arrival, StreamId stream, std::int64_t prompt) {
    SessionSpec spec = session(arrival, {turn(prompt, 1)});
    spec.contents = {{.prompt = {stream, Tokens(prompt)}}};
    return spec;
  };
  const StreamId a{0};
  const StreamId b{1};
  ScriptedRun run(config, kPerToken, kDecode,
                  {named(0, a, 10), named(1, b, 20), named(2, b, 22), named(3, a, 12)});
  run.run();
  // At 10 most is stored of the last one, which takes 2 ms. The second and the third begin alike:
  // the third finds all of the second's prompt.
  EXPECT_EQ(run.request(3, 0).admitted, at_ms(10));
  EXPECT_EQ(run.request(1, 0).admitted, at_ms(12));
  EXPECT_EQ(run.request(2, 0).admitted, at_ms(32));
  EXPECT_EQ(run.request(2, 0).finished, at_ms(34));
}

/// HiCache with room for 24 tokens in HBM and for 12 in host memory, and storage; a token moves in
/// 2 ms between any two.
RunConfig hicache_config() {
  RunConfig config = sglang_config(24);
  config.system.load.wait = LoadWait::batch;
  set_rates(config.hardware.links.pcie, limits(5e5, 5e5, 1e6));
  set_rates(config.hardware.ssd->bandwidth, limits(5e5, 5e5, 1e6));
  const auto behind = [](std::int64_t tokens) {
    TierConfig made = tier("lru", true);
    made.block_size = Tokens(1);
    made.write = WriteMoment::on_create;
    made.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, tokens}};
    return made;
  };
  config.system.tiers.dram = behind(12);
  config.system.tiers.ssd = behind(100);
  return config;
}

/// The first session's 10 tokens are in storage alone when it comes back at 500: the second one
/// drives them out of HBM, and has no room in host memory. It asks for 15 tokens then.
std::vector<SessionSpec> comes_back_for_storage() {
  return {session(0, {turn(10, 1), turn(4, 1, 490)}), session(100, {turn(20, 1)})};
}

TEST(PrefillBatches, ARequestIsPassedOverUntilItsFetchIsComplete) {
  RunConfig config = hicache_config();
  config.system.blocks->storage_fetch.wait = FetchWait::wait_complete;
  for (const DecodeStepping stepping : kSteppings) {
    std::vector<SessionSpec> sessions = comes_back_for_storage();
    sessions.push_back(session(501, {turn(3, 1)}));
    ScriptedRun run(config, kPerToken, kDecode, sessions, stepping);
    run.run();
    // 10 tokens come until 520; a later request runs meanwhile. Then they load in 20 ms, and the
    // last of five layers computes 5 tokens in 1 ms.
    expect_times(run.request(2, 0), 501, 504, 504);
    expect_times(run.request(0, 1), 520, 541, 541);
    EXPECT_EQ(run.request(0, 1).found.reused, Tokens(10));
    const BlockHits& hits = *run.instance.batcher().block_hits();
    EXPECT_EQ(hits.hit_tokens[1], 0);
    EXPECT_EQ(hits.hit_tokens[3], 10);
    EXPECT_EQ(run.instance.batcher().counters(2).read, kv(10));
  }
}

TEST(PrefillBatches, ARequestTakesTheTokensFetchedUntilItsTurn) {
  RunConfig config = hicache_config();
  config.system.blocks->storage_fetch = {.wait = FetchWait::best_effort, .batch = 1};
  for (const DecodeStepping stepping : kSteppings) {
    {
      ScriptedRun run(config, kPerToken, kDecode, comes_back_for_storage(), stepping);
      run.run();
      // It is reached when it comes.
      expect_times(run.request(0, 1), 500, 515, 515);
    }
    std::vector<SessionSpec> sessions = comes_back_for_storage();
    sessions.push_back(session(495, {turn(10, 1)}));
    ScriptedRun run(config, kPerToken, kDecode, sessions, stepping);
    run.run();
    // The GPU is busy until 505, when two tokens have come. Each layer loads in 0.8 ms and computes
    // in 2.6.
    EXPECT_EQ(run.request(0, 1).admitted, at_ms(505));
    EXPECT_EQ(run.request(0, 1).first_token, at_ms(518) + SimDuration(800'000));
    EXPECT_EQ(run.instance.batcher().block_hits()->hit_tokens[3], 2);
  }
}

TEST(PrefillBatches, AFetchEndsAtItsDeadline) {
  RunConfig config = hicache_config();
  // 14 tokens are looked for: 6 + 4 ms.
  config.system.blocks->storage_fetch = {.wait = FetchWait::timeout,
                                         .timeout = for_ms(6),
                                         .timeout_per_1024_tokens = for_ms(4) * 1024 / 14,
                                         .batch = 4};
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kDecode, comes_back_for_storage(), stepping);
    run.run();
    // 4 tokens have come at 508, and 4 more would at 516. Each layer loads in 1.6 ms and computes
    // 11 tokens in 2.2.
    EXPECT_LE(at_ms(510) - run.request(0, 1).admitted, SimDuration(2));
    EXPECT_EQ(run.request(0, 1).first_token - run.request(0, 1).admitted, SimDuration(12'600'000));
    EXPECT_EQ(run.instance.batcher().block_hits()->hit_tokens[3], 4);
  }
}

TEST(PrefillBatches, TokensNotWorthAFetchAreComputed) {
  RunConfig config = hicache_config();
  config.system.tiers.ssd->blocks->edge.least_load = Tokens(11);
  ScriptedRun run(config, kPerToken, kDecode, comes_back_for_storage());
  run.run();
  expect_times(run.request(0, 1), 500, 515, 515);
}

TEST(PrefillBatches, ABatchWaitsForTheWritesThatMakeItsRoom) {
  RunConfig config = hicache_config();
  config.system.tiers.ssd.reset();
  config.system.tiers.dram->write = WriteMoment::on_evict;
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kDecode, comes_back_for_storage(), stepping);
    run.run();
    // 10 tokens leave HBM from 100 to 120, before the batch of 20 ms.
    expect_times(run.request(1, 0), 100, 140, 140);
    EXPECT_EQ(run.instance.total_gpu_time().exposed_save, for_ms(20));
    // They come back from host memory; 20 tokens that are driven out have no room there.
    expect_times(run.request(0, 1), 500, 521, 521);
  }
}

TEST(PrefillBatches, KvIsCopiedFromTheEndOfItsBatchAndStaysUntilThen) {
  RunConfig config = hicache_config();
  config.system.tiers.ssd.reset();
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kDecode,
                    {session(0, {turn(10, 1)}), session(11, {turn(20, 1)})}, stepping);
    run.run();
    // The second one has no room until the first one's 10 tokens are copied, from 10 to 30.
    expect_times(run.request(1, 0), 30, 50, 50);
  }
}

}  // namespace
}  // namespace kvtier::test
