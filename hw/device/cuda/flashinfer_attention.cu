#include <cmath>
#include <stdexcept>

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "hw/device/cuda/flashinfer_attention.hpp"

namespace kvtier::flashinfer_attention {
namespace {

using Index = std::int32_t;
constexpr std::uint32_t kPage = 1;

/// Calls a function with the arguments that plan and sizes_of share.
template <class Function>
void with_arguments(const Batch& batch, const Function& function) {
  const auto size = [](std::int64_t n) { return static_cast<std::uint32_t>(n); };
  // FlashInfer only reads the lists, though its parameters are not const.
  auto* const queries = const_cast<Index*>(batch.query_begin.data());
  auto* const contexts = const_cast<Index*>(batch.context_begin.data());
  const cudaError_t error = function(
      queries, contexts, size(batch.query_begin.back()), size(std::ssize(batch.query_begin) - 1),
      size(batch.shape.query_heads), size(batch.shape.kv_heads), size(batch.shape.head_dim));
  if (error != cudaSuccess) {
    throw std::runtime_error(cudaGetErrorString(error));
  }
}

constexpr bool kGraph = false;
constexpr std::uint32_t kOutputBytes = 2;
constexpr std::int32_t kNoWindow = -1;
constexpr std::int32_t kNoFixedSplit = -1;
constexpr bool kWithoutSplit = false;
constexpr std::int64_t kBlocksBeside = 0;
constexpr std::int64_t kAnyLength = 0;
constexpr bool kSameLengthAlways = false;

template <class T>
T* at(void* base, std::int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

template <class Element, std::uint32_t tile, std::uint32_t head_dim>
cudaError_t run(const flashinfer::BatchPrefillPagedParams<Element, Element, Element, Index>& params,
                Element* parts, float* part_sums, cudaStream_t stream) {
  using Attention =
      flashinfer::DefaultAttention</*use_custom_mask=*/false,
                                   /*use_sliding_window=*/false,
                                   /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      /*SAME_KV_STRIDES=*/true, tile, head_dim, head_dim, flashinfer::PosEncodingMode::kNone,
      /*USE_FP16_QK_REDUCTION=*/false, flashinfer::MaskMode::kCausal,
      /*USE_TOKEN_HEAD_SF=*/false, Attention>(params, parts, part_sums, /*enable_pdl=*/false,
                                              stream);
}

template <class Element, std::uint32_t head_dim>
cudaError_t run(const flashinfer::BatchPrefillPagedParams<Element, Element, Element, Index>& params,
                Element* parts, float* part_sums, std::int64_t tile, cudaStream_t stream) {
  switch (tile) {
    case 16:
      return run<Element, 16, head_dim>(params, parts, part_sums, stream);
    case 64:
      return run<Element, 64, head_dim>(params, parts, part_sums, stream);
    case 128:
      return run<Element, 128, head_dim>(params, parts, part_sums, stream);
    default:
      throw std::runtime_error("FlashInfer plans a tile that this adapter does not know");
  }
}

}  // namespace

std::string version() { return KVTIER_FLASHINFER_VERSION; }

bool takes(const kernels::PagedAttentionShape& shape) {
  return shape.head_dim == 64 || shape.head_dim == 128 || shape.head_dim == 256;
}

Sizes sizes_of(const Batch& batch) {
  Sizes sizes;
  with_arguments(
      batch, [&](Index* queries, Index* contexts, std::uint32_t rows, std::uint32_t requests,
                 std::uint32_t query_heads, std::uint32_t kv_heads, std::uint32_t head_dim) {
        return flashinfer::PrefillPlanWorkspaceSize<Index>(
            sizes.floats, sizes.integers, queries, contexts, rows, requests, query_heads, kv_heads,
            head_dim, head_dim, kPage, kGraph, kOutputBytes, kNoWindow, kNoFixedSplit,
            kWithoutSplit, kBlocksBeside, kAnyLength, kSameLengthAlways, nullptr);
      });
  return sizes;
}

std::vector<std::int64_t> plan(const Batch& batch, const Memory& memory, cudaStream_t stream) {
  flashinfer::PrefillPlanInfo planned;
  with_arguments(
      batch, [&](Index* queries, Index* contexts, std::uint32_t rows, std::uint32_t requests,
                 std::uint32_t query_heads, std::uint32_t kv_heads, std::uint32_t head_dim) {
        return flashinfer::PrefillPlan<Index>(
            memory.floats, memory.sizes.floats, memory.integers, memory.integers_on_host,
            memory.sizes.integers, planned, queries, contexts, rows, requests, query_heads,
            kv_heads, head_dim, head_dim, kPage, kGraph, kOutputBytes, kNoWindow, kNoFixedSplit,
            kWithoutSplit, kBlocksBeside, kAnyLength, kSameLengthAlways, stream);
      });
  return planned.ToVector();
}

template <class Element>
cudaError_t attend(const Call<Element>& call, const std::vector<std::int64_t>& planned,
                   const Memory& memory, cudaStream_t stream) {
  flashinfer::PrefillPlanInfo info;
  info.FromVector(planned);
  const kernels::PagedAttentionShape& shape = call.shape;
  const auto size = [](std::int64_t n) { return static_cast<std::uint32_t>(n); };
  const std::int64_t row = shape.kv_stride > 0 ? shape.kv_stride : shape.kv_heads * shape.head_dim;
  const std::int64_t strides[] = {row, row, shape.head_dim};
  const auto index = [](const Index* list) { return const_cast<Index*>(list); };
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, Index>;
  Params params;
  params.q = const_cast<Element*>(call.queries);
  params.paged_kv = flashinfer::paged_kv_t<Element, Index>(
      size(shape.kv_heads), kPage, size(shape.head_dim), size(call.requests),
      flashinfer::QKVLayout::kNHD, const_cast<Element*>(call.keys),
      const_cast<Element*>(call.values), strides, index(call.slots), index(call.context_begin),
      index(call.page_lengths));
  params.q_indptr = index(call.query_begin);
  params.o = call.output;
  params.group_size = flashinfer::uint_fastdiv(size(shape.query_heads / shape.kv_heads));
  params.num_qo_heads = size(shape.query_heads);
  params.q_stride_n = static_cast<Index>(
      shape.query_stride > 0 ? shape.query_stride : shape.query_heads * shape.head_dim);
  params.q_stride_h = static_cast<Index>(shape.head_dim);
  params.window_left = kNoWindow;
  params.sm_scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  params.rope_rcp_scale = 1;
  params.rope_rcp_theta = 1;
  params.request_indices = at<Index>(memory.integers, info.request_indices_offset);
  params.qo_tile_indices = at<Index>(memory.integers, info.qo_tile_indices_offset);
  params.kv_tile_indices = at<Index>(memory.integers, info.kv_tile_indices_offset);
  params.o_indptr = at<Index>(memory.integers, info.o_indptr_offset);
  params.kv_chunk_size_ptr = at<Index>(memory.integers, info.kv_chunk_size_ptr_offset);
  params.max_total_num_rows = size(info.total_num_rows);
  params.padded_batch_size = size(info.padded_batch_size);
  params.partition_kv = info.split_kv;
  Element* parts = nullptr;
  float* part_sums = nullptr;
  if (info.split_kv) {
    params.merge_indptr = at<Index>(memory.integers, info.merge_indptr_offset);
    parts = at<Element>(memory.floats, info.v_offset);
    part_sums = at<float>(memory.floats, info.s_offset);
  }
  switch (shape.head_dim) {
    case 64:
      return run<Element, 64>(params, parts, part_sums, info.cta_tile_q, stream);
    case 128:
      return run<Element, 128>(params, parts, part_sums, info.cta_tile_q, stream);
    case 256:
      return run<Element, 256>(params, parts, part_sums, info.cta_tile_q, stream);
    default:
      throw std::runtime_error("FlashInfer's heads are 64, 128 or 256 wide here");
  }
}
template cudaError_t attend(const Call<__nv_bfloat16>&, const std::vector<std::int64_t>&,
                            const Memory&, cudaStream_t);
template cudaError_t attend(const Call<__half>&, const std::vector<std::int64_t>&, const Memory&,
                            cudaStream_t);

}  // namespace kvtier::flashinfer_attention
