#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "hw/timing/roofline.hpp"
#include "sim/backend/forwarding_backend.hpp"
#include "sim/device/lock_step_backend.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/device/support.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// Counters of a run on the device.
struct InLockStep {
  Bytes verified;
  std::set<std::pair<Medium, Medium>> paths;
  Json result;
  /// Tokens that HBM holds when all turns have ended, and of prompt 0.
  std::int64_t in_hbm = 0;
  std::int64_t of_prompt = 0;
};

/// Runs the config in simulation and on the device, and expects the same.
InLockStep run_in_lock_step(const RunConfig& config, Device& device, bool watched) {
  const PolicyRegistry registry = builtin_policies();
  check_runs_on_device(config, device);
  DecisionLines expected;
  TransferLog expected_transfers;
  const Json simulated =
      simulate(config, registry, {.observer = &expected_transfers, .decisions = &expected});
  const RooflineTiming timing(config.model, config.hardware, config.serving.slots);
  SimulatedBackend clock(config.hardware, config.model.layers, timing, DecodeStepping::closed_form);
  LockStepBackend backend(clock, {.config = &config,
                                  .device = &device,
                                  .directory = KVTIER_SOURCE_DIR,
                                  .verify = true,
                                  .spare_contexts = config.system.blocks ? 2 : 200});
  DecisionLines log;
  TransferLog transfers;
  const Json result = run_on(backend, config, registry,
                             {.observer = watched ? &transfers : nullptr, .decisions = &log});
  backend.finish();
  expect_within_tiers(backend.store(), config);
  EXPECT_EQ(log.lines, expected.lines);
  if (watched) {
    EXPECT_EQ(transfers.lines, expected_transfers.lines);
  }
  EXPECT_EQ(result["metrics"]["ttft_seconds"], simulated["metrics"]["ttft_seconds"]);
  EXPECT_EQ(result["metrics"]["hit_rate"], simulated["metrics"]["hit_rate"]);
  return {.verified = backend.store().counters().verified,
          .paths = expected_transfers.paths,
          .result = result,
          .in_hbm = backend.store().held(Medium::hbm),
          .of_prompt = backend.store().tokens(Medium::hbm, prompt_key(0))};
}

void move_every_byte(std::uint64_t count, RunConfig (*make)(std::uint64_t seed)) {
  const auto device = make_cpu_device(1);
  Bytes verified;
  int observed = 0;
  const std::int64_t ran = for_device_configs(
      count,
      [&](const RunConfig& config) {
        // Watched or not, the work is the same.
        verified += run_in_lock_step(config, *device, observed++ % 2 == 0).verified;
      },
      make);
  EXPECT_GT(ran, 0);
  EXPECT_GT(verified.value, 0);
}

TEST(LockStep, MovesEveryByteOfRandomSystemsOfBlocks) { move_every_byte(30, random_block_config); }

TEST(LockStep, MovesEveryByteOfVictims) { move_every_byte(60, random_victims_config); }

TEST(LockStep, RandomSystemsOfBlocksMoveOnEveryPath) {
  using enum Medium;
  using Path = std::pair<Medium, Medium>;
  const std::set wanted{Path{hbm, dram}, {dram, hbm}, {dram, ssd}, {ssd, dram}};
  std::set<Path> paths;
  std::int64_t prefetches = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    TransferLog transfers;
    const Json result =
        simulate(random_block_config(seed), builtin_policies(), {.observer = &transfers});
    paths.insert(transfers.paths.begin(), transfers.paths.end());
    const Json& fetched = result["metrics"]["prefetches"];
    prefetches += fetched.is_null() ? 0 : fetched["begun"].get<std::int64_t>();
  }
  EXPECT_EQ(paths, wanted);
  EXPECT_GT(prefetches, 0);
}

/// A backend that loses one thing that the control plane tells another one.
class Forgetful final : public ForwardingBackend {
 public:
  enum class Loses : std::uint8_t { nothing, transfers, use };

  Forgetful(Backend& backend, Loses loses) : ForwardingBackend(backend), loses_(loses) {}

  TransferId start_transfer(const TransferCommand& command) override {
    TransferCommand told = command;
    if (loses_ == Loses::transfers && ++calls_ == 3) {
      told.pieces = {};
    }
    return backend_.start_transfer(told);
  }
  void add_blocks(const BlockCopy& copy) override {
    backend_.add_blocks(copy);
    if (loses_ == Loses::use && copy.to == Medium::hbm && ++calls_ == 5) {
      backend_.remove_blocks(copy.to, copy.blocks);
    }
  }

 private:
  Loses loses_;
  int calls_ = 0;
};

TEST(LockStep, NoticesASkippedMoveAndABlockThatLeavesTooEarly) {
  const auto device = make_cpu_device(1);
  int runs = 0;
  int with_moves = 0;
  for_device_configs(
      4,
      [&](const RunConfig& config) {
        const RooflineTiming timing(config.model, config.hardware, config.serving.slots);
        using enum Forgetful::Loses;
        std::int64_t moves = 0;
        for (const Forgetful::Loses loses : {nothing, transfers, use}) {
          SimulatedBackend clock(config.hardware, config.model.layers, timing,
                                 DecodeStepping::closed_form);
          LockStepBackend backend(clock, {.config = &config,
                                          .device = device.get(),
                                          .directory = KVTIER_SOURCE_DIR,
                                          .verify = true,
                                          .spare_contexts = 2});
          Forgetful forgetful(backend, loses);
          const auto run = [&] {
            static_cast<void>(run_on(forgetful, config, builtin_policies(), {}));
            backend.finish();
          };
          ++runs;
          if (loses == nothing) {
            run();
            moves = backend.store().counters().moves;
            with_moves += moves >= 3 ? 1 : 0;
          } else if (loses == use || moves >= 3) {
            EXPECT_THROW(run(), std::exception);
          }
        }
      },
      random_block_config);
  EXPECT_EQ(runs, 12);
  EXPECT_GT(with_moves, 0);
}

