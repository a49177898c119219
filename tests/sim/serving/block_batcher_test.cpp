#include "sim/serving/block_batcher.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/contexts.hpp"
#include "sim/serving/result.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// vLLM's rules with blocks of `block` tokens. An iteration takes 1 ms a token of its prompts, and
/// 10 ms more if requests decode in it.
RunConfig vllm_config(std::int64_t blocks, std::int64_t block = 1, Tokens window = Tokens(200)) {
  RunConfig config = tiny_config(window);
  config.system.batching = Batching::unified;
  config.system.blocks =
      BlocksConfig{{.publication = Publication::scheduling, .duplicates = Duplicates::kept}};
  HbmTierConfig hbm;
  hbm.block_size = Tokens(block);
  hbm.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, blocks}};
  config.system.tiers.hbm = hbm;
  config.serving.slots = 4;
  config.serving.token_budget = window;
  return config;
}

/// Host memory behind it, from which a token takes `ms` to load.
RunConfig with_offload(RunConfig config, std::int64_t blocks, std::int64_t ms) {
  TierConfig dram = tier("lru", true);
  dram.block_size = config.system.tiers.hbm->block_size;
  dram.write = WriteMoment::on_create;
  dram.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, blocks}};
  config.system.tiers.dram = dram;
  const double rate = static_cast<double>(kTokenBytes.value) * 1e3 / static_cast<double>(ms);
  set_rates(config.hardware.links.pcie, limits(rate, rate, 2 * rate));
  return config;
}

/// Host memory with what HBM evicts, which a token takes 1 ms to reach, and 1 ms to come back.
RunConfig with_victims_behind(RunConfig config) {
  config = with_offload(config, 1000, 1);
  TierConfig& dram = *config.system.tiers.dram;
  dram.inclusive = false;
  dram.write = WriteMoment::on_evict;
  config.system.blocks->duplicates = Duplicates::merged;
  config.system.load.wait = LoadWait::batch;
  config.system.load.discipline = LoadDiscipline::blocking;
  return config;
}

TEST(BlockBatcher, APromptJoinsTheDecodeOfTheOthers) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(vllm_config(100), kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(25, {turn(4, 3)})}, stepping);
    run.run();
    // A has its first token at 10 and decodes 10..20, 20..30. Then 4 + 10 ms for B's prompt and A's
    // fourth token, 30..44, and one iteration of both, 44..54, which is A's last. B's ends at 64.
    expect_times(run.request(0, 0), 0, 0, 10, 54);
    expect_times(run.request(1, 0), 25, 30, 44, 64);
    EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(14));
    EXPECT_EQ(run.instance.total_gpu_time().decode, for_ms(50));
  }
}

TEST(BlockBatcher, ALongPromptIsComputedInChunksBesideADecode) {
  RunConfig config = vllm_config(100);
  config.serving.token_budget = Tokens(8);
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(4, 4)}), session(1, {turn(20, 1)})}, stepping);
    run.run();
    // 4 ms for A. Then 7 of B's tokens beside each of A's: 17 ms each, twice; the last 6 beside A's
    // last, 16 ms.
    expect_times(run.request(0, 0), 0, 0, 4, 54);
    expect_times(run.request(1, 0), 1, 4, 54, 54);
  }
}

TEST(BlockBatcher, ASecondTurnComputesAllOfItsHistoryIfHbmKeepsNothing) {
  RunConfig config = vllm_config(20);
  config.system.blocks->publication = Publication::never;
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration, {session(0, {turn(10, 1), turn(5, 1, 100)})},
                    stepping);
    run.run();
    expect_times(run.request(0, 0), 0, 0, 10, 10);
    expect_times(run.request(0, 1), 110, 110, 126, 126);
    EXPECT_EQ(run.instance.batcher().hbm().total(), Bytes(0));
  }
}

TEST(BlockBatcher, ASecondTurnLoadsItsHistoryIfHbmKeepsNothing) {
  RunConfig config = with_offload(vllm_config(20), 100, 1);
  config.system.blocks->publication = Publication::never;
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration, {session(0, {turn(10, 1), turn(5, 1, 100)})},
                    stepping);
    run.run();
    // 10 tokens are loaded within 10 ms, 6 are computed.
    expect_times(run.request(0, 1), 110, 110, 126, 126);
    EXPECT_EQ(run.instance.batcher().loaded_bytes(Medium::dram), kv(10));
  }
}

TEST(BlockBatcher, ASecondTurnComputesNothingOfItsHistoryButTheLastToken) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(vllm_config(100), kPerToken, kIteration,
                    {session(0, {turn(10, 2), turn(5, 1, 100)})}, stepping);
    run.run();
    // 11 of the 12 tokens of history have KV; 17 - 11 are computed.
    const RequestRecord& second = run.request(0, 1);
    EXPECT_EQ(second.found.reused, Tokens(11));
    EXPECT_EQ(second.found.medium, Medium::hbm);
    EXPECT_EQ(second.first_token - second.admitted, for_ms(6));
    EXPECT_EQ(run.instance.turns().prompts.hit_tokens[0], 11);
    EXPECT_EQ(run.instance.turns().prompts.prompt_tokens, 27);
  }
}

TEST(BlockBatcher, ARequestOfANamedSessionComesAfterTheResponseBefore) {
  // The second prompt has 6 tokens behind the first response, the third is the first 8 tokens again
  // and 5 others.
  SessionSpec named = session(0, {turn(10, 3), turn(6, 2, 100), turn(5, 1, 7)});
  const Context first{StreamId{0}, Tokens(10)};
  named.contents = {{.prompt = first, .whole = {first.stream, Tokens(12)}},
                    {.prompt = {first.stream, Tokens(19)}},
                    {.prompt = {StreamId{1}, Tokens(13)}}};
  SessionSpec other = session(1000, {turn(12, 1)});
  other.contents = {{.prompt = {first.stream, Tokens(12)}}};
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(vllm_config(100), kPerToken, kIteration, {named, other}, stepping);
    run.run();
    expect_times(run.request(0, 0), 0, 0, 10, 30);
    // 12 of 13 tokens of history have KV: 7 are computed.
    expect_times(run.request(0, 1), 130, 130, 137, 147);
    EXPECT_EQ(run.request(0, 1).history, Tokens(13));
    EXPECT_EQ(run.request(0, 1).found.reused, Tokens(12));
    // Another stream, of which nothing is stored.
    expect_times(run.request(0, 2), 154, 154, 167, 167);
    EXPECT_EQ(run.request(0, 2).history, Tokens(8));
    EXPECT_EQ(run.request(0, 2).found.reused, Tokens(0));
    // All but the last token of a prompt can be found.
    expect_times(run.request(1, 0), 1000, 1000, 1001, 1001);
  }
}

