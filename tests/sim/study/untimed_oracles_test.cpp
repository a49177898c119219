/// Untimed replays against models written here, which share nothing with the session store: lists,
/// sets, stack distances and gaps over the same order of accesses.
///
/// The models are exact for these reasons: no history is ever cut (the window is larger than any
/// session), so an entry is found whole or not at all; every entry is charged the same, so a
/// capacity is a number of entries; and a turn that misses stores its session anew, like a cache
/// that fills on demand. An entry leaves an exclusive tier when its turn is admitted and comes back
/// at the turn's end, before the next access, so nothing is evicted in between.

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/replay/untimed.hpp"
#include "tests/sim/study/untimed_replay.hpp"

namespace kvtier::test {
namespace {

// ---- The models ----

/// Plain LRU over a list.
std::vector<bool> list_lru(const std::vector<Access>& accesses, std::size_t capacity) {
  std::list<std::int64_t> order;  // least recently used in front
  std::unordered_map<std::int64_t, std::list<std::int64_t>::iterator> where;
  std::vector<bool> hits;
  for (const Access& access : accesses) {
    const auto found = where.find(access.session);
    hits.push_back(found != where.end());
    if (found != where.end()) {
      order.erase(found->second);
    } else if (order.size() == capacity) {
      where.erase(order.front());
      order.pop_front();
    }
    where[access.session] = order.insert(order.end(), access.session);
  }
  return hits;
}

/// Textbook FIFO: a hit changes nothing, and an evicted session that is stored again is the newest.
std::vector<bool> list_fifo(const std::vector<Access>& accesses, std::size_t capacity) {
  std::list<std::int64_t> order;  // the first to come in front
  std::set<std::int64_t> resident;
  std::vector<bool> hits;
  for (const Access& access : accesses) {
    hits.push_back(resident.contains(access.session));
    if (hits.back()) {
      continue;
    }
    if (order.size() == capacity) {
      resident.erase(order.front());
      order.pop_front();
    }
    order.push_back(access.session);
    resident.insert(access.session);
  }
  return hits;
}

/// SIEVE as in its paper (Zhang and others, NSDI 2024, algorithm 1): newcomers go to the head, the
/// hand moves from the tail to the head and begins again at the tail.
std::vector<bool> list_sieve(const std::vector<Access>& accesses, std::size_t capacity) {
  struct Object {
    std::int64_t session = 0;
    bool visited = false;
  };
  std::list<Object> objects;  // the head in front
  std::unordered_map<std::int64_t, std::list<Object>::iterator> where;
  auto hand = objects.end();
  const auto towards_head = [&](std::list<Object>::iterator at) {
    return at == objects.begin() ? objects.end() : std::prev(at);
  };
  std::vector<bool> hits;
  for (const Access& access : accesses) {
    const auto found = where.find(access.session);
    hits.push_back(found != where.end());
    if (found != where.end()) {
      found->second->visited = true;
      continue;
    }
    if (objects.size() == capacity) {
      auto victim = hand == objects.end() ? std::prev(objects.end()) : hand;
      while (victim->visited) {
        victim->visited = false;
        victim = towards_head(victim);
        victim = victim == objects.end() ? std::prev(objects.end()) : victim;
      }
      hand = towards_head(victim);
      where.erase(victim->session);
      objects.erase(victim);
    }
    objects.push_front({access.session, false});
    where[access.session] = objects.begin();
  }
  return hits;
}

/// The session with the fewest uses since it was stored leaves, of equal ones the least recently
/// used.
std::vector<bool> scan_lfu(const std::vector<Access>& accesses, std::size_t capacity) {
  std::map<std::int64_t, std::pair<int, std::size_t>> uses;  // and the time of the last one
  std::vector<bool> hits;
  for (std::size_t now = 0; now < accesses.size(); ++now) {
    const std::int64_t session = accesses[now].session;
    hits.push_back(uses.contains(session));
    if (!hits.back() && uses.size() == capacity) {
      uses.erase(std::min_element(uses.begin(), uses.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      }));
    }
    ++uses[session].first;
    uses[session].second = now;
  }
  return hits;
}

/// FIFO by a session's first access: what leaves is the resident session that came first, and a
/// session keeps its place however often it is evicted. Sessions are numbered in order of arrival.
std::vector<bool> first_come_fifo(const std::vector<Access>& accesses, std::size_t capacity) {
  std::set<std::int64_t> resident;
  std::vector<bool> hits;
  for (const Access& access : accesses) {
    hits.push_back(resident.erase(access.session) == 1);
    if (resident.size() == capacity) {
      resident.erase(resident.begin());
    }
    resident.insert(access.session);
  }
  return hits;
}

/// Sums over a prefix in O(log n) (Fenwick).
class PrefixSums {
 public:
  explicit PrefixSums(std::size_t size) : sums_(size + 1) {}
  void add(std::size_t at, std::int64_t value) {
    for (++at; at < sums_.size(); at += at & (~at + 1)) {
      sums_[at] += value;
    }
  }
  [[nodiscard]] std::int64_t before(std::size_t at) const {
    std::int64_t sum = 0;
    for (; at > 0; at -= at & (~at + 1)) {
      sum += sums_[at];
    }
    return sum;
  }

