/// Plans: the cheapest of a space of configurations, on examples whose answer is known.

#include "sim/study/plan/plan.hpp"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/file.hpp"
#include "sim/study/runs/run_folder.hpp"
#include "sim/study/runs/summary.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

/// Nine conversations of two turns, the second after all first ones, each about 1,000 s after the
/// one before, so that no KV moves when a turn comes. Drives are fast, so that a hit saves time.
/// The first turn leaves 1,008 tokens, 63 blocks of 16: of Llama-2-13B (819,200 B a token) 0.769
/// GiB; the second 1,024, 0.781 GiB. So 1, 2, 4 and 8 GiB hold 1, 2, 5 and 10 of them. Before the
/// second turns all nine have to be in DRAM or, exclusively, on SSD. Least recently used first, and
/// asked for in the order in which they were stored, every conversation is gone when its turn comes
/// if less fit.
class Planning : public testing::Test {
 protected:
  Planning() {
    // A log, so that the run has the rate of requests that its workload names.
    std::string log = "arrival,input_tokens,output_tokens,session\n";
    for (int session = 0; session < 9; ++session) {
      log += fmt::format("{},500,508,s{}\n", 1000 * session, session);
      log += fmt::format("{},8,8,s{}\n", 1000 * session + 1000000, session);
    }
    dir_.write("log.csv", log);
    dir_.write("run.json", R"({
      "model": "llama2-13b",
      "hardware": {"preset": "a100-80g", "gpus": 2, "gpu": {"price": "1$/h"},
                   "ssd": {"bandwidth": {"read": "50GB/s", "write": "50GB/s", "both": "50GB/s"}}},
      "system": {"preset": "attentionstore_lru", "tiers": {"ssd": {"inclusive": false}}},
      "workload": {"trace": "log.csv", "arrivals": "trace", "think_time": {"model": "logged"},
                   "measure": "all"}
    })");
  }

  [[nodiscard]] static std::string capacities(const std::string& dram_price,
                                              const std::string& ssd_price) {
    return R"("set": {"/hardware/dram/price": ")" + dram_price +
           R"($/h/GiB", "/hardware/ssd/price": ")" + ssd_price + R"($/h/GiB"},
      "axes": [
        {"name": "system", "values": [{"label": "stores", "set": {}},
                                      {"label": "recomputes", "set": {"/system": "recompute"}}]},
        {"name": "DRAM", "key": "/hardware/dram/capacity",
         "values": ["1GiB", "2GiB", "4GiB", "8GiB"]},
        {"name": "SSD", "key": "/hardware/ssd/capacity",
         "values": ["2GiB", "4GiB", "8GiB", "16GiB"]}],
      "capacities": ["DRAM", "SSD"], "replications": 2, )";
  }

  [[nodiscard]] Plan load(const std::string& rest) const {
    dir_.write("plan.json", R"({"config": "run.json", )" + rest + "}");
    return load_plan(dir_.path("plan.json"));
  }
  [[nodiscard]] PlanResult planned(const Plan& plan) const {
    return make_plan(plan, presets(), builtin_policies());
  }
  [[nodiscard]] PlanResult planned(const std::string& rest) const { return planned(load(rest)); }
  [[nodiscard]] Lines problems(const std::string& rest) const {
    try {
      (void)planned(rest);
    } catch (const ConfigError& error) {
      Lines lines = error.problems();
      const std::string folder = dir_.path("").string();
      for (std::string& line : lines) {
        for (std::size_t at = 0; (at = line.find(folder)) != std::string::npos;) {
          line.erase(at, folder.size());
        }
      }
      return lines;
    }
    return {};
  }

  const std::string kAllHit = R"("slo": ["hit_rate.resumed_turns.total>=1"])";
  TempDir dir_;
};