TEST(BlockBatcher, APromptMayEndBeforeItsStreamLeavesTheParent) {
  Streams streams;
  const StreamId root = streams.open();
  const StreamId fork = streams.open(root, Tokens(10));
  class Forked final : public SessionSource {
   public:
    Forked(Streams& streams, StreamId fork) : streams_(streams), fork_(fork) {}
    bool next(SessionSpec& spec) override {
      spec = session(0, {turn(4, 3)});
      spec.contents = {{.prompt = {fork_, Tokens(4)}}};
      return !std::exchange(given_, true);
    }
    [[nodiscard]] Streams* streams() override { return &streams_; }

   private:
    Streams& streams_;
    StreamId fork_;
    bool given_ = false;
  } source(streams, fork);
  Contexts contexts(source);
  const TurnContent content =
      contexts.of(0, {.named = {.prompt = {fork, Tokens(4)}}, .output = Tokens(3)});
  EXPECT_EQ(content.prompt.stream, root);
  EXPECT_EQ(streams.parent(content.whole.stream), root);
  EXPECT_EQ(content.whole.tokens, Tokens(6));
}

TEST(BlockBatcher, TheLastRequestGivesWayWhenBlocksRunOutAndGoesOnLater) {
  // 20 blocks: prompts of 8 and 8, responses of 6 each need 26.
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(vllm_config(20), kPerToken, kIteration,
                    {session(0, {turn(8, 6)}), session(0, {turn(8, 6)})}, stepping);
    run.run();
    // Both prompts 0..16, then two tokens of both, 26 and 36. Then they would need 22 blocks: B
    // gives way, and A has its other three tokens at 66, in the blocks of B's last three. B
    // computes 4 of its 11 tokens, 66..70, and has two more at 90.
    expect_times(run.request(0, 0), 0, 0, 16, 66);
    expect_times(run.request(1, 0), 0, 0, 16, 90);
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
  }
}

TEST(BlockBatcher, PoliciesThatLookAheadKeepTheKvOfRequestsThatWait) {
  // 30 blocks: A and B leave 9 each, and C of 15 needs 3 of them, while A's second turn waits.
  const auto found = [](EvictionUnit unit, const std::string& eviction) {
    RunConfig config = vllm_config(30);
    config.serving.slots = 1;
    config.system.blocks->unit = unit;
    config.system.blocks->duplicates = Duplicates::merged;
    config.system.blocks->keyless = Keyless::first;
    config.system.tiers.hbm->eviction.name = eviction;
    ScriptedRun run(
        config, kPerToken, kIteration,
        {session(0, {turn(8, 2), turn(2, 2)}), session(1, {turn(8, 2)}), session(2, {turn(14, 2)})},
        DecodeStepping::closed_form);
    run.run();
    return run.request(0, 1).found.reused;
  };
  for (const EvictionUnit unit :
       {EvictionUnit::block, EvictionUnit::tail, EvictionUnit::sequence}) {
    EXPECT_LT(found(unit, "lru"), Tokens(9));
    EXPECT_EQ(found(unit, "scheduler_aware"), Tokens(9));
    EXPECT_EQ(found(unit, "window_score"), Tokens(9));
  }
}

TEST(BlockBatcher, ARequestIsAdmittedWhenItsWholeResponseHasRoom) {
  RunConfig config = vllm_config(20);
  const auto times_of_second = [&](std::int64_t admitted, std::int64_t first, std::int64_t end) {
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(config, kPerToken, kIteration,
                      {session(0, {turn(5, 10)}), session(1, {turn(4, 4)})}, stepping);
      run.run();
      expect_times(run.request(1, 0), 1, admitted, first, end);
      EXPECT_EQ(run.instance.batcher().preemptions(), 0);
    }
  };
  // A has 15 tokens in the end, so 5 of 20 are left for B's 8. A has its first token at 5 and the
  // others until 95.
  config.system.blocks->whole_response = true;
  times_of_second(95, 99, 129);
  // 5 + 4 of B's prompt, and all but the last tokens of both, fit in 20 at any time.
  config.system.blocks->whole_response = false;
  times_of_second(5, 19, 49);
}

TEST(BlockBatcher, ARequestWaitsForABlockThatAnotherOneComputes) {
  RunConfig config = vllm_config(100, 4);
  config.system.blocks->publication = Publication::computed;
  config.system.blocks->duplicates = Duplicates::merged;
  const auto alike = [] {
    SessionSpec named = session(0, {turn(12, 1)});
    named.contents = {{.prompt = {StreamId{0}, Tokens(12)}}};
    return named;
  };
  const auto times_of_second = [&](std::int64_t admitted, std::int64_t end) {
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(config, kPerToken, kIteration, {alike(), alike()}, stepping);
      run.run();
      expect_times(run.request(1, 0), 0, admitted, end, end);
    }
  };
  // Both prompts in one iteration of 24 ms; or the second one when the first is there, of which it
  // finds two blocks of 4 tokens, as its last token is computed.
  times_of_second(0, 24);
  config.system.blocks->delays_duplicates = true;
  times_of_second(12, 16);
}

TEST(BlockBatcher, ARequestDoesNotWaitForABlockThatAnotherOneHasComputed) {
  RunConfig config = vllm_config(100, 4);
  config.system.blocks->publication = Publication::computed;
  config.system.blocks->duplicates = Duplicates::merged;
  config.system.blocks->delays_duplicates = true;
  config.system.blocks->chunk = Tokens(8);
  SessionSpec longer = session(0, {turn(16, 1)});
  longer.contents = {{.prompt = {StreamId{0}, Tokens(16)}}};
  SessionSpec shorter = session(1, {turn(8, 1)});
  shorter.contents = {{.prompt = {StreamId{0}, Tokens(8)}}};
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration, {longer, shorter}, stepping);
    run.run();
    // The first chunk ends at 8 and has both blocks of the second prompt, which finds one of them,
    // as its last token is computed. 8 + 4 tokens end at 20.
    expect_times(run.request(0, 0), 0, 0, 20, 20);
    expect_times(run.request(1, 0), 1, 8, 20, 20);
  }
}

SessionSpec urgent(std::int64_t priority, SessionSpec session) {
  session.priority = priority;
  return session;
}

RunConfig by_priority(RunConfig config) {
  config.system.order = {.name = "priority", .parameters = {}};
  return config;
}

TEST(BlockBatcher, WaitingRequestsAreAdmittedByPriorityThenArrival) {
  RunConfig config = by_priority(vllm_config(100));
  config.serving.slots = 1;
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration,
                    {urgent(9, session(0, {turn(10, 1)})), urgent(2, session(1, {turn(5, 1)})),
                     urgent(1, session(2, {turn(6, 1)})), urgent(2, session(3, {turn(7, 1)}))},
                    stepping);
    run.run();
    expect_times(run.request(0, 0), 0, 0, 10, 10);
    expect_times(run.request(2, 0), 2, 10, 16, 16);
    expect_times(run.request(1, 0), 1, 16, 21, 21);
    expect_times(run.request(3, 0), 3, 21, 28, 28);
  }
}

