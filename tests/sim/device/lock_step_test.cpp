#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "hw/roofline.hpp"
#include "sim/core/errors.hpp"
#include "sim/device/lock_step_backend.hpp"
#include "sim/engine/simulate.hpp"
#include "tests/sim/engine/support.hpp"

namespace kvtier::test {
namespace {

/// Every decision and every number of a run.
class Log final : public DecisionObserver {
 public:
  void on_decision(const Decision& d) override {
    lines += fmt::format("{} {} {} {} {} {}\n", static_cast<int>(d.kind), static_cast<int>(d.tier),
                         d.key.value, d.tokens.value, d.time.ns, static_cast<int>(d.demand));
  }
  void on_use(EntryKey key, SimTime now) override {
    lines += fmt::format("use {} {}\n", key.value, now.ns);
  }
  std::string lines;
};

/// A random config that a device can run: a token's KV is a block of the drive.
std::optional<RunConfig> random_device_config(std::uint64_t seed) {
  RunConfig config = random_config(seed);
  if (config.system.paging) {
    return std::nullopt;
  }
  const Bytes before = kv_bytes_per_token(config.model);
  config.model = {.name = "tiny",
                  .layers = 4,
                  .hidden_size = 64,
                  .attention_heads = 4,
                  .kv_heads = 4,
                  .head_dim = 32,
                  .intermediate_size = 64,
                  .vocabulary_size = 64,
                  .bytes_per_element = 4,
                  .kv_bytes_per_element = 4,
                  .context_window = config.model.context_window};
  const std::int64_t scale = (kv_bytes_per_token(config.model) + before - Bytes(1)) / before;
  SystemConfig& system = config.system;
  system.positions = Positions::decoupled;
  system.tiers.hbm.reset();
  system.tiers.cxl.reset();
  system.compression.reset();
  system.sharing = Sharing::none;
  if (system.tiers.ssd && !system.tiers.dram) {
    system.tiers.dram = system.tiers.ssd;
    system.tiers.dram->free_buffer = Bytes(0);
  }
  if (system.tiers.count() < 2) {
    system.prefetch = {.name = "none", .parameters = {}};
  }
  for (std::optional<TierConfig>* tier : {&system.tiers.dram, &system.tiers.ssd}) {
    if (*tier) {
      (*tier)->free_buffer = (*tier)->free_buffer * scale;
    }
  }
  HardwareConfig& hardware = config.hardware;
  hardware.cxl.reset();
  hardware.dram->capacity = hardware.dram->capacity * scale;
  hardware.ssd->capacity = hardware.ssd->capacity * scale;
  hardware.hbm.capacity = hardware.hbm.capacity * scale;
  system.save.write_buffer = system.save.write_buffer * scale;
  config.workload.sessions = std::min<std::int64_t>(config.workload.sessions.value_or(15), 15);
  return config;
}

TEST(LockStep, MovesEveryByteOfRandomSystems) {
  const auto device = make_cpu_device(1);
  const PolicyRegistry registry = builtin_policies();
  std::int64_t ran = 0;
  Bytes verified;
  // A longer hunt is a matter of two variables.
  const char* const first = std::getenv("KVTIER_TEST_FROM");
  const char* const count = std::getenv("KVTIER_TEST_CONFIGS");
  const std::uint64_t from = first != nullptr ? std::stoull(first) : 1;
  const std::uint64_t configs = count != nullptr ? std::stoull(count) : 40;
  for (std::uint64_t seed = from; seed < from + configs; ++seed) {
    SCOPED_TRACE(fmt::format("random config {}", seed));
    const std::optional<RunConfig> config = random_device_config(seed);
    if (!config) {
      continue;
    }
    try {
      check_runs_on_device(*config, *device);
      Log expected;
      const Json simulated = simulate(*config, registry, {.decisions = &expected});
      const RooflineTiming timing(config->model, config->hardware, config->serving.slots);
      SimulatedBackend clock(config->hardware, config->model.layers, timing,
                             DecodeStepping::closed_form);
      LockStepBackend backend(clock, {.config = &*config,
                                      .device = device.get(),
                                      .directory = KVTIER_SOURCE_DIR,
                                      .verify = true,
                                      .spare_contexts = 200});
      Log log;
      const Json result = run_on(backend, *config, registry, {.decisions = &log});
      backend.finish();
      EXPECT_EQ(log.lines, expected.lines);
      EXPECT_EQ(result["metrics"]["ttft_seconds"], simulated["metrics"]["ttft_seconds"]);
      verified += backend.store().counters().verified;
      ++ran;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GT(ran, 0);
  EXPECT_GT(verified.value, 0);
}

}  // namespace
}  // namespace kvtier::test
