/// Several servers that share a workload.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "sim/engine/replica_source.hpp"
#include "sim/replay/miss_ratio_curve.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/study/bound.hpp"
#include "tests/sim/study/support.hpp"
#include "traces/trace_format.hpp"

namespace kvtier::test {
namespace {

const std::vector<std::string> kSmall{
    "/system=attentionstore_lru", "/hardware/dram/capacity=16GiB", "/hardware/ssd/capacity=60GiB",
    "/workload/sessions=240",     "/workload/arrival_rate=1/s",    "/workload/warmup_turns=0",
    "/serving/slots=24"};

RunConfig small(std::vector<std::string> more = {}) {
  std::vector<std::string> settings = kSmall;
  settings.insert(settings.end(), more.begin(), more.end());
  return resolved("examples/planner-70.json", settings);
}

Json run(const RunConfig& config, const std::filesystem::path& base_dir = {}) {
  RunOptions options;
  options.base_dir = base_dir;
  return simulate(config, builtin_policies(), options);
}

// Each replica alone, on a trace of the sessions that are routed to it: the replicas together are
// the sum.
TEST(Replicas, AreServersOfTheirOwn) {
  constexpr std::int64_t kCount = 3;
  const RunConfig whole = small({fmt::format("/replicas/count={}", kCount)});
  const Json together = run(whole);
  const TempDir dir;
  std::int64_t turns = 0;
  std::int64_t sessions = 0;
  double hits = 0;
  double gpu_seconds = 0;
  double dollars = 0;
  double read = 0;
  double seconds = 0;
  double waiting = 0;
  double ttft = 0;
  double requests_per_second = 0;
  double p99_least = 1e9;
  double p99_most = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto all = make_source(whole.workload, 1, {});
    ReplicaSource share(*all, i, kCount, 1);
    TraceWriter writer(dir.path("t.jsonl"), {.arrivals = true, .think_times = true});
    SessionSpec session;
    while (share.next(session)) {
      writer.write(session);
    }
    writer.commit();
    RunConfig alone = small();
    alone.workload = {};
    alone.workload.trace = dir.path("t.jsonl").string();
    alone.workload.arrivals = ArrivalModel::trace;
    alone.workload.think_time.model = ThinkTimeModel::trace;
    alone.serving.long_turn = LongTurn::clamp;
    const Json one = run(alone);
    const double of_turns = number_at(one, "/metrics/turns");
    turns += static_cast<std::int64_t>(of_turns);
    sessions += static_cast<std::int64_t>(number_at(one, "/workload/sessions"));
    EXPECT_GT(of_turns, 200);
    hits += number_at(one, "/metrics/hit_rate/all_turns/total") * of_turns;
    ttft += number_at(one, "/metrics/ttft_seconds/mean") * of_turns;
    gpu_seconds += number_at(one, "/metrics/gpu_seconds/total");
    dollars += number_at(one, "/metrics/cost_dollars/total");
    read += number_at(one, "/metrics/tiers/ssd/read_bytes");
    seconds += number_at(one, "/load/measured_seconds");
    waiting += number_at(one, "/load/bottleneck/requests_wait_share") *
               number_at(one, "/load/measured_seconds");
    requests_per_second += number_at(one, "/metrics/requests_per_second");
    p99_least = std::min(p99_least, number_at(one, "/metrics/ttft_seconds/p99"));
    p99_most = std::max(p99_most, number_at(one, "/metrics/ttft_seconds/p99"));
  }
  EXPECT_EQ(number_at(together, "/metrics/turns"), static_cast<double>(turns));
  EXPECT_EQ(number_at(together, "/workload/sessions"), static_cast<double>(sessions));
  EXPECT_EQ(sessions, 240);
  const auto expect_near = [&](const char* pointer, double expected) {
    EXPECT_NEAR(number_at(together, pointer), expected, 1e-9 * expected) << pointer;
  };
  const auto all_turns = static_cast<double>(turns);
  expect_near("/metrics/hit_rate/all_turns/total", hits / all_turns);
  expect_near("/metrics/ttft_seconds/mean", ttft / all_turns);
  expect_near("/metrics/gpu_seconds/total", gpu_seconds);
  expect_near("/metrics/cost_dollars/total", dollars);
  expect_near("/metrics/tiers/ssd/read_bytes", read);
  expect_near("/metrics/requests_per_second", requests_per_second);
  expect_near("/load/measured_seconds", seconds / kCount);
  EXPECT_GT(waiting, 0);
  expect_near("/load/bottleneck/requests_wait_share", waiting / seconds);
  const double p99 = number_at(together, "/metrics/ttft_seconds/p99");
  EXPECT_GE(p99, p99_least);
  EXPECT_LE(p99, p99_most);
}

TEST(Replicas, ServeEveryTurnOnce) {
  const Json one = run(small());
  for (const int count : {2, 5}) {
    const Json several = run(small({fmt::format("/replicas/count={}", count)}));
    for (const char* pointer :
         {"/workload/sessions", "/workload/turns", "/workload/user_tokens_total",
          "/workload/last_arrival_seconds", "/workload/turns_per_session/p90", "/metrics/turns",
          "/metrics/output_tokens"}) {
      EXPECT_EQ(number_at(several, pointer), number_at(one, pointer)) << pointer;
    }
  }
}

TEST(Replicas, ShareTheWarmUp) {
  const double turns = number_at(run(small()), "/metrics/turns");
  const Json warm = run(small({"/replicas/count=3", "/workload/warmup_turns=100"}));
  EXPECT_EQ(number_at(warm, "/metrics/turns"), turns - 100);
}

// N servers at N times the rate are each as one server at the rate: the share of a Poisson process
// is one. 0.03 is the spread between seeds of runs of this length.
TEST(Replicas, AtNTimesTheRateHitAsOftenAsOne) {
  const auto hit_rate = [](int count) {
    double sum = 0;
    for (int seed = 1; seed <= 3; ++seed) {
      RunConfig config = small({fmt::format("/replicas/count={}", count),
                                fmt::format("/workload/arrival_rate={}/s", count * 0.5),
                                fmt::format("/workload/sessions={}", 400 * count)});
      config.seed = seed;
      sum += number_at(run(config), "/metrics/hit_rate/all_turns/total");
    }
    return sum / 3;
  };
  EXPECT_NEAR(hit_rate(4), hit_rate(1), 0.03);
}

TEST(Replicas, DoNotMoveOtherDraws) {
  const auto source = [](std::int64_t count) {
    return run(small({fmt::format("/replicas/count={}", count)}))["workload"].dump();
  };
  EXPECT_EQ(source(1), source(4));
}

/// With the hit rate of tokens and of turns that ample memory gives the servers: each turn's draw,
/// and what every server has of each session.
struct Reuse {
  double tokens = 0;
  double all_turns = 0;
  double reused = 0;
};
Reuse reuse_of_draws(const RunConfig& config) {
  const std::int64_t count = config.replicas.count;
  const auto source = make_source(config.workload, static_cast<std::uint64_t>(config.seed), {});
  RandomStream draws(static_cast<std::uint64_t>(config.seed), "replicas/routing");
  const std::int64_t window = config.model.context_window.value;
  double needed = 0;
  double hits = 0;
  double turns = 0;
  Reuse reuse;
  SessionSpec session;
  while (source->next(session)) {
    std::int64_t history = 0;
    std::vector<std::int64_t> stored(static_cast<std::size_t>(count), 0);
    for (const Turn& turn : session.turns) {
      const std::int64_t input = std::min(
          turn.user.value, turn.user.value + turn.assistant.value > window ? window / 2 : window);
      const std::int64_t own = input + std::min(turn.assistant.value, window - input);
      std::int64_t cut = 0;
      while (history > 0 && history + own > window) {
        const std::int64_t half = std::max<std::int64_t>(1, history / 2);
        history -= half;
        cut += half;
      }
      for (std::int64_t& tokens : stored) {
        const bool lost = cut > 0 && config.system.positions == KeyPositions::embedded;
        tokens = lost ? 0 : std::max<std::int64_t>(0, tokens - cut);
      }
      std::int64_t& here = stored[static_cast<std::size_t>(draws.index(count))];
      needed += static_cast<double>(history);
      reuse.reused += static_cast<double>(here);
      hits += history > 0 && here == history ? 1 : 0;
      ++turns;
      history += own;
      here = history;
    }
  }
  reuse.tokens = reuse.reused / needed;
  reuse.all_turns = hits / turns;
  return reuse;
}

TEST(RandomRouting, WithAmpleMemoryReusesWhatTheDrawsLeave) {
  for (const char* system : {"attentionstore", "overflow", "pensieve"}) {
    double tokens_before = 1;
    double turns_before = 1;
    for (const int count : {2, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} {}", system, count));
      const RunConfig config = small(
          {fmt::format("/system={}", system), fmt::format("/replicas/count={}", count),
           "/replicas/routing=random", "/workload/sessions=600", "/hardware/dram/capacity=100TiB"});
      const Json result = run(config);
      const Reuse reuse = reuse_of_draws(config);
      const double tokens = number_at(result, "/metrics/hit_rate/tokens/total");
      const double turns = number_at(result, "/metrics/hit_rate/all_turns/total");
      EXPECT_NEAR(tokens, reuse.tokens, 1e-12);
      EXPECT_NEAR(turns, reuse.all_turns, 1e-12);
      EXPECT_LT(tokens, tokens_before - 0.05);
      EXPECT_LT(turns, turns_before - 0.05);
      tokens_before = tokens;
      turns_before = turns;
      // Nothing else is lost but what truncation takes.
      const Json& lost = result["metrics"]["lost_hits"];
      EXPECT_GT(lost["served_elsewhere"], 100);
      EXPECT_EQ(lost["capacity"], 0);
      if (std::string(system) != "overflow") {
        EXPECT_EQ(lost["overflow"].get<std::int64_t>() + lost["not_stored"].get<std::int64_t>(), 0);
      }
    }
  }
}

TEST(RandomRouting, OfOneServerIsAffine) {
  EXPECT_EQ(outcome(run(small({"/replicas/routing=random"}))), outcome(run(small())));
}

TEST(RandomRouting, KeepsTheWorkloadAndServesEveryTurnOnce) {
  const Json one = run(small());
  for (const int count : {2, 5}) {
    const Json several =
        run(small({fmt::format("/replicas/count={}", count), "/replicas/routing=random"}));
    EXPECT_EQ(several["workload"].dump(), one["workload"].dump());
    for (const char* pointer :
         {"/metrics/turns", "/metrics/output_tokens", "/metrics/prompt_tokens"}) {
      EXPECT_EQ(number_at(several, pointer), number_at(one, pointer)) << pointer;
    }
    // Hits and misses are all turns that have a history.
    double found = number_at(several, "/metrics/hit_rate/resumed_turns/total") *
                   number_at(several, "/metrics/resumed_turns");
    for (const auto& [cause, lost] : several["metrics"]["lost_hits"].items()) {
      found += lost.get<double>();
    }
    EXPECT_NEAR(found, number_at(several, "/metrics/resumed_turns"), 1e-6);
  }
}

TEST(RandomRouting, LosesToAffinity) {
  const auto of = [](const char* routing) {
    return run(small({"/replicas/count=4", fmt::format("/replicas/routing={}", routing),
                      "/hardware/dram/capacity=1TiB"}));
  };
  const Json affine = of("session_affine");
  const Json random = of("random");
  EXPECT_GT(number_at(affine, "/metrics/hit_rate/all_turns/total"),
            number_at(random, "/metrics/hit_rate/all_turns/total") + 0.3);
  EXPECT_LT(number_at(affine, "/metrics/gpu_seconds/prefill"),
            number_at(random, "/metrics/gpu_seconds/prefill"));
  EXPECT_FALSE(affine["metrics"].contains("routing"));
  EXPECT_FALSE(affine["metrics"]["lost_hits"].contains("served_elsewhere"));
}

// Within capacity the times that turns elsewhere are taken to need are those of the turns here.
TEST(RandomRouting, TakesTurnsElsewhereToNeedTheSameTime) {
  const Json result = run(small({"/replicas/count=4", "/replicas/routing=random",
                                 "/workload/sessions=2000", "/workload/arrival_rate=0.5/s"}));
  const double served = number_at(result, "/metrics/routing/response_seconds");
  EXPECT_GT(served, 1);
  EXPECT_NEAR(number_at(result, "/metrics/routing/assumed_response_seconds"), served,
              0.05 * served);
}

TEST(RandomRouting, GivesTheSameBytesInBothSteppingsAndTwice) {
  for (const char* system : {"attentionstore", "pensieve", "vllm", "car"}) {
    const RunConfig config =
        small({"/hardware=a100-40g", "/hardware/gpus=2", fmt::format("/system={}", system),
               "/replicas/count=3", "/replicas/routing=random"});
    RunOptions reference;
    reference.stepping = DecodeStepping::per_iteration;
    const std::string text = run(config).dump();
    EXPECT_TRUE(text == run(config).dump()) << system;
    EXPECT_TRUE(text == simulate(config, builtin_policies(), reference).dump()) << system;
  }
}

std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Replicas, SayWhatTheyCannot) {
  const RunConfig two = small({"/replicas/count=2"});
  const PolicyRegistry registry = builtin_policies();
  EXPECT_EQ(refused([&] { (void)simulate_untimed(two, registry); }),
            "/replicas/count: expected 1, an untimed replay is of one server, got 2");
  EXPECT_EQ(refused([&] { (void)miss_ratio_curve(two, registry, {}); }),
            "/replicas/count: expected 1, a miss-ratio curve is of one server, got 2");
  RequestList requests;
  RunOptions recorded;
  recorded.observer = &requests;
  EXPECT_EQ(refused([&] { (void)simulate(two, registry, recorded); }),
            "/replicas/count: expected 1, what is recorded during a run is of one server, got 2");
  EXPECT_EQ(untimed_bound(two, registry, {}), Json());
  const RunConfig many =
      small({"/replicas/count=3", "/workload/sessions=5", "/workload/warmup_turns=15"});
  EXPECT_NE(refused([&] { (void)run(many); })
                .find("expected fewer replicas, more sessions or less "
                      "warm-up"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              (void)small({"/replicas/count=0"});
            }).find("/replicas/count: expected a whole number >= 1 and <= 1024, got 0"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              (void)small({"/replicas/routing=affine"});
            }).find("/replicas/routing: expected one of session_affine, random, got \"affine\""),
            std::string::npos);
}

}  // namespace
}  // namespace kvtier::test