TEST(BlockBatcher, TheLeastUrgentRequestGivesWayAndWaitsByPriority) {
  // As TheLastRequestGivesWay..., but A is less urgent than B, and gives way to it though it was
  // admitted first.
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(by_priority(vllm_config(20)), kPerToken, kIteration,
                    {urgent(5, session(0, {turn(8, 6)})), urgent(0, session(0, {turn(8, 6)}))},
                    stepping);
    run.run();
    expect_times(run.request(0, 0), 0, 0, 16, 90);
    expect_times(run.request(1, 0), 0, 0, 16, 66);
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
  }
  // With a block more A has its part of the iteration at 36 when B finds no room. A's block of it
  // is published: B takes three of A's 11 blocks until 66, and A computes 3 of 11 tokens, 66..69.
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(by_priority(vllm_config(21)), kPerToken, kIteration,
                    {urgent(5, session(0, {turn(8, 6)})), urgent(0, session(0, {turn(8, 6)}))},
                    stepping);
    run.run();
    expect_times(run.request(0, 0), 0, 0, 16, 89);
    expect_times(run.request(1, 0), 0, 0, 16, 66);
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
  }
}

TEST(BlockBatcher, ANewcomerMayPassAPreemptedRequest) {
  // C arrives at 40, after A gave way at 36. A's 11 tokens have no room beside B.
  const std::vector<SessionSpec> sessions{urgent(5, session(0, {turn(8, 6)})),
                                          urgent(0, session(0, {turn(8, 6)})),
                                          urgent(1, session(40, {turn(3, 1)}))};
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(by_priority(vllm_config(20)), kPerToken, kIteration, sessions, stepping);
    run.run();
    // C's prompt beside B's fifth token, 46..59. B ends at 69. B took 3 blocks of A's 10, and C
    // took 3: A computes 7 of 11 tokens, 69..76, and has two more tokens at 96.
    expect_times(run.request(2, 0), 40, 46, 59, 59);
    expect_times(run.request(1, 0), 0, 0, 16, 69);
    expect_times(run.request(0, 0), 0, 0, 16, 96);
  }
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(vllm_config(20), kPerToken, kIteration, sessions, stepping);
    run.run();
    EXPECT_EQ(run.request(2, 0).admitted, at_ms(66));
  }
}

TEST(BlockBatcher, ARequestThatGivesWayReturnsItsPartOfTheBudget) {
  // A is least urgent. An iteration has 6 tokens.
  RunConfig config = by_priority(vllm_config(23));
  config.serving.token_budget = Tokens(6);
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration,
                    {urgent(5, session(0, {turn(4, 6)})), urgent(0, session(1, {turn(2, 5)})),
                     urgent(1, session(2, {turn(16, 1)}))},
                    stepping);
    run.run();
    // 0..4: A's prompt. 4..19: a token of A, B's prompt and 3 tokens of C's. 19..33 and 33..47: a
    // token of A and of B, 4 of C's. A, B and C have 7, 4 and 11 blocks. At 47 A takes the last
    // one, and gives way to B. B's token and the last 5 of C's make 6, 47..62. They took 6 of A's 8
    // blocks, so B's last token comes with 5 of A's 6 tokens, 62..77.
    expect_times(run.request(2, 0), 2, 4, 62, 62);
    EXPECT_EQ(run.request(1, 0).finished, at_ms(77));
    EXPECT_EQ(run.instance.batcher().preemptions(), 1);
  }
}

TEST(BlockBatcher, ARequestWaitsForItsLoadWhileOthersRun) {
  // HBM has room for one session; what the second drives out is in host memory.
  const RunConfig config = with_offload(vllm_config(24, 1, Tokens(24)), 100, 2);
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(10, 1), turn(4, 1, 490)}), session(100, {turn(20, 1)}),
                     session(501, {turn(3, 1)})},
                    stepping);
    run.run();
    const RequestRecord& loads = run.request(0, 1);
    EXPECT_EQ(loads.admitted, at_ms(500));
    EXPECT_EQ(loads.found.reused, Tokens(10));
    EXPECT_EQ(loads.found.medium, Medium::dram);
    const Tokens nearer = loads.found.in_hbm();
    const SimTime loaded = at_ms(500 + 2 * (10 - nearer.value));
    // The third prompt runs meanwhile; then the 5 tokens that are new, one of them the response's.
    expect_times(run.request(2, 0), 501, 501, 504, 504);
    EXPECT_EQ(loads.first_token, loaded + for_ms(5));
  }
}

TEST(BlockBatcher, AnIterationWaitsForTheLoadOfItsPromptLayerByLayer) {
  RunConfig config = with_offload(vllm_config(24, 1, Tokens(24)), 100, 2);
  config.system.load.wait = LoadWait::batch;
  for (const auto& [discipline, first_token] : {std::pair{LoadDiscipline::layer_overlapped, 513},
                                                std::pair{LoadDiscipline::blocking, 517}}) {
    config.system.load.discipline = discipline;
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(config, kPerToken, kIteration,
                      {session(0, {turn(10, 1), turn(4, 1, 490)}), session(100, {turn(20, 1)}),
                       session(501, {turn(3, 1)})},
                      stepping);
      run.run();
      // The 20 blocks of the second session drive out 6 of the first one's 10. They load in 12 ms;
      // 5 new tokens take 1 ms a layer, the last one after its load, or all five. The third session
      // waits.
      const RequestRecord& r = run.request(0, 1);
      EXPECT_EQ(r.admitted, at_ms(500));
      EXPECT_EQ(r.found.reused, Tokens(10));
      EXPECT_EQ(r.outside_hbm(), Tokens(6));
      EXPECT_EQ(r.first_token, at_ms(first_token));
      EXPECT_EQ(r.exposed_load, for_ms(first_token - 505));
      EXPECT_EQ(r.prefill_compute, for_ms(5));
      expect_times(run.request(2, 0), 501, first_token, first_token + 3, first_token + 3);
      EXPECT_EQ(run.instance.total_gpu_time().exposed_load, for_ms(first_token - 505));
      EXPECT_EQ(run.instance.measured_load_waits()[WaitCause::host_link],
                for_ms(first_token - 505));
    }
  }
}

