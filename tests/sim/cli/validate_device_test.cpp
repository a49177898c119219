#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

class Validate : public ProgramTest {
 protected:
  /// A quarter of a minute, in which all of the config's tiers are used.
  std::vector<std::string> small(std::vector<std::string> more) {
    std::vector<std::string> arguments{
        "validate",  (configs() / "validation" / "cpu.json").string(),
        "--storage", KVTIER_SOURCE_DIR,
        "--set",     "/workload/sessions=16",
        "--set",     "/workload/warmup_turns=5",
        "--set",     "/workload/sharegpt/turns_max=6",
        "--set",     "/workload/think_time/mean=200ms",
        "--set",     "/hardware/dram/capacity=2MiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

/// Largest errors of a simulation on a machine with other work and a profile of another machine:
/// points of hit rates, and factors of times at the pace of the runs. The bands of `kvtier
/// validate` itself are for a quiet machine with a profile of its own.
constexpr double kHitRateBand = 0.05;
/// Band of a tier's share of the hits. The tier of a session depends on the pace of the machine.
constexpr double kTierBand = 0.25;
constexpr double kTimeFactor = 3;

/// The verdict follows from the results, by the rules of docs/validation.md, computed
/// again here. True if all of it is in band.
bool expect_judged(const nlohmann::json& validation) {
  bool in_band = validation["occupied_fraction"].get<double>() <= 0.7;
  for (const nlohmann::json& row : validation["rows"]) {
    const std::string metric = row["metric"].get<std::string>();
    std::string pointer = "/metrics/" + metric;
    std::ranges::replace(pointer, '.', '/');
    const nlohmann::json::json_pointer at(pointer);
    std::vector<double> runs;
    for (const nlohmann::json& run : validation["measured"]) {
      runs.push_back(run.at(at).get<double>());
    }
    std::ranges::sort(runs);
    const double measured = (runs[(runs.size() - 1) / 2] + runs[runs.size() / 2]) / 2;
    const double simulated = validation["simulated"].at(at).get<double>();
    EXPECT_DOUBLE_EQ(row["measured"].get<double>(), measured) << metric;
    EXPECT_EQ(row["simulated"], simulated) << metric;
    const bool is_rate = metric.starts_with("hit_rate");
    if (is_rate) {
      const bool is_total = metric.ends_with(".total");
      EXPECT_NEAR(simulated, measured, is_total ? kHitRateBand : kTierBand) << metric;
    } else if (metric == "ttft_seconds.p50" || metric == "tpot_seconds.mean") {
      const double at_pace = row["simulated_at_pace"].get<double>();
      EXPECT_LT(at_pace, kTimeFactor * measured) << metric;
      EXPECT_LT(measured, kTimeFactor * at_pace) << metric;
    }
    if (row["band"].is_null()) {
      EXPECT_TRUE(row["in_band"].is_null()) << metric;
      continue;
    }
    const double error = is_rate ? simulated - measured : simulated / measured - 1;
    const double noise = (runs.back() - runs.front()) / 2 / measured;
    const double band = is_rate ? 0.01 : std::max(0.1, 3 * noise);
    EXPECT_NEAR(row["error"].get<double>(), error, 1e-12) << metric;
    EXPECT_NEAR(row["band"].get<double>(), band, 1e-12) << metric;
    EXPECT_EQ(row["in_band"].get<bool>(), std::abs(error) <= band) << metric;
    in_band = in_band && std::abs(error) <= band;
  }
  EXPECT_EQ(validation["in_band"].get<bool>(), in_band);
  return in_band;
}

TEST_F(Validate, InLockStepMovesEveryByteAsDecided) {
  for (const char* buffers : {"15", "auto"}) {
    const Outcome outcome = kvtier(small(
        {"--lock-step", "--json", "-", "--set", std::string("/system/load/buffers=") + buffers}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const nlohmann::json json = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(json["format"], "kvtier.validation/1");
    EXPECT_EQ(json["lock_step"]["equal"], true) << buffers;
    EXPECT_GT(json["lock_step"]["decisions"].get<std::int64_t>(), 0);
    EXPECT_EQ(json["lock_step"]["moved_bytes"], json["lock_step"]["verified_bytes"]) << buffers;
  }
}

TEST_F(Validate, RunsCarWithMemoryOfTheHostForCxlMemory) {
  std::vector<std::string> car = small(
      {"--json", "-", "--set", "/workload/generator=shared_prompts", "--set",
       R"(/workload/shared_prompts={"prompts":3,"tokens_min":"50tokens","tokens_max":"200tokens"})",
       "--set",
       R"(/system={"preset":"car","tiers":{"hbm":{"blocks":{"idle":"2MiB"}}},)"
       R"("save":{"write_buffer":"16MiB"}})",
       "--set",
       R"(/hardware/cxl={"capacity":"40MiB","price":"0.0088$/h/GiB",)"
       R"("bandwidth":{"read":"6GB/s","write":"5GB/s","both":"11GB/s"}})"});
  const nlohmann::json stand_ins = {"CXL memory is a region of host memory"};
  std::vector<std::string> arguments = car;
  arguments.push_back("--lock-step");
  const Outcome outcome = kvtier(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["stand_ins"], stand_ins);
  EXPECT_EQ(json["lock_step"]["equal"], true);
  EXPECT_GT(json["lock_step"]["verified_bytes"].get<std::int64_t>(), 0);
  EXPECT_EQ(json["lock_step"]["moved_bytes"], json["lock_step"]["verified_bytes"]);
  car.insert(car.end(), {"--repetitions", "1", "--verify"});
  const Outcome measured = kvtier(car);
  ASSERT_FALSE(measured.out.empty()) << measured.err;
  const nlohmann::json validation = nlohmann::json::parse(measured.out);
  EXPECT_EQ(measured.code, expect_judged(validation) ? 0 : 1) << measured.err;
  EXPECT_EQ(validation["stand_ins"], stand_ins);
  std::set<std::string> metrics;
  for (const nlohmann::json& row : validation["rows"]) {
    metrics.insert(row["metric"].get<std::string>());
  }
  EXPECT_TRUE(metrics.contains("hit_rate.all_turns.hbm"));
  EXPECT_TRUE(metrics.contains("hit_rate.all_turns.cxl"));
}

TEST_F(Validate, RunsFreelyAndComparesHitRatesAndTimes) {
  const Outcome outcome =
      kvtier(small({"--repetitions", "2", "--verify", "--json", path("validation.json").string(),
                    "--timeline", path("timeline.json").string()}));
  const nlohmann::json json = nlohmann::json::parse(read("validation.json"));
  EXPECT_EQ(outcome.code, expect_judged(json) ? 0 : 1) << outcome.err;
  EXPECT_EQ(json["measured"].size(), 2U);
  // All runs are of the same workload.
  for (const nlohmann::json& run : json["measured"]) {
    EXPECT_EQ(run["workload"], json["simulated"]["workload"]);
  }
  std::int64_t judged = 0;
  for (const nlohmann::json& row : json["rows"]) {
    judged += row["band"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(judged, 6);
  EXPECT_NE(outcome.out.find("ttft_seconds.p90"), std::string::npos);
  // The simulation and one run on the device, with the same tracks and as many turns.
  std::map<int, std::set<std::string>> tracks;
  std::map<int, int> prefills;
  const nlohmann::json timeline = read_json("timeline.json");
  for (const nlohmann::json& event : timeline["traceEvents"]) {
    const int run = event["pid"].get<int>();
    if (event["name"] == "thread_name") {
      const std::string name = event["args"]["name"].get<std::string>();
      // Not "SSD write 2", which is there when two overlap.
      if (std::isdigit(static_cast<unsigned char>(name.back())) == 0) {
        tracks[run].insert(name);
      }
    }
    prefills[run] += event["name"] == "prefill" ? 1 : 0;
  }
  EXPECT_EQ(tracks[1], (std::set<std::string>{"GPU", "H2D", "D2H", "SSD read", "SSD write"}));
  // Whether anything was fetched early depends on how fast the machine was.
  tracks[2].insert("SSD read");
  EXPECT_EQ(tracks[2], tracks[1]);
  EXPECT_GT(prefills[1], 16);
  EXPECT_EQ(prefills[2], prefills[1]);
}

TEST_F(Validate, ShowsTheTimelineOfOneConfigInItsOwnTime) {
  const std::string matrix = (configs() / "validation" / "matrix.json").string();
  expect_bad_input(
      {"validate", matrix, "--only", "3x", "--timeline", "t.json"},
      {"--timeline shows one config; these are 6 points of a sweep (--only chooses one)"});
  const Outcome outcome = kvtier(small({"--lock-step", "--timeline", "t.json"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "kvtier: --lock-step excludes --timeline\nkvtier: see kvtier validate --help\n");
  EXPECT_TRUE(files().empty());
}

TEST_F(Validate, TakesEachPointOfASweep) {
  const std::string profile = (configs() / "validation" / "cpu.json").string();
  write("matrix.json", R"({"config": ")" + profile + R"(", "axes": [
      {"name": "memory", "values": [
        {"label": "half", "set": {"/hardware/dram/capacity": "2MiB"}}]},
      {"name": "system", "values": [
        {"label": "none", "set": {"/system": "recompute"}},
        {"label": "lru", "set": {"/system": {"preset": "attentionstore_lru",
                                             "save": {"write_buffer": "16MiB"}}}}]}],
      "columns": [{"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"}]})");
  std::vector<std::string> arguments = small({"--repetitions", "1", "--json", "all.json"});
  arguments[1] = "matrix.json";
  // The axes come over what the command line says.
  const Outcome outcome = kvtier(arguments);
  const nlohmann::json json = nlohmann::json::parse(read("all.json"));
  EXPECT_EQ(json["format"], "kvtier.validations/1");
  EXPECT_EQ(json["axes"], (nlohmann::json{"memory", "system"}));
  ASSERT_EQ(json["points"].size(), 2U);
  bool good = true;
  for (const nlohmann::json& point : json["points"]) {
    const nlohmann::json& validation = point["validation"];
    good = expect_judged(validation) && good;
    EXPECT_EQ(validation["measured"].size(), 1U);
    EXPECT_EQ(validation["simulated"]["metrics"]["turns"],
              validation["measured"][0]["metrics"]["turns"]);
  }
  EXPECT_EQ(outcome.code, good ? 0 : 1) << outcome.err;
  const auto hits = [&json](std::size_t point) {
    return json["points"][point]["validation"]["simulated"]["metrics"]["hit_rate"]["all_turns"]
               ["total"]
                   .get<double>();
  };
  EXPECT_EQ(hits(0), 0);
  EXPECT_GT(hits(1), 0.3);
  // A line for each point below the header.
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 3) << outcome.out;
  EXPECT_NE(outcome.out.find("half    lru"), std::string::npos) << outcome.out;
  // One of them has a timeline.
  arguments.insert(arguments.end(), {"--only", "none", "--timeline", "timeline.json"});
  const Outcome one = kvtier(arguments);
  const nlohmann::json points = read_json("all.json")["points"];
  ASSERT_EQ(points.size(), 1U);
  EXPECT_EQ(one.code, expect_judged(points[0]["validation"]) ? 0 : 1) << one.err;
  EXPECT_FALSE(read_json("timeline.json")["traceEvents"].empty());
}

TEST_F(Validate, IsOutOfBandWithAWrongProfile) {
  // A GPU's times for a model of that shape would be the same mistake: all work takes no time.
  const Outcome outcome = kvtier(small(
      {"--repetitions", "1", "--set",
       R"(/hardware={"preset":"a100-80g","dram":{"capacity":"2MiB"},"ssd":{"capacity":"40MiB"}})"}));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.out.find("OUT"), std::string::npos) << outcome.out;
}

TEST_F(Validate, EndsAtOnceWhenInterrupted) {
  Started run = start(small({"--set", "/workload/arrival_rate=0.001/s", "--json", "result.json"}));
  ASSERT_TRUE(run.runs_until([&] { return !files().empty(); }));  // the output in the making
  std::this_thread::sleep_for(std::chrono::seconds(1));
  run.signal(SIGINT);
  const Outcome outcome = run.outcome();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.err, "kvtier: interrupted; nothing was written\n");
  EXPECT_TRUE(files().empty());
}

// The first point takes a second, the second one hours.
TEST_F(Validate, KeepsThePointsThatWereDoneWhenInterrupted) {
  const std::string config = (configs() / "validation" / "cpu.json").string();
  write("sweep.json", R"({"config": ")" + config + R"(", "axes": [{"name": "rate", "values": [
        {"label": "fast", "set": {"/workload/sessions": 2, "/workload/warmup_turns": 0}},
        {"label": "slow", "set": {"/workload/arrival_rate": "0.001/s"}}]}],
        "columns": [{"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"}]})");
  Started run = start({"validate", "sweep.json", "--repetitions", "1", "--storage",
                       KVTIER_SOURCE_DIR, "--json", "result.json"});
  ASSERT_TRUE(run.runs_until([&] { return run.out().find("\nfast") != std::string::npos; }));
  run.signal(SIGINT);
  const Outcome outcome = run.outcome();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.err, "kvtier: interrupted; the points that were done are in result.json\n");
  const nlohmann::json kept = read_json("result.json");
  EXPECT_EQ(kept["complete"], false);
  ASSERT_EQ(kept["points"].size(), 1U);
  EXPECT_EQ(kept["points"][0]["labels"][0], "fast");
}

