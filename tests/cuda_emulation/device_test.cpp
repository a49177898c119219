/// The CUDA device's calls of the runtime, and its behaviour when a call fails.

#include <array>
#include <cstring>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include "hw/device/processors.hpp"
#include "sim/core/errors.hpp"
#include "tests/cuda_emulation/module.hpp"
#include "tests/hw/device/decoder_reference.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier::emulation {
namespace {

class CudaDevice : public testing::Test {
 protected:
  const Module module_{KVTIER_EMULATION "/lib/kvtier/kvtier_cuda.so"};
  const std::unique_ptr<Device> device_ = module_.open(0, ElementType::bfloat16);
  const std::unique_ptr<Stream> stream_ = device_->make_stream();
};

TEST_F(CudaDevice, CopiesRowsInOneCall) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kRow = 64;
  constexpr std::int64_t kFarthest = std::int64_t{1} << 20;  // memPitch of the emulated GPU
  const Buffer host(*device_, MemoryKind::pinned, Bytes(kRows * 2 * kFarthest));
  std::iota(host.as<std::uint16_t>(), host.as<std::uint16_t>() + host.size().value / 2, 0);
  const Buffer to(*device_, MemoryKind::device, host.size());
  const auto calls_for = [&](std::int64_t to_pitch, std::int64_t from_pitch) {
    const CopyPiece piece{.to = to.data(),
                          .from = host.data(),
                          .bytes = Bytes(kRow),
                          .rows = kRows,
                          .to_pitch = Bytes(to_pitch),
                          .from_pitch = Bytes(from_pitch)};
    const std::int64_t before = module_.counters().copies;
    device_->copy_pieces({&piece, 1}, *stream_);
    const std::int64_t calls = module_.counters().copies - before;
    stream_->synchronize();
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto found =
          numbers_from<std::uint8_t>(*device_, to.data() + row * to_pitch, std::size_t{kRow});
      EXPECT_EQ(std::memcmp(found.data(), host.data() + row * from_pitch, kRow), 0) << row;
    }
    return calls;
  };
  EXPECT_EQ(calls_for(kRow, kRow), 1);
  EXPECT_EQ(calls_for(kRow, 3 * kRow), 1);
  EXPECT_EQ(calls_for(kFarthest, 3 * kRow), 1);
  // The engine refuses larger distances.
  EXPECT_EQ(calls_for(kFarthest + kRow, kRow), kRows);
  EXPECT_EQ(calls_for(kRow, kFarthest + kRow), kRows);
}

TEST_F(CudaDevice, RefusesAttentionThatItCannotPlanOrRead) {
  const kernels::PagedAttentionShape shape{.query_heads = 2, .kv_heads = 1, .head_dim = 64};
  const std::vector<std::int64_t> contexts{0, 4};
  const std::vector<std::int64_t> queries{0, 1};
  std::unique_ptr<AttentionPlan> plan;
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
      return "";
    } catch (const DeviceError& error) {
      return error.what();
    }
  };
  const auto plan_for = [&](const kernels::PagedAttentionShape& heads, AttentionLibrary library,
                            const std::vector<std::int64_t>& query_begin) {
    return error_of(
        [&] { device_->plan_attention(plan, library, heads, contexts, query_begin, *stream_); });
  };
  EXPECT_EQ(
      plan_for({.query_heads = 3, .kv_heads = 2, .head_dim = 64}, AttentionLibrary::own, queries),
      "attention: 3 query heads on 2 KV heads of width 64 are not what the kernel takes");
  EXPECT_EQ(plan_for(shape, AttentionLibrary::own, {0, 5}),
            "plan_attention: new tokens are part of their context");
  EXPECT_EQ(plan_for(shape, AttentionLibrary::flashinfer, queries),
            "attention: FlashInfer is missing or takes no heads of 64");
  const auto attend = [&](const kernels::PagedAttentionShape& heads) {
    return error_of([&] {
      device_->attention(
          {.shape = heads, .batch = {.requests = 1}, .plan = plan.get(), .context_max = 4},
          *stream_);
    });
  };
  EXPECT_EQ(attend(shape), "attention: a GPU needs a plan for the same heads and requests");
  EXPECT_EQ(plan_for(shape, AttentionLibrary::own, queries), "");
  EXPECT_EQ(attend({.query_heads = 4, .kv_heads = 1, .head_dim = 64}),
            "attention: a GPU needs a plan for the same heads and requests");
  EXPECT_EQ(attend({.query_heads = 2, .kv_heads = 1, .head_dim = 64, .kv_stride = 68}),
            "attention: rows 68 numbers apart: a GPU needs multiples of 16 bytes");
  EXPECT_EQ(module_.fault(), "");
}