TEST(BlockBatcher, PromptsOfAnIterationLoadTogetherAndShareTheWait) {
  RunConfig config = with_offload(vllm_config(24, 1, Tokens(24)), 100, 2);
  config.system.load.wait = LoadWait::batch;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(4, 1), turn(3, 1, 496)}),
                   session(20, {turn(6, 1), turn(3, 1, 474)}), session(490, {turn(20, 1)})});
  run.run();
  // Both come back at 500 and are admitted when the third session's prompt is done, at 510. That
  // has driven out the 4 blocks of the first session, whose 8 blocks drive out the second one's 6.
  // The memory of the third one's is taken, too: its copy ends at 550. 10 tokens load in 20 ms. 4 +
  // 4 new tokens take 1.6 ms a layer, the last one after the load.
  const RequestRecord& first = run.request(0, 1);
  const RequestRecord& second = run.request(1, 1);
  EXPECT_EQ(first.admitted, at_ms(510));
  EXPECT_EQ(second.admitted, at_ms(510));
  EXPECT_EQ(first.outside_hbm(), Tokens(4));
  EXPECT_EQ(second.outside_hbm(), Tokens(6));
  EXPECT_EQ(first.first_token, at_ms(571) + SimDuration(600000));
  EXPECT_EQ(second.first_token, first.first_token);
  // 21.6 - 8 ms, by tokens loaded.
  EXPECT_EQ(first.exposed_load, SimDuration(13600000 * 4 / 10));
  EXPECT_EQ(second.exposed_load, SimDuration(13600000 * 6 / 10));
  EXPECT_EQ(run.instance.batcher().loaded_bytes(Medium::dram), kv(10));
}

/// Arc or a cache of its own, larger blocks, blocks that are written when they were offered often,
/// and drives behind host memory.
void add_rules_of_offloads(RunConfig& config, RandomStream& random) {
  TierConfig& dram = *config.system.tiers.dram;
  if (random.index(4) == 0) {
    dram.blocks->pool.touch = Touch::lookup;
    dram.blocks->pool.insertion = random.index(2) == 0 ? End::head : End::tail;
    dram.blocks->pool.allocation = random.index(2) == 0 ? Allocation::write : Allocation::block;
    config.system.save.mode = random.index(2) == 0 ? SaveMode::blocking : SaveMode::async;
  } else {
    dram.eviction.name = random.index(2) == 0 ? "arc" : "lru";
    if (random.index(3) == 0) {
      dram.blocks->after_uses = 1 + random.index(3);
    }
  }
  dram.block_size = dram.block_size * (1 + random.index(3));
  if (random.index(3) == 0) {
    TierConfig ssd = tier("lru", true);
    ssd.block_size = dram.block_size;
    ssd.write = WriteMoment::on_create;
    ssd.blocks = BlockTierConfig{
        .capacity = KvSize{KvSize::Unit::blocks, 1 + random.index(4000 / dram.block_size.value)},
        .pool = {.touch = dram.blocks->pool.touch},
        .edge = {.no_room = random.index(2) == 0 ? NoRoom::evict : NoRoom::skip}};
    if (random.index(2) == 0) {
      ssd.write = WriteMoment::on_evict;
      ssd.inclusive = random.index(2) == 0;
    }
    config.system.save.write_buffer = kv(random.index(3) * 100);
    config.system.tiers.ssd = ssd;
  }
}

/// Rules that engines without an oracle have: a tier of what leaves HBM, parts of blocks,
/// priorities, leaves, relief, filters, and admission with room for the response.
void add_rules_of_engines(RunConfig& config, RandomStream& random) {
  const auto coin = [&] { return random.index(2) == 0; };
  BlocksConfig& blocks = *config.system.blocks;
  TiersConfig& tiers = config.system.tiers;
  if (tiers.dram && !tiers.ssd && coin()) {
    TierConfig& dram = *tiers.dram;
    dram.inclusive = false;
    dram.write = WriteMoment::on_evict;
    dram.block_size = tiers.hbm->block_size;
    dram.eviction.name = "lru";
    dram.blocks->after_uses.reset();
    dram.blocks->pool.touch = Touch::end;
    dram.blocks->pool.allocation = Allocation::block;
    config.system.load.wait = LoadWait::batch;
    dram.blocks->edge.least_priority = blocks.unit == EvictionUnit::block && coin() ? 30 : 0;
    blocks.duplicates = Duplicates::merged;
  }
  const bool victims = tiers.dram && !tiers.dram->inclusive;
  const bool entries = has_entries(blocks.unit);
  if ((victims || !tiers.dram) && !entries && coin()) {
    blocks.partial_reuse = true;
    blocks.keyless = Keyless::in_order;
    blocks.duplicates = Duplicates::merged;
  }
  if (!entries && coin()) {
    tiers.hbm->blocks->pool.retention = {
        {.from = Tokens(0), .to = Tokens(20 + random.index(60)), .priority = 80},
        {.from = Tokens(100), .to = std::nullopt, .priority = 10}};
    if (victims) {
      tiers.dram->blocks->pool.retention = tiers.hbm->blocks->pool.retention;
    }
  }
  if (tiers.dram && !victims) {
    blocks.hit_cap_behind = coin() ? HitCap::last_token : HitCap::none;
    tiers.dram->blocks->pool.leaves_only = tiers.dram->eviction.name != "arc" && !entries && coin();
    if (coin()) {
      tiers.dram->blocks->pool.relief =
          Relief{.from = 0.7,
                 .share = 0.05,
                 .in_background = tiers.dram->blocks->pool.touch == Touch::end || coin()};
    }
    if (tiers.ssd && tiers.ssd->write == WriteMoment::on_create && coin()) {
      tiers.ssd->blocks->edge.frequency = FrequencyFilter{
          .least = 2, .forget_every = kMillisecond * 5'000, .entries = 50 + random.index(500)};
    }
  }
  blocks.whole_response = coin();
  blocks.delays_duplicates = blocks.publication == Publication::computed && coin();
  config.system.length_prediction.kind =
      coin() ? LengthPrediction::exact : LengthPrediction::constant;
  config.system.length_prediction.tokens = Tokens(1 + random.index(30));
}

/// Host memory behind a tree, written in any of SGLang's ways, and perhaps storage.
void add_tiers_of_nodes(RunConfig& config, RandomStream& random) {
  const auto coin = [&] { return random.index(2) == 0; };
  const HbmTierConfig& hbm = *config.system.tiers.hbm;
  const auto behind = [&](const std::string& eviction, std::int64_t most_blocks) {
    TierConfig made = tier(eviction, true);
    made.block_size = hbm.block_size;
    made.write = WriteMoment::on_create;
    made.blocks =
        BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, 1 + random.index(most_blocks)},
                        .edge = {.least_load = Tokens(random.index(60))}};
    return made;
  };
  TierConfig dram = behind(hbm.eviction.name, 3000 / hbm.block_size.value);
  dram.blocks->edge.no_room = random.index(4) == 0 ? NoRoom::skip : NoRoom::evict;
  if (random.index(3) == 0) {
    dram.write = WriteMoment::on_evict;
  } else if (coin()) {
    dram.blocks->after_uses = 1 + random.index(3);
  }
  config.system.tiers.dram = dram;
  if (coin()) {
    TierConfig ssd = behind(coin() ? "lru" : "fifo", 6000 / hbm.block_size.value);
    ssd.blocks->edge.most_in_flight = 0.1 * static_cast<double>(1 + random.index(10));
    config.system.tiers.ssd = ssd;
    constexpr std::array kWaits{FetchWait::best_effort, FetchWait::wait_complete,
                                FetchWait::timeout};
    config.system.blocks->storage_fetch = {
        .wait = kWaits[static_cast<std::size_t>(random.index(3))],
        .timeout = kMillisecond * random.index(2000),
        .timeout_per_1024_tokens = kMillisecond * random.index(2000),
        .batch = 1 + random.index(20)};
    set_rates(config.hardware.ssd->bandwidth, limits(coin() ? 1e4 : 1e8, 1e8, 2e8));
  }
  config.system.load.wait = LoadWait::batch;
  config.system.load.discipline =
      coin() ? LoadDiscipline::blocking : LoadDiscipline::layer_overlapped;
}

