#include "sim/backend/shared_links.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

constexpr double kGb = 1e9;
constexpr std::size_t kUp = 0;
constexpr std::size_t kDown = 1;
constexpr std::size_t kAcross = 2;

/// Paths between media of their own, in order.
Topology topology_of(const std::vector<DuplexLimits>& links,
                     const std::vector<std::vector<LinkUse>>& paths,
                     std::vector<LinkInterference> interference = {}) {
  Topology topology(std::vector<std::string>(2 * paths.size()));
  for (const DuplexLimits& link : links) {
    topology.links.push_back({.name = {}, .limits = link});
  }
  topology.interference = std::move(interference);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    topology.connect(static_cast<Medium>(2 * i), static_cast<Medium>(2 * i + 1), paths[i]);
  }
  return topology;
}

/// One link, a path each way.
SharedLinks one_link(DuplexLimits link) {
  return SharedLinks(topology_of({link}, {{{0, true}}, {{0, false}}}));
}

/// Runs until nothing is in flight; completion times by cookie.
std::vector<SimTime> completions(SharedLinks& links, std::size_t count) {
  std::vector<SimTime> times(count, kNever);
  while (links.in_flight() > 0) {
    const SimTime at = links.next_completion();
    times[links.finish_next().cookie] = at;
  }
  EXPECT_EQ(links.next_completion(), kNever);
  return times;
}

TEST(SharedLinks, OneTransferTakesItsBytesOverTheRate) {
  SharedLinks links = one_link(limits(2 * kGb, kGb, 3 * kGb));
  links.start(kUp, Bytes(2000000000), 0, at_ms(5));
  EXPECT_EQ(links.next_completion(), at_ms(1005));
  EXPECT_EQ(completions(links, 1)[0], at_ms(1005));
  links.start(kDown, Bytes(2000000000), 0, at_ms(2000));
  EXPECT_EQ(completions(links, 1)[0], at_ms(4000));
}

TEST(SharedLinks, ATransferEndsAtTheNextWholeNanosecond) {
  SharedLinks links = one_link(limits(3 * kGb, kGb, 4 * kGb));
  links.start(kUp, Bytes(10), 0, SimTime(0));  // 3.33 ns
  EXPECT_EQ(links.next_completion(), SimTime(4));
}

TEST(SharedLinks, TwoTransfersOneWayShareEqually) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  links.start(kUp, Bytes(1000000), 0, at_ms(0));
  links.start(kUp, Bytes(3000000), 1, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kUp), kGb / 2);
  // 1 MB at 0.5 GB/s: 2 ms. The other has 2 MB left then, at 1 GB/s: 4 ms.
  const auto times = completions(links, 2);
  EXPECT_EQ(times[0], at_ms(2));
  EXPECT_EQ(times[1], at_ms(4));
}

TEST(SharedLinks, ALaterTransferSlowsDownTheFirst) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  links.start(kUp, Bytes(2000000), 0, at_ms(0));
  links.start(kUp, Bytes(2000000), 1, at_ms(1));
  // The first has 1 MB left at 1 ms, at half rate until 3 ms; the second has 1 MB left then.
  const auto times = completions(links, 2);
  EXPECT_EQ(times[0], at_ms(3));
  EXPECT_EQ(times[1], at_ms(4));
}

TEST(SharedLinks, OppositeDirectionsShareTheLimitOfBoth) {
  SharedLinks links = one_link(limits(26 * kGb, 26 * kGb, 42 * kGb));
  links.start(kUp, Bytes(21000000), 0, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kUp), 26 * kGb);
  links.start(kDown, Bytes(42000000), 1, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kUp), 21 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(kDown), 21 * kGb);
  // 21 MB at 21 GB/s: 1 ms. Then 21 MB at 26 GB/s: 0.807692307.. ms, rounded up.
  const auto times = completions(links, 2);
  EXPECT_EQ(times[0], at_ms(1));
  EXPECT_EQ(times[1], SimTime(1807693));
}

