#pragma once

#include <cstddef>

#include "sim/core/streams.hpp"

namespace kvtier {

/// Receives the blocks that a store's pools begin and cease to hold. Further copies do not count.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  /// In blocks of the pool.
  virtual void on_stored(std::size_t pool, const Stretch& blocks) = 0;
  virtual void on_removed(std::size_t pool, const Stretch& blocks) = 0;
};

}  // namespace kvtier
