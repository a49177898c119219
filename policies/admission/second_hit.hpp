#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<AdmissionPolicy> second_hit_admission();

}  // namespace kvtier
