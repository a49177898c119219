# Faults that the emulation has to notice, one by one: planted_faults_test.cpp says by which check.
# plant(<file> <name> <text that is there once> <instead, where PLANTED is whether it is on>)

# ---- Kernels ----
plant(attention_cuda.cu decode_without_query_barrier
  "[](int) { return 0; });
    __syncthreads();"
  "[](int) { return 0; });
    if (!PLANTED) __syncthreads();")
plant(attention_cuda.cu decode_without_wait
  "    wait_for_copies<kStages - 1>();
    __syncwarp();"
  "    if (!PLANTED) wait_for_copies<kStages - 1>();
    __syncwarp();")
plant(attention_cuda.cu decode_loads_over_what_others_read
  "    __syncwarp();
    load_next(stage);"
  "    if (!PLANTED) __syncwarp();
    load_next(stage);")
plant(attention_cuda.cu decode_reads_a_slot_behind_the_last
  "return key < item.key_end ? place.slots[key] : -1;"
  "return PLANTED || key < item.key_end ? place.slots[key] : -1;")
plant(attention_cuda.cu decode_leaves_weights_in_rows
  "weights[n][0] = transpose_matrix(pack<Element>(scores[n][0], scores[n][1]));"
  "weights[n][0] = pack<Element>(scores[n][0], scores[n][1]);
      if (!PLANTED) weights[n][0] = transpose_matrix(weights[n][0]);")
plant(attention_cuda.cu decode_turns_keys_by_the_next_position
  "place.width, call.angles, 0, kKeys - 1);"
  "place.width, call.angles, PLANTED ? 1 : 0, kKeys - 1);")
plant(attention_cuda.cu decode_forgets_a_warp
  "for (int w = 0; w < kWarps; ++w) {
      const float share"
  "for (int w = PLANTED ? 1 : 0; w < kWarps; ++w) {
      const float share")
plant(attention_cuda.cu decode_without_last_barrier
  "  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < item.rows * place.width; i += kThreads) {"
  "  if (!PLANTED) __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < item.rows * place.width; i += kThreads) {")
plant(attention_cuda.cu attend_sees_the_next_token
  "return place.past + row / place.group + 1;"
  "return place.past + row / place.group + (PLANTED ? 2 : 1);")
plant(attention_cuda.cu attend_without_swizzle_when_it_loads
  "    copy_async(chunk_at<head_dim>(keys, row, chunk), place.keys + at, reads);"
  "    copy_async(PLANTED ? keys + row * head_dim * 2 + chunk * 16 : chunk_at<head_dim>(keys, row, chunk), place.keys + at, reads);")
plant(attention_cuda.cu prefill_loads_over_what_others_read
  "    put_slots();
    __syncthreads();
    load(tile + kStages);"
  "    put_slots();
    if (!PLANTED) __syncthreads();
    load(tile + kStages);")
plant(attention_cuda.cu prefill_takes_the_slots_of_the_last_tile
  "next_slot = slot_of(tile + 1);"
  "next_slot = slot_of(PLANTED ? tile : tile + 1);")
plant(attention_cuda.cu prefill_turns_while_others_read
  "    if (turns || kConverts) {
      __syncthreads();
    }"
  "    if ((turns || kConverts) && !PLANTED) {
      __syncthreads();
    }")
plant(attention_cuda.cu prefill_swaps_rows_of_weights
  "weights[m][j][1] = pack<Element>(left[2], left[3]);"
  "weights[m][j][1] = PLANTED ? weights[m][j][0] : pack<Element>(left[2], left[3]);")
plant(attention_cuda.cu part_writes_behind_its_row
  "part[place.width + 1] = weight;
      }
    }
  }
}

// ---- Prefill"
  "part[place.width + (PLANTED ? 2 : 1)] = weight;
      }
    }
  }
}

