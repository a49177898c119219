#include "hw/profile/described_gpu.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "hw/profile/profile_timing.hpp"

namespace kvtier {
namespace {

/// The profile that times come from; null if the roofline gives all of them.
const Profile* profile_of_times(const ModelConfig& model, const HardwareConfig& hardware) {
  return hardware.profile && has_measured_layers(model, hardware) ? hardware.profile->loaded.get()
                                                                  : nullptr;
}

bool has_all_reduces(const Profile& profile, std::int64_t gpus) {
  return gpus == 1 ||
         std::ranges::any_of(
             find_tables(profile, OperationId::all_reduce), [&](const ProfileTable* table) {
               return std::ranges::any_of(
                   table->cells, [&](const ProfileCell& cell) { return cell.at[0] == gpus; });
             });
}

/// Whether two numbers are one figure read in different units.
bool are_equal(double a, double b) {
  constexpr double kRounding = 1e-9;
  return std::abs(a - b) <= kRounding * std::max(a, b);
}

bool are_alike(double described, double measured) {
  constexpr double kSameGpu = 1.25;
  return described <= measured * kSameGpu && measured <= described * kSameGpu;
}

std::string gpu_text(const std::string& name, FlopsPerSecond peak, BytesPerSecond bandwidth) {
  return fmt::format("{} ({}, {})", name, format_quantity(peak), format_quantity(bandwidth));
}

}  // namespace

ProfileDevice described_device(const HardwareConfig& hardware) {
  const GpuConfig& gpu = hardware.gpu;
  const FlopsPerSecond eight_bits = gpu.peaks.eight_bits.value_or(gpu.peak * 2);
  return {.name = gpu.name,
          .driver = "unknown",
          .memory = hardware.hbm.capacity,
          .peak = gpu.peak,
          .peak_8bit = eight_bits,
          .peak_4bit = gpu.peaks.four_bits.value_or(eight_bits),
          .memory_bandwidth = hardware.hbm.bandwidth,
          .limits_source = "hardware " + hardware.name};
}

void check_replaced_rates(const ModelConfig& model, const HardwareConfig& described,
                          const HardwareConfig& hardware, Problems& problems) {
  const Profile* profile = profile_of_times(model, hardware);
  if (profile == nullptr) {
    return;
  }
  const auto check = [&](const char* pointer, const auto& before, const auto& now,
                         const auto& number) {
    if (!are_equal(number(before), number(now))) {
      problems.add(
          pointer,
          fmt::format("expected {}, got {}: the times are those that profile {} measured on {}; "
                      "set /hardware/profile to \"none\" for times that follow from this key",
                      write_value(before).dump(), write_value(now).dump(), hardware.profile->name,
                      profile->device.name));
    }
  };
  const auto check_rate = [&](const char* pointer, const auto& before, const auto& now) {
    check(pointer, before, now, [](const auto& rate) { return rate.value; });
  };
  const auto check_share = [&](const char* pointer, double before, double now) {
    check(pointer, before, now, [](double share) { return share; });
  };
  const EfficiencyConfig& before = described.efficiency;
  const EfficiencyConfig& now = hardware.efficiency;
  check_share("/hardware/efficiency/compute", before.compute, now.compute);
  check_share("/hardware/efficiency/memory", before.memory, now.memory);
  if (hardware.profile != described.profile) {
    return;  // check_measured_gpu compares the described GPU with that of the profile
  }
  if (!hardware.sibling) {  // whose times follow from these
    check_rate("/hardware/gpu/peak", described.gpu.peak, hardware.gpu.peak);
    if (hardware.gpu.peaks != described.gpu.peaks) {
      const ProfileDevice own = described_device(described);
      const ProfileDevice changed = described_device(hardware);
      check_rate("/hardware/gpu/peaks/fp8", *own.peak_8bit, *changed.peak_8bit);
      check_rate("/hardware/gpu/peaks/fp4", *own.peak_4bit, *changed.peak_4bit);
    }
    check_rate("/hardware/hbm/bandwidth", described.hbm.bandwidth, hardware.hbm.bandwidth);
  }
  if (hardware.gpus > 1 && has_all_reduces(*profile, gpus_of_rank(hardware)) &&
      has_all_reduces(*profile, gpus_of_stage(hardware))) {
    const GpuLinkConfig& link = hardware.links.gpu;
    check_rate("/hardware/links/gpu/bandwidth", described.links.gpu.bandwidth, link.bandwidth);
    check("/hardware/links/gpu/latency", described.links.gpu.latency, link.latency,
          [](SimDuration latency) { return latency.seconds(); });
    check_share("/hardware/efficiency/gpu_link", before.gpu_link, now.gpu_link);
  }
}

void check_measured_gpu(const ModelConfig& model, const HardwareConfig& hardware,
                        Problems& problems) {
  const Profile* profile = profile_of_times(model, hardware);
  if (profile == nullptr) {
    return;
  }
  const ProfileDevice& device = profile->device;
  const bool is_processor = profile->host && profile->host->cpu == device.name;
  if (is_processor || (are_alike(hardware.gpu.peak.value, device.peak.value) &&
                       are_alike(hardware.hbm.bandwidth.value, device.memory_bandwidth.value))) {
    return;
  }
  problems.add(
      "/hardware/profile",
      fmt::format("expected a profile of the described GPU, {}, got {}, measured on {}: describe "
                  "that GPU, by its preset or by the profile without a preset, or set "
                  "/hardware/profile to \"none\"",
                  gpu_text(hardware.gpu.name, hardware.gpu.peak, hardware.hbm.bandwidth),
                  hardware.profile->name,
                  gpu_text(device.name, device.peak, device.memory_bandwidth)));
}

}  // namespace kvtier
