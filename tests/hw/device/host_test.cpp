#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "hw/device/processors.hpp"
#include "hw/device/thread_pool.hpp"
#include "sim/core/errors.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier {
namespace {

class CpuDevice : public testing::Test {
 protected:
  Buffer elements(const std::vector<float>& values) { return elements_on(*device_, values); }
  std::vector<float> read(const Buffer& buffer, std::size_t count) {
    return elements_from(*device_, buffer.data(), count);
  }
  template <class T>
  Buffer numbers(const std::vector<T>& values) {
    return numbers_on(*device_, values);
  }

  std::unique_ptr<Device> device_ = make_cpu_device(3);
  std::unique_ptr<Stream> stream_ = device_->make_stream();
};

TEST_F(CpuDevice, SharesProcessorsWithMovesOfKv) {
  const ProcessorShares shares = share_processors(*device_, {2, 4, 5, 7, 8});
  EXPECT_EQ(shares.compute, (Processors{2, 4, 5}));
  EXPECT_EQ(shares.rest, (Processors{7, 8}));
  // Too few to share.
  EXPECT_TRUE(share_processors(*device_, {0, 1, 2}).compute.empty());
  EXPECT_TRUE(share_processors(*device_, {0, 1, 2}).rest.empty());
}

TEST(StayOn, GivesTheProcessorsBack) {
  const Processors before = processors_of_thread();
  {
    const StayOn one({before.back()});
    EXPECT_EQ(processors_of_thread(), Processors{before.back()});
  }
  EXPECT_EQ(processors_of_thread(), before);
}

TEST_F(CpuDevice, DescribesItself) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.kind, "cpu");
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.processors, 3);
  EXPECT_EQ(info.element, Bytes(4));
  EXPECT_GT(info.memory, Bytes(std::int64_t{64} << 20));
  ASSERT_EQ(info.libraries.size(), 1U);
  EXPECT_EQ(info.libraries[0].first, "openblas");
  // Between one operation a nanosecond and the widest vectors at 10 GHz, for each of 3 threads.
  EXPECT_GT(info.limits.flops_per_second, 3e9);
  EXPECT_LT(info.limits.flops_per_second, 3 * 64 * 10e9);
}

TEST_F(CpuDevice, RefusesMoreMemoryThanThereIs) {
  EXPECT_THROW(Buffer(*device_, MemoryKind::device, Bytes(std::int64_t{1} << 50)), DeviceError);
}

// [1 2 3; 4 5 6] x [1 0 1; 2 1 0]^T: 1+3 = 4, 2+2 = 4; 4+6 = 10, 8+5 = 13.
TEST_F(CpuDevice, MultipliesByTheTransposedWeights) {
  const Buffer input = elements({1, 2, 3, 4, 5, 6});
  const Buffer weights = elements({1, 0, 1, 2, 1, 0});
  const Buffer output = elements({0, 0, 0, 0});
  device_->gemm({.input = input.data(),
                 .weights = weights.data(),
                 .output = output.data(),
                 .m = 2,
                 .n = 2,
                 .k = 3},
                *stream_);
  stream_->synchronize();
  EXPECT_EQ(read(output, 4), (std::vector<float>{4, 4, 10, 13}));
}

// Small whole numbers, so that sums are exact. 16 does not divide the sides.
TEST_F(CpuDevice, SharesOutTallAndWideMatrices) {
  constexpr std::int64_t kInner = 40;
  for (const auto& [rows, columns] : {std::pair{333, 50}, {50, 333}, {97, 97}, {1, 4001}}) {
    std::vector<float> input(static_cast<std::size_t>(rows * kInner));
    std::vector<float> weights(static_cast<std::size_t>(columns * kInner));
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] = static_cast<float>(i % 13);
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<float>(i % 11) - 5;
    }
    const Buffer a = elements(input);
    const Buffer b = elements(weights);
    const Buffer output = elements(std::vector<float>(static_cast<std::size_t>(rows * columns)));
    device_->gemm({.input = a.data(),
                   .weights = b.data(),
                   .output = output.data(),
                   .m = rows,
                   .n = columns,
                   .k = kInner},
                  *stream_);
    stream_->synchronize();
    const std::vector<float> product = read(output, rows * columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        float sum = 0;
        for (std::int64_t k = 0; k < kInner; ++k) {
          sum += input[static_cast<std::size_t>(i * kInner + k)] *
                 weights[static_cast<std::size_t>(j * kInner + k)];
        }
        ASSERT_EQ(product[static_cast<std::size_t>(i * columns + j)], sum) << i << ", " << j;
      }
    }
  }
}

