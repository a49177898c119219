#pragma once

#include <memory>
#include <string>

#include "sim/core/config.hpp"
#include "sim/study/engines/replays.hpp"

namespace kvtier {

/// Thrown for a call that the stores do not have.
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
  /// An expected value in the form of results: with their key names and order.
  [[nodiscard]] virtual Json expected(const std::string& /*name*/, const Json& value) const {
    return value;
  }
};

/// Calls of the block pool.
[[nodiscard]] std::unique_ptr<TableCalls> make_gpu_calls(const Json& system,
                                                         const StoreRules& rules,
                                                         const StoreKind& kind);
/// Calls of the CPU tier and the slower tiers.
[[nodiscard]] std::unique_ptr<TableCalls> make_cpu_calls(const Json& system,
                                                         const StoreRules& rules,
                                                         const StoreKind& kind);
/// Calls of SGLang's radix tree, alone or with host memory and storage as slower tiers.
[[nodiscard]] std::unique_ptr<TableCalls> make_tree_calls(const Json& system,
                                                          const StoreKind& kind);

}  // namespace kvtier