 private:
  std::vector<std::int64_t> sums_;
};

/// Mattson's stack distances (IBM Systems Journal 9(2), 1970): the number of different sessions
/// since the session's last access, itself included; 0 for its first access. An LRU cache of C
/// entries hits exactly the distances 1..C.
std::vector<std::int64_t> stack_distances(const std::vector<Access>& accesses) {
  PrefixSums latest(accesses.size());  // 1 at each session's latest access
  std::unordered_map<std::int64_t, std::size_t> last;
  std::vector<std::int64_t> distances;
  for (std::size_t now = 0; now < accesses.size(); ++now) {
    const auto found = last.find(accesses[now].session);
    if (found == last.end()) {
      distances.push_back(0);
    } else {
      distances.push_back(latest.before(now) - latest.before(found->second));
      latest.add(found->second, -1);
    }
    latest.add(now, 1);
    last[accesses[now].session] = now;
  }
  return distances;
}

std::int64_t within(const std::vector<std::int64_t>& distances, std::int64_t capacity) {
  return std::count_if(distances.begin(), distances.end(),
                       [&](std::int64_t d) { return d >= 1 && d <= capacity; });
}

// ---- The tests ----

TEST(UntimedReplay, TakesTurnsAtArrivalPlusThinkTimes) {
  const RunConfig config = one_tier(Placement::dram, "lru", 10);
  const Replay run = replay(config);
  const auto source =
      make_source(config.workload, static_cast<std::uint64_t>(config.seed), source_dir());
  std::vector<std::tuple<SimTime, std::int64_t, std::int64_t>> expected;
  SessionSpec session;
  while (source->next(session)) {
    SimTime time = session.arrival;
    for (std::size_t i = 0; i < session.turns.size(); ++i) {
      time = time + session.turns[i].think;
      expected.emplace_back(time, session.id, static_cast<std::int64_t>(i));
    }
  }
  std::sort(expected.begin(), expected.end());
  ASSERT_EQ(run.accesses.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::tuple(run.accesses[i].time, run.accesses[i].session, run.accesses[i].turn),
              expected[i]);
    ASSERT_EQ(run.accesses[i].resumed, run.accesses[i].turn > 0);
  }
}

TEST(UntimedReplay, CountsEveryTurnAsAHitOrAMiss) {
  for (const char* eviction : {"lru", "fifo", "scheduler_aware"}) {
    const Replay run = replay(one_tier(Placement::dram, eviction, 30));
    const auto turns = static_cast<std::int64_t>(run.accesses.size());
    const Json& metrics = run.result["metrics"];
    EXPECT_EQ(metrics["turns"], turns);
    EXPECT_EQ(run.result["workload"]["turns"], turns);
    std::int64_t lost = 0;
    for (const auto& [cause, count] : metrics["lost_hits"].items()) {
      lost += count.get<std::int64_t>();
    }
    const std::int64_t first_turns = turns - metrics["resumed_turns"].get<std::int64_t>();
    EXPECT_EQ(first_turns, run.result["workload"]["sessions"].get<std::int64_t>());
    EXPECT_EQ(run.hit_count() + lost + first_turns, turns) << eviction;
    EXPECT_EQ(lost, metrics["lost_hits"]["capacity"].get<std::int64_t>()) << eviction;
    EXPECT_DOUBLE_EQ(number_at(metrics, "/hit_rate/all_turns/total"),
                     static_cast<double>(run.hit_count()) / static_cast<double>(turns));
    EXPECT_DOUBLE_EQ(number_at(metrics, "/hit_rate/all_turns/dram"),
                     number_at(metrics, "/hit_rate/all_turns/total"));
  }
}