TEST(SharedLinks, ASlowWayLeavesTheRestToTheOther) {
  // Backward alone is 5; of both together (20) forward gets 15, less than its own 18.
  SharedLinks links = one_link(limits(18 * kGb, 5 * kGb, 20 * kGb));
  links.start(kUp, Bytes(1000), 0, at_ms(0));
  links.start(kDown, Bytes(1000), 1, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kDown), 5 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(kUp), 15 * kGb);
}

TEST(SharedLinks, SharesByTransferNotByDirection) {
  // Three up and one down under 40 for both: 10 each, and 30 is what one way may carry.
  SharedLinks links = one_link(limits(30 * kGb, 30 * kGb, 40 * kGb));
  for (int i = 0; i < 3; ++i) {
    links.start(kUp, Bytes(1000), 0, at_ms(0));
  }
  links.start(kDown, Bytes(1000), 1, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kUp), 10 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(kDown), 10 * kGb);
}

TEST(SharedLinks, APathOverTwoLinksTakesTheSlowerOnesPace) {
  SharedLinks links(
      topology_of({limits(26 * kGb, 26 * kGb, 52 * kGb), limits(5 * kGb, 5 * kGb, 5 * kGb)},
                  {{{0, true}}, {{1, true}}, {{1, true}, {0, true}}}));
  links.start(kAcross, Bytes(5000000), 0, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kAcross), 5 * kGb);
  // On the fast link the other one gets what is left of it: 26 - 5.
  links.start(kUp, Bytes(1000), 1, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kUp), 21 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(kAcross), 5 * kGb);
  // On the slow link they share: 2.5 each; the fast link's user gets 23.5.
  links.start(kDown, Bytes(1000), 2, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(kAcross), 2.5 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(kDown), 2.5 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(kUp), 23.5 * kGb);
  completions(links, 3);
}

/// A host link, and a drive of which transfers of that link leave half of the reads and a quarter
/// of the writes. Paths: to the device, reads to host memory, reads to the device, writes.
SharedLinks drive_beside_copies() {
  return SharedLinks(topology_of(
      {limits(10 * kGb, 10 * kGb, 20 * kGb), limits(4 * kGb, 4 * kGb, 6 * kGb)},
      {{{0, true}}, {{1, true}}, {{1, true}, {0, true}}, {{1, false}}},
      {{.link = 1, .left = {.forward = 0.5, .backward = 0.25}, .beside = std::size_t{0}}}));
}

TEST(SharedLinks, ADriveIsSlowerWhileAnythingIsCopied) {
  SharedLinks links = drive_beside_copies();
  links.start(1, Bytes(8000000), 0, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(1), 4 * kGb);
  EXPECT_EQ(links.next_completion(), at_ms(2));
  // From 1 ms on 4 MB are left at half the rate. The copy of 10 MB at 10 GB/s ends at 2 ms; 2 MB
  // are left then, at 4 GB/s: 2.5 ms.
  links.start(0, Bytes(10000000), 1, at_ms(1));
  EXPECT_DOUBLE_EQ(links.rate(0), 10 * kGb);
  EXPECT_DOUBLE_EQ(links.rate(1), 2 * kGb);
  const auto times = completions(links, 2);
  EXPECT_EQ(times[1], at_ms(2));
  EXPECT_EQ(times[0], SimTime(2500000));
}

TEST(SharedLinks, EachWayOfADriveKeepsItsShareBesideCopies) {
  SharedLinks links = drive_beside_copies();
  links.start(0, Bytes(1000000000), 0, at_ms(0));
  links.start(3, Bytes(1000000), 1, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(3), kGb);  // 4 x 0.25
  // Both ways together keep the larger share: 6 x 0.5 = 3, as much as 2 and 1 take.
  links.start(1, Bytes(1000000), 2, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(3), kGb);
  EXPECT_DOUBLE_EQ(links.rate(1), 2 * kGb);
  completions(links, 3);
}