// Nine fit into 1 + 8 GiB (1 + 10), 4 + 4 (5 + 5), 8 + 2 (10 + 2), and what is larger. With DRAM at
// 1 and SSD at 0.1 $ a GiB and hour these cost 1.8, 4.4 and 8.2, and the GPUs 2.
TEST_F(Planning, FindsTheCheapestOfTwoTiers) {
  const PlanResult dear_dram = planned(capacities("1", "0.1") + kAllHit);
  ASSERT_TRUE(dear_dram.cheapest);
  const PlanTrial& first = dear_dram.trials[*dear_dram.cheapest];
  EXPECT_EQ(first.labels, (Lines{"stores", "1GiB", "8GiB"}));
  EXPECT_NEAR(first.dollars_per_hour, 3.8, 1e-9);
  EXPECT_NEAR(first.hit_rate, 0.664908, 1e-6);  // all histories of all prompts

  // At 0.2 and 1 they cost 8.2, 4.8 and 3.6.
  const PlanResult dear_ssd = planned(capacities("0.2", "1") + kAllHit);
  ASSERT_TRUE(dear_ssd.cheapest);
  const PlanTrial& second = dear_ssd.trials[*dear_ssd.cheapest];
  EXPECT_EQ(second.labels, (Lines{"stores", "8GiB", "2GiB"}));
  EXPECT_NEAR(second.dollars_per_hour, 5.6, 1e-9);
}

// Two requests come at a time, and an instance runs one. Two instances serve them at once if they
// take turns, with a GPU price of 1 $ and two GPUs each: 4 $ an hour.
TEST_F(Planning, ChoosesTheNumberOfInstancesAndTheirRouter) {
  std::string log = "arrival,input_tokens,output_tokens,session\n";
  for (int i = 0; i < 20; ++i) {
    log += fmt::format("{},500,8,a{}\n{},500,8,b{}\n", 1000 * i, i, 1000 * i, i);
  }
  dir_.write("pairs.csv", log);
  const PlanResult result = planned(R"("set": {"/workload/trace": "pairs.csv",
      "/system": "recompute", "/serving/slots": 1},
      "axes": [{"name": "instances", "key": "/cluster/instances", "values": [1, 2, 3]},
               {"name": "router", "key": "/cluster/router", "values": ["random", "round_robin"]}],
      "slo": ["queueing_seconds.p99<=0.001"])");
  ASSERT_TRUE(result.cheapest);
  const PlanTrial& trial = result.trials[*result.cheapest];
  EXPECT_EQ(trial.labels, (Lines{"2", "round_robin"}));
  EXPECT_NEAR(trial.dollars_per_hour, 4, 1e-9);
}

// A short run decides where the search begins, not where it ends.
TEST_F(Planning, FindsTheSameFromAnywhere) {
  for (const char* screening : {"0.01", "0.5", "1"}) {
    const PlanResult result =
        planned(capacities("1", "0.1") + kAllHit + R"(, "screening": )" + screening);
    EXPECT_EQ(result.trials[*result.cheapest].labels, (Lines{"stores", "1GiB", "8GiB"}))
        << screening;
  }
}

// With 1 GiB of DRAM no turn hits on 2 or 4 GiB of SSD and all do on 8 and 16: all is gained at a
// third of the price of what could be bought (0.6 of 1.4 $ a GiB and hour), so 8 is the knee.
TEST_F(Planning, ShowsTheGainOfEachCapacity) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit);
  const PlanResult result = planned(plan);
  ASSERT_EQ(result.curves.size(), 2U);
  const CapacityCurve& ssd = result.curves[1];
  EXPECT_EQ(ssd.axis, "SSD");
  ASSERT_EQ(ssd.trials.size(), 4U);
  const double hits[] = {0, 0, 0.664908, 0.664908};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(result.trials[ssd.trials[i]].hit_rate, hits[i], 1e-6) << i;
  }
  ASSERT_TRUE(ssd.knee);
  EXPECT_EQ(*ssd.knee, 2U);
  // From 4 to 8 GiB 66.5 points of hits for 0.4 $.
  const std::string table = to_table(plan, result);
  EXPECT_NE(table.find("  166  knee\n"), std::string::npos) << table;
}

TEST_F(Planning, PutsTheFrontInOrder) {
  const PlanResult result = planned(capacities("1", "0.1") + kAllHit);
  ASSERT_FALSE(result.front.empty());
  EXPECT_EQ(result.front.front(), 0U);  // nothing is cheaper than recomputing
  EXPECT_EQ(result.trials[0].labels, (Lines{"recomputes", "-", "-"}));
  EXPECT_NEAR(result.trials[0].dollars_per_hour, 2, 1e-9);
  for (std::size_t i = 0; i < result.trials.size(); ++i) {
    bool is_beaten = false;
    for (const PlanTrial& other : result.trials) {
      is_beaten = is_beaten || (other.dollars_per_hour <= result.trials[i].dollars_per_hour &&
                                other.ttft_seconds.mean < result.trials[i].ttft_seconds.mean);
    }
    const bool in_front =
        std::find(result.front.begin(), result.front.end(), i) != result.front.end();
    EXPECT_FALSE(in_front && is_beaten) << i;
  }
}

