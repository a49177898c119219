/// Clusters on scripted sessions, with times computed by hand.

#include "sim/serving/cluster.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// A cluster of so many instances that serve one request at a time, 1 ms a prompt token.
RunConfig one_by_one(std::int64_t instances, const std::string& router) {
  RunConfig config = tiny_config(Tokens(100'000));
  config.serving.slots = 1;
  config.hardware.hbm.capacity = Bytes(10'000'000'000);
  config.workload.warmup_turns = 0;
  config.cluster.instances = instances;
  config.cluster.router.name = router;
  return config;
}

struct ClusterRun {
  RunConfig config;
  PolicyRegistry registry = builtin_policies();
  ConstantTiming timing;
  ScriptedSource source;
  Recorder recorder;
  Cluster cluster;

  ClusterRun(RunConfig run_config, std::vector<SessionSpec> sessions,
             SimDuration iteration = kMillisecond)
      : config(std::move(run_config)),
        timing(kMillisecond, iteration),
        source(std::move(sessions)),
        cluster({.config = &config,
                 .registry = &registry,
                 .timing = &timing,
                 .sessions = &source,
                 .observer = &recorder,
                 .stepping = DecodeStepping::closed_form,
                 .progress = {}}) {
    cluster.run();
  }
  [[nodiscard]] const RequestRecord& request(std::int64_t session, std::int64_t turn = 0) const {
    return recorder.request(session, turn);
  }
};

/// Poisson arrivals of single requests, `rate` a second, whose prompts have `tokens(draws)` tokens
/// and whose responses are of one token.
template <class Draw>
std::vector<SessionSpec> poisson(std::int64_t count, double rate, Draw tokens) {
  RandomStream arrivals(7, "test/arrivals");
  RandomStream sizes(7, "test/sizes");
  std::vector<SessionSpec> sessions;
  double at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    at += arrivals.exponential(1 / rate);
    SessionSpec made = session(0, {turn(tokens(sizes), 1)});
    made.arrival = SimTime(static_cast<std::int64_t>(at * 1e9));
    sessions.push_back(std::move(made));
  }
  return sessions;
}

double mean_wait_seconds(const Recorder& recorder) {
  double sum = 0;
  for (const RequestRecord& record : recorder.requests) {
    sum += (record.admitted - record.arrived).seconds();
  }
  return sum / static_cast<double>(recorder.requests.size());
}

// Round robin sends session 0 and 2 to instance 0, and 1 to instance 1. Session 2 waits for 0.
TEST(Cluster, InstancesServeAtTheSameTime) {
  const ClusterRun run(
      one_by_one(2, "round_robin"),
      {session(0, {turn(10, 1)}), session(1, {turn(10, 1)}), session(2, {turn(10, 1)})});
  EXPECT_EQ(run.request(0).finished, at_ms(10));
  EXPECT_EQ(run.request(1).finished, at_ms(11));
  EXPECT_EQ(run.request(2).admitted, at_ms(10));
  EXPECT_EQ(run.request(2).finished, at_ms(20));
}

// Without stored KV each turn goes where the router says: the second turn of session 0 computes its
// history of 10 + 1 tokens and 5 of its own.
TEST(Cluster, TurnsOfASessionGoToOtherInstances) {
  const ClusterRun run(one_by_one(2, "round_robin"), {session(0, {turn(10, 1), turn(5, 1, 100)})});
  EXPECT_EQ(run.request(0, 1).arrived, at_ms(110));
  EXPECT_EQ(run.request(0, 1).finished, at_ms(126));
  EXPECT_EQ(run.request(0, 1).history, Tokens(11));
}

// The second turn comes at the instant at which the first one ends.
TEST(Cluster, ServesTurnsWithoutThinkTime) {
  const ClusterRun run(one_by_one(3, "round_robin"),
                       {session(0, {turn(10, 1), turn(5, 1), turn(5, 1)})});
  EXPECT_EQ(run.request(0, 1).arrived, at_ms(10));
  EXPECT_EQ(run.request(0, 2).arrived, at_ms(26));
}

// Eight requests on four instances end within 270 ms if each instance gets two. Reports of each
// second come too late: all loads are 0, and the router draws.
TEST(Cluster, TheRouterSeesLoadsOfTheLastReport) {
  std::vector<SessionSpec> sessions;
  for (std::int64_t i = 0; i < 8; ++i) {
    sessions.push_back(session(10 * i, {turn(100, 1)}));
  }
  const auto last = [&](SimDuration report_interval) {
    RunConfig config = one_by_one(4, "least_requests");
    config.cluster.report_interval = report_interval;
    const ClusterRun run(config, sessions);
    SimTime end;
    for (const RequestRecord& record : run.recorder.requests) {
      end = std::max(end, record.finished);
    }
    return end;
  };
  EXPECT_LE(last(SimDuration(0)), at_ms(270));
  EXPECT_GT(last(for_ms(1000)), at_ms(270));
}

// Instance 0 is lost at 5 ms with session 0, which is known at 8 ms. Session 1 arrives there in
// between. Both start over on instance 1, behind each other.
TEST(Cluster, RequestsOfALostInstanceStartOver) {
  RunConfig config = one_by_one(2, "round_robin");
  config.cluster.lost = {{.instance = 0, .at = for_ms(5), .noticed_after = for_ms(3)}};
  ClusterRun run(config,
                 {session(0, {turn(10, 1)}), session(1, {turn(2, 1)}), session(6, {turn(10, 1)})});
  EXPECT_EQ(run.request(1).finished, at_ms(3));
  EXPECT_EQ(run.request(0).arrived, at_ms(0));
  EXPECT_EQ(run.request(0).finished, at_ms(18));
  EXPECT_EQ(run.request(2).arrived, at_ms(6));
  EXPECT_EQ(run.request(2).finished, at_ms(28));
  EXPECT_EQ(run.cluster.sent_again(), 2);
}

// The only instance is away from 5 to 50 ms. Session 1 waits for it to come back.
TEST(Cluster, RequestsWaitForAnInstanceToComeBack) {
  RunConfig config = one_by_one(1, "round_robin");
  config.cluster.lost = {{.instance = 0, .at = for_ms(5), .back = for_ms(50)}};
  ClusterRun run(config, {session(0, {turn(10, 1)}), session(20, {turn(10, 1)})});
  EXPECT_EQ(run.request(0).finished, at_ms(60));
  EXPECT_EQ(run.request(1).finished, at_ms(70));
  EXPECT_EQ(run.cluster.sent_again(), 1);
}

TEST(Cluster, RefusesToWaitForever) {
  RunConfig config = one_by_one(1, "round_robin");
  config.cluster.lost = {{.instance = 0, .at = for_ms(5)}};
  for (const SimDuration report_interval : {SimDuration(0), for_ms(1)}) {
    config.cluster.report_interval = report_interval;
    try {
      const ClusterRun run(config, {session(0, {turn(10, 1)}), session(20, {turn(10, 1)})});
      ADD_FAILURE() << "no instance serves them";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(
          error.what(),
          "/cluster/lost: expected an instance that lives or comes back, 2 requests wait for "
          "one");
    }
  }
}

// From 5 to 25 ms the GPU is three times as slow for work that starts then: session 1's prefill of
// 10 tokens takes 30 ms, session 2's, which starts at 40 ms, takes 10.
TEST(Cluster, WorkOfASlowInstanceTakesLonger) {
  RunConfig config = one_by_one(1, "round_robin");
  config.cluster.slow = {{.instance = 0, .from = for_ms(5), .until = for_ms(25), .factor = 3}};
  const ClusterRun run(
      config, {session(0, {turn(10, 1)}), session(1, {turn(10, 1)}), session(2, {turn(10, 1)})});
  EXPECT_EQ(run.request(0).finished, at_ms(10));
  EXPECT_EQ(run.request(1).finished, at_ms(40));
  EXPECT_EQ(run.request(2).finished, at_ms(50));
}

// Random routing splits a Poisson process in Poisson processes, so each instance is an M/D/1 queue
// (Pollaczek and Khinchine): the mean wait is rho S / (2 (1 - rho)). At rho 0.7 and S 0.1 s that is
// 0.11667 s. The standard error over 400,000 requests is below 1 %.
TEST(Queueing, RandomRoutingGivesTheWaitsOfMD1) {
  constexpr double kRho = 0.7;
  const auto constant = [](RandomStream&) { return std::int64_t{100}; };
  const ClusterRun run(one_by_one(4, "random"), poisson(400'000, 4 * kRho / 0.1, constant));
  EXPECT_NEAR(mean_wait_seconds(run.recorder), kRho * 0.1 / (2 * (1 - kRho)), 0.003);
}

// M/G/1: lambda E[S^2] / (2 (1 - rho)), here with S of 20 or 300 ms, the latter in a quarter of the
// requests: E[S] = 0.09 s, E[S^2] = 0.0228 s^2; at rho 0.6 lambda is 6.667/s, so 0.19 s.
TEST(Queueing, RandomRoutingGivesTheWaitsOfMG1) {
  constexpr double kRho = 0.6;
  constexpr double kMean = 0.09;
  const auto two_sizes = [](RandomStream& draws) {
    return draws.uniform() < 0.25 ? std::int64_t{300} : std::int64_t{20};
  };
  const ClusterRun run(one_by_one(4, "random"), poisson(400'000, 4 * kRho / kMean, two_sizes));
  const double square = 0.75 * 0.02 * 0.02 + 0.25 * 0.3 * 0.3;
  EXPECT_NEAR(mean_wait_seconds(run.recorder), kRho / kMean * square / (2 * (1 - kRho)), 0.006);
}

// Mitzenmacher (IEEE TPDS 12(10), 2001): with exponential service the mean time in a system of many
// queues at load 0.9 is 10 services with random routing (M/M/1), and the sum of 0.9^(2^i - 2) =
// 2.614 with the shorter of two random queues. 100 queues are within 5 % of it.
TEST(Queueing, TwoChoicesAreAlmostAllOfTheGain) {
  constexpr double kMean = 1;
  const auto exponential = [](RandomStream& draws) {
    return std::max<std::int64_t>(1, std::llround(1000 * draws.exponential(kMean)));
  };
  const auto time_in_system = [&](const char* router) {
    const ClusterRun run(one_by_one(100, router), poisson(400'000, 100 * 0.9 / kMean, exponential));
    double sum = 0;
    // Requests of the first quarter find shorter queues.
    const std::size_t skipped = run.recorder.requests.size() / 4;
    for (std::size_t i = skipped; i < run.recorder.requests.size(); ++i) {
      const RequestRecord& record = run.recorder.requests[i];
      sum += (record.finished - record.arrived).seconds();
    }
    return sum / static_cast<double>(run.recorder.requests.size() - skipped);
  };
  EXPECT_NEAR(time_in_system("power_of_two"), 2.614, 0.13);
  EXPECT_NEAR(time_in_system("random"), 10, 1);
}

/// One instance that prefills and one that decodes, with blocks of a token and so many of them in
/// HBM. A prompt token takes 1 ms, an iteration that decodes 10 ms, and a token crosses the network
/// in 1 ms.
RunConfig apart(std::int64_t blocks) {
  RunConfig config = tiny_config(Tokens(200));
  config.system.batching = Batching::unified;
  config.system.blocks =
      BlocksConfig{{.publication = Publication::scheduling, .duplicates = Duplicates::kept}};
  HbmTierConfig hbm;
  hbm.block_size = Tokens(1);
  hbm.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, blocks}};
  config.system.tiers.hbm = hbm;
  config.serving.slots = 4;
  config.serving.token_budget = Tokens(200);
  config.workload.warmup_turns = 0;
  config.cluster.instances = 2;
  config.cluster.router.name = "round_robin";
  config.cluster.network = NetworkConfig{.rate = BytesPerSecond(1e6), .latency = SimDuration(0)};
  config.cluster.disaggregation = DisaggregationConfig{};
  return config;
}

/// The same, with prompts that are computed whole: beside decodes, before them, or one by one.
template <class Check>
void for_each_batching(RunConfig config, Check check) {
  check(config);
  config.system.blocks->whole_prompts = true;
  for (const Batching batching : {Batching::unified, Batching::separate, Batching::prefill_first}) {
    config.system.batching = batching;
    check(config);
  }
}

// Prefill 0..10, KV of 10 tokens on the network 10..20, the last token anew 20..21, two decode
// iterations of 10 ms. The second turn has 18 tokens. The first instance has 10 of them, and
// computes 8; the second one has 12 (the last token has no KV), and pulls 6.
TEST(Disaggregation, KvCrossesTheNetworkAfterThePrefill) {
  for_each_batching(apart(100), [](const RunConfig& config) {
    ClusterRun run(config, {session(0, {turn(10, 3), turn(5, 1, 100)})}, kMillisecond * 10);
    EXPECT_EQ(run.request(0, 0).admitted, at_ms(0));
    EXPECT_EQ(run.request(0, 0).first_token, at_ms(21));
    EXPECT_EQ(run.request(0, 0).finished, at_ms(41));
    EXPECT_EQ(run.request(0, 1).arrived, at_ms(141));
    EXPECT_EQ(run.request(0, 1).found.reused, Tokens(10));
    EXPECT_EQ(run.request(0, 1).finished, at_ms(141 + 8 + 6 + 1));
    EXPECT_EQ(run.cluster.transfers().apart, 2);
    EXPECT_EQ(run.cluster.transfers().bytes, kv(16));
  });
}

// 4 ms of latency come behind the bytes.
TEST(Disaggregation, ANetworkHasALatency) {
  RunConfig config = apart(100);
  config.cluster.network->latency = for_ms(4);
  const ClusterRun run(config, {session(0, {turn(10, 1)})}, kMillisecond * 10);
  EXPECT_EQ(run.request(0).finished, at_ms(25));
}

// Memory at once, prefill 0..10 with the KV of four of five layers on the network, then that of the
// fifth until 12, the last token 12..13. The second turn lacks 6 of 18 tokens where it is decoded,
// and computes 8.
TEST(Disaggregation, KvMayLeaveDuringThePrefill) {
  RunConfig config = apart(100);
  config.cluster.disaggregation->transfer = KvTransfer::push;
  ASSERT_EQ(config.model.layers, 5);
  ClusterRun run(config, {session(0, {turn(10, 3), turn(5, 1, 100)})}, kMillisecond * 10);
  EXPECT_EQ(run.request(0, 0).first_token, at_ms(13));
  EXPECT_EQ(run.request(0, 0).finished, at_ms(33));
  EXPECT_EQ(run.request(0, 1).finished, at_ms(133 + 8 + 1) + SimDuration(1'200'000));
  EXPECT_EQ(run.cluster.transfers().bytes, kv(16));
  EXPECT_EQ(run.cluster.transfers().transfer_ns.mean(), 1.6e6);
}

// A decode instance with room for 14 tokens takes the second prompt when the first request has
// ended at 33; its prefill begins then.
TEST(Disaggregation, APushedPrefillWaitsForTheDecodeInstance) {
  RunConfig config = apart(14);
  config.cluster.disaggregation->transfer = KvTransfer::push;
  ClusterRun run(config, {session(0, {turn(10, 3)}), session(1, {turn(10, 3)})}, kMillisecond * 10);
  EXPECT_EQ(run.request(0).finished, at_ms(33));
  EXPECT_EQ(run.request(1).admitted, at_ms(33));
  EXPECT_EQ(run.request(1).first_token, at_ms(46));
}

// The decode instance has all of the second prompt, but for the token that is computed anyway.
TEST(Disaggregation, NothingIsPrefilledThatTheDecodeInstanceHas) {
  RunConfig config = apart(100);
  config.cluster.disaggregation->transfer = KvTransfer::push;
  SessionSpec first = session(0, {turn(1, 1)});
  SessionSpec second = session(100, {turn(1, 1)});
  first.shared_prompt = second.shared_prompt = {.id = 7, .tokens = Tokens(10)};
  ClusterRun run(config, {first, second}, kMillisecond * 10);
  EXPECT_EQ(run.request(1).finished, at_ms(101));
  EXPECT_EQ(run.cluster.transfers().apart, 1);
  EXPECT_EQ(run.cluster.transfers().local, 1);
}

// The core has half of what an instance may send.
TEST(Disaggregation, TheCoreMayBeOversubscribed) {
  RunConfig config = apart(100);
  config.cluster.network->core = BytesPerSecond(5e5);
  const ClusterRun run(config, {session(0, {turn(10, 1)})}, kMillisecond * 10);
  EXPECT_EQ(run.request(0).finished, at_ms(31));
}

// Both have room for 14 tokens. B's prefill waits until A's KV has left at 20, and its KV stays
// where it is until A has ended at 41.
TEST(Disaggregation, KvStaysUntilTheDecodeInstanceHasRoom) {
  ClusterRun run(apart(14), {session(0, {turn(10, 3)}), session(1, {turn(10, 3)})},
                 kMillisecond * 10);
  EXPECT_EQ(run.request(0).finished, at_ms(41));
  EXPECT_EQ(run.request(1).admitted, at_ms(20));
  EXPECT_EQ(run.request(1).first_token, at_ms(52));
  EXPECT_EQ(run.request(1).finished, at_ms(72));
}

// The decode instance lacks 6 of the second turn's 18 tokens, which it computes itself.
TEST(Disaggregation, ADecodeInstanceComputesFewTokensItself) {
  RunConfig config = apart(100);
  config.cluster.disaggregation->decide = PrefillDecision::net_new;
  ClusterRun run(config, {session(0, {turn(10, 3), turn(5, 1, 100)})}, kMillisecond * 10);
  EXPECT_EQ(run.request(0, 0).finished, at_ms(41));
  EXPECT_EQ(run.request(0, 1).finished, at_ms(147));
  EXPECT_EQ(run.cluster.transfers().apart, 1);
  EXPECT_EQ(run.cluster.transfers().local, 1);
  config.cluster.disaggregation->net_new_share = 0.3;
  ClusterRun other(config, {session(0, {turn(10, 3), turn(5, 1, 100)})}, kMillisecond * 10);
  EXPECT_EQ(other.cluster.transfers().apart, 2);
}

// One prefill instance and prompts of 10 tokens at a time. The second and third find at least 10
// tokens that wait there, and are computed where they are decoded; of 21 tokens there are never
// enough.
TEST(Disaggregation, ADecodeInstanceComputesPromptsWhilePrefillInstancesAreBusy) {
  RunConfig config = apart(100);
  config.cluster.disaggregation->decide = PrefillDecision::load;
  config.cluster.disaggregation->waiting_tokens = Tokens(10);
  const std::vector<SessionSpec> three{session(0, {turn(10, 1)}), session(0, {turn(10, 1)}),
                                       session(0, {turn(10, 1)})};
  ClusterRun busy(config, three, kMillisecond * 10);
  EXPECT_EQ(busy.cluster.transfers().apart, 1);
  EXPECT_EQ(busy.cluster.transfers().local, 2);
  config.cluster.disaggregation->waiting_tokens = Tokens(21);
  ClusterRun free(config, three, kMillisecond * 10);
  EXPECT_EQ(free.cluster.transfers().apart, 3);
  // With both rules, either keeps a prompt on the decode instance.
  config.cluster.disaggregation->decide = PrefillDecision::net_new_or_load;
  ClusterRun both(config, {session(0, {turn(10, 3), turn(5, 1, 100)})}, kMillisecond * 10);
  EXPECT_EQ(both.cluster.transfers().apart, 1);
  EXPECT_EQ(both.cluster.transfers().local, 1);
}

TEST(InstanceGroups, HaveHardwareAndSlotsOfTheirOwn) {
  RunConfig config = one_by_one(2, "round_robin");
  config.serving.slots = 2;
  config.cluster.groups = {{.first = 1, .slots = 1}};
  const std::vector<SessionSpec> four{session(0, {turn(10, 2)}), session(0, {turn(10, 2)}),
                                      session(1, {turn(10, 2)}), session(1, {turn(10, 2)})};
  PolicyRegistry registry = builtin_policies();
  ConstantTiming timing(kMillisecond, kMillisecond);
  ConstantTiming slow(kMillisecond * 3, kMillisecond);
  const RunConfig own = group_config(config, 0);
  EXPECT_EQ(own.serving.slots, 1);
  ScriptedSource source(four);
  Recorder recorder;
  Cluster cluster({.config = &config,
                   .groups = {{&own, &slow}},
                   .registry = &registry,
                   .timing = &timing,
                   .sessions = &source,
                   .observer = &recorder,
                   .progress = {}});
  cluster.run();
  // Two at a time on instance 0; one at a time, each three times as long, on instance 1.
  EXPECT_EQ(recorder.request(0, 0).first_token, at_ms(10));
  EXPECT_EQ(recorder.request(2, 0).first_token, at_ms(20));
  EXPECT_EQ(recorder.request(1, 0).finished, at_ms(31));
  EXPECT_EQ(recorder.request(3, 0).first_token, at_ms(61));
}

/// Two instances with 24 blocks of a token in HBM, which share host memory. A prompt token takes
/// 1 ms, and a token crosses the network in 1 ms.
RunConfig sharing() {
  RunConfig config = apart(24);
  config.cluster.disaggregation.reset();
  TierConfig dram = tier();
  dram.inclusive = true;
  dram.write = WriteMoment::on_create;
  dram.block_size = Tokens(1);
  dram.blocks = BlockTierConfig{.capacity = KvSize{KvSize::Unit::blocks, 100}};
  config.system.tiers.dram = dram;
  config.cluster.shared = SharedTierConfig{.capacity = KvSize{KvSize::Unit::blocks, 100}};
  return config;
}

// Instance 0 computes 10 tokens by 10, and writes them by 20. The second turn, of 10 + 1 + 5
// tokens, is on instance 1, which reads 10 tokens from 110 to 120 and computes 6.
TEST(SharedTier, AnInstanceFindsWhatAnotherHasWritten) {
  for_each_batching(sharing(), [](const RunConfig& config) {
    ClusterRun run(config, {session(0, {turn(10, 1), turn(5, 1, 100)})});
    EXPECT_EQ(run.request(0, 0).finished, at_ms(10));
    EXPECT_EQ(run.request(0, 1).arrived, at_ms(110));
    EXPECT_EQ(run.request(0, 1).found.reused, Tokens(10));
    EXPECT_EQ(run.request(0, 1).finished, at_ms(126));
    EXPECT_EQ(run.cluster.shared_use().read, kv(10));
    EXPECT_EQ(run.cluster.shared_use().written, kv(16));
    EXPECT_EQ(run.cluster.shared_use().carried, kv(26));
  });
}

// Each instance has half of the segments, which does not cross the network.
TEST(SharedTier, SegmentsAreReadFromAllInstances) {
  RunConfig config = sharing();
  config.cluster.shared->capacity.reset();
  config.cluster.network = {.rate = BytesPerSecond(2.5e5), .latency = for_ms(2)};
  ClusterRun run(config, {session(0, {turn(10, 1), turn(5, 1, 100)})});
  EXPECT_EQ(run.request(0, 1).finished, at_ms(110 + 20 + 2 + 6));
  EXPECT_EQ(run.cluster.shared_use().read, kv(10));
  EXPECT_EQ(run.cluster.shared_use().carried, kv(5 + 5 + 3));
}

// Both turns read 10 tokens at a time over the link of the store, which is as fast as one
// instance's, or twice as fast.
TEST(SharedTier, AStoreHasALinkOfItsOwn) {
  const std::vector<SessionSpec> sessions{session(0, {turn(10, 1), turn(5, 1, 190)}),
                                          session(100, {turn(10, 1), turn(5, 1, 90)}),
                                          session(150, {turn(1, 1)})};
  RunConfig config = sharing();
  ClusterRun slow(config, sessions);
  EXPECT_EQ(slow.request(0, 1).arrived, at_ms(200));
  EXPECT_EQ(slow.request(1, 1).arrived, at_ms(200));
  EXPECT_EQ(slow.request(0, 1).finished, at_ms(200 + 20 + 6));
  EXPECT_EQ(slow.request(1, 1).finished, at_ms(200 + 20 + 6));
  config.cluster.shared->rate = BytesPerSecond(2e6);
  ClusterRun fast(config, sessions);
  EXPECT_EQ(fast.request(0, 1).finished, at_ms(200 + 10 + 6));
  EXPECT_EQ(fast.request(1, 1).finished, at_ms(200 + 10 + 6));
}

// Session 1 begins with 10 tokens of session 0, which are being written from 12 to 24 when it
// arrives at 13. It waits for the write, reads until 34, and computes 5.
TEST(SharedTier, ARequestWaitsForTheWriteOfAnotherInstance) {
  RunConfig config = sharing();
  SessionSpec first = session(0, {turn(2, 1)});
  SessionSpec second = session(13, {turn(5, 1)});
  first.shared_prompt = second.shared_prompt = {.id = 7, .tokens = Tokens(10)};
  ClusterRun run(config, {first, second});
  EXPECT_EQ(run.request(0).finished, at_ms(12));
  EXPECT_EQ(run.request(1).finished, at_ms(39));
}

// The run goes on until copies are made that outlast the last request. Their times are not
// measured.
TEST(SharedTier, EndsWithAllCopiesMade) {
  RunConfig config = sharing();
  config.cluster.network->rate = BytesPerSecond(1e3);
  ClusterRun run(config, {session(0, {turn(10, 1)})});
  EXPECT_EQ(run.cluster.shared_use().written, kv(10));
  EXPECT_EQ(run.cluster.shared_use().write_ns.count(), 0);
}

// The network is fast: a read takes the 10 ms of the instance's own link.
TEST(SharedTier, CopiesCrossTheInstancesOwnLink) {
  RunConfig config = sharing();
  config.cluster.network->rate = BytesPerSecond(1e9);
  const ClusterRun run(config, {session(0, {turn(10, 1), turn(5, 1, 100)})});
  EXPECT_EQ(run.request(0, 1).finished, at_ms(110 + 10 + 6));
}

// The second turn of session 0 begins the measured part, in which 10 tokens are read and 6 written.
TEST(SharedTier, CountsTheMeasuredPart) {
  RunConfig config = sharing();
  config.workload.warmup_turns = 1;
  const ClusterRun run(config,
                       {session(0, {turn(10, 1), turn(5, 1, 100)}), session(200, {turn(1, 1)})});
  EXPECT_EQ(run.cluster.shared_use().written, kv(6 + 1));
  EXPECT_EQ(run.cluster.shared_use().peak_before, kv(10));
  EXPECT_EQ(run.cluster.shared_use().peak, kv(17));
}

/// Whether the line is among the problems of the config.
bool refuses(const RunConfig& config, const std::string& line) {
  const std::vector<std::string> lines = problems_of(config);
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(ClusterConfig, RefusesARouterOfBlocksOfSeveralSizes) {
  RunConfig config = apart(100);
  config.cluster.disaggregation.reset();
  config.cluster.network.reset();
  config.cluster.router.name = "longest_prefix";
  config.system.tiers.dram = tier();
  config.system.tiers.dram->block_size = Tokens(2);
  const std::string line =
      "/cluster/router: router longest_prefix is told which blocks instances store: expected tiers "
      "with one block_size, got hbm 1tokens, dram 2tokens";
  EXPECT_TRUE(refuses(config, line));
  config.cluster.router.name = "least_requests";
  for (const std::string& other : problems_of(config)) {
    EXPECT_EQ(other.find("/cluster"), std::string::npos) << other;
  }
}

TEST(ClusterConfig, RefusesARouterOfBlocksForStoredSessions) {
  RunConfig config = one_by_one(2, "sglang_cache_aware");
  EXPECT_EQ(problems_of(config), std::vector<std::string>{});
  config.system.tiers.dram = tier();
  EXPECT_TRUE(refuses(config,
                      "/cluster/router: router sglang_cache_aware needs the blocks of prompts: "
                      "expected a system with /system/blocks"));
}

TEST(ClusterConfig, RefusesKeysThatChangeNothing) {
  RunConfig config = one_by_one(2, "round_robin");
  config.cluster.event_delay = for_ms(1);
  EXPECT_TRUE(refuses(config,
                      "/cluster/event_delay: expected 0s: router round_robin is not told which "
                      "blocks instances store"));
  config = apart(100);
  config.cluster.disaggregation->net_new_share = 0.5;
  const std::string line =
      "/cluster/disaggregation/net_new_share: expected 0.7 with decide always, got 0.5";
  EXPECT_TRUE(refuses(config, line));
  config.cluster.disaggregation->decide = PrefillDecision::net_new;
  EXPECT_FALSE(refuses(config, line));
  config.cluster.disaggregation->waiting_tokens = Tokens(1);
  EXPECT_TRUE(refuses(config,
                      "/cluster/disaggregation/waiting_tokens: expected \"8192tokens\" with decide "
                      "net_new, got \"1tokens\""));
}

TEST(ClusterConfig, RefusesASharedTierThatNothingReaches) {
  EXPECT_EQ(problems_of(sharing()), std::vector<std::string>{});
  RunConfig config = sharing();
  config.cluster.network.reset();
  EXPECT_TRUE(refuses(config,
                      "/cluster/network: expected a network, over which the shared tier is "
                      "reached, got \"none\""));
  config = sharing();
  config.cluster.shared->tier = SharedTier::ssd;
  EXPECT_TRUE(refuses(config,
                      "/cluster/shared/tier: expected the slowest of at least two tiers of the "
                      "system, whose slowest one is dram, got \"ssd\""));
  config = sharing();
  config.system.load.wait = LoadWait::batch;
  EXPECT_TRUE(refuses(config,
                      "/cluster/shared: expected a system with /system/blocks, whose unit is "
                      "not node, with /system/load/wait request"));
  config = sharing();
  config.cluster.shared->capacity.reset();
  config.cluster.shared->rate = BytesPerSecond(1);
  EXPECT_TRUE(refuses(config,
                      "/cluster/shared/rate: expected \"network\": segments are reached over the "
                      "links of the instances"));
  config = sharing();
  config.cluster.lost = {{.instance = 0}};
  EXPECT_TRUE(refuses(config, "/cluster/lost: with /cluster/shared expected none"));
  config = sharing();
  config.cluster.instances = 256;
  EXPECT_TRUE(
      refuses(config, "/cluster/instances: with /cluster/network expected at most 255, got 256"));
}

TEST(ClusterConfig, RefusesGroupsThatAreNotThere) {
  RunConfig config = one_by_one(3, "round_robin");
  config.cluster.groups = {{.first = 1, .instances = 3}};
  EXPECT_TRUE(refuses(config,
                      "/cluster/groups/0: expected instances with numbers less than 3, the last "
                      "one is 3"));
  config.cluster.groups = {{.first = 1}, {.first = 0}};
  EXPECT_TRUE(refuses(config, "/cluster/groups/0: expected an instance that is of no later group"));
  config.cluster.groups = {{.first = 1, .hardware = InstanceHardware{config.hardware}}};
  config.cluster.groups[0].hardware->config.hbm.capacity = Bytes(1000);
  const std::vector<std::string> lines = problems_of(config);
  ASSERT_FALSE(lines.empty());
  EXPECT_TRUE(lines.front().starts_with("/cluster/groups/0/hardware/hbm/capacity: ")) << lines[0];
}

TEST(ClusterConfig, RefusesWholeResponsesWithDisaggregation) {
  RunConfig config = apart(100);
  config.system.blocks->whole_response = true;
  EXPECT_TRUE(refuses(config,
                      "/system/blocks/whole_response: with /cluster/disaggregation expected "
                      "false"));
}

TEST(NextTimes, GiveTheEarliestAndOfEqualOnesTheFirst) {
  for (const std::size_t count : {1U, 2U, 3U, 8U, 13U}) {
    NextTimes times(count);
    EXPECT_EQ(times.first_time(), kNever);
    for (std::size_t i = 0; i < count; ++i) {
      times.set(i, at_ms(5));
    }
    EXPECT_EQ(times.first(), 0U);
    times.set(count - 1, at_ms(4));
    EXPECT_EQ(times.first(), count - 1);
    times.set(count - 1, kNever);
    EXPECT_EQ(times.first_time(), count == 1 ? kNever : at_ms(5));
  }
}

TEST(InstanceSeries, KeepsMeansWhenIntervalsGrow) {
  InstanceSeries series;
  series.set_requests(2, SimTime(0));
  series.set_requests(4, at_ms(32'000));
  series.add(Tokens(100), Tokens(25), at_ms(1'000));
  const Json report = series.report(at_ms(64'000));
  EXPECT_EQ(report["interval_seconds"], 4.0);
  ASSERT_EQ(report["requests"].size(), 16U);
  EXPECT_EQ(report["requests"][0], 2.0);
  EXPECT_EQ(report["requests"][7], 2.0);
  EXPECT_EQ(report["requests"][8], 4.0);
  EXPECT_EQ(report["hit_rate"][0], 0.25);
  EXPECT_TRUE(report["hit_rate"][1].is_null());
}

}  // namespace
}  // namespace kvtier::test
