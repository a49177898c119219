#pragma once

#include <optional>
#include <string_view>

#include "hw/model/hardware.hpp"
#include "hw/profile/profile.hpp"
#include "sim/core/config.hpp"

/// Links, drives and capacities of a profile, as keys of a hardware description.
namespace kvtier {

/// The measured rates of links and drives, and overheads, as keys of a hardware description. Rates
/// are the best over all sizes, queue depths and methods.
///
/// Host link of one GPU: copy_duplex, or one way alone from copy_h2d and copy_d2h. `piece` is the
/// size in which KV is copied over the link: a few tokens' KV of one layer on one GPU. With it, the
/// link's rates are at most those of the copy engine in such pieces (copy_h2d, copy_d2h),
/// interpolated over the logarithm of the size. Latency of its curves: a small copy (call_overhead:
/// transfer, else event).
///
/// Drives: drive_read, drive_write (sustained, if measured) and drive_mix. Latency of the curves:
/// the smallest block (drive_read), after idle time if measured. Queue depth 1: the largest block
/// after idle time, without the latency, if it is slower than the drives at saturation. Start of
/// loads: the smallest and the largest load to the device after idle time (drive_to_device by the
/// copy engine). Block: the smallest one read (drive_read).
///
/// Contention of the host link while GPUs compute: the median over the sizes of
/// copy_beside_compute, relative to copy_duplex or pinned copy_h2d and copy_d2h of that size. Of
/// the drives: drive_beside_copies relative to the best drive_read and drive_write (burst, if
/// measured) of its block.
///
/// Overheads: control_step (scheduler_step, most items) for iterations and call_overhead
/// (hand_over, there and back) for commands. The rate of both ways together is at least that of one
/// way alone, and shares are at most 1.
[[nodiscard]] Json measured_hardware(const Profile& profile,
                                     std::optional<Bytes> piece = std::nullopt);

/// A whole server of one such device: the keys of measured_hardware, and the capacities and limits
/// of device, host and storage. Prices are zero, because a profile has none. If both ways together
/// were not measured, a host link has the sum of its ways, and drives the faster one.
[[nodiscard]] Json described_hardware(const Profile& profile,
                                      std::optional<Bytes> piece = std::nullopt);

}  // namespace kvtier
