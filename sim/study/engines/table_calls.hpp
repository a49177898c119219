#pragma once

#include <memory>
#include <string>

#include "sim/core/config.hpp"
#include "sim/study/engines/replays.hpp"

namespace kvtier {

/// A table that the stores have no call for.
struct Unsupported {
  std::string reason;
};

/// Makes the calls of a table on a store (configs/engines/README.md).
class TableCalls {
 public:
  virtual ~TableCalls() = default;
  /// Results of the call, and the state after it. Throws Unsupported, ConfigError or
  /// Json::exception.
  [[nodiscard]] virtual Json make(const Json& call) = 0;
  /// An expected value, with keys by the names that results have.
  [[nodiscard]] virtual Json expected(const std::string& /*name*/, const Json& value) const {
    return value;
  }
};

/// The block pool.
[[nodiscard]] std::unique_ptr<TableCalls> make_gpu_calls(const Json& system,
                                                         const StoreRules& rules,
                                                         const StoreKind& kind);
/// The CPU tier, and the tiers behind it.
[[nodiscard]] std::unique_ptr<TableCalls> make_cpu_calls(const Json& system,
                                                         const StoreRules& rules,
                                                         const StoreKind& kind);
/// A radix tree (SGLang's), alone or with host memory and storage behind it.
[[nodiscard]] std::unique_ptr<TableCalls> make_tree_calls(const Json& system,
                                                          const StoreKind& kind);

}  // namespace kvtier
