#include "sim/serving/metrics.hpp"

#include <gtest/gtest.h>

#include "sim/backend/topology.hpp"
#include "sim/serving/result.hpp"
#include "tests/sim/serving/support.hpp"
#include "traces/statistics.hpp"

namespace kvtier::test {
namespace {

RequestRecord record(std::int64_t history, std::int64_t reused, Medium medium = Medium::dram,
                     LossCause cause = LossCause::capacity) {
  RequestRecord r;
  r.arrived = at_ms(0);
  r.admitted = at_ms(10);
  r.first_token = at_ms(30);
  r.finished = at_ms(110);
  r.history = Tokens(history);
  r.input = Tokens(7);
  r.output = Tokens(5);
  r.found = {.reused = Tokens(reused),
             .medium = medium,
             .late = false,
             .cause = reused >= history ? LossCause::none : cause};
  r.exposed_load = for_ms(12);
  return r;
}

/// A first turn; a hit of 100 in DRAM; a late one of 300 by way of DRAM; 50 of 200 on the SSD; and
/// 400 that are gone.
TurnMetrics five_turns() {
  TurnMetrics turns;
  turns.add(record(0, 0));
  turns.add(record(100, 100));
  RequestRecord late = record(300, 300);
  late.found.late = true;
  turns.add(late);
  turns.add(record(200, 50, Medium::ssd));
  turns.add(record(400, 0, Medium::hbm, LossCause::ttl));
  return turns;
}

TEST(TurnMetrics, HitRatesOfAllTurnsCountFirstTurnsAsMisses) {
  const Json rates = hits_report(five_turns(), {}, {})["hit_rate"];
  EXPECT_DOUBLE_EQ(rates["all_turns"]["total"], 2.0 / 5);
  EXPECT_DOUBLE_EQ(rates["all_turns"]["dram"], 2.0 / 5);
  EXPECT_DOUBLE_EQ(rates["all_turns"]["ssd"], 0);
}

TEST(TurnMetrics, HitRatesOfResumedTurnsLeaveFirstTurnsOutAndCountPartsApart) {
  const Json rates = hits_report(five_turns(), {}, {})["hit_rate"];
  EXPECT_DOUBLE_EQ(rates["resumed_turns"]["total"], 2.0 / 4);
  EXPECT_EQ(rates["partial_turns"], 1);
  EXPECT_EQ(rates["late_hits"], 1);
}

TEST(TurnMetrics, HitRatesOfTokensAreReusedOverNeeded) {
  const Json rates = hits_report(five_turns(), {}, {})["hit_rate"];
  // 100 + 300 + 50 of 100 + 300 + 200 + 400.
  EXPECT_DOUBLE_EQ(rates["tokens"]["total"], 450.0 / 1000);
  EXPECT_DOUBLE_EQ(rates["tokens"]["dram"], 400.0 / 1000);
  EXPECT_DOUBLE_EQ(rates["tokens"]["ssd"], 50.0 / 1000);
  EXPECT_DOUBLE_EQ(rates["tokens"]["hbm"], 0);
}

/// A request of blocks of 16 tokens, of whose prompt so many tokens are found in HBM and DRAM.
RequestRecord record_of_blocks(std::int64_t history, std::int64_t hbm, std::int64_t dram) {
  RequestRecord r = record(history, 0);
  r.block = 16;
  r.set_found_of_prompt({Tokens(hbm), Tokens(dram)}, LossCause::capacity);
  return r;
}

TEST(TurnMetrics, HitRatesOfPromptsCountWhatRequestsWithoutAHistoryFind) {
  TurnMetrics turns;
  turns.add(record_of_blocks(0, 0, 0));
  RequestRecord shares = record_of_blocks(0, 0, 0);
  shares.input = Tokens(50);
  shares.set_found_of_prompt({Tokens(16), Tokens(16)}, LossCause::capacity);
  turns.add(shares);
  turns.add(record_of_blocks(100, 96, 0));
  SystemConfig system;
  system.blocks = BlocksConfig{};
  const Json hits = hits_report(turns, system, {});
  // Prompts of 7, 50 and 107 tokens, with 0, 3 and 6 full blocks.
  EXPECT_EQ(hits["prompt_tokens"], 164);
  EXPECT_EQ(hits["prompt_blocks"], 9);
  EXPECT_EQ(hits["hit_tokens"]["hbm"], 112);
  EXPECT_EQ(hits["hit_tokens"]["dram"], 16);
  EXPECT_EQ(hits["hit_blocks"]["total"], 8);
  EXPECT_EQ(hits["requests_with_hits"], 2);
  const Json& rates = hits["hit_rate"];
  EXPECT_DOUBLE_EQ(rates["prompt_tokens"]["total"], 128.0 / 164);
  EXPECT_DOUBLE_EQ(rates["blocks"]["dram"], 1.0 / 9);
  EXPECT_DOUBLE_EQ(rates["requests_with_hits"], 2.0 / 3);
  EXPECT_DOUBLE_EQ(rates["tokens"]["total"], 0.96);
  EXPECT_DOUBLE_EQ(rates["all_turns"]["hbm"], 1.0 / 3);
  EXPECT_EQ(turns.computed_tokens(), Tokens(36));
}

TEST(TurnMetrics, AWholeHistoryMayLackOneBlock) {
  EXPECT_TRUE(record_of_blocks(96, 96, 0).full_hit());
  // KV of the last token is not computed, so the last block is not found.
  EXPECT_TRUE(record_of_blocks(96, 48, 32).full_hit());
  EXPECT_FALSE(record_of_blocks(97, 80, 0).full_hit());
  EXPECT_FALSE(record_of_blocks(10, 0, 0).full_hit());
  EXPECT_FALSE(record(96, 95).full_hit());
}

TEST(TurnMetrics, APreemptedRequestCountsWhatItFoundFirst) {
  RequestRecord r = record_of_blocks(100, 32, 0);
  r.preemptions = 1;
  r.set_found_of_prompt({Tokens(96)}, LossCause::capacity);
  EXPECT_EQ(r.found_tokens(), Tokens(32));
  EXPECT_EQ(r.found.reused, Tokens(32));
}

TEST(TurnMetrics, EveryLostHitHasItsCause) {
  const TurnMetrics turns = five_turns();
  const Json lost = hits_report(turns, {}, {})["lost_hits"];
  EXPECT_EQ(lost["capacity"], 1);  // found in part
  EXPECT_EQ(lost["ttl"], 1);
  EXPECT_EQ(lost["overflow"], 0);
  EXPECT_EQ(turns.lost_hits[0], 0);
}

TEST(TurnMetrics, AHistoryTruncatedToNothingIsLostByOverflow) {
  TurnMetrics turns;
  RequestRecord r = record(0, 0);
  r.truncated = Tokens(80);
  turns.add(r);
  EXPECT_EQ(turns.resumed_turns, 0);
  EXPECT_EQ(turns.truncated_turns, 1);
  EXPECT_EQ(turns.truncated_tokens, Tokens(80));
  const Json lost = hits_report(turns, {}, {})["lost_hits"];
  EXPECT_FALSE(lost.contains("not_admitted"));
  EXPECT_EQ(lost["overflow"], 1);
  SystemConfig filters;
  filters.tiers.dram = tier();
  filters.tiers.dram->admission.name = "second_hit";
  EXPECT_EQ(hits_report(turns, filters, {})["lost_hits"]["not_admitted"], 0);
}

TEST(TurnMetrics, TimesFollowTheirDefinitions) {
  TurnMetrics turns;
  turns.add(record(0, 0));
  EXPECT_EQ(turns.ttft_ns.maximum(), for_ms(30).ns);                   // 30 - 0
  EXPECT_EQ(turns.ttft_without_queueing_ns.maximum(), for_ms(20).ns);  // 30 - 10
  EXPECT_EQ(turns.queueing_ns.maximum(), for_ms(10).ns);               // 10 - 0
  EXPECT_EQ(turns.exposed_load_ns.maximum(), for_ms(12).ns);
  EXPECT_EQ(turns.tpot_ns.maximum(), for_ms(20).ns);  // (110 - 30) / (5 - 1)
  EXPECT_EQ(turns.normalized_latency_ns_per_token.maximum(), for_ms(22).ns);  // 110 / 5
  RequestRecord one = record(0, 0);
  one.output = Tokens(1);
  turns.add(one);
  EXPECT_EQ(turns.tpot_ns.count(), 1) << "one token has no time between tokens";
}

/// KV of 1,000 B a token at 1 MB/s from DRAM and 0.5 MB/s from the SSD; 5 layers.
LoadRates rates() {
  LoadRates rates{.layers = kLayers, .kv_bytes_per_token = kTokenBytes, .to_hbm = {}};
  rates.to_hbm.fill(BytesPerSecond(kMegabytePerSecond));
  rates.to_hbm[static_cast<std::size_t>(Medium::ssd)] = BytesPerSecond(kMegabytePerSecond / 2);
  return rates;
}

TEST(TurnMetrics, TheReadBufferIsTheNeedOfEachLoadedTurn) {
  TurnMetrics turns(rates());
  RequestRecord r = record(100, 100);
  r.prefill_compute = for_ms(10);
  turns.add(r);
  // A layer loads in 20 ms and computes in 2: 5 x 20 - 4 x 2 = 92 ms at 1 MB/s.
  EXPECT_EQ(turns.read_buffer_bytes.maximum(), 92000);
  // From the SSD: 5 x 40 - 4 x 2 = 192 ms at 0.5 MB/s.
  r.found.medium = Medium::ssd;
  turns.add(r);
  EXPECT_EQ(turns.read_buffer_bytes.maximum(), 96000);
  EXPECT_EQ(turns.read_buffer_bytes.count(), 2);
  EXPECT_DOUBLE_EQ(turns.read_buffer_bytes.mean(), 94000);
  // If computing takes longer, the first layer is left: 20 tokens of KV.
  r.found.medium = Medium::dram;
  r.prefill_compute = for_ms(1000);
  turns.add(r);
  EXPECT_EQ(turns.read_buffer_bytes.minimum(), 20000);
}

TEST(TurnMetrics, TurnsThatLoadedNothingNeededNoReadBuffer) {
  TurnMetrics turns(rates());
  turns.add(record(0, 0));
  turns.add(record(100, 0, Medium::hbm));
  turns.add(record(100, 100, Medium::hbm));
  EXPECT_TRUE(distribution_report(turns.read_buffer_bytes, 1).is_null());
}

TEST(BytesReport, HasMeanQuantilesAndMaximum) {
  Histogram histogram;
  for (int i = 1; i <= 100; ++i) {
    histogram.add(i);
  }
  EXPECT_EQ(
      distribution_report(histogram, 1),
      (Json{{"mean", 50.5}, {"p50", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}, {"max", 100}}));
}

TEST(LoadRates, AreThoseOfTheSlowestLinkOfTheWay) {
  RunConfig config = tiny_config();
  config.hardware.links.pcie.forward.rate = BytesPerSecond(3e6);
  config.hardware.links.pcie.both = BytesPerSecond(6e6);
  const LoadRates slow_ssd = load_rates(config);
  EXPECT_EQ(slow_ssd.layers, kLayers);
  EXPECT_EQ(slow_ssd.kv_bytes_per_token, kTokenBytes);
  EXPECT_EQ(slow_ssd.to_hbm[static_cast<std::size_t>(Medium::dram)].value, 3e6);
  EXPECT_EQ(slow_ssd.to_hbm[static_cast<std::size_t>(Medium::ssd)].value, 1e6);
  EXPECT_EQ(server_topology(config.hardware).wait_cause(Medium::ssd, Medium::hbm),
            WaitCause::drive);
  EXPECT_EQ(server_topology(config.hardware).wait_cause(Medium::dram, Medium::hbm),
            WaitCause::host_link);
  config.hardware.dram->bandwidth = BytesPerSecond(2e6);
  EXPECT_EQ(server_topology(config.hardware).wait_cause(Medium::dram, Medium::hbm),
            WaitCause::host_memory);
  EXPECT_EQ(server_topology(config.hardware).wait_cause(Medium::ssd, Medium::dram),
            WaitCause::drive);
  config.hardware.ssd->bandwidth.forward.rate = BytesPerSecond(5e6);
  config.hardware.ssd->bandwidth.both = BytesPerSecond(5e6);
  EXPECT_EQ(server_topology(config.hardware).wait_cause(Medium::ssd, Medium::hbm),
            WaitCause::host_link);
  EXPECT_EQ(load_rates(config).to_hbm[static_cast<std::size_t>(Medium::ssd)].value, 3e6);
}

TEST(LoadRates, AreThoseOfTheLinksOfAllGpus) {
  RunConfig config = tiny_config();
  config.hardware.gpus = 4;
  config.hardware.links.pcie.forward.rate = BytesPerSecond(3e6);
  config.hardware.links.pcie.both = BytesPerSecond(6e6);
  const auto from = [&](Medium medium) {
    return load_rates(config).to_hbm[static_cast<std::size_t>(medium)].value;
  };
  EXPECT_EQ(from(Medium::dram), 12e6);
  config.hardware.dram->bandwidth = BytesPerSecond(7e6);
  EXPECT_EQ(from(Medium::dram), 7e6);
  EXPECT_EQ(from(Medium::cxl), 12e6) << "not installed: that of the host link";
  config.hardware.links.pcie.of = HostLinkOf::server;
  EXPECT_EQ(from(Medium::dram), 3e6);
}

TEST(TurnMetrics, ComputedTokensAreThoseOfPromptsThatWereFoundNowhere) {
  TurnMetrics turns;
  turns.add(record(0, 0));
  turns.add(record(100, 100));
  turns.add(record(300, 120));
  // Inputs of 7 tokens.
  EXPECT_EQ(turns.prompts.prompt_tokens, 7 + 107 + 307);
  EXPECT_EQ(turns.computed_tokens(), Tokens(7 + 7 + 187));
}

TEST(TurnMetrics, CostsOfResumedTurnsLeaveFirstTurnsOut) {
  TurnMetrics turns;
  RequestRecord r = record(0, 0);
  r.prefill_compute = for_ms(1000);
  turns.add(r);
  EXPECT_TRUE(resumed_report(turns, 2)["ttft_seconds_without_queueing"].is_null());
  r = record(100, 100);
  r.prefill_compute = for_ms(8);
  r.decode_share = for_ms(80);
  turns.add(r);
  r = record(300, 0);
  r.prefill_compute = for_ms(20);
  r.exposed_load = for_ms(0);
  r.decode_share = for_ms(40);
  turns.add(r);
  const Json resumed = resumed_report(turns, 2);
  EXPECT_NEAR(resumed["ttft_seconds_without_queueing"]["mean"], 0.020, 1e-12);
  // Prompts of 107 and 307 tokens in 8 + 12 + 20 ms; 10 output tokens in those and 120 ms.
  EXPECT_NEAR(resumed["prompt_tokens_served_per_prefill_second"], 414 / 0.040, 1e-6);
  EXPECT_NEAR(resumed["output_throughput_tokens_per_busy_second"], 10 / 0.160, 1e-9);
  // Two GPUs, two turns.
  EXPECT_NEAR(resumed["gpu_seconds_per_turn"]["prefill"], 0.028, 1e-12);
  EXPECT_NEAR(resumed["gpu_seconds_per_turn"]["exposed_load"], 0.012, 1e-12);
  EXPECT_NEAR(resumed["gpu_seconds_per_turn"]["decode"], 0.120, 1e-12);
  EXPECT_NEAR(resumed["gpu_seconds_per_turn"]["total"], 0.160, 1e-12);
}

TEST(TurnMetrics, WithoutTurnsRatesAreZeroAndTimesNull) {
  const TurnMetrics turns;
  EXPECT_DOUBLE_EQ(hits_report(turns, {}, {})["hit_rate"]["all_turns"]["total"], 0);
  EXPECT_TRUE(seconds_report(turns.ttft_ns).is_null());
}

// ---- The queue over time: buckets of 1 ms, 512 of them, that double in width ----

TEST(QueueTrend, TheMeanWeighsLengthsByTheirTime) {
  QueueTrend trend;
  trend.set_length(2, at_ms(0));
  trend.set_length(6, at_ms(30));
  trend.set_length(0, at_ms(40));
  // (2 x 30 + 6 x 10 + 0 x 60) / 100; the span may be rounded out by one bucket.
  EXPECT_NEAR(trend.mean(at_ms(0), at_ms(100)), 1.2, 1.2 / 100 + 1e-9);
  EXPECT_NEAR(trend.mean(at_ms(10), at_ms(20)), 2, 0.2 + 1e-9);
  EXPECT_EQ(trend.longest(), 6U);
}

TEST(QueueTrend, BucketsDoubleWithoutLosingAnything) {
  QueueTrend trend;
  // 5 until 300 ms, 1 until 100 s: the width is then 256 ms.
  trend.set_length(5, at_ms(0));
  trend.set_length(1, at_ms(300));
  const double mean = trend.mean(at_ms(0), at_ms(100000));
  EXPECT_NEAR(mean, (5 * 300 + 1 * 99700) / 100000.0, 0.006);
  // The first two buckets hold 512 ms: (5 x 300 + 212) / 512.
  EXPECT_NEAR(trend.mean(at_ms(0), at_ms(511)), (5 * 300 + 212) / 512.0, 1e-9);
}

TEST(QueueTrend, ALengthHoldsUntilItChanges) {
  QueueTrend trend;
  trend.set_length(3, at_ms(0));
  EXPECT_NEAR(trend.mean(at_ms(0), at_ms(1000000)), 3, 3 * 0.005);
}

TEST(QueueTrend, GrowsThroughoutOnlyIfEachThirdIsLongerAndTheLastLongEnough) {
  QueueTrend growing;
  QueueTrend bulging;
  for (std::int64_t ms = 0; ms < 3000; ++ms) {
    growing.set_length(static_cast<std::size_t>(ms / 10), at_ms(ms));
    bulging.set_length(static_cast<std::size_t>(ms < 1500 ? ms / 10 : 300 - ms / 10), at_ms(ms));
  }
  EXPECT_TRUE(growing.grows_throughout(at_ms(0), at_ms(2999), 50));
  EXPECT_FALSE(growing.grows_throughout(at_ms(0), at_ms(2999), 260));  // its last third: 250
  EXPECT_FALSE(bulging.grows_throughout(at_ms(0), at_ms(2999), 50));
  EXPECT_FALSE(growing.grows_throughout(at_ms(100), at_ms(100), 0));
}

// 100 of 500 ms have 60 that wait and 50 in service. Before, fewer wait than are in service, and
// after, fewer than the floor. Buckets of 1 ms, and the span is rounded out by one.
TEST(QueueTrend, IsOverloadedWhileMoreWaitThanAreInService) {
  QueueTrend trend;
  trend.set_in_service(70, at_ms(0));
  trend.set_length(60, at_ms(0));
  trend.set_in_service(50, at_ms(200));
  trend.set_in_service(5, at_ms(300));
  trend.set_length(20, at_ms(300));
  EXPECT_NEAR(trend.overloaded_share(at_ms(0), at_ms(500), 50), 100 / 501.0, 1e-9);
  EXPECT_NEAR(trend.overloaded_share(at_ms(0), at_ms(500), 10), 300 / 501.0, 0.01);
  EXPECT_EQ(trend.overloaded_share(at_ms(0), at_ms(199), 50), 0);
}

/// The `load` of a run that lasts so many seconds, with sessions of 10 s.
Json load_of(double seconds, const char* verdict = kLoadWithinCapacity) {
  return {{"verdict", verdict},
          {"too_short", std::string(verdict) == kRunTooShort ? Json("too few sessions") : Json()},
          {"measured_seconds", seconds},
          {"measured", {{"rule", "auto"}, {"live_session_seconds", 10}}}};
}

/// Sessions of two turns: a first one, and one that finds all or, in the last quarter, half.
TurnMetrics turns_of(int sessions) {
  TurnMetrics turns;
  for (int i = 0; i < sessions; ++i) {
    turns.add(record(0, 0));
    turns.add(record(100, i < sessions * 3 / 4 ? 100 : 50));
  }
  return turns;
}

// Every TTFT is 30 ms and every queueing 10 ms, so their intervals have no width. The share of hits
// is 1/2 in three quarters of the run and 0 in the last one, so coefficient j is the step 1/2 times
// sqrt(2) sin(3 pi j / 4) / (pi j): 0.159, 0.113, 0.053, 0 and 0.032. The root of their mean square
// is 0.0914, times 2.5706 0.235. The share of tokens has the same step, from 1 to 1/2.
TEST(Confidence, IsReportedForTheHeadlineMetrics) {
  const Json report = confidence_report(turns_of(8192), load_of(100));
  EXPECT_EQ(report["level"], 0.95);
  EXPECT_EQ(report["batches"], 32);
  EXPECT_EQ(report["turns_per_batch"], 512);
  EXPECT_EQ(report["degrees_of_freedom"], 5);
  EXPECT_NEAR(report["hit_rate_all_turns"]["half_width"].get<double>(), 0.235, 0.002);
  EXPECT_NEAR(report["hit_rate_all_turns"]["low"].get<double>(), 0.375 - 0.235, 0.002);
  EXPECT_NEAR(report["hit_rate_tokens"]["half_width"].get<double>(), 0.235, 0.002);
  EXPECT_EQ(report["hit_rate_tokens"]["high"], 1);
  EXPECT_DOUBLE_EQ(report["ttft_seconds"]["low"].get<double>(), 0.03);
  EXPECT_DOUBLE_EQ(report["queueing_seconds"]["high"].get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(report["ttft_seconds_p90"]["low"].get<double>(), 0.03);
  EXPECT_DOUBLE_EQ(report["ttft_seconds_p99"]["high"].get<double>(), 0.03);
  EXPECT_FALSE(report.contains("missing_because"));
}

// TTFTs of 30 ms and, in the last quarter, 330 ms: the interval of the mean, 105 ms, is positive,
// and has the same factor on both sides.
TEST(Confidence, OfTimesIsOnALogarithmicScale) {
  TurnMetrics turns;
  for (int i = 0; i < 1024; ++i) {
    RequestRecord one = record(0, 0);
    one.first_token = at_ms(i < 768 ? 30 : 330);
    one.finished = at_ms(400);
    turns.add(one);
  }
  const Json ttft = confidence_report(turns, load_of(100))["ttft_seconds"];
  const double low = ttft["low"];
  EXPECT_GT(ttft["half_width"], 0.105);
  EXPECT_GT(low, 0);
  EXPECT_NEAR(low * ttft["high"].get<double>(), 0.105 * 0.105, 1e-9);
}

TEST(Confidence, IsMissingWithAReasonForOverloadedOrShortRuns) {
  const auto why = [](const TurnMetrics& turns, const Json& load) {
    const Json report = confidence_report(turns, load);
    EXPECT_FALSE(report.contains("ttft_seconds"));
    return report.value("missing_because", "");
  };
  const TurnMetrics many = turns_of(512);
  EXPECT_EQ(why(many, load_of(1000, kLoadExceedsCapacity)), "the load exceeds capacity");
  EXPECT_EQ(why(many, load_of(1000, kRunTooShort)), "the run is too short");
  EXPECT_EQ(why(many, load_of(99)),
            "the measured part lasts 99 s, and the sessions that live at a time last 10 s on "
            "average, expected 10 times as long");
  EXPECT_EQ(why(turns_of(255), load_of(100)), "510 turns are measured, expected at least 512");
}

// 1,024 turns have 10 beyond the quantile of 0.99, and 51 beyond that of 0.95.
TEST(Confidence, LeavesOutQuantilesWithFewTurnsBeyondThem) {
  const Json report = confidence_report(turns_of(512), load_of(100));
  EXPECT_TRUE(report.contains("ttft_seconds_p90"));
  EXPECT_FALSE(report.contains("ttft_seconds_p95"));
  EXPECT_FALSE(report.contains("ttft_seconds_p99"));
}

// First turns need no history: there is no share of it.
TEST(Confidence, LeavesOutSharesWithoutAHistory) {
  TurnMetrics turns;
  for (int i = 0; i < 600; ++i) {
    turns.add(record(0, 0));
  }
  const Json report = confidence_report(turns, load_of(100));
  EXPECT_FALSE(report.contains("hit_rate_tokens"));
  EXPECT_TRUE(report.contains("ttft_seconds"));
}

}  // namespace
}  // namespace kvtier::test