// A system without stores is one configuration, not sixteen.
TEST_F(Planning, RunsEqualConfigurationsOnce) {
  const PlanResult result = planned(capacities("1", "0.1") + kAllHit);
  EXPECT_EQ(result.configurations, 32);
  EXPECT_EQ(result.full_runs, static_cast<std::int64_t>(result.trials.size()) * 2);
  int recomputing = 0;
  for (const PlanTrial& trial : result.trials) {
    recomputing += trial.labels[0] == "recomputes" ? 1 : 0;
  }
  EXPECT_EQ(recomputing, 1);
}

TEST_F(Planning, SaysHowLongTheDrivesLast) {
  const PlanResult result = planned(capacities("1", "0.1") + kAllHit +
                                    R"(, "endurance": {"drive_writes_per_day": 3, "years": 5})");
  const PlanTrial& trial = result.trials[*result.cheapest];
  double per_day = 0;
  for (int seed = 1; seed <= 2; ++seed) {
    ConfigRequest request;
    request.file = dir_.path("run.json");
    request.overrides = {{"/hardware/dram/capacity", "1GiB"}, {"/hardware/ssd/capacity", "8GiB"}};
    request.seed = seed;
    const ResolvedConfig config = resolve_config(request, presets(), builtin_policies());
    RunOptions options;
    options.base_dir = config.base_dir;
    const Json run = simulate(config.config, builtin_policies(), options);
    per_day += number_at(run, "/metrics/tiers/ssd/written_bytes") /
               number_at(run, "/load/measured_seconds") * 86400 / 2;
  }
  EXPECT_GT(per_day, 0);
  EXPECT_NEAR(*trial.ssd_bytes_per_day, per_day, 1e-9 * per_day);
  EXPECT_NEAR(*trial.drive_writes_per_day, per_day / (8.0 * (1 << 30)), 1e-9);
  EXPECT_NEAR(*trial.drive_life_years * *trial.drive_writes_per_day, 15, 1e-9);
  for (const PlanTrial& other : result.trials) {
    EXPECT_EQ(other.ssd_bytes_per_day.has_value(), other.labels[0] == "stores");
  }
}

/// Bought drives at 0.1 $/h/GiB over four years of service, with 1/50 of a drive write a day.
std::string worn(std::string axes, const std::string& slo) {
  const std::string by_hour = "0.1$/h/GiB";
  axes.replace(axes.find(by_hour), by_hour.size(), "3506.4$/GiB over 4y");
  return axes + slo + R"(, "endurance": {"drive_writes_per_day": 0.02, "years": 4})";
}

// The GPUs cost 2 $ an hour, a GiB of DRAM 1 $, and a GiB of SSD 0.1 $ if it lasts four years.
TEST_F(Planning, ReplacesBoughtDrivesAtTheEndOfTheirLife) {
  const Plan plan = load(worn(capacities("1", "0.1"), kAllHit));
  const PlanResult result = planned(plan);
  bool tries_larger_drives = false;
  for (const PlanTrial& trial : result.trials) {
    if (trial.labels[0] != "stores") {
      EXPECT_FALSE(trial.replacement_dollars_per_hour);
      continue;
    }
    const double dram = std::stod(trial.labels[1]);
    const double ssd = 0.1 * std::stod(trial.labels[2]);
    // Nothing is written if DRAM holds all.
    const double replacement =
        trial.drive_life_years ? ssd * std::max(4 / *trial.drive_life_years - 1, 0.0) : 0;
    EXPECT_NEAR(trial.replacement_dollars_per_hour.value_or(0), replacement, 1e-9);
    EXPECT_NEAR(trial.dollars_per_hour, 2 + dram + ssd + replacement, 1e-9);
    tries_larger_drives = tries_larger_drives || trial.labels == Lines{"stores", "1GiB", "16GiB"};
  }
  EXPECT_TRUE(tries_larger_drives);
  const PlanTrial& cheapest = result.trials[*result.cheapest];
  EXPECT_LT(*cheapest.drive_life_years, 4);
  const std::string table = to_table(plan, result);
  EXPECT_NE(table.find("  drive life y\n"), std::string::npos) << table;
  EXPECT_NE(
      table.find(fmt::format("\n  SSD: replaced every {:.3g} years, for {:.3f} $/h of the "
                             "{:.3f}\n",
                             *cheapest.drive_life_years, *cheapest.replacement_dollars_per_hour,
                             cheapest.dollars_per_hour)),
      std::string::npos)
      << table;
  const Json json = to_json(plan, result)["trials"][*result.cheapest];
  EXPECT_EQ(json["replacement_dollars_per_hour"], *cheapest.replacement_dollars_per_hour);
}

