#include "sim/serving/instance.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/serving/result.hpp"
#include "tests/sim/serving/support.hpp"

// A prefill takes 1 ms for each token without KV, a decode iteration 10 ms; a stored token moves in
// 1 ms. The first token comes with the prefill, so n output tokens take n - 1 iterations.
namespace kvtier::test {
namespace {

RunConfig with_dram(RunConfig config = tiny_config()) {
  config.system.tiers.dram = tier();
  return config;
}

TEST(Instance, ARequestAlonePrefillsAndDecodes) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration, {session(5, {turn(10, 5)})});
  run.run();
  // 10 tokens: 10 ms; 4 more tokens: 40 ms.
  expect_times(run.request(0, 0), 5, 5, 15, 55);
  EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(10));
  EXPECT_EQ(run.instance.total_gpu_time().decode, for_ms(40));
  EXPECT_EQ(run.instance.measured().to, at_ms(55));
  EXPECT_EQ(run.instance.turns().tpot_ns.maximum(), kIteration.ns);
  EXPECT_EQ(run.instance.turns().ttft_ns.maximum(), for_ms(10).ns);
  // (55 - 5) ms / 5 tokens
  EXPECT_EQ(run.instance.turns().normalized_latency_ns_per_token.maximum(), for_ms(10).ns);
}

TEST(Instance, AResponseOfOneTokenEndsWithThePrefill) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration, {session(0, {turn(10, 1), turn(2, 1, 7)})});
  run.run();
  expect_times(run.request(0, 0), 0, 0, 10, 10);
  // History 11 and input 2, after 7 ms.
  expect_times(run.request(0, 1), 17, 17, 30, 30);
  EXPECT_EQ(run.instance.turns().tpot_ns.count(), 0);
}

TEST(Instance, LoggedTurnsArriveAtTheirTimesOrWhenTheTurnBeforeEnds) {
  RunConfig config = tiny_config();
  config.workload.think_time.model = ThinkTimeModel::logged;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(5, {turn(10, 5), turn(3, 2, 20), turn(4, 1, 100), turn(2, 1, 1)})});
  run.run();
  expect_times(run.request(0, 0), 5, 5, 15, 55);
  // Due 20 ms after the first, at 25, when that still runs. History 15 and input 3.
  expect_times(run.request(0, 1), 55, 55, 73, 83);
  // 100 ms after the second was due, not after it came: at 125. History 20 and input 4.
  expect_times(run.request(0, 2), 125, 125, 149, 149);
  expect_times(run.request(0, 3), 149, 149, 176, 176);
}

TEST(Instance, WithOneSlotRequestsWaitForTheWholeTurn) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(5, {turn(4, 3)}), session(6, {turn(1, 1)})});
  run.run();
  expect_times(run.request(0, 0), 0, 0, 10, 50);
  expect_times(run.request(1, 0), 5, 50, 54, 74);
  expect_times(run.request(2, 0), 6, 74, 75, 75);
  EXPECT_EQ(run.instance.queue_trend().longest(), 2U);
}

TEST(Instance, AnArrivalStopsTheDecodeAtTheEndOfTheIterationAndItsPrefillBlocksTheOthers) {
  for (const DecodeStepping stepping :
       {DecodeStepping::closed_form, DecodeStepping::per_iteration}) {
    RunConfig config = tiny_config();
    config.serving.slots = 2;
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(25, {turn(4, 3)})}, stepping);
    run.run();
    // A decodes 10..20..30; B prefills 30..34; both decode 34..44..54.
    expect_times(run.request(1, 0), 25, 30, 34, 54);
    expect_times(run.request(0, 0), 0, 0, 10, 54);
    EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(14));
    EXPECT_EQ(run.instance.total_gpu_time().decode, for_ms(40));
    ASSERT_EQ(run.recorder.spans.size(), 4U);
    EXPECT_EQ(run.recorder.spans[1].end, at_ms(30));
    EXPECT_EQ(run.recorder.spans[2].session, 1);
    EXPECT_EQ(run.recorder.spans[3].batch, 2);
  }
}