TEST(SharedLinks, AReadToTheDeviceIsACopyToo) {
  SharedLinks links = drive_beside_copies();
  links.start(2, Bytes(2000000), 0, at_ms(0));
  EXPECT_DOUBLE_EQ(links.rate(2), 2 * kGb);
  EXPECT_EQ(completions(links, 1)[0], at_ms(1));
}

TEST(SharedLinks, ALinkIsSlowerWhileComputingGoesOn) {
  SharedLinks links(topology_of({limits(2 * kGb, 2 * kGb, 4 * kGb)}, {{{0, true}}, {{0, false}}},
                                {{.link = 0, .left = {.forward = 0.5, .backward = 1}}}));
  links.start(kUp, Bytes(6000000), 0, at_ms(0));
  links.start(kDown, Bytes(10000000), 1, at_ms(0));
  // 6 MB: 2 MB until 1 ms, 1 MB until 2 ms, the rest of 3 MB takes 1.5 ms. The other way keeps all.
  links.set_computing(true, at_ms(1));
  EXPECT_DOUBLE_EQ(links.rate(kUp), kGb);
  EXPECT_DOUBLE_EQ(links.rate(kDown), 2 * kGb);
  EXPECT_EQ(links.next_completion(), at_ms(5));
  links.set_computing(false, at_ms(2));
  EXPECT_DOUBLE_EQ(links.rate(kUp), 2 * kGb);
  const auto times = completions(links, 2);
  EXPECT_EQ(times[0], SimTime(3500000));
  EXPECT_EQ(times[1], at_ms(5));
  // Nothing moves: there is nothing to slow down.
  links.set_computing(true, at_ms(6));
  EXPECT_EQ(links.next_completion(), kNever);
  links.start(kUp, Bytes(1000000), 0, at_ms(7));
  EXPECT_EQ(completions(links, 1)[0], at_ms(8));
  EXPECT_EQ(links.counters(0, at_ms(8)).busy, for_ms(6));
}

TEST(SharedLinks, AnExtensionIsServedAfterTheRemainingBytes) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  const TransferId transfer = links.start(kUp, Bytes(2000000), 0, at_ms(0));
  EXPECT_TRUE(links.extend(transfer, Bytes(3000000), at_ms(1)));  // 1 MB + 3 MB left
  EXPECT_EQ(links.next_completion(), at_ms(5));
  EXPECT_EQ(links.counters(0, at_ms(5)).forward, Bytes(5000000));
  completions(links, 1);
}

TEST(SharedLinks, AnExtensionChangesWhoIsFirst) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  const TransferId first = links.start(kUp, Bytes(1000000), 0, at_ms(0));
  links.start(kUp, Bytes(2000000), 1, at_ms(0));
  // At 1 ms 0.5 and 1.5 MB are left; the first gets 2 more: 2.5. At half rate the other ends after
  // 3 ms; then 1 MB is left, alone.
  EXPECT_TRUE(links.extend(first, Bytes(2000000), at_ms(1)));
  const auto times = completions(links, 2);
  EXPECT_EQ(times[1], at_ms(4));
  EXPECT_EQ(times[0], at_ms(5));
}

TEST(SharedLinks, AnOpenTransferMayEndBeforeItIsExtended) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  const TransferId ended = links.start(kUp, Bytes(1000000), 0, at_ms(0), true);
  EXPECT_EQ(links.next_completion(), at_ms(1));
  EXPECT_TRUE(links.finish_next().open);
  EXPECT_FALSE(links.extend(ended, Bytes(1000000), at_ms(2)));
  EXPECT_EQ(links.counters(0, at_ms(2)).forward, Bytes(1000000));
  // It is distinguished from another transfer on its path.
  const TransferId open = links.start(kUp, Bytes(1000000), 1, at_ms(2), true);
  links.start(kUp, Bytes(3000000), 2, at_ms(2));
  EXPECT_FALSE(links.extend(ended, Bytes(1000000), at_ms(2)));
  EXPECT_TRUE(links.extend(open, Bytes(1000000), at_ms(2)));  // 2 MB beside 3 MB
  EXPECT_EQ(links.next_completion(), at_ms(6));
  const SharedLinks::Pending& finished = links.finish_next();
  EXPECT_EQ(finished.cookie, 1U);
  EXPECT_FALSE(finished.open);
}

