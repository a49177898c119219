#pragma once

#include <cstdint>
#include <vector>

namespace kvtier::kernels {

/// Cosines and sines of rotary angles, [positions][head_dim / 2]: pair i of a head is rotated at
/// position p by p x base^(-2i / head_dim). Null: no rotation.
struct RotaryAngles {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

/// The angles of the positions 0 .. positions - 1, computed in double: in float the angle of
/// position 32,768 would already be off by 0.002.
class RotaryTable {
 public:
  RotaryTable(std::int64_t head_dim, double base, std::int64_t positions);

  [[nodiscard]] std::int64_t positions() const { return positions_; }
  [[nodiscard]] RotaryAngles angles() const {
    return {.cosines = cosines_.data(), .sines = sines_.data()};
  }
  [[nodiscard]] const std::vector<float>& cosines() const { return cosines_; }
  [[nodiscard]] const std::vector<float>& sines() const { return sines_; }

 private:
  std::int64_t positions_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace kvtier::kernels