TEST_F(CudaDevice, UploadsWithoutTheCopyEngine) {
  const Buffer host(*device_, MemoryKind::pinned, Bytes(64));
  std::fill_n(host.data(), 64, std::byte{1});
  const Buffer to(*device_, MemoryKind::device, Bytes(64));
  const std::int64_t before = module_.counters().copies;
  device_->upload(to.data(), host.data(), Bytes(64), *stream_);
  stream_->synchronize();
  EXPECT_EQ(module_.counters().copies, before);
  EXPECT_THROW(device_->upload(to.data() + 8, host.data(), Bytes(16), *stream_), DeviceError);
  EXPECT_THROW(device_->upload(to.data(), host.data() + 8, Bytes(16), *stream_), DeviceError);
}

TEST_F(CudaDevice, CountsThePageCacheAsFreeMemoryOfTheHost) {
  const std::string path = testing::TempDir() + "page_cache";
  constexpr std::int64_t kFile = 256 << 20;
  {
    std::ofstream out(path);
    const std::string block(1 << 20, 'x');
    for (std::int64_t i = 0; i < kFile; i += 1 << 20) {
      out << block;
    }
  }
  struct sysinfo system {};
  ::sysinfo(&system);
  const auto without_cache =
      static_cast<std::int64_t>((system.freeram + system.bufferram) * system.mem_unit);
  const std::int64_t found = device_->free_memory(MemoryKind::pinned).value;
  const std::int64_t available =
      open_device({.kind = "cpu"})->free_memory(MemoryKind::pinned).value;
  std::filesystem::remove(path);
  EXPECT_GT(found, without_cache + kFile / 4);
  EXPECT_NEAR(static_cast<double>(found), static_cast<double>(available), kFile);
}

TEST_F(CudaDevice, ContinuesAfterItRanOutOfMemory) {
  const Buffer numbers = elements_on(*device_, random_values(16, 1));
  EXPECT_THROW(Buffer(*device_, MemoryKind::device, device_->info().memory), DeviceError);
  device_->row_function({.function = RowFunction::activation,
                         .input = numbers.data(),
                         .output = numbers.data(),
                         .rows = 1,
                         .width = 16},
                        *stream_);
  stream_->synchronize();
}

TEST_F(CudaDevice, RefusesAddressesThatItCannotReadWhole) {
  const Buffer numbers = elements_on(*device_, random_values(256, 1));
  const Buffer slots = numbers_on(*device_, std::vector<std::int32_t>(4));
  RowWork work{.from = numbers.data(), .to = numbers.data() + 64, .rows = 2, .row = Bytes(16)};
  const auto refuses = [&](const RowWork& rows) {
    EXPECT_THROW(device_->gather(rows, *stream_), DeviceError);
    EXPECT_THROW(device_->scatter(rows, *stream_), DeviceError);
  };
  RowWork odd = work;
  odd.from = numbers.data() + 8;
  refuses(odd);
  EXPECT_THROW(device_->fold(odd, *stream_), DeviceError);
  odd = work;
  odd.to = numbers.data() + 68;
  refuses(odd);
  device_->fold(odd, *stream_);  // writes words
  odd = work;
  odd.slots = reinterpret_cast<const std::int32_t*>(slots.data() + 2);
  refuses(odd);
  device_->gather(work, *stream_);
  stream_->synchronize();
}

