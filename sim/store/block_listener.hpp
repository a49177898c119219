#pragma once

#include <cstddef>

#include "sim/core/streams.hpp"

namespace kvtier {

/// Is told which blocks a store's pools hold. Blocks are told once, however many copies there are.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  /// In blocks of the pool.
  virtual void on_stored(std::size_t pool, const Stretch& blocks) = 0;
  virtual void on_removed(std::size_t pool, const Stretch& blocks) = 0;
};

}  // namespace kvtier