TEST_F(CpuDevice, GathersAndScattersRows) {
  const Buffer from = numbers<std::int64_t>({10, 11, 20, 21, 30, 31});
  const Buffer slots = numbers<std::int32_t>({2, 0});
  const Buffer packed = numbers<std::int64_t>({0, 0, 0, 0});
  const RowWork rows{.from = from.data(),
                     .to = packed.data(),
                     .slots = slots.as<std::int32_t>(),
                     .rows = 2,
                     .row = Bytes(16)};
  device_->gather(rows, *stream_);
  const Buffer back = numbers<std::int64_t>({0, 0, 0, 0, 0, 0});
  device_->scatter({.from = packed.data(),
                    .to = back.data(),
                    .slots = slots.as<std::int32_t>(),
                    .rows = 2,
                    .row = Bytes(16)},
                   *stream_);
  stream_->synchronize();
  EXPECT_EQ((std::vector<std::int64_t>(packed.as<std::int64_t>(), packed.as<std::int64_t>() + 4)),
            (std::vector<std::int64_t>{30, 31, 10, 11}));
  EXPECT_EQ((std::vector<std::int64_t>(back.as<std::int64_t>(), back.as<std::int64_t>() + 6)),
            (std::vector<std::int64_t>{10, 11, 0, 0, 30, 31}));
}

TEST_F(CpuDevice, MovesLargeRowsWithAllThreads) {
  constexpr std::int64_t kRows = 4096;
  std::vector<std::int64_t> rows(kRows * 32);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::int32_t> places(kRows);
  std::iota(places.rbegin(), places.rend(), 0);
  const Buffer from = numbers(rows);
  const Buffer slots = numbers(places);
  const Buffer to(*device_, MemoryKind::device, from.size());
  device_->gather({.from = from.data(),
                   .to = to.data(),
                   .slots = slots.as<std::int32_t>(),
                   .rows = kRows,
                   .row = Bytes(256)},
                  *stream_);
  stream_->synchronize();
  for (std::int64_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(to.as<std::int64_t>()[i * 32], (kRows - 1 - i) * 32);
  }
}

// One request of four tokens whose values are 1, 2, 3, 4 and whose keys are all alike: the last
// query sees the mean of all, 2.5, the one before it the mean of three, 2.
TEST_F(CpuDevice, AttendsCausallyThroughSlots) {
  constexpr std::int64_t kWidth = 16;
  std::vector<float> keys(4 * kWidth, 0.5F);
  std::vector<float> values(4 * kWidth);
  const std::vector<std::int32_t> places{3, 1, 0, 2};
  for (std::size_t token = 0; token < 4; ++token) {
    std::fill_n(values.begin() + places[token] * kWidth, kWidth, static_cast<float>(token + 1));
  }
  const Buffer k = elements(keys);
  const Buffer v = elements(values);
  const Buffer q = elements(random_values(2 * kWidth, 5));
  const Buffer out = elements(std::vector<float>(2 * kWidth));
  const Buffer slots = numbers(places);
  const Buffer contexts = numbers<std::int64_t>({0, 4});
  const Buffer queries = numbers<std::int64_t>({0, 2});
  device_->attention({.shape = {.query_heads = 1, .kv_heads = 1, .head_dim = kWidth},
                      .queries = q.data(),
                      .keys = k.data(),
                      .values = v.data(),
                      .output = out.data(),
                      .batch = {.requests = 1,
                                .slots = slots.as<std::int32_t>(),
                                .context_begin = contexts.as<std::int64_t>(),
                                .query_begin = queries.as<std::int64_t>()},
                      .context_max = 4},
                     *stream_);
  stream_->synchronize();
  const std::vector<float> result = read(out, 2 * kWidth);
  EXPECT_NEAR(result[0], 2, 1e-5);
  EXPECT_NEAR(result[kWidth], 2.5, 1e-5);
}

TEST_F(CpuDevice, RefusesAnAttentionShapeBeforeItIsQueued) {
  try {
    device_->attention({.shape = {.query_heads = 3, .kv_heads = 2, .head_dim = 64}}, *stream_);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(
        error.what(),
        "attention: 3 query heads on 2 KV heads of width 64 are not what the kernel takes");
  }
}

TEST_F(CpuDevice, RefusesKeysAndValuesOf8Bits) {
  try {
    device_->attention(
        {.shape = {.query_heads = 1, .kv_heads = 1, .head_dim = 64}, .kv_type = KvType::float8},
        *stream_);
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "attention: the host has keys and values in float32 alone");
  }
}

TEST_F(CpuDevice, HasOnlyItsOwnAttention) {
  const kernels::PagedAttentionShape shape{.query_heads = 1, .kv_heads = 1, .head_dim = 64};
  EXPECT_TRUE(device_->has_attention(AttentionLibrary::own, shape));
  EXPECT_FALSE(device_->has_attention(AttentionLibrary::flashinfer, shape));
}

// Position 1, one pair: (1, 0) becomes (cos 1, sin 1); position 0 changes nothing.
TEST_F(CpuDevice, RotatesRowsToTheirPlace) {
  const Buffer from = elements({7, 8, 1, 0});
  const Buffer to = elements({0, 0, 0, 0});
  const Buffer slots = numbers<std::int32_t>({0, 1});
  device_->rope({.rows = {.from = from.data(),
                          .to = to.data(),
                          .slots = slots.as<std::int32_t>(),
                          .rows = 2,
                          .row = Bytes(8)},
                 .heads = 1,
                 .head_dim = 2,
                 .first_position = 0},
                *stream_);
  stream_->synchronize();
  const std::vector<float> rotated = read(to, 4);
  EXPECT_EQ(rotated[0], 7);
  EXPECT_EQ(rotated[1], 8);
  EXPECT_NEAR(rotated[2], 0.540302, 1e-6);
  EXPECT_NEAR(rotated[3], 0.841471, 1e-6);
}