TEST(Instance, AnArrivalAtTheEndOfAnIterationWaitsForTheNextOne) {
  for (const DecodeStepping stepping :
       {DecodeStepping::closed_form, DecodeStepping::per_iteration}) {
    RunConfig config = tiny_config();
    config.serving.slots = 2;
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(30, {turn(4, 3)})}, stepping);
    run.run();
    // A's third iteration began at 30. B prefills 40..44; A ends with one more iteration.
    expect_times(run.request(1, 0), 30, 40, 44, 64);
    expect_times(run.request(0, 0), 0, 0, 10, 54);
  }
}

TEST(Instance, ArrivalsDuringAPrefillArePrefilledBeforeDecodeGoesOn) {
  RunConfig config = tiny_config();
  config.serving.slots = 2;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 2)}), session(3, {turn(5, 2)}), session(4, {turn(1, 2)})});
  run.run();
  expect_times(run.request(0, 0), 0, 0, 10, 25);
  expect_times(run.request(1, 0), 3, 10, 15, 25);
  // No third slot until both end.
  expect_times(run.request(2, 0), 4, 25, 26, 36);
}

TEST(Instance, TheNextTurnComesAfterTheThinkTimeAndRecomputesTheHistory) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration,
                  {session(0, {turn(10, 5), turn(3, 2, 100)})});
  run.run();
  // Finished at 50; 15 tokens of history and 3 new ones without KV: 18 ms.
  expect_times(run.request(0, 1), 150, 150, 168, 178);
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.history, Tokens(15));
  EXPECT_EQ(r.found.cause, LossCause::not_stored);
  EXPECT_EQ(r.exposed_load, SimDuration(0));
}

/// The largest batch that decodes when 300 requests of 10 tokens arrive at once and HBM has room
/// for the KV of so many tokens; slots are those of a config that does not state them.
std::int64_t largest_batch(RunConfig config, std::int64_t tokens) {
  config.serving.slots = ServingConfig().slots;
  config.serving.kv_memory = kv(tokens);
  ScriptedRun run(config, kPerToken, kIteration,
                  std::vector<SessionSpec>(300, session(0, {turn(4, 6)})));
  run.run();
  std::int64_t largest = 0;
  for (const Recorder::Span& span : run.recorder.spans) {
    largest = span.activity == GpuActivity::decode ? std::max(largest, span.batch) : largest;
  }
  return largest;
}

TEST(Instance, HbmLimitsTheBatchBelowTheDefaultOf256Slots) {
  ASSERT_EQ(ServingConfig().slots, 256);
  EXPECT_EQ(largest_batch(tiny_config(), 1000), 100);
  EXPECT_EQ(largest_batch(tiny_config(), 3000), 256);
}

TEST(Instance, ARequestThatDoesNotFitHbmWaitsForRoom) {
  RunConfig config = tiny_config(Tokens(100));
  config.serving.slots = 2;
  // KV of 150 tokens beside the weights.
  config.hardware.hbm.capacity = weight_bytes(config.model) + kv(150);
  ScriptedRun run(
      config, kPerToken, kIteration,
      {session(0, {turn(60, 31)}), session(1, {turn(59, 1)}), session(2, {turn(1, 1)})});
  run.run();
  // 91 + 60 tokens are too many, so the second waits for the end: 60 + 30 x 10. The third may not
  // overtake it.
  expect_times(run.request(0, 0), 0, 0, 60, 360);
  expect_times(run.request(1, 0), 1, 360, 419, 419);
  expect_times(run.request(2, 0), 2, 419, 420, 420);
}

// ---- What requests wait for ----

SimDuration waited(const ScriptedRun& run, WaitCause cause) {
  return run.instance.measured_waits()[cause];
}

TEST(Bottleneck, IsTheSlotsWhileAllAreTaken) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(5, {turn(4, 3)}), session(6, {turn(1, 1)})});
  run.run();
  // The second waits 5..50, the third 6..74, for the only slot. The run takes 75 ms.
  EXPECT_EQ(waited(run, WaitCause::batch_slots), for_ms(69));
  EXPECT_EQ(run.instance.measured_waits().total(), for_ms(69));
  const Json load = load_report(run.instance.requests(), std::array{&run.instance}, run.config);
  EXPECT_EQ(load["bottleneck"]["name"], "batch_slots");
  EXPECT_DOUBLE_EQ(load["bottleneck"]["share"].get<double>(), 69.0 / 75);
  EXPECT_DOUBLE_EQ(load["bottleneck"]["requests_wait_share"].get<double>(), 69.0 / 75);
  EXPECT_DOUBLE_EQ(load["bottleneck"]["shares"]["batch_slots"].get<double>(), 69.0 / 75);
  EXPECT_DOUBLE_EQ(load["slots_in_use_fraction"].get<double>(), 1);
  EXPECT_DOUBLE_EQ(load["gpu_busy_fraction"].get<double>(), 1);
}