TEST(SharedLinks, NoBytesTakeNoTime) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  links.start(kUp, Bytes(1000), 0, at_ms(1));
  links.start(kUp, Bytes(0), 1, at_ms(1));
  EXPECT_EQ(links.next_completion(), at_ms(1));
  EXPECT_EQ(links.finish_next().cookie, 1U);
  EXPECT_EQ(links.next_completion(), at_ms(1) + SimDuration(1000));
}

TEST(SharedLinks, TransfersDueAtOnceEndInTheOrderTheyWereStarted) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  links.start(kDown, Bytes(1000), 0, at_ms(0));
  links.start(kUp, Bytes(1000), 1, at_ms(0));
  links.start(kDown, Bytes(0), 2, at_ms(0));
  EXPECT_EQ(links.finish_next().cookie, 2U);
  EXPECT_EQ(links.finish_next().cookie, 0U);
  EXPECT_EQ(links.finish_next().cookie, 1U);
}

TEST(SharedLinks, ALinkIsBusyWhileATransferUsesIt) {
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  links.start(kUp, Bytes(1000000), 0, at_ms(10));
  EXPECT_EQ(links.counters(0, SimTime(10500000)).busy, SimDuration(500000));
  completions(links, 1);
  links.start(kDown, Bytes(2000000), 0, at_ms(20));
  completions(links, 1);
  const LinkCounters counters = links.counters(0, at_ms(30));
  EXPECT_EQ(counters.busy, for_ms(3));
  EXPECT_EQ(counters.forward, Bytes(1000000));
  EXPECT_EQ(counters.backward, Bytes(2000000));
}

// ---- Against a fluid model written another way ----

struct World {
  std::vector<DuplexLimits> links;
  std::vector<std::vector<LinkUse>> paths;
};

/// The media chain of the simulated backend with random limits.
World random_world(RandomStream& random) {
  World world;
  for (int i = 0; i < 2; ++i) {
    const double forward = 1 + 9 * random.uniform();
    const double backward = 1 + 9 * random.uniform();
    const double most = std::max(forward, backward);
    world.links.push_back(
        limits(forward * kGb, backward * kGb,
               (most + (forward + backward - most) * 1.2 * random.uniform()) * kGb));
  }
  world.paths = {{{0, true}},  {{0, false}},           {{1, true}},
                 {{1, false}}, {{1, true}, {0, true}}, {{0, false}, {1, false}}};
  return world;
}

struct Constraint {
  double limit;
  /// Bit p: the constraint limits path p.
  std::vector<bool> paths;
};

std::vector<Constraint> constraints_of(const World& world) {
  std::vector<Constraint> constraints;
  for (std::size_t l = 0; l < world.links.size(); ++l) {
    for (int kind = 0; kind < 3; ++kind) {
      const DuplexLimits& link = world.links[l];
      Constraint c{kind == 0   ? link.forward.value
                   : kind == 1 ? link.backward.value
                               : link.both.value,
                   std::vector<bool>(world.paths.size(), false)};
      for (std::size_t p = 0; p < world.paths.size(); ++p) {
        for (const LinkUse& use : world.paths[p]) {
          if (use.link == l && (kind == 2 || use.forward == (kind == 0))) {
            c.paths[p] = true;
          }
        }
      }
      constraints.push_back(c);
    }
  }
  return constraints;
}

struct Flow {
  std::size_t path = 0;
  double left = 0;
  std::size_t cookie = 0;
  double rate = 0;
};

