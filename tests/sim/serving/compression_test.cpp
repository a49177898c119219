#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/replay/untimed.hpp"
#include "sim/serving/result.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

// KV of 1,000 bytes a token, 200 in each of 5 layers. Sparsity 0, 1/4, 2/4, 3/4 and 1 at a strength
// of 0.8 keeps 200, 160, 120, 80 and 40 bytes: 600 of a token. Links carry 1 MB/s, a prefill takes
// 1 ms for each token without KV, a decode iteration 10 ms.
namespace kvtier::test {
namespace {

RunConfig compressed(RunConfig config = tiny_config()) {
  config.system.tiers.dram = tier();
  config.system.compression = CompressionConfig{.strength = 0.8, .sparsity = {0, 1}};
  return config;
}

ScriptedRun run_of(const RunConfig& config, std::vector<SessionSpec> sessions) {
  return {config, kPerToken, kIteration, std::move(sessions)};
}

TEST(Compression, StoredKvTakesLessRoomAndMovesInLessTime) {
  ScriptedRun run = run_of(
      compressed(), {session(0, {turn(10, 5), turn(15, 2, 100)}), session(10000, {turn(1, 1)})});
  run.run();
  // 15 tokens load in 9 ms, the first layer's third of it in 3; then all of the 15 ms of compute.
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.found.reused, Tokens(15));
  EXPECT_EQ(r.first_token - r.admitted, for_ms(18));
  EXPECT_EQ(r.exposed_load, for_ms(3));
  EXPECT_EQ(run.backend.link_counters("pcie").forward, Bytes(600 * 15));
  // Saved: 15 tokens, and 32 of the longer session, which left the tier for its second turn; and 2.
  EXPECT_EQ(run.backend.link_counters("pcie").backward, Bytes(600 * (15 + 32 + 2)));
  EXPECT_EQ(run.instance.batcher().counters(0).occupancy_peak, Bytes(600 * (32 + 2)));
  EXPECT_EQ(load_rates(run.config).kv_bytes_per_token, Bytes(600));
}

TEST(Compression, MovesLessToTheSlowerTiersToo) {
  RunConfig config = compressed();
  config.system.tiers.ssd = tier("lru", true);
  config.system.tiers.ssd->write = WriteMoment::on_create;
  config.serving.kv_reservation = Reservation::context_window;
  ScriptedRun run = run_of(config, {session(0, {turn(10, 5)}), session(10000, {turn(1, 1)})});
  run.run();
  EXPECT_EQ(run.backend.moved(Medium::dram, Medium::ssd), Bytes(600 * (15 + 2)));
  // Each entry reserves a window of 1,000 tokens.
  EXPECT_EQ(run.instance.batcher().counters(1).occupancy_peak, Bytes(2 * 600 * 1000));
}

TEST(Compression, LeavesTheKvOfRunningRequestsWhole) {
  RunConfig config = compressed(tiny_config(Tokens(100)));
  config.serving.slots = 2;
  config.system.save.write_buffer = Bytes(100000);
  // KV of 150 tokens beside the weights and the write buffer.
  config.hardware.hbm.capacity = weight_bytes(config.model) + kv(150) + Bytes(100000);
  EXPECT_EQ(running_kv_capacity(config), kv(150));
  ScriptedRun run = run_of(config, {session(0, {turn(60, 31)}), session(1, {turn(59, 1)})});
  run.run();
  // 91 + 60 tokens are too many, so the second waits for the end: 60 + 30 x 10.
  EXPECT_EQ(run.request(1, 0).admitted, at_ms(360));
}

TEST(Compression, LayersLoadedAheadAreTheFirstAndLargest) {
  RunConfig config = compressed();
  config.system.load.buffers = 2;
  // A's second turn waits behind B, which runs from 140 to 290.
  ScriptedRun run =
      run_of(config, {session(0, {turn(10, 5), turn(3, 2, 100)}), session(140, {turn(50, 11)})});
  run.run();
  // 360 of 600 bytes are there. The rest of 15 tokens takes 3.6 ms; layers 3, 4 and 5 are there
  // after 1.8, 3 and 3.6, and compute for 0.6 ms each: 3.6 + 0.6, or 3 + 2 x 0.6.
  const RequestRecord& r = run.request(0, 1);
  EXPECT_EQ(r.admitted, at_ms(290));
  EXPECT_EQ(r.first_token - r.admitted, SimDuration(4200000));
  EXPECT_EQ(run.backend.link_counters("pcie").forward, Bytes(600 * 15));
}

RunConfig generated() {
  RunConfig config = compressed(tiny_config(Tokens(300)));
  config.system.load.buffers = 2;
  config.workload.sessions = 40;
  config.workload.arrival_rate = PerSecond(10);
  config.workload.sharegpt.user_tokens_median = 10;
  config.workload.sharegpt.assistant_tokens_median = 15;
  config.workload.sharegpt.message_cap = Tokens(80);
  return config;
}

TEST(Compression, WithStrengthZeroChangesNothing) {
  RunConfig config = generated();
  config.system.compression->strength = 0;
  Json none = simulate(config, builtin_policies())["metrics"];
  EXPECT_EQ(none["compression"]["kept_share"], 1.0);
  none.erase("compression");
  config.system.compression.reset();
  const Json without = simulate(config, builtin_policies())["metrics"];
  EXPECT_EQ(none.dump(1), without.dump(1));
  EXPECT_FALSE(without.contains("compression"));
  EXPECT_GT(without["gpu_seconds"]["exposed_load"].get<double>(), 0);
}

TEST(Compression, IsInTheResultWithItsLimits) {
  const Json expected{{"kept_share", 0.6}, {"accuracy", "not simulated"}};
  EXPECT_EQ(simulate(generated(), builtin_policies())["metrics"]["compression"], expected);
  RunConfig config = generated();
  EXPECT_EQ(simulate_untimed(config, builtin_policies())["metrics"]["compression"], expected);
  config.system.compression.reset();
  EXPECT_FALSE(simulate_untimed(config, builtin_policies())["metrics"].contains("compression"));
}

}  // namespace
}  // namespace kvtier::test
