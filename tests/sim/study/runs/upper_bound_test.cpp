/// The upper bound on what tiers can find: against exact answers on tiny traces, and against every
/// policy on random replays.

#include "sim/study/runs/upper_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/core/rng.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/study/runs/bound.hpp"
#include "tests/sim/study/untimed_replay.hpp"

namespace kvtier::test {
namespace {

using Intervals = std::vector<StoredInterval>;

bool fits(const Intervals& intervals, std::uint32_t chosen, double capacity) {
  for (std::int64_t gap = 0; gap < 64; ++gap) {
    double bytes = 0;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      const bool is_held =
          (chosen >> i & 1U) != 0 && intervals[i].begin <= gap && gap < intervals[i].end;
      bytes += is_held ? intervals[i].bytes : 0;
    }
    if (bytes > capacity) {
      return false;
    }
  }
  return true;
}

/// The best of all choices.
std::int64_t optimum(const Intervals& intervals, double capacity) {
  std::int64_t best = 0;
  for (std::uint32_t chosen = 0; chosen < 1U << intervals.size(); ++chosen) {
    std::int64_t value = 0;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      value += (chosen >> i & 1U) != 0 ? intervals[i].value : 0;
    }
    if (value > best && fits(intervals, chosen, capacity)) {
      best = value;
    }
  }
  return best;
}

/// The linear program as a flow of `capacity` bytes from the first gap to the last: each byte takes
/// an interval, which gains its value per byte, or waits in a gap for nothing. Augments the path
/// that gains most, found by Bellman and Ford's rule, until nothing is left to flow.
double linear_program(const Intervals& intervals, double capacity, std::int64_t gaps) {
  struct Edge {
    std::size_t from;
    std::size_t to;
    double room;
    double gain;
  };
  std::vector<Edge> edges;  // each followed by its reverse
  const auto add = [&](std::int64_t from, std::int64_t to, double room, double gain) {
    edges.push_back({static_cast<std::size_t>(from), static_cast<std::size_t>(to), room, gain});
    edges.push_back({static_cast<std::size_t>(to), static_cast<std::size_t>(from), 0, -gain});
  };
  for (std::int64_t gap = 0; gap < gaps; ++gap) {
    add(gap, gap + 1, capacity, 0);
  }
  for (const StoredInterval& interval : intervals) {
    add(interval.begin, interval.end, interval.bytes,
        static_cast<double>(interval.value) / interval.bytes);
  }
  constexpr double kNothing = 1e-9;
  double value = 0;
  for (double left = capacity; left > kNothing;) {
    const auto nodes = static_cast<std::size_t>(gaps) + 1;
    std::vector<double> gain(nodes, -std::numeric_limits<double>::infinity());
    std::vector<std::size_t> by(nodes, edges.size());
    gain[0] = 0;
    for (std::size_t round = 0; round < nodes; ++round) {
      for (std::size_t e = 0; e < edges.size(); ++e) {
        const Edge& edge = edges[e];
        if (edge.room > kNothing && gain[edge.from] + edge.gain > gain[edge.to] + kNothing) {
          gain[edge.to] = gain[edge.from] + edge.gain;
          by[edge.to] = e;
        }
      }
    }
    double flow = left;
    for (std::size_t at = nodes - 1; at != 0; at = edges[by[at]].from) {
      flow = std::min(flow, edges[by[at]].room);
    }
    for (std::size_t at = nodes - 1; at != 0; at = edges[by[at]].from) {
      edges[by[at]].room -= flow;
      edges[by[at] ^ 1U].room += flow;
    }
    value += flow * gain[nodes - 1];
    left -= flow;
  }
  return value;
}

// Two intervals over the same gap, of 2 and 3 bytes, and one of 5 over another. Of 4 bytes one of
// the first two fits whole, and a part of the other: 1 + 2/3 hits, and 4/5 of the third.
TEST(MostValue, IsTheLinearProgramRoundedDown) {
  const Intervals intervals{{0, 1, 2, 1}, {0, 1, 3, 1}, {1, 2, 5, 1}};
  EXPECT_NEAR(linear_program(intervals, 4, 2), 1 + 2.0 / 3 + 4.0 / 5, 1e-9);
  EXPECT_EQ(most_value(intervals, 4), 2);
  EXPECT_EQ(optimum(intervals, 4), 1);
  EXPECT_EQ(most_value(intervals, 5), 3);
  EXPECT_EQ(optimum(intervals, 5), 3);
  EXPECT_EQ(most_value({}, 5), 0);
}