/// The workload three times, with priorities that may be equal.
void mix_priorities(RunConfig& config, RandomStream& random) {
  config.system.order.name = "priority";
  WorkloadConfig& workload = config.workload;
  for (const char* name : {"a", "b", "c"}) {
    MixMember member{.name = name, .priority = random.index(3) - 1};
    (*member.workload).generator = workload.generator;
    (*member.workload).shared_prompts = workload.shared_prompts;
    workload.mix.push_back(member);
  }
  workload.generator = WorkloadConfig().generator;
  workload.shared_prompts = WorkloadConfig().shared_prompts;
}

void add_whole_prompts(RunConfig& config, RandomStream& random) {
  BlocksConfig& blocks = *config.system.blocks;
  blocks.whole_prompts = random.index(2) == 0;
  if (blocks.whole_prompts) {
    blocks.chunk.reset();
    blocks.delays_duplicates = false;
    blocks.whole_response = blocks.whole_response || random.index(2) == 0;
    config.system.batching =
        std::array{Batching::unified, Batching::separate,
                   Batching::prefill_first}[static_cast<std::size_t>(random.index(3))];
  }
}

void add_prefetch(RunConfig& config, RandomStream& random) {
  if (prefetches_to(rules_of(config))) {
    config.system.prefetch.name =
        std::array{"none", "look_ahead", "deadline"}[static_cast<std::size_t>(random.index(3))];
  }
}

/// Sessions of any shape, with and without shared prompts, in HBM and perhaps tiers behind.
RunConfig random_blocks(std::uint64_t seed) {
  RandomStream random(seed, "timed blocks");
  const auto coin = [&] { return random.index(2) == 0; };
  const std::int64_t block = std::int64_t{1} << random.index(5);
  const Tokens window(coin() ? 300 : 1000);
  RunConfig config = vllm_config(window.value / block * (1 + random.index(4)) + 2, block, window);
  config.seed = static_cast<std::int64_t>(seed);
  config.workload.sessions = 30;
  config.workload.warmup_turns = random.index(10);
  config.workload.arrival_rate = PerSecond(coin() ? 0.2 : 5);
  if (coin()) {
    config.workload.generator = Generator::shared_prompts;
    config.workload.shared_prompts.tokens_max = Tokens(100);
    config.workload.shared_prompts.tokens_min = Tokens(10);
  }
  BlocksConfig& blocks = *config.system.blocks;
  constexpr std::array kUnits{EvictionUnit::block, EvictionUnit::block, EvictionUnit::tail,
                              EvictionUnit::sequence, EvictionUnit::node};
  constexpr std::array kMoments{Publication::scheduling, Publication::computed, Publication::end};
  blocks.unit = kUnits[static_cast<std::size_t>(random.index(5))];
  blocks.publication = kMoments[static_cast<std::size_t>(random.index(3))];
  const bool entries = has_entries(blocks.unit);
  blocks.duplicates = entries || coin() ? Duplicates::merged : Duplicates::kept;
  blocks.keyless = entries || coin() ? Keyless::first : Keyless::in_order;
  blocks.hit_cap = coin() ? HitCap::none : HitCap::last_token;
  if (coin()) {
    blocks.chunk = Tokens(1 + random.index(200));
  }
  config.serving.slots = 1 + random.index(8);
  config.serving.token_budget = Tokens(8 + random.index(300));
  if (blocks.unit != EvictionUnit::node && coin()) {
    config = with_offload(config, 1 + random.index(2000 / block), 1 + random.index(3));
    config.system.tiers.dram->blocks->edge.responses = static_cast<Responses>(random.index(3));
    config.system.load.wait = coin() ? LoadWait::request : LoadWait::batch;
    add_rules_of_offloads(config, random);
  }
  if (blocks.unit != EvictionUnit::node && coin()) {
    add_rules_of_engines(config, random);
  }
  if (blocks.unit == EvictionUnit::node && coin()) {
    config.system.batching = Batching::separate;
    config.serving.token_budget = *config.serving.token_budget + Tokens(block);
    if (blocks.chunk) {
      blocks.chunk = *blocks.chunk + Tokens(block);
    }
    constexpr std::array kPolicies{"lru", "lfu", "sieve", "gdsf"};
    config.system.tiers.hbm->eviction.name = kPolicies[static_cast<std::size_t>(random.index(4))];
    const double share = 0.1 * static_cast<double>(random.index(10));
    blocks.response_room = {.share = share,
                            .least_share = share * 0.14,
                            .decodes = 1 + random.index(100),
                            .most = Tokens(1 + random.index(200)),
                            .after_preemption = random.index(30)};
    config.system.order.name = coin() ? "fcfs" : "longest_prefix";
    config.system.length_prediction.kind =
        coin() ? LengthPrediction::exact : LengthPrediction::constant;
    if (random.index(3) > 0) {
      add_tiers_of_nodes(config, random);
    }
  }
  for (TierConfig* tier : {static_cast<TierConfig*>(&*config.system.tiers.hbm),
                           config.system.tiers.dram ? &*config.system.tiers.dram : nullptr}) {
    if (tier != nullptr && random.index(3) == 0 &&
        (!tier->blocks || (tier->blocks->pool.retention.empty() && !tier->blocks->bucket))) {
      constexpr std::array kPolicies{"mru", "slru", "s3fifo", "arc"};
      tier->eviction.name = kPolicies[static_cast<std::size_t>(random.index(4))];
      tier->admission.name = coin() ? "second_hit" : kAlwaysAdmitted;
    }
  }
  const bool victims = config.system.tiers.dram && !config.system.tiers.dram->inclusive;
  if (blocks.unit != EvictionUnit::node && blocks.keyless == Keyless::first && !victims &&
      random.index(4) == 0) {
    blocks.publication = Publication::never;
    blocks.delays_duplicates = false;
  }
  config.system.blocks->watermark = random.index(4) == 0 ? 0.1 : 0;
  config.serving.one_at_a_time = random.index(6) == 0;
  if (blocks.unit != EvictionUnit::node && random.index(4) == 0) {
    config.system.tiers.hbm->ttl = kMillisecond * (1'000 * (1 + random.index(30)));
  }
  if (random.index(3) == 0 && !(blocks.unit == EvictionUnit::node && config.system.tiers.ssd)) {
    mix_priorities(config, random);
  }
  if (blocks.unit != EvictionUnit::node) {
    add_whole_prompts(config, random);
    add_prefetch(config, random);
  }
  return config;
}

std::uint64_t wanted_cases() {
  const char* cases = std::getenv("KVTIER_TEST_CASES");
  return cases == nullptr ? 100 : std::strtoull(cases, nullptr, 10);
}

TEST(BlockBatcher, VictimsAreWrittenBeforeTheIterationThatTakesTheirMemory) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_victims_behind(vllm_config(30)), kPerToken, kIteration,
                    {session(0, {turn(20, 1)}), session(100, {turn(5, 21)})}, stepping);
    run.run();
    // A leaves 20 blocks, and 10 are empty. B has its first token at 105. The KV of 15 of its 20
    // decodes takes a block of A, which is written within 1 ms before the iteration.
    expect_times(run.request(1, 0), 100, 100, 105, 105 + 20 * 10 + 15);
  }
}