TEST(UntimedLru, IsAListTurnByTurn) {
  for (const Placement place : {Placement::dram, Placement::ssd}) {
    for (const std::int64_t capacity : {1, 2, 3, 17, 64, 301}) {
      const Replay run = replay(one_tier(place, "lru", capacity));
      EXPECT_EQ(run.hits, list_lru(run.accesses, static_cast<std::size_t>(capacity)))
          << capacity << " entries";
      for (std::size_t i = 0; i < run.hits.size(); ++i) {
        if (run.hits[i]) {
          ASSERT_EQ(run.media[i], place == Placement::dram ? Medium::dram : Medium::ssd);
        }
      }
    }
  }
}

TEST(UntimedLru, IsAListEvenIfACopyStaysBehind) {
  for (const std::int64_t capacity : {2, 17, 64}) {
    RunConfig config = one_tier(Placement::dram, "lru", capacity);
    config.system.tiers.dram->inclusive = true;
    const Replay run = replay(config);
    EXPECT_EQ(run.hits, list_lru(run.accesses, static_cast<std::size_t>(capacity))) << capacity;
  }
}

/// Entries of one block each are equal too, with exact accounts.
TEST(UntimedLru, IsAListWithEntriesOfOneBlock) {
  for (const std::int64_t capacity : {2, 17, 64}) {
    RunConfig config = one_tier(Placement::dram, "lru", capacity);
    config.serving.kv_reservation = Reservation::exact;
    config.system.tiers.dram->block_size = Tokens(kWindow);
    const Replay run = replay(config);
    EXPECT_EQ(run.hits, list_lru(run.accesses, static_cast<std::size_t>(capacity))) << capacity;
  }
}

TEST(UntimedLru, HitsTheStackDistancesWithinTheCapacity) {
  for (const std::int64_t seed : {1, 2, 3}) {
    const std::vector<std::int64_t> distances =
        stack_distances(replay(one_tier(Placement::dram, "lru", 1, seed)).accesses);
    for (const std::int64_t capacity : {1, 2, 5, 12, 29, 70, 169, 408, 985, 2000}) {
      EXPECT_EQ(replay(one_tier(Placement::dram, "lru", capacity, seed)).hit_count(),
                within(distances, capacity))
          << capacity << " entries, seed " << seed;
    }
  }
}

TEST(UntimedLru, NeverLosesHitsWithMoreCapacity) {
  std::vector<bool> smaller;
  std::int64_t last = 0;
  for (std::int64_t capacity = 1; capacity <= 200; capacity += 1 + capacity / 4) {
    const Replay run = replay(one_tier(Placement::ssd, "lru", capacity));
    EXPECT_GE(run.hit_count(), last);
    last = run.hit_count();
    for (std::size_t i = 0; i < smaller.size(); ++i) {
      ASSERT_TRUE(run.hits[i] || !smaller[i]) << "turn " << i << " at " << capacity << " entries";
    }
    smaller = run.hits;
  }
}

/// Two exclusive LRU tiers, the lower fed by the victims of the upper, are one LRU list cut in two:
/// distances up to the upper's capacity hit there, further ones up to the sum hit below.
TEST(UntimedLru, SplitsOneListOverTwoExclusiveTiers) {
  for (const auto& [dram, ssd] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 20}, {20, 5}, {40, 160}}) {
    RunConfig config = one_tier(Placement::dram, "lru", dram);
    config.system.tiers.ssd = config.system.tiers.dram;
    config.hardware.ssd->capacity = config.hardware.dram->capacity / dram * ssd;
    const Replay run = replay(config);
    const std::vector<std::int64_t> distances = stack_distances(run.accesses);
    for (std::size_t i = 0; i < distances.size(); ++i) {
      const bool hit = distances[i] >= 1 && distances[i] <= dram + ssd;
      ASSERT_EQ(run.hits[i], hit) << "turn " << i << " of " << dram << " + " << ssd;
      if (hit) {
        ASSERT_EQ(run.media[i], distances[i] <= dram ? Medium::dram : Medium::ssd)
            << "turn " << i << " of " << dram << " + " << ssd;
      }
    }
  }
}

