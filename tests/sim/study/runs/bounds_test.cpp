/// Untimed replays against their bounds: the offline optimum, and the LRU curve of one pass. One
/// tier of equal entries (see untimed_oracles_test.cpp), and then entries of any size.

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/replay/miss_ratio_curve.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/study/runs/bound.hpp"
#include "tests/sim/study/untimed_replay.hpp"

namespace kvtier::test {
namespace {

// ---- The models ----

/// For each access the place of the session's next one, or their number if there is none.
std::vector<std::size_t> next_accesses(const std::vector<Access>& accesses) {
  std::vector<std::size_t> next(accesses.size(), accesses.size());
  std::map<std::int64_t, std::size_t> later;
  for (std::size_t i = accesses.size(); i-- > 0;) {
    if (const auto found = later.find(accesses[i].session); found != later.end()) {
      next[i] = found->second;
    }
    later[accesses[i].session] = i;
  }
  return next;
}

/// Belady: among the cached sessions and the newcomer, the one with the latest next use stays out.
std::vector<bool> furthest_leaves(const std::vector<Access>& accesses, std::size_t capacity) {
  const std::vector<std::size_t> next = next_accesses(accesses);
  std::map<std::int64_t, std::size_t> cache;  // session and its next access
  std::vector<bool> hits;
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    hits.push_back(cache.erase(accesses[i].session) == 1);
    cache[accesses[i].session] = next[i];
    if (cache.size() > capacity) {
      cache.erase(std::max_element(cache.begin(), cache.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      }));
    }
  }
  return hits;
}

std::vector<bool> plain_lfu(const std::vector<Access>& accesses, std::size_t capacity) {
  struct Use {
    std::size_t count;
    std::size_t last;
  };
  std::map<std::int64_t, Use> cache;
  std::vector<bool> hits;
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const auto found = cache.find(accesses[i].session);
    hits.push_back(found != cache.end());
    if (found != cache.end()) {
      found->second = {found->second.count + 1, i};
      continue;
    }
    if (cache.size() == capacity) {
      cache.erase(std::min_element(cache.begin(), cache.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.count, a.second.last) < std::pair(b.second.count, b.second.last);
      }));
    }
    cache[accesses[i].session] = {0, i};
  }
  return hits;
}

/// A circle that is cut at the newest: the hand is an index into the entries as they came.
std::vector<bool> plain_sieve(const std::vector<Access>& accesses, std::size_t capacity) {
  struct Entry {
    std::int64_t session;
    bool visited;
  };
  std::vector<Entry> queue;
  std::size_t hand = 0;
  std::vector<bool> hits;
  for (const Access& access : accesses) {
    const auto found = std::find_if(queue.begin(), queue.end(), [&](const Entry& entry) {
      return entry.session == access.session;
    });
    hits.push_back(found != queue.end());
    if (found != queue.end()) {
      found->visited = true;
      continue;
    }
    if (queue.size() == capacity) {
      while (true) {
        hand = hand == queue.size() ? 0 : hand;
        if (!queue[hand].visited) {
          break;
        }
        queue[hand++].visited = false;
      }
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(hand));
      // Past the newest the hand begins again, before the newcomer comes.
      hand = hand == queue.size() ? 0 : hand;
    }
    queue.push_back({access.session, false});
  }
  return hits;
}

/// The paper's Algorithm 1 over entries of one size: the small queue is full from a tenth on, and
/// nine tenths of the capacity are remembered.
std::vector<bool> plain_s3fifo(const std::vector<Access>& accesses, std::size_t capacity) {
  std::deque<std::int64_t> small;
  std::deque<std::int64_t> main;
  std::deque<std::int64_t> ghosts;
  std::map<std::int64_t, int> uses;  // of those in a queue
  const auto evict = [&] {
    while (true) {
      if (!small.empty() && (10 * small.size() >= capacity || main.empty())) {
        const std::int64_t session = small.front();
        small.pop_front();
        if (uses[session] > 1) {
          uses[session] = 0;
          main.push_back(session);
          continue;
        }
        uses.erase(session);
        ghosts.push_back(session);
        while (10 * ghosts.size() > 9 * capacity) {
          ghosts.pop_front();
        }
        return;
      }
      const std::int64_t session = main.front();
      main.pop_front();
      if (uses[session] == 0) {
        uses.erase(session);
        return;
      }
      --uses[session];
      main.push_back(session);
    }
  };
  std::vector<bool> hits;
  for (const Access& access : accesses) {
    const auto found = uses.find(access.session);
    hits.push_back(found != uses.end());
    if (found != uses.end()) {
      found->second = std::min(3, found->second + 1);
      continue;
    }
    if (uses.size() == capacity) {
      evict();
    }
    const auto ghost = std::find(ghosts.begin(), ghosts.end(), access.session);
    (ghost != ghosts.end() ? main : small).push_back(access.session);
    if (ghost != ghosts.end()) {
      ghosts.erase(ghost);
    }
    uses[access.session] = 0;
  }
  return hits;
}

