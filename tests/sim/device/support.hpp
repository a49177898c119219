#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/engine/config.hpp"
#include "sim/engine/instance.hpp"

namespace kvtier::test {

/// A random config that a device can run: a token's KV is a block of the drive.
[[nodiscard]] RunConfig random_device_config(std::uint64_t seed);

/// Calls check(config) for as many of them as KVTIER_TEST_CONFIGS says, or `count`, from
/// KVTIER_TEST_FROM on, and says which one failed; returns how many there were.
std::int64_t for_device_configs(std::uint64_t count,
                                const std::function<void(const RunConfig&)>& check);

/// What moved when, as text, a line each.
class TransferLog final : public RunObserver {
 public:
  void on_transfer(const TransferRecord& transfer) override;
  std::string lines;
  std::int64_t count = 0;
};

}  // namespace kvtier::test