TEST_F(Planning, ChargesDrivesAtAnHourlyPriceWithoutReplacement) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit +
                         R"(, "endurance": {"drive_writes_per_day": 0.02, "years": 4})");
  const PlanResult result = planned(plan);
  const PlanTrial& trial = result.trials[*result.cheapest];
  EXPECT_NEAR(trial.dollars_per_hour, 3.8, 1e-9);
  EXPECT_FALSE(trial.replacement_dollars_per_hour);
  const std::string table = to_table(plan, result);
  EXPECT_NE(table.find("\n  SSD: priced by the hour, without replacement\n"), std::string::npos)
      << table;
}

// 8 GiB of SSD are enough for all hits. On 16 GiB a drive lasts twice as long.
TEST_F(Planning, MeetsAConditionOnTheLifeOfTheDrives) {
  const PlanResult any = planned(worn(capacities("1", "0.1"), kAllHit));
  const auto life_of = [](const PlanResult& result, const Lines& labels) {
    const auto found = std::ranges::find(result.trials, labels, &PlanTrial::labels);
    return found == result.trials.end() ? 0 : found->drive_life_years.value_or(0);
  };
  const double life = life_of(any, {"stores", "1GiB", "8GiB"});
  ASSERT_GT(life, 0);
  const PlanResult result = planned(
      worn(capacities("1", "0.1"),
           fmt::format(R"("slo": ["hit_rate.resumed_turns.total>=1", "drive_life_years>={}"])",
                       1.5 * life)));
  ASSERT_TRUE(result.cheapest);
  const PlanTrial& trial = result.trials[*result.cheapest];
  EXPECT_EQ(trial.labels, (Lines{"stores", "1GiB", "16GiB"}));
  EXPECT_NEAR(trial.values[1]->mean, *trial.drive_life_years, 1e-3 * *trial.drive_life_years);
  EXPECT_EQ(problems(capacities("1", "0.1") + R"("slo": ["turns>=1", "drive_life_years>=3"])"),
            Lines{"plan.json: /slo/1: drive_life_years needs /endurance"});
}

TEST_F(Planning, AdvisesALongerTraceIfARunIsTooShort) {
  const Lines lines = problems(R"("set": {"/workload/measure": "auto"},
      "axes": [{"name": "slots", "key": "/serving/slots", "values": [24]}],
      "replications": 2, "slo": ["turns>=1"])");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].ends_with("; expected a longer trace, or a smaller /workload/speed_up"))
      << lines[0];
}

// All nine hit with enough room, so the hit rate does not bind; no prompt takes a microsecond.
TEST_F(Planning, NamesTheBindingConditionIfNothingMeetsTheSlo) {
  const Plan plan = load(capacities("1", "0.1") +
                         R"("slo": ["hit_rate.resumed_turns.total>=1,ttft_seconds.mean<=1e-6"])");
  const PlanResult result = planned(plan);
  EXPECT_FALSE(result.cheapest);
  ASSERT_TRUE(result.binding);
  EXPECT_EQ(*result.binding, 1U);
  EXPECT_TRUE(result.curves.empty());
  EXPECT_NEAR(result.trials[result.nearest].hit_rate, 0.664908, 1e-6);
  const std::string table = to_table(plan, result);
  for (const char* part :
       {"No configuration meets the SLO. The nearest configuration misses ttft_seconds.mean <= "
        "1e-06.\n",
        "\nEvery configuration that was simulated misses ttft_seconds.mean <= 1e-06.\n"}) {
    EXPECT_NE(table.find(part), std::string::npos) << table;
  }
  const Json json = to_json(plan, result);
  EXPECT_EQ(json["format"], "kvtier.plan/1");
  EXPECT_EQ(json["feasible"], false);
  EXPECT_EQ(json["binding"], "ttft_seconds.mean <= 1e-06");
}

