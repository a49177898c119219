#pragma once

#include <memory>

#include "hw/model/hardware.hpp"
#include "hw/profile/profile.hpp"

namespace kvtier {

/// The tables of a related GPU as times of the described one: each is multiplied by the ratio of
/// two roofline times, that of the described GPU and that of the profile's, at the same attained
/// shares, and by HardwareConfig::sibling. Both have a fixed part, which no GPU shortens.
/// All-reduces are multiplied by the latter alone. Tables of copies and drives stay, and those of
/// whole passes are left out.
[[nodiscard]] std::shared_ptr<const Profile> scale_to(const HardwareConfig& hardware,
                                                      const Profile& relative);

}  // namespace kvtier