TEST(BlockBatcher, AnIterationWaitsForTheCopyWhoseMemoryItTakes) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_offload(vllm_config(30), 1000, 4), kPerToken, kIteration,
                    {session(0, {turn(20, 1)}), session(25, {turn(25, 1)})}, stepping);
    run.run();
    expect_times(run.request(0, 0), 0, 0, 20, 20);
    // The copy of A takes 80 ms from its end on. B takes the memory of 15 of its blocks.
    expect_times(run.request(1, 0), 25, 25, 20 + 80 + 25, 20 + 80 + 25);
  }
}

/// HBM keeps nothing, and a token takes 4 ms to host memory.
RunConfig with_write_buffer(std::int64_t tokens) {
  RunConfig config = with_offload(vllm_config(30), 1000, 4);
  config.system.tiers.dram->blocks->pool.touch = Touch::lookup;
  config.system.tiers.dram->blocks->edge.responses = Responses::computed;
  config.system.blocks->publication = Publication::never;
  config.system.save.write_buffer = kv(tokens);
  return config;
}

TEST(BlockBatcher, KvOfAnEndedRequestStandsInTheWriteBuffer) {
  struct Case {
    std::int64_t buffer;
    std::int64_t begins;
    std::int64_t waits;
  };
  // A's 20 tokens are written from 20 to 100, and B's 25 share the link from its end on. B takes
  // A's memory when the buffer holds what is on its way.
  for (const auto& [buffer, begins, waits] :
       {Case{0, 100, 180}, Case{19, 100, 180}, Case{20, 25, 150}, Case{45, 25, 0}}) {
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(with_write_buffer(buffer), kPerToken, kIteration,
                      {session(0, {turn(20, 1)}), session(25, {turn(25, 1)})}, stepping);
      run.run();
      expect_times(run.request(1, 0), 25, begins, begins + 25, begins + 25);
      EXPECT_EQ(run.instance.total_gpu_time().exposed_save, for_ms(waits)) << buffer;
    }
  }
}

TEST(BlockBatcher, ARequestAsksAgainForKvThatIsOnItsWay) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_write_buffer(1000), kPerToken, kIteration,
                    {session(0, {turn(20, 1), turn(5, 1, 10)})}, stepping);
    run.run();
    // 20 tokens are there at 100, and loaded until 180.
    expect_times(run.request(0, 1), 30, 100, 186, 186);
  }
}

TEST(BlockBatcher, AnIterationLoadsWhileVictimsAreWritten) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_victims_behind(vllm_config(30)), kPerToken, kIteration,
                    {session(0, {turn(20, 1), turn(5, 1, 180)}), session(100, {turn(25, 1)})},
                    stepping);
    run.run();
    // B evicts 15 of A's 20 blocks: 15 ms, then 25.
    expect_times(run.request(1, 0), 100, 100, 140, 140);
    // 26 tokens: 5 are in HBM, 15 are loaded within 15 ms. The other 6 are computed when 21 blocks
    // of B have been written, within 21 ms.
    expect_times(run.request(0, 1), 200, 200, 227, 227);
  }
}

/// Host memory for 50 tokens, and a drive behind it from which a token takes 2 ms. One request runs
/// at a time, and HBM keeps nothing.
RunConfig with_drive(const std::string& prefetch) {
  RunConfig config = with_offload(vllm_config(100), 50, 1);
  config.system.batching = Batching::prefill_first;
  config.system.blocks->publication = Publication::never;
  config.system.blocks->unit = EvictionUnit::sequence;
  config.system.blocks->duplicates = Duplicates::merged;
  config.system.blocks->keyless = Keyless::first;
  config.system.blocks->whole_prompts = true;
  config.system.blocks->whole_response = true;
  config.system.load.wait = LoadWait::batch;
  config.system.load.discipline = LoadDiscipline::blocking;
  config.system.prefetch.name = prefetch;
  TierConfig& dram = *config.system.tiers.dram;
  dram.eviction.name = "scheduler_aware";
  dram.blocks->pool.touch = Touch::lookup;
  dram.blocks->edge.responses = Responses::end;
  TierConfig& ssd = config.system.tiers.ssd.emplace(tier("lru", true));
  ssd.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, 1000}};
  set_rates(config.hardware.ssd->bandwidth, limits(5e5, 5e5, 1e6));
  config.serving.slots = 1;
  return config;
}

/// A's KV is on the drive when its second turn waits for B's second one.
std::vector<SessionSpec> three_sessions() {
  return {session(0, {turn(20, 2), turn(5, 1, 1000)}), session(500, {turn(20, 2), turn(1, 7, 475)}),
          session(700, {turn(20, 2)})};
}

TEST(BlockBatcher, KvComesFromBehindTheSecondTierWhenItsRequestIsReached) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_drive("none"), kPerToken, kIteration, three_sessions(), stepping);
    run.run();
    const RequestRecord& waits = run.request(0, 1);
    EXPECT_EQ(waits.arrived, at_ms(1030));
    // B runs from 1,005 on: 21 tokens come from host memory within 21 ms, 2 are computed, and 6
    // decodes take 60 ms. 21 of A's 27 tokens come from the drive, then from host memory.
    expect_times(waits, 1030, 1005 + 21 + 2 + 60, 1088 + 42 + 21 + 6, 1088 + 42 + 21 + 6);
    EXPECT_EQ(waits.found.medium, Medium::ssd);
    EXPECT_EQ(run.instance.batcher().prefetches().begun, 0);
  }
}

TEST(BlockBatcher, KvComesFromBehindTheSecondTierWhileItsRequestWaits) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_drive("look_ahead"), kPerToken, kIteration, three_sessions(), stepping);
    run.run();
    const RequestRecord& waits = run.request(0, 1);
    expect_times(waits, 1030, 1088, 1088 + 21 + 6, 1088 + 21 + 6);
    EXPECT_EQ(waits.found.medium, Medium::dram);
    const PrefetchCounters counters = run.instance.batcher().prefetches();
    EXPECT_EQ(counters.begun, 1);
    EXPECT_EQ(counters.on_time, 1);
  }
}