TEST(MostValue, IsTheOptimumOrLittleAboveItOnTinyTraces) {
  RandomStream dice(1, "tiny traces");
  std::int64_t equal_to_program = 0;
  std::int64_t equal_to_optimum = 0;
  constexpr std::int64_t kTraces = 400;
  for (std::int64_t trace = 0; trace < kTraces; ++trace) {
    const std::int64_t gaps = 3 + dice.index(9);
    Intervals intervals;
    const std::int64_t count = 1 + dice.index(11);
    const bool tokens = dice.index(2) == 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = dice.index(gaps);
      const std::int64_t end = begin + 1 + dice.index(gaps - begin);
      const std::int64_t bytes = 1 + dice.index(9);
      intervals.push_back(
          {begin, end, static_cast<double>(bytes), tokens ? 1 + dice.index(1'000) : 1});
    }
    const auto capacity = static_cast<double>(1 + dice.index(20));
    const std::int64_t bound = most_value(intervals, capacity);
    const std::int64_t best = optimum(intervals, capacity);
    const double program = linear_program(intervals, capacity, gaps);
    ASSERT_GE(program, static_cast<double>(best) - 1e-6) << trace;
    ASSERT_GE(bound, static_cast<std::int64_t>(std::floor(program + 1e-9))) << trace;
    ASSERT_LE(static_cast<double>(bound), program * 1.02) << trace;
    equal_to_program += bound == static_cast<std::int64_t>(std::floor(program + 1e-9)) ? 1 : 0;
    equal_to_optimum += bound == best ? 1 : 0;
  }
  EXPECT_GE(equal_to_program, kTraces * 8 / 10);
  EXPECT_GE(equal_to_optimum, kTraces / 3);
}

/// With sizes that divide the capacity the program has a whole solution, which Belady finds.
TEST(MostValue, IsBeladyWithinThreePercentOnEntriesOfOneSize) {
  for (const std::int64_t entries : {3, 17, 64, 301}) {
    const Replay run = replay(one_tier(Placement::dram, "belady", entries));
    Intervals intervals;
    std::map<std::int64_t, std::int64_t> last;
    for (std::size_t i = 0; i < run.accesses.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const auto [found, is_first] = last.emplace(run.accesses[i].session, at);
      if (!is_first) {
        intervals.push_back({found->second, at, 1, 1});
        found->second = at;
      }
    }
    const std::int64_t bound = most_value(intervals, static_cast<double>(entries));
    EXPECT_GE(bound, run.hit_count());
    EXPECT_LE(static_cast<double>(bound), 1.03 * static_cast<double>(run.hit_count())) << entries;
  }
}

/// Every policy that an untimed replay can run, with each admission, on entries that grow, are cut,
/// lie in one tier or two, and leave copies behind.
TEST(UpperBound, HoldsForEveryPolicyOnEntriesOfAnySize) {
  const PolicyRegistry registry = builtin_policies();
  RandomStream dice(1, "upper bound");
  std::int64_t nearest = 0;
  std::int64_t below_greedy = 0;
  for (std::int64_t trace = 1; trace <= 300; ++trace) {
    const auto pick = [&](std::initializer_list<const char*> values) {
      return std::string(values.begin()[dice.index(static_cast<std::int64_t>(values.size()))]);
    };
    RunConfig config =
        resolved("examples/planner-70.json",
                 {"/system=attentionstore_lru", "/model/layers=8", "/model/kv_heads=8",
                  "/model/context_window=" + pick({"1024tokens", "2048tokens", "16384tokens"}),
                  "/serving/keep_first_tokens=" + pick({"0tokens", "64tokens"}),
                  "/serving/kv_reservation=" + pick({"exact", "exact", "exact", "context_window"}),
                  "/system/positions=" + pick({"decoupled", "embedded"}), "/system/prefetch=none",
                  "/system/tiers/dram/inclusive=" + pick({"true", "false"}),
                  "/system/tiers/ssd/inclusive=" + pick({"true", "false"}),
                  "/system/tiers/dram/block_size=" + pick({"1tokens", "16tokens", "700tokens"}),
                  "/system/tiers/ssd/block_size=" + pick({"16tokens", "64tokens"}),
                  fmt::format("/seed={}", trace)});
    config.workload.sessions = 10 + dice.index(50);
    config.workload.warmup_turns = dice.index(2) * 20;
    config.workload.arrival_rate = PerSecond(0.02 + dice.uniform());
    const Bytes token = kv_bytes_per_token(config.model);
    const Tokens window = config.model.context_window;
    config.hardware.dram->capacity = token * (window.value + dice.index(40'000));
    config.hardware.ssd->capacity = token * (window.value + dice.index(40'000));
    const std::int64_t tiers = dice.index(3);
    if (tiers == 0) {
      config.system.tiers.ssd.reset();
    } else if (tiers == 1) {
      config.system.tiers.dram.reset();
    }
    const auto run = [&](const std::string& eviction, const std::string& admission) {
      for (auto* tier : {&config.system.tiers.dram, &config.system.tiers.ssd}) {
        if (*tier) {
          (*tier)->eviction.name = eviction;
          (*tier)->admission.name = admission;
        }
      }
      return simulate_untimed(config, registry);
    };
    const Json greedy = run("belady", "always");
    const Json bound = bound_of(config, greedy, registry, {});
    const auto check = [&](const Json& result, const std::string& policies) {
      for (const char* among : {"all_turns", "resumed_turns", "tokens"}) {
        const Json& most = bound["upper_bound"]["hit_rate"][among];
        const Json& found = result["metrics"]["hit_rate"][among]["total"];
        if (most.is_number()) {
          EXPECT_LE(found.get<double>(), most.get<double>() + 1e-12)
              << among << ", " << policies << ", trace " << trace;
        }
      }
      const Json& most = bound["upper_bound"]["hit_rate"]["all_turns"];
      nearest += result["metrics"]["hit_rate"]["all_turns"]["total"] == most ? 1 : 0;
      below_greedy += number_at(result, "/metrics/hit_rate/all_turns/total") >
                              number_at(greedy, "/metrics/hit_rate/all_turns/total")
                          ? 1
                          : 0;
    };
    check(greedy, "belady");
    for (const auto& kind : registry.eviction) {
      if (!kind.parts_of_entries && kind.knowledge != Knowledge::oracle) {
        check(run(kind.name, "always"), kind.name);
      }
    }
    for (const auto& kind : registry.admission) {
      check(run("lru", kind.name), "lru, " + kind.name);
    }
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(nearest, 100);     // it is no higher than need be
  EXPECT_GT(below_greedy, 0);  // and the greedy one is no bound
}

/// A preset on a few sessions, in tiers that hold some of them.
RunConfig random_world(const std::string& system, RandomStream& dice) {
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[dice.index(static_cast<std::int64_t>(values.size()))];
  };
  const auto tier = [&] { return fmt::format("{}MiB", 850 + dice.index(one_of({1'000, 10'000}))); };
  const std::vector<std::string> settings{
      "/system=" + system,
      fmt::format("/hardware/cxl={{\"capacity\": \"{}\", \"price\": \"0$/h/GiB\", "
                  "\"bandwidth\": {{\"read\": \"64GB/s\", \"write\": \"64GB/s\", "
                  "\"both\": \"128GB/s\"}}}}",
                  tier()),
      "/hardware/dram/capacity=" + tier(),
      "/hardware/ssd/capacity=" + tier(),
      "/model/context_window=1024tokens",
      fmt::format("/serving/keep_first_tokens={}tokens", one_of({0, 64})),
      std::string("/system/positions=") + (dice.index(4) == 0 ? "embedded" : "decoupled"),
      fmt::format("/workload/sessions={}", 3 + dice.index(25)),
      fmt::format("/workload/warmup_turns={}", one_of({0, 1, 2, 5, 10})),
      fmt::format("/workload/arrival_rate={}/s", 0.02 + dice.uniform()),
      fmt::format("/seed={}", 1 + dice.index(1'000'000))};
  RunConfig config = resolved("examples/planner-70.json", settings);
  const auto shrink = [&](auto& tier_config) {
    if (tier_config) {
      tier_config->blocks.emplace(tier_config->blocks.value_or(BlockTierConfig{})).capacity =
          KvSize{KvSize::Unit::tokens, 1'100 + dice.index(one_of({500, 3'000}))};
    }
  };
  if (config.system.blocks) {
    shrink(config.system.tiers.hbm);
    shrink(config.system.tiers.dram);
    shrink(config.system.tiers.ssd);
    if (dice.index(3) == 0) {
      config.workload.generator = Generator::multi_turn;
      config.workload.multi_turn = {.rounds = 1 + dice.index(5),
                                    .common_prefix_tokens = Tokens(one_of({0, 37, 200})),
                                    .client_prefix_tokens = Tokens(20),
                                    .user_tokens = Tokens(10 + dice.index(80)),
                                    .response_tokens = Tokens(1 + dice.index(60))};
    }
  } else if (config.system.tiers.hbm) {
    config.system.tiers.hbm->capacity = Bytes((std::int64_t{1} << 20) * (850 + dice.index(4'000)));
  }
  return config;
}

TEST(UpperBound, HoldsForEveryPresetInRandomWorlds) {
  const PolicyRegistry registry = builtin_policies();
  RandomStream dice(1, "worlds");
  std::int64_t reached = 0;
  std::int64_t refused = 0;
  constexpr std::int64_t kWorlds = 15;
  for (const std::string& system : presets().names("systems")) {
    for (std::int64_t world = 0; world < kWorlds; ++world) {
      const RunConfig config = random_world(system, dice);
      Json result;
      try {
        result = simulate_untimed(config, registry);
      } catch (const ConfigError& error) {
        ASSERT_NE(std::string(error.what()).find("/workload/warmup_turns"), std::string::npos)
            << error.what();
        ++refused;
        continue;
      }
      if (config.system.sharing == Sharing::prompts) {
        EXPECT_THROW(static_cast<void>(bound_of(config, result, registry, {})), ConfigError);
        break;
      }
      const Json bound = bound_of(config, result, registry, {});
      const bool of_blocks = config.system.blocks.has_value();
      const Json& most = of_blocks ? bound["hit_rate"] : bound["upper_bound"]["hit_rate"];
      for (const auto& [among, rate] : most.items()) {
        const double found = number_at(result, fmt::format("/metrics/hit_rate/{}/total", among));
        if (rate.is_number()) {
          EXPECT_LE(found, rate.get<double>() + 1e-12)
              << system << ", " << among << ", world " << world;
          reached += found > 0 && found >= rate.get<double>() - 1e-12 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(reached, 100);  // it is no higher than need be
  EXPECT_LT(refused, 100);
}

TEST(UpperBound, OfASystemThatKeepsNothingIsZero) {
  const RunConfig config =
      resolved("examples/planner-70.json", {"/system=recompute", "/workload/sessions=5"});
  const Json result = simulate_untimed(config, builtin_policies());
  const Json bound = bound_of(config, result, builtin_policies(), {});
  EXPECT_EQ(bound["hit_blocks"], 0);
  EXPECT_EQ(bound["hit_rate"]["blocks"], 0.0);
  EXPECT_EQ(bound["share_reached"]["blocks"], 0.0);
}

TEST(UpperBound, IsRefusedForSharedPrompts) {
  RunConfig config =
      resolved("examples/planner-70.json",
               {"/system=attentionstore", "/system/sharing=prompts",
                R"(/system/tiers={"hbm": {"capacity": "4GiB"}})", "/system/prefetch=none",
                "/system/load/buffers=0", "/workload/sessions=5"});
  const Json result = simulate_untimed(config, builtin_policies());
  try {
    static_cast<void>(bound_of(config, result, builtin_policies(), {}));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(
        error.what(),
        "/system/sharing: expected \"none\": a bound needs the next use of stored KV, which is "
        "unknown for shared prompts");
  }
}

/// On a real size of trace it is near to what Belady finds greedily, and so is the optimum.
TEST(UpperBound, IsNearTheGreedyOneOnLongTraces) {
  for (const char* capacity : {"1GiB", "4GiB", "16GiB"}) {
    RunConfig config = one_tier(Placement::dram, "lru", 1);
    config.serving.kv_reservation = Reservation::exact;
    config.hardware.dram->capacity = *parse_quantity<Bytes>(capacity);
    const Json result = simulate_untimed(config, builtin_policies());
    const Json bound = bound_of(config, result, builtin_policies(), {});
    EXPECT_EQ(bound["name"], "Belady, greedy");
    EXPECT_EQ(bound["is_optimum"], false);
    for (const char* among : {"all_turns", "tokens"}) {
      const double most = number_at(bound["upper_bound"]["hit_rate"], std::string("/") + among);
      const double greedy = number_at(bound["hit_rate"][among], "/total");
      EXPECT_GE(most, greedy) << capacity << ", " << among;
      if (std::string(among) == "all_turns") {
        EXPECT_LT(most, 1.1 * greedy) << capacity;
      }
    }
  }
}

/// If Belady is optimal, its hits of turns equal the bound; its tokens are not the most.
TEST(UpperBound, IsBeladysIfThatIsTheOptimum) {
  RunConfig config = one_tier(Placement::dram, "lru", 30);
  const Json result = simulate_untimed(config, builtin_policies());
  const Json bound = bound_of(config, result, builtin_policies(), {});
  EXPECT_EQ(bound["name"], "Belady");
  EXPECT_EQ(bound["is_optimum"], true);
  EXPECT_EQ(bound["upper_bound"]["hit_rate"]["all_turns"], bound["hit_rate"]["all_turns"]["total"]);
  EXPECT_EQ(bound["upper_bound"]["share_reached"]["all_turns"],
            bound["share_reached"]["all_turns"]);
  EXPECT_GE(number_at(bound, "/upper_bound/hit_rate/tokens"),
            number_at(bound, "/hit_rate/tokens/total"));
  // Belady also keeps what only a turn of the warm-up needs.
  config.workload.warmup_turns = 100;
  EXPECT_EQ(bound_of(config, simulate_untimed(config, builtin_policies()), builtin_policies(),
                     {})["name"],
            "Belady, greedy");
}

}  // namespace
}  // namespace kvtier::test