TEST_F(Planning, ShowsEachSystemAndTheReasonForItsExclusion) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit);
  const PlanResult result = planned(plan);
  ASSERT_EQ(result.systems.size(), 2U);
  EXPECT_EQ(result.systems[0].name, "attentionstore_lru");
  EXPECT_EQ(result.systems[0].trial, result.cheapest);
  EXPECT_EQ(result.systems[0].excluded_by, Lines{});
  EXPECT_EQ(result.systems[1].name, "recompute");
  EXPECT_EQ(result.systems[1].trial, 0U);  // the cheapest of all
  EXPECT_EQ(result.systems[1].excluded_by,
            Lines{"misses hit_rate.resumed_turns.total >= 1: 0 (0 to 0)"});
  const std::string table = to_table(plan, result);
  for (const char* part : {"\nname                system", "\nattentionstore_lru  stores",
                           "  meets the SLO, cheapest\nrecompute           recomputes  -",
                           "  misses hit_rate.resumed_turns.total >= 1: 0 (0 to 0)\n"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
  const Json json = to_json(plan, result);
  EXPECT_EQ(json["systems"][1]["name"], "recompute");
  EXPECT_EQ(json["systems"][1]["trial"], 0);
  EXPECT_EQ(json["systems"][1]["excluded_by"][0],
            "misses hit_rate.resumed_turns.total >= 1: 0 (0 to 0)");
  EXPECT_EQ(json["trials"][0]["system"], "recompute");
}

// The GPUs cost 2 $, with the least DRAM and SSD 3.2.
TEST_F(Planning, SaysHowMuchMoreASystemCosts) {
  const PlanResult result = planned(capacities("1", "0.1") + R"("slo": ["turns>=1"])");
  EXPECT_EQ(result.systems[0].excluded_by, Lines{"more expensive by 60.0 %"});
  EXPECT_EQ(result.trials[*result.systems[0].trial].labels, (Lines{"stores", "1GiB", "2GiB"}));
  EXPECT_EQ(result.systems[1].excluded_by, Lines{});
}

// One request at a time, of two a second.
const char* const kOverloaded =
    R"("set": {"/workload": {"generator": "sharegpt", "sessions": 300, "arrival_rate": "2/s"}},
    "axes": [{"name": "system", "key": "/system", "values": ["recompute", "attentionstore"]},
             {"name": "slots", "key": "/serving/slots", "values": [1]}],
    "replications": 2, )";

TEST_F(Planning, SaysThatTheLoadExceedsTheCapacityOfASystem) {
  const Plan plan = load(kOverloaded + std::string(R"("slo": ["ttft_seconds.p90<=2"])"));
  const PlanResult result = planned(plan);
  EXPECT_FALSE(result.cheapest);
  ASSERT_EQ(result.systems.size(), 2U);
  for (const PlanSystem& system : result.systems) {
    EXPECT_EQ(system.excluded_by, Lines{"load exceeds capacity"});
    ASSERT_TRUE(system.trial);
  }
  const std::string table = to_table(plan, result);
  EXPECT_NE(table.find("  load exceeds capacity\nattentionstore  attentionstore  1 "),
            std::string::npos)
      << table;
}

