#pragma once

#include <optional>
#include <string_view>

#include "hw/model/hardware.hpp"
#include "hw/profile/profile.hpp"
#include "sim/core/config.hpp"

/// What a profile says of a server beside times, as keys of a hardware description.
namespace kvtier {

/// The rates of links and drives and the overheads of iterations and commands, where they were
/// measured: the best rate over all sizes, queue depths and methods, except for `piece`. Host link
/// of one GPU from C4, or one way alone from C1 and C2; drives from D1, D2 (sustained, if measured)
/// and D3; overheads from X1 (scheduler_step, most items) and C6 (hand_over, there and back). A
/// rate of both ways together that is lower than one way alone counts as that. `piece` is what KV
/// is copied over the host link in, a token's of one layer on one GPU: the link's rates are then
/// the best ones of copies in pieces of that size (C1, C2) where these are lower, interpolated over
/// the logarithm of the size. Latencies are the link's of a small copy (C6: transfer, or event),
/// and the drive's of its smallest block, after a pause if that was measured (D1). One request to
/// the drives is the largest block after a pause (D1 and D2, both of that size), less the latency,
/// and no faster than the drives. What copies leave of a drive's rate: D5 over the best D1 and D2
/// (burst, if measured) of its block. What computing leaves of the host link: the middle over the
/// sizes of C5, over C4 or pinned C1 and C2 of that size. Neither is more than 1.
[[nodiscard]] Json measured_hardware(const Profile& profile,
                                     std::optional<Bytes> piece = std::nullopt);

/// The method whose rate that is: of the fastest copies one way (C1 or C2) in pieces of the size
/// that is nearest to this one; the copy engine without any. Lives as long as the profile.
[[nodiscard]] std::string_view fastest_copies(const Profile& profile, OperationId operation,
                                              Bytes piece);

/// A whole server of one such device: what measured_hardware gives, and capacities and limits of
/// device, host and storage. A profile knows no prices: they are zero.
[[nodiscard]] Json described_hardware(const Profile& profile,
                                      std::optional<Bytes> piece = std::nullopt);

}  // namespace kvtier
