#include "kernels/rotary_table.hpp"

#include <cmath>

namespace kvtier::kernels {

RotaryTable::RotaryTable(std::int64_t head_dim, double base, std::int64_t positions)
    : positions_(positions) {
  const std::int64_t pairs = head_dim / 2;
  const auto size = static_cast<std::size_t>(positions * pairs);
  cosines_.reserve(size);
  sines_.reserve(size);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < pairs; ++i) {
    frequencies.push_back(
        std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  for (std::int64_t p = 0; p < positions; ++p) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(p) * frequency;
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace kvtier::kernels