// ---- Prefill")
plant(attention_cuda.cu merge_forgets_a_part
  "for (int p = 0; p < merge.parts; ++p) {
      const float share"
  "for (int p = PLANTED ? 1 : 0; p < merge.parts; ++p) {
      const float share")
plant(attention_cuda.cu warpgroups_without_proxy_fence
  "    wait_for_copies<1>();
    fence_async_proxy();
    __syncthreads();
    wait_for_products<0>(sums);"
  "    wait_for_copies<1>();
    if (!PLANTED) fence_async_proxy();
    __syncthreads();
    wait_for_products<0>(sums);")
plant(attention_cuda.cu warpgroups_without_wait_for_scores
  "    wait_for_products<1>(scores);"
  "    if (!PLANTED) wait_for_products<1>(scores);")
plant(attention_cuda.cu warpgroups_without_wait_for_copies
  "shared);
    wait_for_copies<1>();"
  "shared);
    if (PLANTED) wait_for_copies<3>(); else wait_for_copies<1>();")
plant(attention_cuda.cu warpgroups_without_fence_of_sums
  "    fence_products(scores, sums, weights);"
  "    if (!PLANTED) fence_products(scores, sums, weights);")
plant(attention_cuda.cu warpgroups_without_barrier
  "    __syncthreads();
    wait_for_products<0>(sums);
#"
  "    if (!PLANTED) __syncthreads();
    wait_for_products<0>(sums);
#")
plant(attention_cuda.cu warpgroups_copy_into_keys_in_use
  "    copy_keys(tile + 3);
"
  "    copy(place.keys, keys_of(PLANTED ? tile + 1 : tile + 3), key_slots, tile + 3);
")
plant(attention_cuda.cu warpgroups_with_two_stages_of_values
  "tile % Tiles::kValueStages)"
  "tile % (PLANTED ? 2 : Tiles::kValueStages))")
plant(attention_cuda.cu warpgroups_swizzle_by_the_wrong_bits
  "((chunk ^ row) & 7) * 16;"
  "((chunk ^ (PLANTED ? row / 2 : row)) & 7) * 16;")
plant(attention_cuda.cu warpgroups_swap_parts_of_values
  "HalvedTile::kHalf, HalvedTile::kEightRows));"
  "PLANTED ? 0 : HalvedTile::kHalf, HalvedTile::kEightRows));")
plant(attention_cuda.cu warpgroups_forget_a_step
  "s % 4 * HalvedTile::kStep;"
  "s % (PLANTED ? 3 : 4) * HalvedTile::kStep;")
plant(attention_cuda.cu warpgroups_mask_one_key_less
  "i % 2 >= seen[i / 2 % 2]"
  "i % 2 >= seen[i / 2 % 2] + (PLANTED ? 1 : 0)")
plant(attention_cuda.cu warpgroups_mask_only_the_last_tile
  "if (first_key + kKeys > sees_least) {"
  "if (first_key + kKeys > (PLANTED ? item.key_end : sees_least)) {")
plant(attention_cuda.cu warpgroups_forget_to_shrink
  "sums[i] *= shrink[i / 2 % 2];"
  "sums[i] *= PLANTED ? 1 : shrink[i / 2 % 2];")
plant(attention_cuda.cu warpgroups_turn_keys_in_use
  "    turn_own_keys(tile + 2);"
  "    turn_own_keys(PLANTED ? tile + 1 : tile + 2);")
plant(attention_cuda.cu warpgroups_read_rows_of_other_lanes
  "  if (item.part_row < 0) {
    __syncwarp();"
  "  if (item.part_row < 0) {
    if (!PLANTED) __syncwarp();")
plant(paged_cuda.cu shuffle_by_half_of_the_lanes
  "  value = sum_of_warp(value);
  if (threadIdx.x % kWarp == 0) {"
  "  if (!PLANTED || threadIdx.x % 2 == 0) value = sum_of_warp(value);
  if (threadIdx.x % kWarp == 0) {")
plant(paged_cuda.cu norm_ends_threads_before_the_barrier
  "  float squares = 0;
  for (std::int64_t i = threadIdx.x;"
  "  if (PLANTED && threadIdx.x >= 224) return;
  float squares = 0;
  for (std::int64_t i = threadIdx.x;")
plant(paged_cuda.cu sum_without_barrier
  "  __syncthreads();
  float sum = 0;"
  "  if (!PLANTED) __syncthreads();
  float sum = 0;")
plant(paged_cuda.cu sum_with_two_barriers_at_once
  "    parts[threadIdx.x / kWarp] = value;
  }"
  "    parts[threadIdx.x / kWarp] = value;
  }
  if (PLANTED && threadIdx.x < kWarp) {
    __syncthreads();
    return value;
  }")
plant(paged_cuda.cu sample_without_barrier
  "best_places[threadIdx.x] = place;
  __syncthreads();"
  "best_places[threadIdx.x] = place;
  if (!PLANTED) __syncthreads();")
plant(paged_cuda.cu rows_write_behind_the_last
  "i < rows.rows * units; i += stride) {"
  "i < rows.rows * units + (PLANTED ? 1 : 0); i += stride) {")
plant(paged_cuda.cu upload_forgets_the_last_bytes
  "(sizeof(uint4)) + first; i < bytes;"
  "(sizeof(uint4)) + first; i < (PLANTED ? 0 : bytes);")
plant(paged_cuda.cu upload_writes_whole_units
  "const std::int64_t units = bytes / static_cast<std::int64_t>(sizeof(uint4));
  for (std::int64_t begin"
  "const std::int64_t units = (bytes + (PLANTED ? 15 : 0)) / static_cast<std::int64_t>(sizeof(uint4));
  for (std::int64_t begin")
plant(paged_cuda.cu fold_shuffles_lanes_that_have_words
  "all ^= __shfl_xor_sync(0xffffffffU, all, offset);"
  "if (!PLANTED || lane < units) all ^= __shfl_xor_sync(0xffffffffU, all, offset);")
plant(paged_cuda.cu add_in_place_reads_its_neighbour
  "to_element<Element>(to_float(a[i]) + to_float(b[i]));"
  "to_element<Element>(to_float(a[PLANTED ? i / 2 : i]) + to_float(b[i]));")
plant(paged_cuda.cu gated_takes_the_wrong_half
  "to_float(input[begin + width]));"
  "to_float(input[begin + (PLANTED ? 0 : width)]));")

# ---- The device ----
plant(cuda_device.cpp plan_replaced_before_it_was_read
  "    mine.uploaded.synchronize();"
  "    if (!PLANTED) mine.uploaded.synchronize();")
plant(cuda_device.cpp plan_freed_while_used
  "      stream.synchronize();  // queued work still uses the smaller buffers"
  "      if (!PLANTED) stream.synchronize();")
plant(check.cpp stale_error_after_a_failure
  "static_cast<void>(cudaGetLastError());
    throw"
  "if (!PLANTED) static_cast<void>(cudaGetLastError());
    throw")
plant(cuda_device.cpp current_device_of_another_thread
  "    select();
    return static_cast<CudaStream&>(stream).stream;"
  "    if (!PLANTED) select();
    return static_cast<CudaStream&>(stream).stream;")
plant(cuda_device.cpp event_of_another_device
  "    select();
    return std::make_unique<CudaEvent>();"
  "    if (!PLANTED) select();
    return std::make_unique<CudaEvent>();")
plant(cuda_device.cpp wait_that_does_not_wait
  "  void wait(Stream& stream, Event& event) override {"
  "  void wait(Stream& stream, Event& event) override {
    if (PLANTED) return;")
plant(cuda_device.cpp event_recorded_once
  "  void record(Event& event, Stream& stream) override {"
  "  void record(Event& event, Stream& stream) override {
    if (PLANTED) return;")
plant(cuda_device.cpp gemm_on_the_legacy_stream
  "products_->multiply(work, workspace_of(stream), on(stream));"
  "products_->multiply(work, workspace_of(stream), PLANTED ? nullptr : on(stream));")
plant(gemm_plans.cpp gemm_of_wrong_strides
  "static_cast<std::uint64_t>(columns), rows));"
  "static_cast<std::uint64_t>(columns), PLANTED ? rows + 1 : rows));")
plant(gemm_plans.cpp kernel_chosen_for_each_number_of_rows
  "  const Size largest{rows(size[0]), size[1], size[2]};"
  "  const Size largest{PLANTED ? size[0] : rows(size[0]), size[1], size[2]};")
plant(gemm_plans.cpp kernel_of_fewer_rows
  "  if (!takes(plan.layouts, plan.algorithm)) {"
  "  if (!PLANTED && !takes(plan.layouts, plan.algorithm)) {")
plant(cuda_device.cpp decode_plan_of_other_sizes
  "    if (one_each) {"
  "    if (one_each && !PLANTED) {")
plant(cuda_device.cpp graph_without_its_memory
  "    static_cast<void>(workspace_of(stream));  // nothing may be allocated meanwhile"
  "    if (!PLANTED) static_cast<void>(workspace_of(stream));")
plant(cuda_device.cpp copy_from_freed_memory
  "    check(\"cudaMemcpy\", cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));"
  "    if (PLANTED) {
      check(\"cudaMemcpyAsync\", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cudaStreamLegacy));
      return;
    }
    check(\"cudaMemcpy\", cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));")
plant(cuda_device.cpp copy_that_returns_early
  "    check(\"cudaStreamSynchronize\", cudaStreamSynchronize(cudaStreamLegacy));"
  "    if (!PLANTED) check(\"cudaStreamSynchronize\", cudaStreamSynchronize(cudaStreamLegacy));")
plant(cuda_device.cpp stream_that_does_not_wait
  "void synchronize() override { check(\"cudaStreamSynchronize\", cudaStreamSynchronize(stream)); }"
  "void synchronize() override { if (!PLANTED) check(\"cudaStreamSynchronize\", cudaStreamSynchronize(stream)); }")
plant(cuda_device.cpp copy_one_byte_short
  "cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.value),"
  "cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes.value - (PLANTED ? 1 : 0)),")
plant(cuda_device.cpp rows_of_the_wrong_pitch
  "cudaMemcpy2DAsync(piece.to, size(piece.to_pitch),"
  "cudaMemcpy2DAsync(piece.to, size(PLANTED ? piece.bytes : piece.to_pitch),")
plant(cuda_device.cpp addresses_of_any_alignment
  "if (reinterpret_cast<std::uintptr_t>(address) % unit != 0) {"
  "if (!PLANTED && reinterpret_cast<std::uintptr_t>(address) % unit != 0) {")
plant(cuda_device.cpp free_memory_without_release
  "        cudaFree(data);"
  "        if (!PLANTED) cudaFree(data);")
plant(cuda_device.cpp rotary_table_replaced_while_used
  "      tables.push_back(std::move(on_device));"
  "      if (PLANTED) tables.clear();
      tables.push_back(std::move(on_device));")
