#pragma once

#include <optional>
#include <string_view>

#include "hw/model/hardware.hpp"
#include "hw/profile/profile.hpp"
#include "sim/core/config.hpp"

/// Links, drives and capacities of a profile, as keys of a hardware description.
namespace kvtier {

/// The rates of links and drives and the overheads of iterations and commands, where they were
/// measured: the best rate over all sizes, queue depths and methods, except for `piece`. Host link
/// of one GPU from copy_duplex, or one way alone from copy_h2d and copy_d2h; drives from
/// drive_read, drive_write (sustained, if measured) and drive_mix; overheads from control_step
/// (scheduler_step, most items) and call_overhead (hand_over, there and back). A rate of both ways
/// together that is lower than one way alone counts as that. `piece` is what KV is copied over the
/// host link in, a token's of one layer on one GPU: the link's rates are then the best ones of
/// copies in pieces of that size (copy_h2d, copy_d2h) where these are lower, interpolated over the
/// logarithm of the size. Latencies are the link's of a small copy (call_overhead: transfer, or
/// event), and the drive's of its smallest block, after a pause if that was measured (drive_read).
/// One request to the drives is the largest block after a pause (drive_read and drive_write, both
/// of that size), less the latency, and no faster than the drives. What copies leave of a drive's
/// rate: drive_beside_copies over the best drive_read and drive_write (burst, if measured) of its
/// block. What computing leaves of the host link: the middle over the sizes of copy_beside_compute,
/// over copy_duplex or pinned copy_h2d and copy_d2h of that size. Neither is more than 1.
[[nodiscard]] Json measured_hardware(const Profile& profile,
                                     std::optional<Bytes> piece = std::nullopt);

/// The method whose rate that is: of the fastest copies one way (copy_h2d or copy_d2h) in pieces of
/// the size that is nearest to this one; the copy engine without any. Lives as long as the profile.
[[nodiscard]] std::string_view fastest_copies(const Profile& profile, OperationId operation,
                                              Bytes piece);

/// A whole server of one such device: what measured_hardware gives, and capacities and limits of
/// device, host and storage. A profile knows no prices: they are zero.
[[nodiscard]] Json described_hardware(const Profile& profile,
                                      std::optional<Bytes> piece = std::nullopt);

}  // namespace kvtier
