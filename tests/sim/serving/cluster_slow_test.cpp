/// The cost of many instances, which is printed: it is mostly that of memory outside of caches.
/// `KVTIER_TEST_REQUESTS=10000000` runs more requests.

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/rng.hpp"
#include "sim/serving/cluster.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// The rate of one instance. A prompt of 100 tokens takes 10 ms, and 100 iterations of the response
/// 0.5 s.
constexpr double kRequestsPerSecond = 12;

/// Poisson arrivals of single requests, made as they come.
class PoissonSource final : public SessionSource {
 public:
  PoissonSource(std::int64_t count, double rate)
      : count_(count), rate_(rate), draws_(3, "test/arrivals") {}
  bool next(SessionSpec& session) override {
    if (given_ == count_) {
      return false;
    }
    at_ += draws_.exponential(1 / rate_);
    session = SessionSpec{.id = given_++, .arrival = SimTime(static_cast<std::int64_t>(at_ * 1e9))};
    session.turns = {turn(100, 100)};
    return true;
  }

 private:
  std::int64_t count_;
  double rate_;
  RandomStream draws_;
  std::int64_t given_ = 0;
  double at_ = 0;
};

RunConfig instances(std::int64_t count, const std::string& router) {
  RunConfig config = tiny_config(Tokens(1000));
  config.serving.slots = 32;
  config.workload.warmup_turns = 0;
  config.cluster.instances = count;
  config.cluster.router.name = router;
  return config;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(ClustersOfAThousand, HoldOnlyLiveRequests) {
  const char* asked = std::getenv("KVTIER_TEST_REQUESTS");
  const std::int64_t requests = asked != nullptr ? std::stoll(asked) : 500'000;
  constexpr std::int64_t kInstances = 1000;
  const PolicyRegistry registry = builtin_policies();
  const ConstantTiming timing(SimDuration(100'000), kMillisecond * 5);
  const RunConfig alone = instances(1, "session");
  double begin = cpu_seconds();
  {
    SimulatedBackend backend(alone.hardware, alone.model.layers, timing,
                             DecodeStepping::closed_form);
    PoissonSource source(requests, kRequestsPerSecond);
    Instance instance(
        {.config = &alone, .registry = &registry, .backend = &backend, .sessions = &source});
    instance.run();
  }
  const double of_one = (cpu_seconds() - begin) / static_cast<double>(requests);
  for (const char* router : {"session", "round_robin", "power_of_two"}) {
    const RunConfig config = instances(kInstances, router);
    PoissonSource source(requests, kRequestsPerSecond * kInstances);
    begin = cpu_seconds();
    Cluster cluster(
        {.config = &config, .registry = &registry, .timing = &timing, .sessions = &source});
    const double made = cpu_seconds();
    cluster.run();
    const double of_cluster = (cpu_seconds() - made) / static_cast<double>(requests);
    fmt::print("{}: {:.0f} ns a request, {:.0f} ns of one instance, {:.2f} s to begin, {} live\n",
               router, of_cluster * 1e9, of_one * 1e9, made - begin,
               cluster.users().most_live_sessions());
    EXPECT_EQ(cluster.users().finished_turns(), requests);
    EXPECT_LT(cluster.users().most_live_sessions(), 20U * kInstances);
  }
}

}  // namespace
}  // namespace kvtier::test