TEST(Bottleneck, IsHbmIfTheNextRequestHasNoRoomAndOtherwiseTheGpus) {
  RunConfig config = tiny_config(Tokens(100));
  config.serving.slots = 2;
  config.serving.kv_memory = kv(150);
  ScriptedRun run(
      config, kPerToken, kIteration,
      {session(0, {turn(60, 31)}), session(1, {turn(59, 1)}), session(2, {turn(1, 1)})});
  run.run();
  // The second waits 1..60 for the first one's prefill. Then 91 + 60 tokens are too many, until the
  // first has ended at 360. The third waits 360..419 for the second one's prefill.
  EXPECT_EQ(waited(run, WaitCause::hbm_for_kv), for_ms(300));
  EXPECT_EQ(waited(run, WaitCause::gpu_compute), for_ms(59 + 59));
  EXPECT_EQ(run.instance.measured_waits().total(), for_ms(418));
  // One of two slots, and 91 tokens for 360 ms, 60 for 59, 2 for 1.
  const Json load = load_report(run.instance.requests(), std::array{&run.instance}, run.config);
  EXPECT_NEAR(load["slots_in_use_fraction"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(load["kv_memory_in_use_fraction"].get<double>(),
              (91.0 * 360 + 60 * 59 + 2 * 1) / 150 / 420, 1e-12);
}

TEST(Bottleneck, CountsAPrefillInTheProportionInWhichItWaitsForItsLoad) {
  RunConfig config = with_dram();
  config.serving.slots = 2;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5), turn(3, 2, 100)}), session(151, {turn(4, 1)})});
  run.run();
  // The prefill from 150 to 165.6 ms waits 12.6 of its 15.6 ms for the host link. The second
  // session waits for 14.6 of them.
  EXPECT_EQ(waited(run, WaitCause::host_link).ns, 14600000LL * 126 / 156);
  EXPECT_EQ(waited(run, WaitCause::gpu_compute).ns, 14600000LL - 14600000LL * 126 / 156);
  EXPECT_EQ(run.instance.measured_load_waits()[WaitCause::host_link].ns, 12600000);
  EXPECT_EQ(run.instance.measured_load_waits().total(),
            run.instance.measured_gpu_time().exposed_load);
}

TEST(Bottleneck, IsTheWriteBufferWhileTheGpusWaitForSaves) {
  RunConfig config = with_dram();
  config.system.save.mode = SaveMode::blocking;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(5, {turn(4, 1)})});
  run.run();
  // B waits 5..50 for A's slot and 50..65 for its save.
  EXPECT_EQ(waited(run, WaitCause::batch_slots), for_ms(45));
  EXPECT_EQ(waited(run, WaitCause::write_buffer), for_ms(15));
  EXPECT_EQ(run.instance.measured_waits().total(), for_ms(60));
}

TEST(Bottleneck, IsNoneIfRequestsHardlyWait) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(49, {turn(4, 3)})});
  run.run();
  // 1 ms of 74.
  const Json bottleneck =
      load_report(run.instance.requests(), std::array{&run.instance}, run.config)["bottleneck"];
  EXPECT_EQ(bottleneck["name"], "none");
  EXPECT_EQ(bottleneck["share"], 0);
  EXPECT_NEAR(bottleneck["requests_wait_share"].get<double>(), 1.0 / 74, 1e-12);
}

TEST(Instance, ARunWithoutSessionsEndsAtOnce) {
  ScriptedRun run(tiny_config(), kPerToken, kIteration, {});
  run.run();
  EXPECT_EQ(run.instance.finished_turns(), 0);
}

// ---- Stored KV ----