// Two values that differ by more than a sixth of their mean: 12.7 standard errors reach below 0.
TEST_F(Planning, PrintsNoTimesBelowZeroAndNoHitRatesAboveOne) {
  const Plan plan = load(
      R"("set": {"/workload": {"generator": "sharegpt", "sessions": 30, "arrival_rate": "0.02/s"}},
      "axes": [{"name": "slots", "key": "/serving/slots", "values": [1, 2, 4]}],
      "replications": 2, "slo": ["queueing_seconds.mean<=2", "hit_rate.all_turns.total<=1", "turns<=1"])");
  const PlanResult result = planned(plan);
  bool reached_below = false;
  bool reached_above = false;
  for (const PlanTrial& trial : result.trials) {
    const PlanInterval& queueing = *trial.values[0];
    const PlanInterval& hits = *trial.values[1];
    reached_below = reached_below || queueing.low == 0;
    reached_above = reached_above || hits.high == 1;
    EXPECT_GE(queueing.low, 0);
    EXPECT_LE(hits.high, 1);
    EXPECT_GE(trial.ttft_seconds.low, 0);
  }
  EXPECT_TRUE(reached_below);
  EXPECT_TRUE(reached_above);
  const Json json = to_json(plan, result);
  for (const Json& trial : json["trials"]) {
    EXPECT_GE(number_at(trial, "/ttft_seconds/low"), 0);
    EXPECT_GE(number_at(trial, "/conditions/0/value/low"), 0);
    EXPECT_LE(number_at(trial, "/conditions/1/value/high"), 1);
  }
  EXPECT_EQ(to_table(plan, result).find("(-"), std::string::npos) << to_table(plan, result);
}

// With two seeds an interval is 12.7 standard errors to each side: a mean may meet what the
// interval does not.
TEST_F(Planning, TakesTheWholeIntervalForAnswer) {
  const std::string axes = R"("set": {"/workload": {"generator": "sharegpt", "sessions": 2000,
                                  "arrival_rate": "0.2/s", "sharegpt": {"single_turn_fraction": 1}}},
    "axes": [{"name": "slots", "key": "/serving/slots", "values": [24]}],
    "replications": 2, )";
  const auto of = [&](double seconds) {
    return planned(axes + R"("slo": ["/load/measured_seconds<=)" + std::to_string(seconds) +
                   R"("])")
        .trials.at(0);
  };
  const PlanInterval interval = *of(1e9).values[0];
  ASSERT_GT(interval.high - interval.mean, 1);
  EXPECT_TRUE(of(interval.high + 1).meets);
  EXPECT_FALSE(of(interval.high - 1).meets);
  EXPECT_FALSE(of(interval.mean).meets);
}

TEST_F(Planning, GivesTheSameBytesTwice) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit);
  const PlanResult a = planned(plan);
  const PlanResult b = planned(plan);
  EXPECT_EQ(to_json(plan, a).dump(), to_json(plan, b).dump());
  EXPECT_EQ(to_table(plan, a), to_table(plan, b));
}

TEST_F(Planning, IsTheSameForAnyNumberOfThreads) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit);
  const std::string one = to_json(plan, planned(plan)).dump();
  for (const std::int64_t jobs : {2, 7}) {
    PlanOptions options;
    options.jobs = jobs;
    EXPECT_EQ(to_json(plan, make_plan(plan, presets(), builtin_policies(), options)).dump(), one);
  }
}

TEST_F(Planning, ContinuesFromKeptRuns) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit);
  PlanOptions options;
  options.out = dir_.path("whole");
  const PlanResult whole = make_plan(plan, presets(), builtin_policies(), options);

  options.out = dir_.path("part");
  options.jobs = 2;
  options.progress = [](std::int64_t runs) {
    if (runs >= 5) {
      throw std::runtime_error("ended");
    }
  };
  EXPECT_THROW((void)make_plan(plan, presets(), builtin_policies(), options), std::runtime_error);
  EXPECT_TRUE(std::filesystem::exists(dir_.path("part") / "results.jsonl.partial"));
  options.resume = true;
  std::int64_t first = 0;
  options.progress = [&](std::int64_t runs) { first = first == 0 ? runs : first; };
  const PlanResult resumed = make_plan(plan, presets(), builtin_policies(), options);
  EXPECT_GE(first, 5);
  EXPECT_EQ(to_json(plan, resumed).dump(), to_json(plan, whole).dump());
  for (const char* name : {"plan.json", "results.jsonl", "plan-result.json"}) {
    EXPECT_EQ(read_text_file(dir_.path("part") / name), read_text_file(dir_.path("whole") / name))
        << name;
  }
  // Everything is there now, so that nothing is run.
  options.progress = [](std::int64_t) { throw std::runtime_error("a run"); };
  EXPECT_EQ(to_json(plan, make_plan(plan, presets(), builtin_policies(), options)).dump(),
            to_json(plan, whole).dump());
}

