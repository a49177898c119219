#pragma once

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/profile/profile.hpp"

/// Whether a hardware description agrees with the profile that it names.
namespace kvtier {

/// The described GPU as the device of a profile: its limits in each format are set.
[[nodiscard]] ProfileDevice described_device(const HardwareConfig& hardware);

/// Reports keys of /hardware that differ from those of `described`, although the profile gives the
/// times that would follow from them: attained shares, peaks, the bandwidth of HBM, and with
/// measured all-reduces the links between GPUs. `described` is the same hardware before its user
/// changed it. A user who names another profile may describe its GPU. Reports nothing if the
/// roofline gives all times.
void check_replaced_rates(const ModelConfig& model, const HardwareConfig& described,
                          const HardwareConfig& hardware, Problems& problems);

/// Reports a profile of a GPU with another peak or bandwidth than the described one, at
/// /hardware/profile. A driver's clocks give up to a quarter more than a datasheet. Profiles of
/// processors pass: their limits are those of registers and caches. Reports nothing if the roofline
/// gives all times.
void check_measured_gpu(const ModelConfig& model, const HardwareConfig& hardware,
                        Problems& problems);

}  // namespace kvtier
