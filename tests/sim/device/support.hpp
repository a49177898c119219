#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "sim/device/kv_store.hpp"
#include "sim/serving/config.hpp"
#include "sim/serving/instance.hpp"

namespace kvtier::test {

/// A random config that a device can run: a token's KV is a block of the drive.
[[nodiscard]] RunConfig random_device_config(std::uint64_t seed);

/// More turns at a time than slots, and two tiers, the faster of which holds a few sessions.
/// Waiting turns are fetched, and turns load from both tiers.
[[nodiscard]] RunConfig crowded_config(Medium first, Medium second);

/// The same with CaR's features: HBM before CXL memory, and sessions that begin with one of
/// `prompts` prompts of 30 tokens, held once.
[[nodiscard]] RunConfig crowded_car_config(std::int64_t prompts);

/// A random system of blocks or nodes in HBM, and in up to two tiers behind it, that a device can
/// run. Sessions begin with shared prompts.
[[nodiscard]] RunConfig random_block_config(std::uint64_t seed);
/// The first one from 1000 x seed on whose DRAM has what leaves HBM.
[[nodiscard]] RunConfig random_victims_config(std::uint64_t seed);

/// Calls check(config) for as many of them as KVTIER_TEST_CONFIGS says, or `count`, from
/// KVTIER_TEST_FROM on, and says which one failed; returns how many there were.
std::int64_t for_device_configs(std::uint64_t count,
                                const std::function<void(const RunConfig&)>& check,
                                RunConfig (*make)(std::uint64_t seed) = random_device_config);

/// Every decision of a run.
class DecisionLines final : public DecisionObserver {
 public:
  void on_decision(const Decision& d) override;
  void on_use(EntryKey key, SimTime now) override;
  void on_block_decision(const BlockDecision& d) override;
  std::string lines;
};

/// Expects that a device whose turns have ended holds no more than the config's tiers do.
void expect_within_tiers(const KvStore& store, const RunConfig& config);

/// Times of transfers as text, one line each.
class TransferLog final : public RunObserver {
 public:
  void on_transfer(const TransferRecord& transfer) override;
  std::string lines;
  std::int64_t count = 0;
  std::set<std::pair<Medium, Medium>> paths;
};

}  // namespace kvtier::test
