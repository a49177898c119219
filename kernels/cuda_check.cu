/// Compiled wherever a CUDA compiler is found, so that a broken toolchain shows at build time. It
/// needs no device.

#include <cstddef>

namespace kvtier::kernels {

/// Multiplies each of the `count` elements of `values` by `factor`; any grid of one dimension
/// covers them.
__global__ void cuda_check_scale(float* values, float factor, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    values[i] *= factor;
  }
}

}  // namespace kvtier::kernels
