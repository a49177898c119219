#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "sim/engine/config.hpp"

namespace kvtier::test {

/// A random config that a device can run: a token's KV is a block of the drive.
[[nodiscard]] std::optional<RunConfig> random_device_config(std::uint64_t seed);

/// Calls check(config) for as many of them as KVTIER_TEST_CONFIGS says, or `count`, from
/// KVTIER_TEST_FROM on, and says which one failed; returns how many there were.
std::int64_t for_device_configs(std::uint64_t count,
                                const std::function<void(const RunConfig&)>& check);

}  // namespace kvtier::test
