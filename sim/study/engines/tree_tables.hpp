#pragma once

#include "sim/study/engines/comparison.hpp"
#include "sim/study/engines/engine_tables.hpp"

namespace kvtier {

/// Makes the calls of a table of kind `tree` (SGLang's) on the store that runs use and on the plain
/// one, as compare_with_calls does.
[[nodiscard]] EngineComparison compare_tree_calls(const EngineTable& table);

}  // namespace kvtier
