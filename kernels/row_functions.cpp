#include "kernels/row_functions.hpp"

#include <cmath>

#include "kernels/instruction_sets.hpp"

namespace kvtier::kernels {

KVTIER_CLONES void rms_norm(const float* input, float* output, std::int64_t width) {
  constexpr std::int64_t kLanes = 16;
  constexpr float kEpsilon = 1e-5F;
  float lanes[kLanes] = {};
  const std::int64_t whole = width / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += input[i + l] * input[i + l];
    }
  }
  float sum = 0;
  for (const float lane : lanes) {
    sum += lane;
  }
  for (std::int64_t i = whole; i < width; ++i) {
    sum += input[i] * input[i];
  }
  const float factor = 1 / std::sqrt(sum / static_cast<float>(width) + kEpsilon);
  for (std::int64_t i = 0; i < width; ++i) {
    output[i] = input[i] * factor;
  }
}

void gated_activation(const float* input, float* output, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    output[i] = input[i] / (1 + std::exp(-input[i])) * input[width + i];
  }
}

void activation(const float* input, float* output, std::int64_t width) {
  constexpr float kRootHalf = 0.70710678F;
  for (std::int64_t i = 0; i < width; ++i) {
    output[i] = 0.5F * input[i] * (1 + std::erf(input[i] * kRootHalf));
  }
}

void add(const float* a, const float* b, float* output, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    output[i] = a[i] + b[i];
  }
}

KVTIER_CLONES std::uint32_t fold_row(const std::uint32_t* row, std::int64_t words) {
  std::uint32_t all = 0;
  for (std::int64_t i = 0; i < words; ++i) {
    all ^= row[i];
  }
  return all;
}

std::int32_t index_of_largest(const float* values, std::int64_t width) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < width; ++i) {
    if (values[i] > values[best]) {
      best = i;
    }
  }
  return static_cast<std::int32_t>(best);
}

KVTIER_CLONES void rotate(const float* from, float* to, std::int64_t heads, std::int64_t head_dim,
                          const float* cosines, const float* sines) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t head = 0; head < heads; ++head) {
    const float* const x = from + head * head_dim;
    float* const y = to + head * head_dim;
    for (std::int64_t i = 0; i < half; ++i) {
      const float first = x[i];
      const float second = x[i + half];
      y[i] = first * cosines[i] - second * sines[i];
      y[i + half] = first * sines[i] + second * cosines[i];
    }
  }
}

KVTIER_CLONES float multiply_add_in_registers(std::int64_t rounds, float factor) {
  // Twelve independent chains of 16 numbers: enough to hide the latency of two units of any width.
  constexpr int kChains = 12;
  constexpr int kLanes = 16;
  static_assert(kRegisterFlops == 2 * kChains * kLanes);
  using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
  // Different starts, so that the compiler computes every chain.
  const Lanes f = Lanes{} + factor;
  Lanes c0 = f, c1 = f + 1, c2 = f + 2, c3 = f + 3, c4 = f + 4, c5 = f + 5, c6 = f + 6, c7 = f + 7,
        c8 = f + 8, c9 = f + 9, c10 = f + 10, c11 = f + 11;
  const Lanes one = Lanes{} + 1.0F;
  for (std::int64_t i = 0; i < rounds; ++i) {
    c0 = c0 * f + one;
    c1 = c1 * f + one;
    c2 = c2 * f + one;
    c3 = c3 * f + one;
    c4 = c4 * f + one;
    c5 = c5 * f + one;
    c6 = c6 * f + one;
    c7 = c7 * f + one;
    c8 = c8 * f + one;
    c9 = c9 * f + one;
    c10 = c10 * f + one;
    c11 = c11 * f + one;
  }
  const Lanes sum = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;
  float total = 0;
  for (int l = 0; l < kLanes; ++l) {
    total += sum[l];
  }
  return total;
}

}  // namespace kvtier::kernels