/// One request runs at a time in 60 tokens of HBM. B has evicted A's KV, and A's second turn waits
/// for C. Its first token takes so many milliseconds, and without that 20 to load 20 tokens.
void expect_found_in_hbm(RunConfig config, std::int64_t computed) {
  config.serving.slots = 1;
  config.system.load.discipline = LoadDiscipline::blocking;
  for (const char* prefetch : {"none", "look_ahead"}) {
    config.system.prefetch.name = prefetch;
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(config, kPerToken, kIteration,
                      {session(0, {turn(20, 1), turn(5, 1, 400)}), session(100, {turn(55, 1)}),
                       session(400, {turn(5, 21)})},
                      stepping);
      run.run();
      const bool comes = config.system.prefetch.name != kNoPrefetch;
      const RequestRecord& waits = run.request(0, 1);
      EXPECT_EQ(waits.found.reused, Tokens(20));
      EXPECT_EQ(waits.found.medium, comes ? Medium::hbm : Medium::dram);
      const SimDuration ttft = waits.first_token - waits.admitted;
      EXPECT_EQ(ttft, for_ms(comes ? computed : computed + 20));
      EXPECT_EQ(run.instance.batcher().prefetches().begun, comes ? 1 : 0);
    }
  }
}

TEST(BlockBatcher, KvComesToHbmWhileItsRequestWaits) {
  RunConfig config = with_victims_behind(vllm_config(60));
  config.system.load.wait = LoadWait::batch;
  expect_found_in_hbm(config, 6 + 6);  // six of B's tokens are written first
  config = with_offload(vllm_config(60), 1000, 1);
  expect_found_in_hbm(config, 6);
  config.system.load.wait = LoadWait::batch;
  expect_found_in_hbm(config, 6);
  config.system.tiers.dram->blocks->pool.touch = Touch::lookup;
  expect_found_in_hbm(config, 6);
}

TEST(BlockBatcher, KvThatComesToHbmTakesNoMemoryOfARequestThatWaitsForIt) {
  for (const bool one_at_a_time : {false, true}) {
    for (const DecodeStepping stepping : kSteppings) {
      RunConfig config = with_offload(vllm_config(100), 1000, 1);
      config.system.prefetch = {.name = "look_ahead", .parameters = {{"window", 3}}};
      config.serving.one_at_a_time = one_at_a_time;
      // C runs from 900 on. D waits for its memory, and then A and B, whose KV comes to HBM. If one
      // runs at a time, D waits for what A has of that.
      ScriptedRun run(
          config, kPerToken, kIteration,
          {session(0, {turn(54, 1), turn(5, 1, 956)}), session(200, {turn(54, 1), turn(5, 1, 766)}),
           session(900, {turn(60, 20)}), session(1000, {turn(50, 1)})},
          stepping);
      run.run();
      EXPECT_EQ(run.request(2, 0).finished, at_ms(900 + 60 + 19 * 10));
      EXPECT_EQ(run.request(3, 0).admitted,
                run.request(2, 0).finished + for_ms(one_at_a_time ? 54 : 0));
      EXPECT_EQ(run.request(0, 1).found.reused, Tokens(54));
      EXPECT_EQ(run.request(1, 1).found.reused, Tokens(54));
    }
  }
}

/// A's second turn is reached while its KV is on its way, and waits for it for so long.
void expect_late_fetch(const std::string& prefetch, const std::vector<SessionSpec>& sessions,
                       std::int64_t fetched_at, std::int64_t waited) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(with_drive(prefetch), kPerToken, kIteration, sessions, stepping);
    run.run();
    const RequestRecord& waits = run.request(0, 1);
    expect_times(waits, 1030, fetched_at, fetched_at + 21 + 6, fetched_at + 21 + 6);
    EXPECT_EQ(waits.found.medium, Medium::dram);
    EXPECT_TRUE(waits.found.late);
    EXPECT_EQ(waits.late_wait, for_ms(waited));
    EXPECT_EQ(run.instance.batcher().prefetches().late, 1);
  }
}

TEST(BlockBatcher, KvComesFromBehindTheSecondTierWhenARunningRequestIsAboutToEnd) {
  // The end of B is predicted as 7 iterations behind its first token, 10 ms too late.
  expect_late_fetch("deadline", three_sessions(), 1098, 10);
}

TEST(BlockBatcher, ARequestWaitsForTheRestOfItsPrefetch) {
  std::vector<SessionSpec> sessions = three_sessions();
  sessions[1].turns[1].assistant = Tokens(2);  // B's decode ends at 1,038, A's fetch at 1,072
  expect_late_fetch("look_ahead", sessions, 1072, 34);
}

TEST(BlockBatcher, KvOfAResponseIsWrittenAtItsEndOrBlockByBlockOrNever) {
  struct Case {
    Responses responses;
    std::int64_t tokens;
    std::int64_t copies;
  };
  for (const auto& [responses, tokens, copies] :
       {Case{Responses::never, 12, 2}, {Responses::end, 31, 3}, {Responses::computed, 31, 4}}) {
    RunConfig config = with_drive("none");
    config.system.tiers.ssd.reset();
    config.system.tiers.dram->blocks->capacity->count = 100;
    config.system.tiers.dram->blocks->edge.responses = responses;
    config.serving.slots = 2;
    for (const DecodeStepping stepping : kSteppings) {
      // B's prompt divides A's decode.
      ScriptedRun run(config, kPerToken, kIteration,
                      {session(0, {turn(10, 20)}), session(60, {turn(2, 1)})}, stepping);
      run.run();
      const TierCounters dram = run.instance.batcher().counters(1);
      EXPECT_EQ(dram.written, kv(tokens));
      EXPECT_EQ(dram.stores, copies);
    }
  }
}

TEST(BlockBatcher, KvBehindACutStaysIfItCarriesNoPositions) {
  struct Case {
    KeyPositions positions;
    std::int64_t block;
    EvictionUnit unit;
    std::int64_t found;
  };
  for (const auto& [positions, block, unit, found] :
       {Case{KeyPositions::decoupled, 1, EvictionUnit::sequence, 14},
        {KeyPositions::decoupled, 1, EvictionUnit::tail, 14},
        {KeyPositions::decoupled, 2, EvictionUnit::sequence, 0},
        {KeyPositions::decoupled, 1, EvictionUnit::block, 0},
        {KeyPositions::embedded, 1, EvictionUnit::sequence, 0}}) {
    RunConfig config = with_drive("none");
    config.system.tiers.ssd.reset();
    config.system.positions = positions;
    config.system.blocks->unit = unit;
    config.system.tiers.hbm->block_size = config.system.tiers.dram->block_size = Tokens(block);
    config.model.context_window = Tokens(50);
    for (const DecodeStepping stepping : kSteppings) {
      ScriptedRun run(config, kPerToken, kIteration,
                      {session(0, {turn(20, 10), turn(20, 10, 1000)})}, stepping);
      run.run();
      // 30 + 20 + 10 tokens exceed the window, so half of the history goes. The KV of its last
      // token was never computed.
      const RequestRecord& second = run.request(0, 1);
      EXPECT_EQ(second.truncated, Tokens(15));
      EXPECT_EQ(second.found.reused, Tokens(found));
      EXPECT_EQ(second.prefill_compute, for_ms(35 - found));
    }
  }
}