/// Bertsekas and Gallager's algorithm, transfer by transfer: the constraint with the smallest share
/// fixes the rates of its transfers, and is removed.
void set_rates(std::vector<Flow>& flows, const std::vector<Constraint>& constraints) {
  std::vector<bool> fixed(flows.size(), false);
  for (std::size_t done = 0; done < flows.size();) {
    double least = std::numeric_limits<double>::infinity();
    std::size_t tightest = 0;
    for (std::size_t c = 0; c < constraints.size(); ++c) {
      double left = constraints[c].limit;
      double users = 0;
      for (std::size_t f = 0; f < flows.size(); ++f) {
        if (constraints[c].paths[flows[f].path]) {
          left -= fixed[f] ? flows[f].rate : 0;
          users += fixed[f] ? 0 : 1;
        }
      }
      if (users > 0 && left / users < least) {
        least = left / users;
        tightest = c;
      }
    }
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (!fixed[f] && constraints[tightest].paths[flows[f].path]) {
        fixed[f] = true;
        flows[f].rate = least;
        ++done;
      }
    }
  }
}

struct Change {
  double at;
  std::size_t path;
  double bytes;
  /// Adds to this earlier transfer if it is still in flight.
  std::optional<std::size_t> extends;
};

/// Checks the rates of all transfers in flight by the definition of max-min fairness: no transfer
/// exceeds a limit, and each transfer has a full limit under which no other one is faster.
void expect_max_min(SharedLinks& links, const std::vector<std::size_t>& in_flight,
                    const std::vector<Constraint>& constraints) {
  const auto total = [&](const Constraint& c) {
    double sum = 0;
    for (const std::size_t path : in_flight) {
      sum += c.paths[path] ? links.rate(path) : 0;
    }
    return sum;
  };
  for (const Constraint& c : constraints) {
    ASSERT_LE(total(c), c.limit * (1 + 1e-9));
  }
  for (const std::size_t path : in_flight) {
    const bool held_back =
        std::any_of(constraints.begin(), constraints.end(), [&](const Constraint& c) {
          if (!c.paths[path] || total(c) < c.limit * (1 - 1e-9)) {
            return false;
          }
          return std::none_of(in_flight.begin(), in_flight.end(), [&](std::size_t other) {
            return c.paths[other] && links.rate(other) > links.rate(path) * (1 + 1e-9);
          });
        });
    ASSERT_TRUE(held_back) << "path " << path << " could get more";
  }
}