TEST_F(CpuDevice, AppliesRowFunctionsToEveryRow) {
  const Buffer input = elements({3, 4, 6, 8});
  const Buffer output = elements({0, 0, 0, 0});
  device_->row_function({.function = RowFunction::norm,
                         .input = input.data(),
                         .output = output.data(),
                         .rows = 2,
                         .width = 2},
                        *stream_);
  stream_->synchronize();
  // (3, 4) / sqrt(12.5), and twice that divided by twice the root.
  EXPECT_NEAR(read(output, 4)[1], 1.131371, 1e-5);
  EXPECT_NEAR(read(output, 4)[3], 1.131371, 1e-5);
  device_->row_function({.function = RowFunction::gated_activation,
                         .input = input.data(),
                         .output = output.data(),
                         .rows = 2,
                         .width = 1},
                        *stream_);
  stream_->synchronize();
  EXPECT_NEAR(read(output, 2)[1], 47.8813, 1e-3);  // 6 / (1 + e^-6) x 8
  device_->row_function({.function = RowFunction::sample,
                         .input = input.data(),
                         .output = output.data(),
                         .rows = 2,
                         .width = 2},
                        *stream_);
  stream_->synchronize();
  EXPECT_EQ(output.as<std::int32_t>()[0], 1);
  EXPECT_EQ(output.as<std::int32_t>()[1], 1);
}

// The time is at least the loop's and at most the elapsed time.
TEST_F(CpuDevice, EventsMeasureABusyLoop) {
  const auto begin = device_->make_event();
  const auto end = device_->make_event();
  const auto clock_begin = std::chrono::steady_clock::now();
  device_->record(*begin, *stream_);
  device_->busy(0.02, *stream_);
  device_->record(*end, *stream_);
  end->synchronize();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - clock_begin;
  EXPECT_GE(device_->seconds_between(*begin, *end), 0.02);
  EXPECT_LE(device_->seconds_between(*begin, *end), passed.count());
}

TEST_F(CpuDevice, AStreamWaitsForAnEventOfAnother) {
  const auto other = device_->make_stream();
  const auto reached = device_->make_event();
  const auto done = device_->make_event();
  device_->busy(0.03, *stream_);
  device_->record(*reached, *stream_);
  device_->wait(*other, *reached);
  device_->record(*done, *other);
  done->synchronize();
  EXPECT_GE(device_->seconds_between(*reached, *done), 0);
}

// Each turn waits for the other stream's turn, but not for recordings of later turns.
TEST_F(CpuDevice, WaitsForTheRecordingBeforeTheWait) {
  const auto other = device_->make_stream();
  const auto there = device_->make_event();
  const auto back = device_->make_event();
  for (int turn = 0; turn < 100; ++turn) {
    device_->record(*there, *stream_);
    device_->wait(*other, *there);
    device_->record(*back, *other);
    device_->wait(*stream_, *back);
  }
  stream_->synchronize();
  other->synchronize();
}

// The second stream's work begins before the first one's ends, given long enough to wake up.
TEST_F(CpuDevice, StreamsRunAtTheSameTime) {
  constexpr double kLongEnough = 10;
  const auto other = device_->make_stream();
  const auto other_begin = device_->make_event();
  const auto end = device_->make_event();
  bool overlap = false;
  for (double seconds = 0.01; !overlap && seconds < kLongEnough; seconds *= 2) {
    device_->busy(seconds, *stream_);
    device_->record(*end, *stream_);
    device_->record(*other_begin, *other);
    stream_->synchronize();
    other->synchronize();
    overlap = device_->seconds_between(*other_begin, *end) > 0;
  }
  EXPECT_TRUE(overlap);
}

TEST(ThreadPool, RunsEveryIterationOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> counts(1000);
  for (int round = 0; round < 50; ++round) {
    pool.run(1000, [&](std::int64_t i) { ++counts[static_cast<std::size_t>(i)]; });
  }
  for (const std::atomic<int>& count : counts) {
    ASSERT_EQ(count, 50);
  }
}

// Threads that have stopped polling are woken.
TEST(ThreadPool, RunsLoopsAfterAPause) {
  ThreadPool pool(3);
  std::atomic<int> sum = 0;
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run(3, [&](std::int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++sum;
    });
  }
  EXPECT_EQ(sum, 15);
}

TEST(ThreadPool, RunsALoopThatIsStartedDuringAnother) {
  ThreadPool pool(2);
  std::atomic<int> sum = 0;
  pool.run(4, [&](std::int64_t) { pool.run(3, [&](std::int64_t) { ++sum; }); });
  EXPECT_EQ(sum, 12);
}

}  // namespace
}  // namespace kvtier