TEST_F(Planning, RunsDamagedTrialsAgainAndReportsThem) {
  const Plan plan = load(capacities("1", "0.1") + kAllHit);
  PlanOptions options;
  options.out = dir_.path("out");
  const PlanResult whole = make_plan(plan, presets(), builtin_policies(), options);
  const std::string text = read_text_file(dir_.path("out/results.jsonl"));
  options.resume = true;
  Lines told;
  options.tell = [&](const std::string& message) { told.push_back(message); };
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    const std::string line = text.substr(begin, text.find('\n', begin) - begin);
    std::string changed = line;
    changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 1);
    const std::vector<std::string> others{changed, "", R"({"run":1,"result":null})",
                                          sealed_line({{"run", 1}, {"result", 2}}),
                                          sealed_line({{"run", "x"}, {"result", Json()}})};
    constexpr std::size_t kStep = 9;
    if (number++ % kStep != 0) {
      continue;
    }
    const std::string& other = others[number / kStep % others.size()];
    dir_.write("out/results.jsonl",
               text.substr(0, begin) + other + text.substr(begin + line.size()));
    told.clear();
    const PlanResult result = make_plan(plan, presets(), builtin_policies(), options);
    EXPECT_EQ(to_json(plan, result).dump(), to_json(plan, whole).dump()) << other;
    EXPECT_EQ(read_text_file(dir_.path("out/results.jsonl")), text) << other;
    EXPECT_EQ(told.size(), 1U) << other;
  }
  EXPECT_GT(number, 30U);
}

TEST_F(Planning, TakesNoFolderOfAnotherPlan) {
  const auto refused = [&](const Plan& plan, bool resume) {
    PlanOptions options;
    options.out = dir_.path("out");
    options.resume = resume;
    try {
      (void)make_plan(plan, presets(), builtin_policies(), options);
    } catch (const ConfigError& error) {
      std::string text = error.what();
      const std::string folder = dir_.path("").string();
      for (std::size_t at = 0; (at = text.find(folder)) != std::string::npos;) {
        text.erase(at, folder.size());
      }
      return text;
    }
    return std::string();
  };
  const std::string axes =
      R"("axes": [{"name": "slots", "key": "/serving/slots", "values": [24]}], "replications": 2, )";
  const Plan plan = load(axes + R"("slo": ["turns>=1"])");
  EXPECT_EQ(refused(plan, false), "");
  EXPECT_EQ(refused(plan, false),
            "--out: out has results of a plan (plan.json); --resume completes them");
  EXPECT_EQ(refused(load(axes + R"("slo": ["turns>=1"], "screening": 0.5)"), true),
            "--out: out has another plan; not the same: screening");
  // Another SLO is another question about the same runs.
  EXPECT_EQ(refused(load(axes + R"("slo": ["turns>=2"])"), true), "");
}