TEST(Instance, AHitInDramLoadsLayerByLayer) {
  ScriptedRun run(with_dram(), kPerToken, kIteration, {session(0, {turn(10, 5), turn(3, 2, 100)})});
  run.run();
  // 15 tokens load in 15 ms (L = 3), 3 are computed in 3 ms (C = 0.6): nL + C = 15.6 ms.
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.found.reused, Tokens(15));
  EXPECT_EQ(r.found.medium, Medium::dram);
  EXPECT_EQ(r.admitted, at_ms(150));
  EXPECT_EQ(r.first_token, SimTime(165600000));
  EXPECT_EQ(r.exposed_load, SimDuration(12600000));
  EXPECT_EQ(run.instance.total_gpu_time().exposed_load, SimDuration(12600000));
  EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(10 + 3));
  EXPECT_EQ(r.finished, SimTime(175600000));
}

TEST(Instance, TheResultHasTheReadBufferThatWouldHideTheLoad) {
  ScriptedRun run(with_dram(), kPerToken, kIteration, {session(0, {turn(10, 5), turn(3, 2, 100)})});
  run.run();
  // 15 tokens load in 3 ms a layer, 3 tokens compute in 0.6: 5 x 3 - 4 x 0.6 = 12.6 ms at 1 MB/s.
  const Json buffer = metrics_report(run.instance.requests(), std::array{&run.instance}, run.config,
                                     {})["read_buffer_to_hide_loading_bytes"];
  EXPECT_EQ(buffer["mean"], 12600);
  EXPECT_EQ(buffer["max"], 12600);
}

TEST(Instance, DecodeTimeIsSharedByTheRunningRequests) {
  RunConfig config = tiny_config();
  config.serving.slots = 2;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(25, {turn(5, 4)})});
  run.run();
  // Session 0 decodes alone from 10 to 30 (2 iterations), waits for the other's prefill until 35,
  // and both decode until 55 (2 iterations); session 1 goes on alone until 65.
  EXPECT_EQ(run.request(0, 0).decode_share, for_ms(20 + 20 / 2));
  EXPECT_EQ(run.request(1, 0).decode_share, for_ms(20 / 2 + 10));
  EXPECT_EQ(run.request(0, 0).prefill_compute, for_ms(10));
  EXPECT_EQ(run.request(1, 0).prefill_compute, for_ms(5));
}

TEST(Instance, TheResultHasTheWasteOfBlocks) {
  RunConfig config = with_dram();
  config.system.tiers.dram->block_size = Tokens(16);
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5), turn(3, 2, 100)}), session(1000, {turn(1, 1)})});
  run.run();
  // The run ends before the second session is saved. The first one:
  // 15 tokens in a block of 16, then 20 in two: 1 and 12 tokens without KV, of 48.
  const Json tier = metrics_report(run.instance.requests(), std::array{&run.instance}, run.config,
                                   {})["tiers"]["dram"];
  EXPECT_EQ(tier["block_waste_bytes"]["mean"], 6500);
  EXPECT_DOUBLE_EQ(tier["block_waste_share"], 13.0 / 48);
}

TEST(Instance, TheResultHasTheWasteOfBlocksForAnyReservation) {
  RunConfig config = with_dram();
  config.system.tiers.dram->block_size = Tokens(16);
  config.serving.kv_reservation = Reservation::context_window;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(1000, {turn(1, 1)})});
  run.run();
  const Json tier = metrics_report(run.instance.requests(), std::array{&run.instance}, run.config,
                                   {})["tiers"]["dram"];
  EXPECT_EQ(tier["block_waste_bytes"]["mean"], 1000);
}

TEST(Instance, ABlockingLoadComesBeforeAllCompute) {
  RunConfig config = with_dram();
  config.system.load.discipline = LoadDiscipline::blocking;
  ScriptedRun run(config, kPerToken, kIteration, {session(0, {turn(10, 5), turn(3, 2, 100)})});
  run.run();
  expect_times(run.request(0, 1), 150, 150, 168, 178);
  EXPECT_EQ(run.request(0, 1).exposed_load, for_ms(15));
}