TEST(SharedLinks, AgreesWithAFluidModelAndIsMaxMinFair) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    RandomStream random(seed, "tests/shared_links");
    const World world = random_world(random);
    const std::vector<Constraint> constraints = constraints_of(world);
    std::vector<Change> changes;
    double at = 0;
    for (std::size_t i = 0; i < 120; ++i) {
      at = std::floor(at + random.exponential(300000));
      Change change{at, static_cast<std::size_t>(random.index(6)),
                    std::floor(random.exponential(1e6)), std::nullopt};
      if (i > 0 && random.uniform() < 0.2) {
        change.extends = static_cast<std::size_t>(random.index(static_cast<std::int64_t>(i)));
      }
      changes.push_back(change);
    }

    // The reference, in real numbers.
    std::vector<double> expected(changes.size(), -1);
    std::vector<bool> extended(changes.size(), false);
    {
      std::vector<Flow> flows;
      double now = 0;
      std::size_t next = 0;
      while (next < changes.size() || !flows.empty()) {
        set_rates(flows, constraints);
        double step = next < changes.size() ? changes[next].at - now
                                            : std::numeric_limits<double>::infinity();
        std::size_t ends = flows.size();
        for (std::size_t f = 0; f < flows.size(); ++f) {
          const double to_end = flows[f].left / flows[f].rate * 1e9;
          if (to_end < step) {
            step = to_end;
            ends = f;
          }
        }
        for (Flow& flow : flows) {
          flow.left -= flow.rate * step * 1e-9;
        }
        now += step;
        if (ends < flows.size()) {
          expected[flows[ends].cookie] = now;
          flows.erase(flows.begin() + static_cast<std::ptrdiff_t>(ends));
          continue;
        }
        const Change& change = changes[next];
        const auto found = std::find_if(flows.begin(), flows.end(), [&](const Flow& f) {
          return change.extends && f.cookie == *change.extends;
        });
        // A transfer about to end may have ended in only one of the two models, so it is not
        // extended.
        if (found != flows.end() && found->left > 1000) {
          found->left += change.bytes;
          extended[next] = true;
        } else {
          flows.push_back({change.path, change.bytes, next});
        }
        ++next;
      }
    }

    // The links, in whole nanoseconds.
    // Every other world has unused paths, too many for patterns to be remembered.
    std::vector<std::vector<LinkUse>> paths = world.paths;
    paths.resize(seed % 2 == 0 ? 100 : paths.size(), {{0, true}});
    SharedLinks links(topology_of(world.links, paths));
    std::vector<TransferId> ids(changes.size());
    std::vector<std::size_t> path_of(changes.size());
    std::vector<std::size_t> in_flight;  // cookies
    std::vector<double> bytes(world.paths.size(), 0);
    SimTime last;
    std::size_t next = 0;
    while (next < changes.size() || links.in_flight() > 0) {
      const SimTime change_at =
          next < changes.size() ? SimTime(static_cast<std::int64_t>(changes[next].at)) : kNever;
      if (links.next_completion() < change_at) {
        const SimTime done = links.next_completion();
        ASSERT_GE(done, last);
        last = done;
        const std::size_t cookie = links.finish_next().cookie;
        in_flight.erase(std::find(in_flight.begin(), in_flight.end(), cookie));
        ASSERT_NEAR(static_cast<double>(done.ns), expected[cookie], 400) << "seed " << seed;
      } else {
        const Change& change = changes[next];
        const Bytes size(static_cast<std::int64_t>(change.bytes));
        if (extended[next]) {
          ASSERT_TRUE(links.extend(ids[*change.extends], size, change_at));
          bytes[path_of[*change.extends]] += change.bytes;
        } else {
          ids[next] = links.start(change.path, size, next, change_at);
          path_of[next] = change.path;
          in_flight.push_back(next);
          bytes[change.path] += change.bytes;
        }
        ++next;
      }
      std::vector<std::size_t> moving;
      for (const std::size_t cookie : in_flight) {
        moving.push_back(path_of[cookie]);
      }
      expect_max_min(links, moving, constraints);
    }
    for (std::size_t l = 0; l < world.links.size(); ++l) {
      double forward = 0;
      double backward = 0;
      for (std::size_t p = 0; p < world.paths.size(); ++p) {
        for (const LinkUse& use : world.paths[p]) {
          if (use.link == l) {
            (use.forward ? forward : backward) += bytes[p];
          }
        }
      }
      EXPECT_EQ(static_cast<double>(links.counters(l, last).forward.value), forward);
      EXPECT_EQ(static_cast<double>(links.counters(l, last).backward.value), backward);
    }
  }
}

TEST(SharedLinks, ManyTransfersAtOnceStayFair) {
  // More than a remembered pattern can count.
  SharedLinks links = one_link(limits(kGb, kGb, 2 * kGb));
  constexpr std::size_t kTransfers = 300;
  for (std::size_t i = 0; i < kTransfers; ++i) {
    links.start(kUp, Bytes(1000), i, at_ms(0));
    EXPECT_DOUBLE_EQ(links.rate(kUp), kGb / static_cast<double>(i + 1));
  }
  // All end when 300,000 bytes have moved.
  for (const SimTime time : completions(links, kTransfers)) {
    EXPECT_NEAR(static_cast<double>(time.ns), 300000, 2);
  }
  links.start(kUp, Bytes(1000), 0, at_ms(1));
  EXPECT_EQ(links.next_completion(), at_ms(1) + SimDuration(1000));
}

}  // namespace
}  // namespace kvtier::test