// One tier of DRAM evicted by LRU. Of 4, 8, 16 and 32 GiB the first holds five conversations, so
// that none is there when its turn comes (0 % of the turns), and the second all nine (every other
// turn, 50 %): no more can be found on the others. So one configuration is left to simulate.
TEST_F(Planning, ScreensByTheCurveOfLru) {
  const auto plan_of = [&](const std::string& slo, const std::string& eviction) {
    return load(R"("set": {"/system/tiers/ssd": "none",
                           "/system/tiers/dram/eviction": ")" +
                eviction + R"("},
      "axes": [{"name": "DRAM", "key": "/hardware/dram/capacity",
                "values": ["4GiB", "8GiB", "16GiB", "32GiB"]}],
      "capacities": ["DRAM"], "replications": 2, "slo": [")" +
                slo + R"("])");
  };
  const Plan plan = plan_of("hit_rate.all_turns.total>=0.5", "lru");
  const PlanResult result = planned(plan);
  ASSERT_EQ(result.screened.size(), 3U);
  EXPECT_EQ(result.screened[0].labels, Lines{"4GiB"});
  EXPECT_EQ(result.screened[0].reason,
            "LRU hits 0.0 % of the turns there, the SLO asks for 50.0 %");
  EXPECT_EQ(result.screened[1].labels, Lines{"16GiB"});
  EXPECT_EQ(result.screened[2].labels, Lines{"32GiB"});
  EXPECT_EQ(result.screened[1].reason,
            "LRU finds all that it can find, 50.0 % of the turns, at \"8GiB\" already");
  EXPECT_EQ(result.screened[2].reason, result.screened[1].reason);
  ASSERT_TRUE(result.cheapest);
  EXPECT_EQ(result.trials[*result.cheapest].labels, Lines{"8GiB"});
  EXPECT_EQ(result.trials.size(), 1U);
  EXPECT_EQ(result.full_runs, 2);
  EXPECT_NE(to_table(plan, result)
                .find("not simulated: 4GiB: LRU hits 0.0 % of the turns there, the SLO asks for "
                      "50.0 %\n"),
            std::string::npos);
  EXPECT_EQ(to_json(plan, result)["screened"][1]["axes"]["DRAM"], "16GiB");

  // The curve is of LRU, so that of another policy all is simulated; to the same answer.
  const PlanResult other = planned(plan_of("hit_rate.all_turns.total>=0.5", "fifo"));
  EXPECT_TRUE(other.screened.empty());
  EXPECT_EQ(other.trials[*other.cheapest].labels, Lines{"8GiB"});

  const Plan impossible = plan_of("hit_rate.all_turns.total>=0.6", "lru");
  const PlanResult none = planned(impossible);
  EXPECT_FALSE(none.cheapest);
  EXPECT_EQ(none.screened.size(), 4U);
  EXPECT_EQ(none.full_runs, 0);
  EXPECT_NE(to_table(impossible, none)
                .find("No configuration meets the SLO, by the curves of LRU alone.\n"),
            std::string::npos);
  EXPECT_EQ(to_json(impossible, none)["cheapest"], Json());
}

// A model of 24.2 GiB does not fit into two GPUs of 8 GiB: that server is left out and reported.
TEST_F(Planning, LeavesOutRefusedConfigurations) {
  const std::string axes = R"("axes": [
    {"name": "GPU", "key": "/hardware/hbm/capacity", "values": ["8GiB", "80GiB"]}], )";
  const Plan plan = load(axes + kAllHit);
  const PlanResult result = planned(plan);
  EXPECT_EQ(result.trials.size(), 1U);
  ASSERT_EQ(result.refused.size(), 1U);
  EXPECT_NE(to_table(plan, result).find("refused: /hardware/hbm/capacity: model llama2-13b needs"),
            std::string::npos);
}

TEST_F(Planning, NamesEveryProblemOfAFile) {
  EXPECT_EQ(problems(R"("axs": [], "replications": 1, "screening": 0)"),
            (Lines{"plan.json: /axes: missing key", "plan.json: /slo: missing key",
                   "plan.json: /replications: expected a whole number >= 2 and <= 1000, got 1",
                   "plan.json: /screening: expected a number >= 0.01 and <= 1, got 0",
                   "plan.json: /axs: unknown key (did you mean \"axes\"?)"}));
  const std::string axes = R"("axes": [{"name": "DRAM", "key": "/hardware/dram/capacity",
    "values": ["2GiB", "1GiB"]}], )";
  EXPECT_EQ(problems(axes + R"("capacities": ["DRM", "DRAM", "DRAM"], "slo": ["ttft"])"),
            (Lines{"plan.json: /capacities/0: no axis is called \"DRM\" (did you mean \"DRAM\"?)",
                   "plan.json: /capacities/2: \"DRAM\" is given twice",
                   "plan.json: /slo/0: expected METRIC<=NUMBER or METRIC>=NUMBER, such as "
                   "ttft_seconds.p90<=2, got \"ttft\""}));
  EXPECT_EQ(problems(axes + R"("slo": [])"),
            Lines{"plan.json: /slo: expected one condition at least, got []"});
  EXPECT_EQ(problems(axes + R"("capacities": ["DRAM"], "slo": ["turns>=1"])"),
            Lines{"plan.json: /axes/0/values/1: costs less than \"2GiB\": the values of a capacity "
                  "go from the least to the most"});
  EXPECT_EQ(problems(axes + R"("slo": ["trns>=1"])"),
            Lines{"plan.json: /slo: the result has no number \"trns\" (did you mean \"turns\"?)"});
}

}  // namespace
}  // namespace kvtier::test