TEST(Instance, AHitInTheWriteBufferLoadsNothing) {
  RunConfig config = with_dram();
  set_rates(config.hardware.links.pcie, limits(1e6, 1e5, 1.1e6));
  ScriptedRun run(config, kPerToken, kIteration, {session(0, {turn(10, 5), turn(3, 2, 10)})});
  run.run();
  // Saving 15 tokens takes 150 ms; the session is back after 10.
  EXPECT_EQ(run.request(0, 1).found.medium, Medium::hbm);
  expect_times(run.request(0, 1), 60, 60, 63, 73);
}

/// A's second turn waits behind B, so that there is time to load ahead.
std::vector<SessionSpec> waiting_behind_b() {
  return {session(0, {turn(10, 5), turn(3, 2, 100)}), session(140, {turn(50, 11)})};
}

TEST(Instance, LayersLoadedAheadShortenTheWaitByTheirLoadTime) {
  // B runs from 140 to 290. Without buffers A then waits 15.6 ms (above). With b = 2 of 5 layers
  // there: (n - b)L + C = 9.6 ms. With all: nC = 3 ms.
  for (const auto& [buffers, ns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 15600000}, {2, 9600000}, {5, 3000000}, {9, 3000000}}) {
    RunConfig config = with_dram();
    config.system.load.buffers = buffers;
    ScriptedRun run(config, kPerToken, kIteration, waiting_behind_b());
    run.run();
    const RequestRecord& r = run.request(0, 1);
    EXPECT_EQ(r.admitted, at_ms(290)) << buffers;
    EXPECT_EQ(r.first_token - r.admitted, SimDuration(ns)) << buffers;
    EXPECT_EQ(run.backend.link_counters("pcie").forward, kv(15)) << buffers;
  }
}

TEST(Instance, AnAutomaticReadBufferLoadsAheadAsManyLayersAsNeeded) {
  // A's 15 tokens load in 3 ms a layer. In the GPU's model a layer of 3 new tokens computes for
  // 115,200 operations: at once, for 1.92 ms (15 - 4 x 1.92 = 7.3 ms ahead, 3 layers), or for
  // longer than a layer loads. Here it computes for 0.6 ms, and A waits (n - b)L + C as above.
  for (const auto& [peak, ns] : std::vector<std::pair<double, std::int64_t>>{
           {1e15, 3000000}, {6e7, 6600000}, {1e6, 12600000}}) {
    RunConfig config = with_dram();
    config.system.load.buffers.reset();
    config.hardware.gpu.peak = FlopsPerSecond(peak);
    config.hardware.hbm.bandwidth = BytesPerSecond(1e15);
    ScriptedRun run(config, kPerToken, kIteration, waiting_behind_b());
    run.run();
    const RequestRecord& r = run.request(0, 1);
    EXPECT_EQ(r.admitted, at_ms(290)) << peak;
    EXPECT_EQ(r.first_token - r.admitted, SimDuration(ns)) << peak;
    EXPECT_EQ(run.backend.link_counters("pcie").forward, kv(15)) << peak;
  }
}

TEST(Instance, ABlockingSaveStallsTheGpusAtTheEndOfATurn) {
  RunConfig config = with_dram();
  config.system.save.mode = SaveMode::blocking;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(5, {turn(4, 1)})});
  run.run();
  // 15 tokens are saved from 50 to 65; B's 5 tokens after it, when the GPUs have nothing to do.
  expect_times(run.request(1, 0), 5, 65, 69, 69);
  EXPECT_EQ(run.instance.total_gpu_time().exposed_save, for_ms(15));
  ASSERT_EQ(run.recorder.spans.size(), 4U);
  EXPECT_EQ(run.recorder.spans[2].activity, GpuActivity::save_stall);
}

TEST(Instance, AnAsynchronousSaveStallsOnlyIfTheWriteBufferIsFull) {
  // The prompt's 10 tokens are saved by 20 ms; at 50 ms 5 are left.
  for (const auto& [buffer, admitted] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 55}, {4, 55}, {5, 50}, {100, 50}}) {
    RunConfig config = with_dram();
    config.system.save.write_buffer = kv(buffer);
    ScriptedRun run(config, kPerToken, kIteration,
                    {session(0, {turn(10, 5)}), session(5, {turn(4, 1)})});
    run.run();
    EXPECT_EQ(run.request(1, 0).admitted, at_ms(admitted)) << buffer;
  }
}