TEST(LockStep, MovesEveryByteOfRandomSystems) { move_every_byte(20, random_device_config); }

/// Runs the config. Expects at each completion that the entries of the device take no more of HBM
/// than the control plane says. Returns the most that they took beyond the pool's accounts.
Bytes most_beyond_accounts(const RunConfig& config, Device& device) {
  const PolicyRegistry registry = builtin_policies();
  const RooflineTiming timing(config.model, config.hardware, config.serving.slots);
  SimulatedBackend clock(config.hardware, config.model.layers, timing, DecodeStepping::closed_form);
  std::function<void()> check = [] {};
  LockStepBackend backend(clock, {.config = &config,
                                  .device = &device,
                                  .directory = KVTIER_SOURCE_DIR,
                                  .check = [&check] { check(); },
                                  .spare_contexts = 200});
  const auto source = make_source(config.workload, static_cast<std::uint64_t>(config.seed), {});
  Instance instance(
      {.config = &config, .registry = &registry, .backend = &backend, .sessions = source.get()});
  Bytes most;
  check = [&] {
    const KvStore& store = backend.store();
    const Batcher& batcher = instance.batcher();
    const Bytes taken = store.token_bytes() * store.held(Medium::hbm);
    const Bytes accounts = batcher.hbm().total();
    EXPECT_LE(taken.value, (accounts + batcher.beyond_accounts()).value);
    most = std::max(most, taken - accounts);
  };
  instance.run();
  backend.finish();
  return most;
}

TEST(LockStep, TakesNoMoreOfHbmThanTheControlPlaneAccountsFor) {
  const auto device = make_cpu_device(1);
  Bytes beyond;
  const std::int64_t ran = for_device_configs(15, [&](const RunConfig& config) {
    const Bytes most = most_beyond_accounts(config, *device);
    const bool only_in_hbm = config.system.tiers.count() == 0;
    EXPECT_TRUE(!only_in_hbm || most.value == 0) << "what is beyond is saved or loaded ahead";
    beyond = std::max(beyond, most);
  });
  EXPECT_GT(ran, 0);
  EXPECT_GT(beyond.value, 0) << "turns that are saved stay in HBM whole";
}

TEST(LockStep, MovesEveryByteBetweenEachTwoTiers) {
  const auto device = make_cpu_device(1);
  using enum Medium;
  for (const auto& [first, second] :
       {std::pair{hbm, dram}, {hbm, cxl}, {hbm, ssd}, {dram, cxl}, {dram, ssd}, {cxl, ssd}}) {
    SCOPED_TRACE(fmt::format("{} before {}", to_string(first), to_string(second)));
    const InLockStep run = run_in_lock_step(crowded_config(first, second), *device, true);
    using Path = std::pair<Medium, Medium>;
    std::set expected{Path{first, second}, Path{second, first}, Path{second, hbm}};
    if (first != hbm) {
      expected.insert({{hbm, first}, {first, hbm}});
    }
    EXPECT_EQ(run.paths, expected);
    EXPECT_GT(run.verified.value, 0);
  }
}

TEST(LockStep, HoldsSharedPromptsOnce) {
  const auto device = make_cpu_device(1);
  RunConfig config = crowded_car_config(1);
  // All sessions stay in HBM, and nothing is cut.
  config.system.tiers.hbm->capacity = 1000 * *config.system.tiers.hbm->capacity;
  config.hardware.hbm.capacity = 2 * *config.system.tiers.hbm->capacity;
  config.workload.sharegpt.turns_max = 2;
  config.workload.sharegpt.message_cap = Tokens(10);
  const InLockStep shared = run_in_lock_step(config, *device, true);
  EXPECT_EQ(shared.of_prompt, 30);
  config.system.sharing = Sharing::none;
  const InLockStep apart = run_in_lock_step(config, *device, true);
  EXPECT_EQ(apart.of_prompt, 0);
  EXPECT_EQ(apart.in_hbm - shared.in_hbm, 30 * (*config.workload.sessions - 1));
}

TEST(LockStep, MovesEveryByteOfSharedPrompts) {
  const auto device = make_cpu_device(1);
  for (const std::int64_t contexts : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("HBM for {} contexts", contexts));
    RunConfig config = crowded_car_config(4);
    config.system.tiers.hbm->capacity = *config.system.tiers.hbm->capacity / 3 * contexts;
    const InLockStep run = run_in_lock_step(config, *device, contexts % 2 == 0);
    EXPECT_GT(run.verified.value, 0);
    EXPECT_GT(run.result["metrics"]["hit_rate"]["all_turns"]["cxl"].get<double>(), 0);
    EXPECT_GT(run.result["metrics"]["prefetches"]["begun"].get<std::int64_t>(), 0);
  }
}

}  // namespace
}  // namespace kvtier::test