TEST_F(Validate, RefusesConfigsThatADeviceCannotRun) {
  expect_bad_input(small({"--set", "/cluster/instances=2", "--set", "/system/positions=embedded"}),
                   {"/cluster: a device is one instance, got 2",
                    "/system/positions: a device keeps keys without positions"});
}

TEST_F(Validate, RefusesPointsOfASweepBeforeItRunsAny) {
  const std::string config = (configs() / "validation" / "cpu.json").string();
  const auto sweep = [&config](const std::string& more) {
    return R"({"config": ")" + config + R"(", "axes": [{"name": "system", "values": [
        {"label": "none", "set": {"/system": "recompute"}},
        {"label": "two", "set": {"/system": "recompute", "/cluster/instances": 2}}]}],
        "columns": [{"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"}])" +
           more + "}";
  };
  write("sweep.json", sweep(""));
  expect_bad_input({"validate", "sweep.json"}, {"two: /cluster: a device is one instance, got 2"});
  write("sweep.json", sweep(R"(, "refused": "skip")"));
  std::vector<std::string> arguments = small({"--lock-step"});
  arguments[1] = "sweep.json";
  const Outcome outcome = kvtier(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("two: refused: /cluster"), std::string::npos) << outcome.out;
}

TEST_F(Validate, RunsTheRequestedPoints) {
  const std::string config = (configs() / "validation" / "cpu.json").string();
  write("sweep.json", R"({"config": ")" + config + R"(", "axes": [
        {"name": "system", "values": [
          {"label": "none", "set": {"/system": "recompute"}},
          {"label": "lru", "set": {"/system": "attentionstore_lru"}}]},
        {"name": "memory", "values": [
          {"label": "much", "set": {"/hardware/dram/capacity": "20MiB"}},
          {"label": "little", "set": {"/hardware/dram/capacity": "10MiB"}}]}],
        "columns": [{"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"}]})");
  std::vector<std::string> arguments = small({"--lock-step", "--only", "little,none"});
  arguments[1] = "sweep.json";
  const Outcome outcome = kvtier(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("none, little: "), 0U) << outcome.out;
  EXPECT_EQ(outcome.out.find("lru"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("much"), std::string::npos) << outcome.out;

  expect_bad_input({"validate", "sweep.json", "--only", "huge", "--only", "lru"},
                   {"--only: no point is labelled \"huge\"; the remaining points have the labels "
                    "little, lru, much, none"});
  expect_bad_input({"validate", config, "--only", "lru"},
                   {"--only chooses points of a sweep; this is one config"});
}

TEST_F(Validate, NamesTheRequirementsOfADevice) {
  EXPECT_EQ(kvtier(small({"--device", "gpu"})).code, 2);
  const Outcome outcome =
      kvtier({"validate", (configs() / "validation" / "cpu.json").string(), "--storage", "/proc"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("/proc"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvtier::test