TEST(Instance, ASlotIsUsedAgainAndKeepsNothingOfTheEarlierSession) {
  RunConfig config = with_dram();
  std::vector<SessionSpec> sessions;
  for (std::int64_t i = 0; i < 20; ++i) {
    sessions.push_back(session(1000 * i, {turn(10, 5), turn(3, 2, 100)}));
  }
  ScriptedRun run(config, kPerToken, kIteration, sessions);
  run.run();
  EXPECT_EQ(run.instance.most_live_sessions(), 1U);
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(run.request(i, 0).found.cause, LossCause::none);
    EXPECT_EQ(run.request(i, 1).first_token - run.request(i, 1).arrived, SimDuration(15600000));
  }
  // Ended sessions stay until they are evicted: DRAM holds 1,000 tokens, 20 x 20 are stored.
  EXPECT_EQ(run.instance.batcher().stored_entries(), 20U);
}

// ---- Warm-up ----

TEST(Instance, TurnsAdmittedDuringWarmupAreNotCounted) {
  RunConfig config = tiny_config();
  config.workload.warmup_turns = 2;
  ScriptedRun run(config, kPerToken, kIteration,
                  {session(0, {turn(10, 5)}), session(5, {turn(4, 3)}), session(6, {turn(7, 2)})});
  run.run();
  EXPECT_EQ(run.instance.finished_turns(), 3);
  EXPECT_EQ(run.instance.turns().turns, 1);
  EXPECT_EQ(run.instance.turns().prompts.prompt_tokens, 7);
  // The third is admitted at 74 (see above), prefills 7 ms and decodes 10.
  EXPECT_EQ(run.instance.measured().from, at_ms(74));
  EXPECT_EQ(run.instance.measured_gpu_time().prefill, for_ms(7));
  EXPECT_EQ(run.instance.measured_gpu_time().decode, for_ms(10));
  EXPECT_FALSE(run.request(1, 0).measured);
  EXPECT_TRUE(run.request(2, 0).measured);
}

// ---- The context window ----

/// Two turns of 30 + 30 and 30 + 20 tokens in a window of 100.
ScriptedRun overflowing(RunConfig config) {
  return {
      std::move(config), kPerToken, kIteration, {session(0, {turn(30, 30), turn(30, 20, 1000)})}};
}

TEST(Instance, AnOverflowDropsTheTruncationRatioOfTheHistory) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  ScriptedRun run = overflowing(config);
  run.run();
  // 60 + 50 > 100, so half of 60 goes.
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.truncated, Tokens(30));
  EXPECT_EQ(r.history, Tokens(30));
  EXPECT_EQ(r.output, Tokens(20));
  EXPECT_EQ(r.found.reused, Tokens(30));
  EXPECT_TRUE(r.full_hit());
}

TEST(Instance, AnOverflowDropsAgainUntilTheTurnFits) {
  RunConfig config = tiny_config(Tokens(100));
  config.serving.truncation_ratio = 0.1;
  ScriptedRun run = overflowing(config);
  run.run();
  // 60 - 6 = 54, 54 - 5 = 49: 49 + 50 fit.
  EXPECT_EQ(run.request(0, 1).history, Tokens(49));
  EXPECT_EQ(run.request(0, 1).truncated, Tokens(11));
}

TEST(Instance, AnOverflowKeepsTheFirstTokensUnlessTheTurnNeedsTheirRoom) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  config.serving.truncation_ratio = 1;
  config.serving.keep_first_tokens = Tokens(20);
  ScriptedRun run = overflowing(config);
  run.run();
  EXPECT_EQ(run.request(0, 1).history, Tokens(20));
  EXPECT_EQ(run.request(0, 1).found.reused, Tokens(20));

  config.serving.keep_first_tokens = Tokens(55);
  ScriptedRun all = overflowing(config);
  all.run();
  EXPECT_EQ(all.request(0, 1).history, Tokens(0));
  EXPECT_EQ(all.request(0, 1).truncated, Tokens(60));
  EXPECT_FALSE(all.request(0, 1).resumed());
  EXPECT_EQ(all.instance.turns().lost_hits[static_cast<std::size_t>(LossCause::overflow)], 1);
}

