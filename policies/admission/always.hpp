#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<AdmissionPolicy> always_admission();

}  // namespace kvtier
