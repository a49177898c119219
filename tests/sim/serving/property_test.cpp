#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/timing/roofline.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// Enough to meet most triples of switches, few enough for seconds.
constexpr std::uint64_t kConfigs = 1000;

std::string simulated(const RunConfig& config, DecodeStepping stepping) {
  RunOptions options;
  options.stepping = stepping;
  return simulate(config, builtin_policies(), options).dump(1);
}

/// Calls `check` for each random config and says which one failed. Returns how many there were.
template <class Check>
std::uint64_t for_random_configs(Check check) {
  // A longer hunt is a matter of two variables.
  const char* from = std::getenv("KVTIER_TEST_FROM");
  const char* count = std::getenv("KVTIER_TEST_CONFIGS");
  const std::uint64_t first = from != nullptr ? std::stoull(from) : 1;
  const std::uint64_t configs = count != nullptr ? std::stoull(count) : kConfigs;
  for (std::uint64_t seed = first; seed < first + configs; ++seed) {
    SCOPED_TRACE(fmt::format("random config {}", seed));
    try {
      check(random_config(seed));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  return configs;
}

TEST(RandomSystems, GiveTheSameBytesInBothSteppingsAndTwice) {
  for_random_configs([](const RunConfig& config) {
    const std::string closed = simulated(config, DecodeStepping::closed_form);
    EXPECT_TRUE(closed == simulated(config, DecodeStepping::per_iteration));
    EXPECT_TRUE(closed == simulated(config, DecodeStepping::closed_form));
  });
}

TEST(RandomSystems, GiveTheSameBytesInBothSteppingsWithWindows) {
  std::uint64_t run = 0;
  std::uint64_t seed = 0;
  const std::uint64_t configs = for_random_configs([&](const RunConfig& random) {
    const RunConfig config = with_windows(random, ++seed);
    std::string closed;
    try {
      closed = simulated(config, DecodeStepping::closed_form);
    } catch (const ConfigError&) {
      return;  // a buffer that no longer fits
    }
    EXPECT_TRUE(closed == simulated(config, DecodeStepping::per_iteration));
    ++run;
  });
  EXPECT_GT(3 * run, configs);
}

TEST(RandomSystems, HaveNoShareAboveOneAndCostNoMoreBusyThanRented) {
  static constexpr double kRounding = 1 + 1e-9;
  for_random_configs([](const RunConfig& config) {
    const Json result = simulate(config, builtin_policies());
    const Json& load = result["load"];
    for (const char* share :
         {"slots_in_use_fraction", "kv_memory_in_use_fraction", "gpu_busy_fraction"}) {
      EXPECT_GE(load[share].get<double>(), 0) << share;
      EXPECT_LE(load[share].get<double>(), kRounding) << share;
    }
    double waiting = 0;
    for (const auto& [cause, share] : load["bottleneck"]["shares"].items()) {
      EXPECT_GE(share.get<double>(), 0) << cause;
      waiting += share.get<double>();
    }
    EXPECT_LE(waiting, kRounding);
    EXPECT_NEAR(load["bottleneck"]["requests_wait_share"].get<double>(), waiting, 1e-9);
    double loading = 0;
    for (const char* link : {"host_link", "host_memory", "cxl_memory", "drive"}) {
      loading += load["gpu_load_wait_fraction"][link].get<double>();
    }
    EXPECT_NEAR(load["gpu_load_wait_fraction"]["total"].get<double>(), loading, 1e-9);
    const Json& metrics = result["metrics"];
    for (const auto& [link, counters] : metrics["links"].items()) {
      EXPECT_LE(counters["busy_fraction"].get<double>(), kRounding) << link;
    }
    for (const char* part : {"total", "gpu", "dram", "cxl", "ssd"}) {
      EXPECT_LE(metrics["busy_cost_dollars"][part].get<double>(),
                metrics["cost_dollars"][part].get<double>() * kRounding)
          << part;
    }
  });
}

/// Checks what must hold after every turn.
class TurnChecker final : public RunObserver {
 public:
  void on_request(const RequestRecord& r) override {
    ASSERT_LE(r.arrived, r.admitted);
    ASSERT_LE(r.admitted, r.first_token);
    ASSERT_LE(r.first_token, r.finished);
    ASSERT_LE(last_finished, r.finished);
    last_finished = r.finished;
    ASSERT_GE(r.exposed_load.ns, 0);
    ASSERT_LE(r.found.reused, r.history);
    ASSERT_LE(r.history + r.input + r.output, window);
    ASSERT_EQ(r.found.cause == LossCause::none, r.found.reused >= r.history);
    // A suspended request may load what it had computed itself.
    const bool suspended = instance->batcher().preemptions() > 0;
    if (!suspended &&
        (r.found.reused.value == 0 || (r.found.medium == Medium::hbm && !r.found.late))) {
      ASSERT_EQ(r.exposed_load.ns, 0) << "nothing was loaded";
    }
    ASSERT_GE(r.decode_share.ns, 0);
    ASSERT_LE(r.decode_share, r.finished - r.first_token);
    // With the matrices bound by their weights a prompt that joins an iteration may be free.
    ASSERT_GE(r.prefill_compute.ns, shares_iterations ? 0 : 1);
    decode_shares += r.decode_share;
    instance->batcher().check_invariants();
    ++turns;
    first_turns += r.measured && !r.resumed() && r.truncated.value == 0 ? 1 : 0;
  }

  void on_measurement_restart() override { first_turns = 0; }

  void on_gpu(GpuActivity, SimTime, SimTime, std::int64_t, std::int64_t) override { ++gpu_spans; }

  Instance* instance = nullptr;
  Tokens window;
  SimDuration decode_shares;
  std::int64_t gpu_spans = 0;
  bool shares_iterations = false;
  SimTime last_finished;
  std::int64_t turns = 0;
  /// Measured turns that need no history.
  std::int64_t first_turns = 0;
};

TEST(RandomSystems, KeepEveryInvariantAfterEveryTurnAndCountEveryByteMoved) {
  const PolicyRegistry registry = builtin_policies();
  for_random_configs([&](const RunConfig& config) {
    const RooflineTiming timing(config.model, config.hardware, config.serving.slots);
    SimulatedBackend simulated_backend(config.hardware, config.model.layers, timing,
                                       DecodeStepping::closed_form);
    CountingBackend backend(simulated_backend);
    const auto source = make_source(config.workload, static_cast<std::uint64_t>(config.seed), {});
    TurnChecker checker;
    Instance instance({.config = &config,
                       .registry = &registry,
                       .backend = &backend,
                       .sessions = source.get(),
                       .observer = &checker,
                       .decisions = nullptr,
                       .progress = {}});
    checker.instance = &instance;
    checker.window = config.model.context_window;
    checker.shares_iterations = config.system.batching == Batching::unified;
    instance.run();
    simulated_backend.check_drained();
    EXPECT_EQ(checker.turns, instance.finished_turns());
    std::int64_t accounted = checker.first_turns;
    for (const std::int64_t hits : instance.turns().full_hits) {
      accounted += hits;
    }
    for (const std::int64_t lost : instance.turns().lost_hits) {
      accounted += lost;
    }
    // Dividing a decode among its requests rounds down.
    const std::int64_t undivided = instance.total_gpu_time().decode.ns - checker.decode_shares.ns;
    EXPECT_GE(undivided, 0);
    EXPECT_LE(undivided, checker.gpu_spans * config.serving.slots);
    EXPECT_EQ(accounted, instance.turns().turns) << "a turn is a hit, a lost hit or a first one";

    const Batcher& tiers = instance.batcher();
    for (std::size_t i = 0; i < tiers.tier_count(); ++i) {
      Bytes in;
      Bytes out;
      for (std::size_t other = 0; other < kMedia; ++other) {
        const auto medium = static_cast<Medium>(other);
        in += backend.moved(medium, tiers.medium(i));
        out += backend.moved(tiers.medium(i), medium);
      }
      if (tiers.medium(i) == Medium::hbm) {  // what turns load goes past the tier
        for (std::size_t other = 0; other < kMedia; ++other) {
          in -= tiers.loaded_bytes(static_cast<Medium>(other));
        }
      }
      const TierCounters counters = tiers.counters(i);
      EXPECT_EQ(counters.written.value, in.value) << to_string(tiers.medium(i));
      EXPECT_EQ(counters.read.value, out.value) << to_string(tiers.medium(i));
    }
    // Paths that cross each link, by the wiring of the server.
    const auto carried = [&](std::initializer_list<std::pair<Medium, Medium>> paths) {
      Bytes sum;
      for (const auto& [from, to] : paths) {
        sum += backend.moved(from, to);
      }
      return sum.value;
    };
    using enum Medium;
    const auto counters = [&](const char* link) { return simulated_backend.link_counters(link); };
    EXPECT_EQ(counters("pcie").forward.value, carried({{dram, hbm}, {ssd, hbm}}));
    EXPECT_EQ(counters("pcie").backward.value, carried({{hbm, dram}, {hbm, ssd}}));
    EXPECT_EQ(counters("ssd").forward.value, carried({{ssd, dram}, {ssd, hbm}, {ssd, cxl}}));
    EXPECT_EQ(counters("ssd").backward.value, carried({{dram, ssd}, {hbm, ssd}, {cxl, ssd}}));
    EXPECT_EQ(counters("cxl").forward.value, carried({{cxl, hbm}, {cxl, dram}, {cxl, ssd}}));
    EXPECT_EQ(counters("cxl").backward.value, carried({{hbm, cxl}, {dram, cxl}, {ssd, cxl}}));
    const bool bus = config.hardware.dram->bandwidth.has_value();
    EXPECT_EQ(counters("dram").forward.value,
              bus ? carried({{dram, hbm}, {dram, cxl}, {dram, ssd}}) : 0);
    EXPECT_EQ(counters("dram").backward.value,
              bus ? carried({{hbm, dram}, {cxl, dram}, {ssd, dram}}) : 0);
  });
}

}  // namespace
}  // namespace kvtier::test
