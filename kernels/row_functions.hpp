#pragma once

#include <cstdint>

/// Functions of a layer on rows of numbers besides matrices and attention, on the CPU, and a loop
/// that measures the rate in the processor's registers.
namespace kvtier::kernels {

/// output = input / sqrt(mean of squares + 1e-5).
void rms_norm(const float* input, float* output, std::int64_t width);

/// output[i] = silu(input[i]) x input[width + i].
void gated_activation(const float* input, float* output, std::int64_t width);

/// output[i] = gelu(input[i]) = input[i] x the share of a normal distribution below it.
void activation(const float* input, float* output, std::int64_t width);

/// output[i] = a[i] + b[i]; `output` may be either of them.
void add(const float* a, const float* b, float* output, std::int64_t width);

/// The exclusive or of a row's 32-bit words. It reads the whole row and writes almost nothing.
[[nodiscard]] std::uint32_t fold_row(const std::uint32_t* row, std::int64_t words);

/// The first place of the largest of `width` values.
[[nodiscard]] std::int32_t index_of_largest(const float* values, std::int64_t width);

/// Rotates each head of a row: pair (i, i + head_dim / 2) by an angle whose cosine and sine are
/// cosines[i] and sines[i]. `from` and `to` may be the same.
void rotate(const float* from, float* to, std::int64_t heads, std::int64_t head_dim,
            const float* cosines, const float* sines);

/// Multiplies and adds in registers, `rounds` times kRegisterFlops operations; the result depends
/// on all of them.
inline constexpr std::int64_t kRegisterFlops = 2 * 16 * 12;
[[nodiscard]] float multiply_add_in_registers(std::int64_t rounds, float factor);

}  // namespace kvtier::kernels