using Model = std::vector<bool> (*)(const std::vector<Access>&, std::size_t);

void expect_same_turn_by_turn(const std::string& policy, Model model) {
  for (const Placement place : {Placement::dram, Placement::ssd}) {
    for (const std::int64_t capacity : {1, 2, 3, 17, 64, 301}) {
      for (const bool inclusive : {false, true}) {
        RunConfig config = one_tier(place, policy, capacity);
        for (auto* tier : {&config.system.tiers.dram, &config.system.tiers.ssd}) {
          if (*tier) {
            (*tier)->inclusive = inclusive;
          }
        }
        const Replay run = replay(config);
        EXPECT_EQ(run.hits, model(run.accesses, static_cast<std::size_t>(capacity)))
            << policy << ", " << capacity << " entries, inclusive " << inclusive;
      }
    }
  }
}

// ---- Policies ----

TEST(UntimedBelady, IsTheFurthestNextUseTurnByTurn) {
  expect_same_turn_by_turn("belady", furthest_leaves);
}

TEST(UntimedLfu, IsACountOfUsesTurnByTurn) { expect_same_turn_by_turn("lfu", plain_lfu); }

TEST(UntimedSieve, IsThePapersHandTurnByTurn) { expect_same_turn_by_turn("sieve", plain_sieve); }

TEST(UntimedS3Fifo, IsThePapersQueuesTurnByTurn) {
  expect_same_turn_by_turn("s3fifo", plain_s3fifo);
}

// ---- The offline optimum ----

/// 1,000 random traces: no policy, with whatever admission, has more hits than the oracle.
TEST(UntimedBelady, BoundsEveryPolicyOnEntriesOfOneSize) {
  const PolicyRegistry registry = builtin_policies();
  const RunConfig base = one_tier(Placement::dram, "belady", 1);
  RandomStream dice(1, "bound");
  std::map<std::string, std::int64_t> hits;
  for (std::int64_t trace = 1; trace <= 1'000; ++trace) {
    RunConfig config = base;
    config.seed = trace;
    config.workload.sessions = 10 + dice.index(50);
    config.workload.arrival_rate = PerSecond(0.02 + dice.uniform());
    config.hardware.dram->capacity = entry_size(config) * (1 + dice.index(20));
    config.system.tiers.dram->inclusive = dice.index(2) == 0;
    const auto hits_of = [&](const std::string& eviction, const std::string& admission) {
      config.system.tiers.dram->eviction.name = eviction;
      config.system.tiers.dram->admission.name = admission;
      const Json result = simulate_untimed(config, registry);
      const std::int64_t found =
          std::llround(number_at(result, "/metrics/hit_rate/all_turns/total") *
                       number_at(result, "/metrics/turns"));
      hits[eviction + " " + admission] += found;
      return found;
    };
    const std::int64_t most = hits_of("belady", "always");
    for (const auto& kind : registry.eviction) {
      if (!kind.parts_of_entries) {
        EXPECT_LE(hits_of(kind.name, "always"), most) << kind.name << ", trace " << trace;
      }
    }
    for (const auto& kind : registry.admission) {
      EXPECT_LE(hits_of("lru", kind.name), most) << kind.name << ", trace " << trace;
    }
    if (HasFailure()) {
      return;
    }
  }
  // The bound is not reached by any other, and every policy finds something.
  for (const auto& [policies, found] : hits) {
    EXPECT_GT(found, 1'000) << policies;
    EXPECT_LT(found, policies == "belady always" ? INT64_MAX : hits["belady always"]) << policies;
  }
}

/// Sizes of one class are compared by time alone: nearly as good as any, and no worse than online
/// policies on real sizes.
TEST(UntimedBelady, BeatsOnlinePoliciesOnEntriesOfAnySize) {
  for (const char* capacity : {"1GiB", "4GiB", "16GiB"}) {
    const auto hit_rate = [&](const char* eviction) {
      RunConfig config = one_tier(Placement::dram, eviction, 1);
      config.serving.kv_reservation = Reservation::exact;
      config.hardware.dram->capacity = *parse_quantity<Bytes>(capacity);
      return number_at(simulate_untimed(config, builtin_policies()),
                       "/metrics/hit_rate/all_turns/total");
    };
    const double most = hit_rate("belady");
    for (const char* online :
         {"lru", "fifo", "lfu", "slru", "arc", "s3fifo", "sieve", "gdsf", "seconds_saved", "mru"}) {
      EXPECT_LT(hit_rate(online), most) << online << " at " << capacity;
    }
  }
}

TEST(Bound, GivesTheShareThatAPolicyReaches) {
  const RunConfig config = one_tier(Placement::dram, "lru", 30);
  const Json result = simulate_untimed(config, builtin_policies());
  const Json bound = bound_of(config, result, builtin_policies(), {});
  EXPECT_EQ(bound["policy"], "belady");
  const double most = number_at(bound, "/hit_rate/all_turns/total");
  const double lru = number_at(result, "/metrics/hit_rate/all_turns/total");
  EXPECT_GT(most, lru);
  EXPECT_DOUBLE_EQ(number_at(bound, "/share_reached/all_turns"), lru / most);
  RunConfig best = config;
  best.system.tiers.dram->eviction.name = "belady";
  const Json itself = simulate_untimed(best, builtin_policies());
  EXPECT_DOUBLE_EQ(
      number_at(bound_of(best, itself, builtin_policies(), {}), "/share_reached/tokens"), 1);
}

TEST(UntimedBelady, IsRefusedInATimedRunAndWithSharedPrompts) {
  const RunConfig config = one_tier(Placement::dram, "belady", 30);
  try {
    static_cast<void>(simulate(config, builtin_policies()));
    FAIL() << "a timed run knows no future";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "/system/tiers/dram/eviction: policy belady needs to know the future, which a timed "
              "run does not: only an untimed replay has it");
  }
  RunConfig shared = config;
  shared.serving.kv_reservation = Reservation::exact;
  shared.system.sharing = Sharing::prompts;
  shared.system.load.buffers = 0;
  shared.system.tiers.hbm.emplace().capacity = *parse_quantity<Bytes>("4GiB");
  try {
    static_cast<void>(simulate_untimed(shared, builtin_policies()));
    FAIL() << "the future of a prompt is not known";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "/system/tiers/dram/eviction: policy belady needs to know the future, but that "
              "of shared prompts (/system/sharing) is unknown");
  }
}