TEST_F(CudaDevice, KnowsLinksFasterThanPcie5) {
  EXPECT_EQ(device_->info().limits.link_bytes_per_second, 128e9);
  // Device 1 shares its host's page tables.
  EXPECT_EQ(module_.open(1, ElementType::bfloat16)->info().limits.link_bytes_per_second, 450e9);
}

TEST_F(CudaDevice, LeavesNothingBehindWhenOpeningFails) {
  const Counters before = module_.counters();
  for (const char* function : {"cublasLtCreate", "cublasLtMatmulPreferenceCreate",
                               "cudaGetDeviceProperties", "cudaDeviceGetAttribute"}) {
    module_.fail(function, 1);
    EXPECT_THROW(module_.open(0, ElementType::bfloat16), DeviceError) << function;
    EXPECT_EQ(module_.counters().blas_handles, before.blas_handles) << function;
    EXPECT_EQ(module_.counters().allocations, before.allocations) << function;
  }
}

TEST_F(CudaDevice, ChoosesAKernelOnceForProductsOfAboutAsManyRows) {
  const Buffer numbers(*device_, MemoryKind::device, Bytes(2048 * 32 * 2));
  const auto choices_for = [&](std::int64_t m) {
    const std::int64_t before = module_.counters().blas_choices;
    device_->gemm({.input = numbers.data(),
                   .weights = numbers.data(),
                   .output = numbers.data() + 1024 * 32 * 2,
                   .m = m,
                   .n = 16,
                   .k = 16},
                  *stream_);
    stream_->synchronize();
    return module_.counters().blas_choices - before;
  };
  for (const auto& [first, last, rows] : {std::array<std::int64_t, 3>{1, 1, 1},
                                          {16, 16, 16},
                                          {17, 32, 32},
                                          {33, 64, 64},
                                          {65, 128, 128},
                                          {449, 512, 512}}) {
    EXPECT_EQ(choices_for(rows), 1) << rows;
    for (const std::int64_t m : {first, (first + last) / 2, last, first}) {
      EXPECT_EQ(device_->gemm_rows(m), rows) << m;
      EXPECT_EQ(choices_for(m), 0) << m;
    }
  }
  // The library refuses the kernel for this number of rows.
  EXPECT_EQ(choices_for(640), 1);
  EXPECT_EQ(choices_for(577), 1);
  EXPECT_EQ(choices_for(577), 0);
  EXPECT_EQ(module_.fault(), "");
}

TEST_F(CudaDevice, LetsTheWorkOfBackgroundStreamsWait) {
  const std::int64_t before = module_.counters().urgent_streams;
  const auto usual = device_->make_stream();
  const auto background = device_->make_stream(StreamKind::background);
  EXPECT_EQ(module_.counters().urgent_streams - before, 1);
}

TEST_F(CudaDevice, LaunchesLaterDecodeStepsAsOneGraph) {
  const std::int64_t before = module_.counters().graph_launches;
  EXPECT_EQ(captured_steps_differ(*device_), "");
  // Of six steps of two batches, the second one is captured.
  EXPECT_EQ(module_.counters().graph_launches - before, 10);
  EXPECT_EQ(module_.counters().graphs, 0);
}

TEST_F(CudaDevice, LeavesNothingBehindWhenACaptureFails) {
  const auto stream = device_->make_stream();
  const auto queue = [&](const char* what) { throw DeviceError(what); };
  EXPECT_THROW(static_cast<void>(device_->capture(*stream, [&] { queue("refused"); })),
               DeviceError);
  module_.fail("cudaGraphInstantiate", 1);
  EXPECT_THROW(static_cast<void>(device_->capture(*stream, [] {})), DeviceError);
  EXPECT_EQ(module_.counters().graphs, 0);
  stream->synchronize();
}

TEST_F(CudaDevice, WaitsWithoutSpinningOnFewProcessors) {
  constexpr std::int64_t kBlockingSync = 4;  // cudaDeviceScheduleBlockingSync
  const Processors all = processors_of_thread();
  stay_on({all.front()});
  const auto device = module_.open(1, ElementType::bfloat16);
  EXPECT_EQ(module_.counters().device_flags, kBlockingSync);
  stay_on(all);
}

}  // namespace
}  // namespace kvtier::emulation
