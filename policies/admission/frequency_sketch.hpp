#pragma once

#include "sim/policy/policy.hpp"

namespace kvtier {

[[nodiscard]] PolicyKind<AdmissionPolicy> frequency_sketch_admission();

}  // namespace kvtier