std::int64_t prefetched(const Json& result) {
  const Json& prefetches = result["metrics"]["prefetches"];
  return prefetches.is_null() ? 0 : prefetches["begun"].get<std::int64_t>();
}

TEST(BlockBatcher, GivesTheSameBytesWithEachIterationAndAPlainStore) {
  std::int64_t preemptions = 0;
  std::int64_t hits = 0;
  std::int64_t prefetches = 0;
  for (std::uint64_t seed = 1; seed <= wanted_cases(); ++seed) {
    const RunConfig config = random_blocks(seed);
    const Json fast = simulate(config, builtin_policies());
    const Json plain =
        simulate(config, builtin_policies(), {.stepping = DecodeStepping::per_iteration});
    ASSERT_EQ(fast.dump(), plain.dump()) << "seed " << seed;
    preemptions += fast["metrics"]["preemptions"].get<std::int64_t>();
    hits += fast["metrics"]["hit_tokens"]["total"].get<std::int64_t>();
    prefetches += prefetched(fast);
    for (const char* share :
         {"slots_in_use_fraction", "kv_memory_in_use_fraction", "gpu_busy_fraction"}) {
      EXPECT_LE(fast["load"][share].get<double>(), 1 + 1e-9) << share << ", seed " << seed;
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(prefetches, 0);
}

TEST(BlockBatcher, NoIterationWaitsForWritesToABufferWithoutEnd) {
  int compared = 0;
  bool waits = false;
  for (std::uint64_t seed = 1; compared < 15; ++seed) {
    RunConfig config = random_blocks(seed);
    const TiersConfig& tiers = config.system.tiers;
    if (!tiers.ssd || tiers.ssd->write == WriteMoment::on_create ||
        config.system.save.mode == SaveMode::blocking) {
      continue;
    }
    ++compared;
    config.system.blocks->publication = Publication::never;
    config.system.blocks->keyless = Keyless::first;
    config.system.blocks->delays_duplicates = false;
    config.hardware.hbm.capacity += kv(1'000'000);
    SCOPED_TRACE(seed);
    for (const std::int64_t tokens : {0, 1'000'000}) {
      config.system.save.write_buffer = kv(tokens);
      const Json metrics = simulate(config, builtin_policies())["metrics"];
      const double waited = metrics["gpu_seconds"]["exposed_save"].get<double>();
      waits = waits || waited > 0;
      EXPECT_TRUE(tokens == 0 || waited == 0);
      for (const auto& [name, tier] : {std::pair("dram", &*tiers.dram), {"ssd", &*tiers.ssd}}) {
        EXPECT_LE(metrics["tiers"][name]["occupancy_bytes"]["max"].get<std::int64_t>(),
                  kv(tier->blocks->capacity->count * tier->block_size.value).value);
      }
    }
  }
  EXPECT_TRUE(waits);
}

TEST(BlockBatcher, GivesTheSameBytesWithEachIterationOfAModelWithWindows) {
  for (std::uint64_t seed = 1; seed <= wanted_cases(); ++seed) {
    const RunConfig config = with_windows(random_blocks(seed), seed);
    const Json fast = simulate(config, builtin_policies());
    const Json plain =
        simulate(config, builtin_policies(), {.stepping = DecodeStepping::per_iteration});
    ASSERT_EQ(fast.dump(), plain.dump()) << "seed " << seed;
  }
}

TEST(BlockBatcher, OneRequestAtATimeHasTheHitsOfAnUntimedReplay) {
  for (std::uint64_t seed = 1; seed <= wanted_cases(); ++seed) {
    RunConfig config = random_blocks(seed);
    // An untimed replay takes a prompt's memory at once, so other sets leave.
    if (has_entries(config.system.blocks->unit)) {
      continue;
    }
    config.serving.slots = 1;
    config.serving.token_budget = config.model.context_window;
    if (config.system.blocks->chunk) {
      // An untimed replay's steps end with whole blocks.
      config.system.blocks->chunk = config.system.tiers.hbm->block_size * 3;
    }
    config.system.tiers.hbm->ttl.reset();
    if (prefetches_to(rules_of(config)) == 0U) {
      config.system.prefetch.name = kNoPrefetch;  // what comes to HBM is found there
    }
    if (config.system.tiers.dram) {
      // Its time goes on less often, and with it the room that is made in the background.
      config.system.tiers.dram->blocks->pool.relief.reset();
    }
    // Its copies are complete with the next step.
    set_rates(config.hardware.links.pcie, limits(1e15, 1e15, 2e15));
    set_rates(config.hardware.ssd->bandwidth, limits(1e15, 1e15, 2e15));
    config.system.blocks->storage_fetch.wait = FetchWait::wait_complete;
    config.workload.warmup_turns = 0;
    config.workload.arrival_rate = PerSecond(1e-7);  // one session after the other
    SCOPED_TRACE(seed);
    const Json timed = simulate(config, builtin_policies())["metrics"];
    const Json untimed = simulate_untimed(config, builtin_policies())["metrics"];
    EXPECT_EQ(timed["hit_tokens"], untimed["hit_tokens"]) << "seed " << seed;
    EXPECT_EQ(timed["prompt_tokens"], untimed["prompt_tokens"]) << "seed " << seed;
  }
}

TEST(BlockBatcher, RefusesKeysThatATimedRunLacks) {
  const auto refused = [](const RunConfig& config) -> std::string {
    try {
      static_cast<void>(simulate(config, builtin_policies()));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  RunConfig config = vllm_config(10);
  config.system.tiers.hbm.reset();
  config.system.tiers.dram = tier();
  config.system.tiers.dram->blocks = BlockTierConfig{};
  config.system.batching = Batching::prefill_first;
  config.system.blocks->responses = false;
  EXPECT_EQ(refused(config),
            "/system/tiers/hbm: in a timed run of blocks expected a tier: requests run in its "
            "blocks\n"
            "/system/blocks/whole_prompts: in a timed run of blocks expected true with batching "
            "separate or prefill_first, but for nodes with separate\n"
            "/system/blocks/responses: in a timed run of blocks expected true: the KV of responses "
            "takes memory");
  EXPECT_EQ(refused(vllm_config(10)),
            "/system/tiers/hbm: expected room for each turn by itself, got 10 blocks of 1 tokens, "
            "but turn 0 of session 0 takes 11 tokens");
  const std::string large = refused(vllm_config(std::int64_t{1} << 40));
  EXPECT_EQ(large.substr(0, large.find("expected")),
            "/system/tiers/hbm/blocks/capacity: in a timed run ");
}

}  // namespace
}  // namespace kvtier::test