/// Whether a policy's hits on 100 random traces are those of its model, turn by turn.
template <class Model>
void expect_model_on_random_traces(const char* policy, Model model) {
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  for (std::int64_t seed = 1; seed <= 100; ++seed) {
    const std::int64_t capacity = 1 + seed * 7 % 40;
    const Placement place = seed % 2 == 0 ? Placement::dram : Placement::ssd;
    RunConfig config = one_tier(place, policy, capacity, seed);
    config.workload.sessions = 150;
    const Replay run = replay(config);
    EXPECT_EQ(run.hits, model(run.accesses, static_cast<std::size_t>(capacity)))
        << "seed " << seed << ", " << capacity << " entries";
    hits += run.hit_count();
    misses += static_cast<std::int64_t>(run.hits.size()) - run.hit_count();
  }
  EXPECT_GT(hits, 10'000);
  EXPECT_GT(misses, 10'000);
}

TEST(UntimedFifo, IsAnIndependentFifoOnRandomTraces) {
  expect_model_on_random_traces("fifo", list_fifo);
}

TEST(UntimedSieve, IsAnIndependentSieveOnRandomTraces) {
  expect_model_on_random_traces("sieve", list_sieve);
}

TEST(UntimedLfu, IsAnIndependentLfuOnRandomTraces) {
  expect_model_on_random_traces("lfu", scan_lfu);
}

TEST(UntimedSessionFifo, KeepsTheOrderOfFirstAccesses) {
  for (const Placement place : {Placement::dram, Placement::ssd}) {
    for (const std::int64_t capacity : {1, 2, 3, 17, 64, 301}) {
      const Replay run = replay(one_tier(place, "session_fifo", capacity));
      EXPECT_EQ(run.hits, first_come_fifo(run.accesses, static_cast<std::size_t>(capacity)))
          << capacity << " entries";
    }
  }
}

/// Without a limit of room, a time to live hits exactly the gaps that are no longer.
TEST(UntimedTimeToLive, HitsTheGapsThatAreNoLonger) {
  for (const char* ttl : {"1s", "20s", "60s", "300s"}) {
    RunConfig config = one_tier(Placement::dram, "lru", 2000);
    config.system.tiers.dram->ttl = parse_quantity<SimDuration>(ttl);
    const Replay run = replay(config);
    std::unordered_map<std::int64_t, SimTime> last;
    std::int64_t late = 0;
    for (std::size_t i = 0; i < run.accesses.size(); ++i) {
      const Access& access = run.accesses[i];
      const auto found = last.find(access.session);
      const bool hit =
          found != last.end() && access.time - found->second <= *config.system.tiers.dram->ttl;
      ASSERT_EQ(run.hits[i], hit) << "turn " << i << " with " << ttl;
      late += found != last.end() && !hit ? 1 : 0;
      last[access.session] = access.time;
    }
    EXPECT_EQ(run.result["metrics"]["lost_hits"]["ttl"], late);
  }
}

/// No request ever waits in an untimed replay, and scheduler-aware eviction of idle entries is LRU:
/// in every tier, with entries of any size, copies left behind, cut histories.
TEST(UntimedSchedulerAware, WithAnEmptyQueueIsLru) {
  const std::vector<std::vector<std::string>> variants{
      {},
      {"/serving/kv_reservation=context_window"},
      {"/system/tiers/ssd/inclusive=false"},
      {"/system/tiers/ssd/write=on_create"},
      {"/system/tiers/dram/inclusive=true"},
      {"/system/tiers/dram/free_buffer=8GiB", "/system/tiers/ssd/free_buffer=20GiB"},
      {"/system/tiers/ssd/ttl=100s"},
      {"/model/context_window=1024tokens", "/serving/keep_first_tokens=64tokens"},
      {"/system/positions=embedded", "/model/context_window=2048tokens"},
      {"/system/tiers/ssd=none", "/system/prefetch=none"},
      {"/system/tiers/dram=none", "/system/prefetch=none"}};
  for (const std::vector<std::string>& variant : variants) {
    std::vector<std::string> settings{"/hardware/dram/capacity=16GiB",
                                      "/hardware/ssd/capacity=60GiB", "/workload/sessions=800",
                                      "/workload/warmup_turns=500"};
    settings.insert(settings.end(), variant.begin(), variant.end());
    const std::string name = variant.empty() ? "as it is" : variant.front();
    const auto outcome_of = [&](const std::string& system) {
      std::vector<std::string> all = settings;
      all.insert(all.begin(), "/system=" + system);
      const Json result =
          simulate_untimed(resolved("examples/planner-70.json", all), builtin_policies());
      // A variant in which nothing is found, or nothing is lost, would show nothing.
      EXPECT_GT(number_at(result, "/metrics/hit_rate/all_turns/total"), 0.01) << name;
      EXPECT_LT(number_at(result, "/metrics/hit_rate/resumed_turns/total"), 0.99) << name;
      return outcome(result);
    };
    EXPECT_EQ(outcome_of("attentionstore"), outcome_of("attentionstore_lru")) << name;
  }
}

TEST(UntimedReplay, IsTheSameTwice) {
  const RunConfig config = one_tier(Placement::dram, "fifo", 25);
  EXPECT_EQ(replay(config).result.dump(), replay(config).result.dump());
}

}  // namespace
}  // namespace kvtier::test
