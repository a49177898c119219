/// Several servers that share a workload.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/replay/miss_ratio_curve.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/replica_source.hpp"
#include "sim/study/runs/bound.hpp"
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
}

}  // namespace
}  // namespace kvtier::test