// ---- The LRU curve ----

std::vector<std::int64_t> hits_of_curve(const RunConfig& config,
                                        const std::vector<Bytes>& capacities, double rate = 1) {
  const Json curve = miss_ratio_curve(config, builtin_policies(),
                                      {.sampling_rate = rate, .capacities = capacities});
  std::vector<std::int64_t> hits;
  for (const Json& point : curve["points"]) {
    EXPECT_DOUBLE_EQ(number_at(point, "/miss_ratio"),
                     1 - static_cast<double>(point["hits"].get<std::int64_t>()) /
                             number_at(curve, "/sampling/turns"));
    hits.push_back(point["hits"].get<std::int64_t>());
  }
  return hits;
}

TEST(MissRatioCurve, IsEveryReplayOfEqualEntriesExactly) {
  for (const std::int64_t seed : {1, 2}) {
    const RunConfig config = one_tier(Placement::dram, "lru", 1, seed);
    std::vector<Bytes> capacities;
    std::vector<std::int64_t> hits;
    for (const std::int64_t entries : {1, 2, 5, 12, 29, 70, 169, 408, 985, 2000}) {
      capacities.push_back(entry_size(config) * entries);
      hits.push_back(replay(one_tier(Placement::dram, "lru", entries, seed)).hit_count());
    }
    EXPECT_EQ(hits_of_curve(config, capacities), hits);
    // A byte less than an entry is an entry less.
    EXPECT_EQ(hits_of_curve(config, {capacities[3] - Bytes(1)}),
              hits_of_curve(config, {entry_size(config) * 11}));
  }
}

/// Exact also for entries of any size that grow, where no history is cut and the tier takes the
/// largest of them.
TEST(MissRatioCurve, IsEveryReplayOfAnySizesExactly) {
  RunConfig config = one_tier(Placement::ssd, "lru", 1);
  config.serving.kv_reservation = Reservation::exact;
  config.workload.warmup_turns = 500;
  std::vector<Bytes> capacities;
  std::vector<std::int64_t> hits;
  for (const char* text : {"1GiB", "2GiB", "5GiB", "11GiB", "23GiB", "60GiB"}) {
    capacities.push_back(*parse_quantity<Bytes>(text));
    config.hardware.ssd->capacity = capacities.back();
    const Json result = simulate_untimed(config, builtin_policies());
    hits.push_back(std::llround(number_at(result, "/metrics/hit_rate/all_turns/total") *
                                number_at(result, "/metrics/turns")));
  }
  EXPECT_EQ(hits_of_curve(config, capacities), hits);
  EXPECT_LT(hits.front(), hits.back() / 2);
}

