#pragma once

#include <cstdint>

#include "sim/core/rng.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// The random numbers of one router, from its own stream.
class StreamSource final : public RandomSource {
 public:
  explicit StreamSource(RandomStream stream) : stream_(stream) {}

  [[nodiscard]] double uniform() override { return stream_.uniform(); }
  [[nodiscard]] std::int64_t index(std::int64_t bound) override { return stream_.index(bound); }

 private:
  RandomStream stream_;
};

}  // namespace kvtier
