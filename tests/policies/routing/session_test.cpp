#include "policies/routing/session.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "sim/policy/session_ring.hpp"
#include "sim/policy/trial_cluster.hpp"

namespace kvtier {
namespace {

constexpr std::uint64_t kSessions = 20'000;

std::vector<std::uint32_t> homes(TrialCluster& cluster) {
  std::vector<std::uint32_t> found;
  for (std::uint64_t session = 0; session < kSessions; ++session) {
    found.push_back(cluster.choose({.session = session}).value);
  }
  return found;
}

TEST(SessionRouting, SendsASessionToOneInstanceWhateverItsLoad) {
  TrialCluster cluster(session_routing(), {.instances = 10});
  const InstanceId home = cluster.choose({.session = 7});
  for (std::uint64_t id = 0; id < 50; ++id) {
    EXPECT_EQ(cluster.send({.id = id, .session = 7, .prompt = Tokens(100)}), home);
  }
}

TEST(SessionRouting, SpreadsSessionsOverAllInstances) {
  TrialCluster cluster(session_routing(), {.instances = 10});
  std::vector<int> counts(10);
  for (const std::uint32_t home : homes(cluster)) {
    ++counts[home];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 2'000, 600);
  }
}

TEST(SessionRouting, ALostInstanceMovesItsOwnSessionsAloneAndGetsThemBack) {
  TrialCluster cluster(session_routing(), {.instances = 10});
  const std::vector<std::uint32_t> before = homes(cluster);
  cluster.lose(InstanceId{3});
  const std::vector<std::uint32_t> after = homes(cluster);
  std::vector<int> taken(10);
  for (std::uint64_t session = 0; session < kSessions; ++session) {
    if (before[session] == 3) {
      EXPECT_NE(after[session], 3U);
      ++taken[after[session]];
    } else {
      EXPECT_EQ(after[session], before[session]);
    }
  }
  // Its sessions, about 2,000, go to all others.
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(taken[i] > 20, i != 3) << i << ": " << taken[i];
  }
  cluster.join(InstanceId{3});
  EXPECT_EQ(homes(cluster), before);
}

// A group with one more instance moves only the sessions that the new one gets.
TEST(SessionRouting, AGroupThatGrowsMovesSessionsToTheNewInstanceAlone) {
  TrialCluster small(session_routing(), {.instances = 10});
  TrialCluster large(session_routing(), {.instances = 11});
  const std::vector<std::uint32_t> before = homes(small);
  const std::vector<std::uint32_t> after = homes(large);
  std::uint64_t moved = 0;
  for (std::uint64_t session = 0; session < kSessions; ++session) {
    if (after[session] != before[session]) {
      EXPECT_EQ(after[session], 10U);
      ++moved;
    }
  }
  EXPECT_NEAR(static_cast<double>(moved), kSessions / 11.0, 600);
}

TEST(SessionRouting, SendsARequestWithoutASessionToTheFewestRequests) {
  TrialCluster cluster(session_routing(), {.instances = 3});
  cluster.dispatch({.id = 0}, InstanceId{0});
  cluster.dispatch({.id = 1}, InstanceId{2});
  EXPECT_EQ(cluster.send({.id = 2}), InstanceId{1});
}

// The naive rule: of all points of candidates, the nearest at or behind the session's, or else the
// first.
TEST(SessionRing, AgreesWithAScanOverAllPoints) {
  const SessionRing ring(6, 3);
  const std::vector<InstanceId> some{InstanceId{0}, InstanceId{2}, InstanceId{5}};
  std::vector<InstanceId> all;
  for (std::uint32_t i = 0; i < 6; ++i) {
    all.push_back(InstanceId{i});
  }
  for (std::uint64_t session = 0; session < 2'000; ++session) {
    for (const auto& candidates : {some, all}) {
      std::uint64_t least = UINT64_MAX;
      InstanceId nearest;
      for (const InstanceId candidate : candidates) {
        for (std::uint64_t point = 0; point < 3; ++point) {
          // Distances wrap around.
          const std::uint64_t distance =
              random_bits_at(random_bits_at(0x72696e67, candidate.value), point) -
              random_bits_at(session, 0);
          if (distance < least) {
            least = distance;
            nearest = candidate;
          }
        }
      }
      EXPECT_EQ(ring.find(session, candidates), nearest);
    }
  }
}

}  // namespace
}  // namespace kvtier