/// Cut histories make entries smaller, which a stack of sizes at last use does not follow to the
/// byte: within half a point.
TEST(MissRatioCurve, IsWithinHalfAPointIfHistoriesAreCut) {
  for (const char* positions : {"decoupled", "embedded"}) {
    RunConfig config =
        resolved("examples/planner-70.json",
                 {"/system=attentionstore_lru", "/system/tiers/ssd=none", "/system/prefetch=none",
                  "/workload/sessions=3000", "/workload/warmup_turns=1000",
                  fmt::format("/system/positions={}", positions)});
    for (const char* text : {"16GiB", "64GiB", "256GiB"}) {
      config.hardware.dram->capacity = *parse_quantity<Bytes>(text);
      const Json result = simulate_untimed(config, builtin_policies());
      const Json curve = miss_ratio_curve(config, builtin_policies(),
                                          {.capacities = {config.hardware.dram->capacity}});
      EXPECT_GT(result["metrics"]["truncated_turns"].get<std::int64_t>(), 100);
      EXPECT_NEAR(number_at(curve, "/points/0/hit_rate/all_turns"),
                  number_at(result, "/metrics/hit_rate/all_turns/total"), 0.005)
          << text << ", " << positions;
    }
  }
}

/// At this rate of arrivals capacities hold hundreds of entries, of which a tenth is looked at;
/// with a handful of sampled entries in a tier the curve would be off by several points.
TEST(MissRatioCurve, IsNearWithATenthOfTheSessions) {
  RunConfig config = one_tier(Placement::dram, "lru", 1);
  config.workload.sessions = 20'000;
  config.workload.arrival_rate = PerSecond(4);
  std::vector<Bytes> capacities;
  for (const std::int64_t entries : {200, 400, 600, 1000, 1600, 2600, 4200}) {
    capacities.push_back(entry_size(config) * entries);
  }
  const Json whole = miss_ratio_curve(config, builtin_policies(), {.capacities = capacities});
  const Json sampled = miss_ratio_curve(config, builtin_policies(),
                                        {.sampling_rate = 0.1, .capacities = capacities});
  // 20,000 draws of 0.1: a standard deviation of 42.
  EXPECT_NEAR(number_at(sampled, "/sampling/sessions"), 2'000, 4 * 42);
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    EXPECT_NEAR(sampled["points"][i]["miss_ratio"].get<double>(),
                whole["points"][i]["miss_ratio"].get<double>(), 0.03)
        << i;
  }
}

TEST(MissRatioCurve, WithoutCapacitiesRisesToTheHitsOfUnlimitedRoom) {
  const RunConfig config = one_tier(Placement::dram, "lru", 1);
  const Json curve = miss_ratio_curve(config, builtin_policies(), {});
  const Json& points = curve["points"];
  ASSERT_GT(points.size(), 10U);
  for (std::size_t i = 1; i < points.size(); ++i) {
    EXPECT_LE(points[i]["miss_ratio"].get<double>(), points[i - 1]["miss_ratio"].get<double>());
    EXPECT_GT(points[i]["capacity_bytes"].get<std::int64_t>(),
              points[i - 1]["capacity_bytes"].get<std::int64_t>());
  }
  EXPECT_EQ(points.back()["hit_rate"], curve["hit_rate_without_limit"]);
  EXPECT_NE(points[points.size() - 2]["hit_rate"], curve["hit_rate_without_limit"]);
  EXPECT_DOUBLE_EQ(number_at(curve, "/hit_rate_without_limit/resumed_turns"), 1);
}

TEST(MissRatioCurve, IsRefusedForSharedPromptsAndForNothingMeasured) {
  RunConfig config = one_tier(Placement::dram, "lru", 30);
  config.workload.warmup_turns = 1'000'000;
  EXPECT_THROW(static_cast<void>(miss_ratio_curve(config, builtin_policies(), {})), ConfigError);
  config.workload.warmup_turns = 0;
  config.serving.kv_reservation = Reservation::exact;
  config.system.sharing = Sharing::prompts;
  config.system.load.buffers = 0;
  config.system.tiers.hbm.emplace().capacity = *parse_quantity<Bytes>("4GiB");
  try {
    static_cast<void>(miss_ratio_curve(config, builtin_policies(), {}));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "/system/sharing: expected \"none\": a miss-ratio curve needs sessions that share no "
              "prompts");
  }
}

}  // namespace
}  // namespace kvtier::test