TEST(Instance, AnOverflowKeepsItsShareOfImportantTokensAndTheirKv) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  config.serving.keep_important_share = 0.5;
  ScriptedRun run = overflowing(config);
  run.run();
  // 15 of the 30 tokens to drop stay: 45 + 50 fit.
  EXPECT_EQ(run.request(0, 1).truncated, Tokens(15));
  EXPECT_EQ(run.request(0, 1).history, Tokens(45));
  EXPECT_EQ(run.request(0, 1).found.reused, Tokens(45));

  config.system.positions = KeyPositions::embedded;
  ScriptedRun embedded = overflowing(config);
  embedded.run();
  EXPECT_EQ(embedded.request(0, 1).history, Tokens(45));
  EXPECT_EQ(embedded.request(0, 1).found.reused, Tokens(0)) << "kept tokens are recomputed";
}

TEST(Instance, AnOverflowThatKeepsAlmostAllTokensDropsAgainUntilTheTurnFits) {
  RunConfig config = tiny_config(Tokens(100));
  config.serving.keep_important_share = 0.99;
  ScriptedRun run = overflowing(config);
  run.run();
  // Half of 60, 59, ... is under one token after 99 % of it are kept, and one goes at least.
  EXPECT_EQ(run.request(0, 1).truncated, Tokens(10));
}

TEST(Instance, WithThePromptAsTriggerTheResponseEndsAtTheWindow) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  config.serving.overflow_trigger = OverflowTrigger::prompt;
  ScriptedRun run = overflowing(config);
  run.run();
  // 60 + 30 + 1 fit, and 10 tokens of response.
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.truncated, Tokens(0));
  EXPECT_EQ(r.history, Tokens(60));
  EXPECT_EQ(r.output, Tokens(10));
}

TEST(Instance, EmbeddedPositionsLoseTheStoredKvWhenTheHistoryIsCut) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  config.system.positions = KeyPositions::embedded;
  ScriptedRun run = overflowing(config);
  run.run();
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.history, Tokens(30));
  EXPECT_EQ(r.found.reused, Tokens(0));
  EXPECT_EQ(r.found.cause, LossCause::overflow);
  EXPECT_EQ(r.first_token - r.admitted, for_ms(60));  // all of history and input
}

TEST(Instance, ATurnLongerThanTheWindowIsClamped) {
  ScriptedRun run(tiny_config(Tokens(100)), kPerToken, kIteration,
                  {session(0, {turn(80, 50), turn(40, 500), turn(90, 10)})});
  run.run();
  // Input to half the window, then the response to what is left; 90 + 10 fit as they are.
  EXPECT_EQ(run.request(0, 0).input, Tokens(50));
  EXPECT_EQ(run.request(0, 0).output, Tokens(50));
  EXPECT_EQ(run.request(0, 1).input, Tokens(40));
  EXPECT_EQ(run.request(0, 1).output, Tokens(60));
  EXPECT_EQ(run.request(0, 2).input, Tokens(90));
}

TEST(Instance, AllLongTurnsAreNamedIfTheyMayNotBeClamped) {
  RunConfig config = tiny_config(Tokens(100));
  config.serving.long_turn = LongTurn::error;
  std::vector<SessionSpec> sessions{session(0, {turn(10, 5)}),
                                    session(1, {turn(5, 5), turn(80, 50)}),
                                    session(2, {turn(100, 1)})};
  for (std::int64_t i = 0; i < 25; ++i) {
    sessions.push_back(session(3, {turn(200, 1)}));
  }
  ScriptedRun run(config, kPerToken, kIteration, sessions);
  try {
    run.run();
    FAIL() << "the run has turns that are too long";
  } catch (const ConfigError& error) {
    const std::vector<std::string>& lines = error.problems();
    ASSERT_GE(lines.size(), 21U);
    EXPECT_EQ(lines[0].find("/workload: session 1 turn 1: expected at most 100 tokens (the context "
                            "window), got 130"),
              0U)
        << lines[0];
    EXPECT_EQ(lines[1].find("/workload: session 2 turn 0: expected at most 100 tokens (the context "
                            "window), got 101"),
              0U)
        << lines[1];
    // 2 + 25 turns, of which 20 are named.
    EXPECT_EQ(lines[20], "/workload: and 7 more turns longer than the context window");
  }
}

}  // namespace
}  // namespace kvtier::test
