#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KVTIER_HOST_AND_DEVICE __host__ __device__
#else
#define KVTIER_HOST_AND_DEVICE
#endif

namespace kvtier::kernels {

/// The i-th number of a seed, uniform in [-1, 1) in steps of 2^-23: the upper bits of SplitMix64
/// (Steele, Lea and Flood, OOPSLA 2014). Any number of threads can fill an array, on any device
/// with the same numbers.
KVTIER_HOST_AND_DEVICE constexpr float uniform_at(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) / 0x1p23F - 1;
}

}  // namespace kvtier::kernels
