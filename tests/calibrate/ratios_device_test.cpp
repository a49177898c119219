/// Measured times against direct calls of the same work, in turns within one run: the overhead of
/// the interface. The shortest of many tries is compared, because other load only adds time.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "calibrate/bench.hpp"
#include "hw/device/cpu_device.hpp"

namespace kvtier::calibrate {
namespace {

constexpr double kBand = 0.05;
/// A machine with other load gets several chances.
constexpr int kRounds = 25;
/// Time for which OpenBLAS's threads poll for more work.
constexpr auto kPolling = std::chrono::milliseconds(100);

/// Times the second call. The first one wakes the library's threads, as the timer's queue does.
double seconds_of(const std::function<void()>& call) {
  call();
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The ratio of the shortest times, ours to the direct call's, in the round where they are nearest.
void expect_near(const std::string& what, const std::function<double()>& ours,
                 const std::function<double()>& direct) {
  double best = std::numeric_limits<double>::infinity();
  SchedulerMonitor monitor;
  bool undisturbed = false;
  for (int round = 0; round < kRounds && std::abs(best - 1) > kBand; ++round) {
    double our_shortest = std::numeric_limits<double>::infinity();
    double direct_shortest = our_shortest;
    constexpr int kTurns = 15;
    monitor.begin();
    for (int turn = 0; turn < kTurns; ++turn) {
      our_shortest = std::min(our_shortest, ours());
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      direct_shortest = std::min(direct_shortest, direct());
    }
    undisturbed |= !monitor.disturbed();
    std::this_thread::sleep_for(kPolling);
    const double ratio = our_shortest / direct_shortest;
    if (std::abs(ratio - 1) < std::abs(best - 1)) {
      best = ratio;
    }
  }
  std::printf("%s: %.3f of the direct call's time\n", what.c_str(), best);
  if (std::abs(best - 1) > kBand && !undisturbed) {
    GTEST_SKIP() << what << ": something else used the processors in every round";
  }
  EXPECT_NEAR(best, 1, kBand) << what;
}

class Ratios : public testing::Test {
 protected:
  Buffer random(std::int64_t elements) {
    RandomStream stream(1, "ratios");
    Buffer buffer(*device_, MemoryKind::device, Bytes(elements * 4));
    fill_random(*device_, buffer, stream);
    return buffer;
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(Ratios, MatricesTakeAsLongAsOpenBlasCalledDirectly) {
  if (std::getenv("KVTIER_TEST_RATIOS") == nullptr) {
    GTEST_SKIP() << "comparisons of speed need a quiet machine; KVTIER_TEST_RATIOS=1 runs them";
  }
  struct Case {
    std::int64_t rows;
    std::int64_t width;  ///< OpenBLAS shares one row out only if it is long.
    int repeats;         ///< Work that lasts long enough for the clock.
  };
  for (const auto [rows, width, repeats] : {Case{1, 2048, 8}, {64, 768, 16}, {768, 768, 2}}) {
    const auto size = static_cast<blasint>(width);
    const Buffer weights = random(width * width);
    const Buffer input = random(rows * width);
    const Buffer output = random(rows * width);
    const auto direct = [&] {
      openblas_set_num_threads(static_cast<int>(device_->info().processors));
      const double seconds = seconds_of([&] {
        for (int i = 0; i < repeats; ++i) {
          cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), size,
                      size, 1, input.as<float>(), size, weights.as<float>(), size, 0,
                      output.as<float>(), size);
        }
      });
      openblas_set_num_threads(1);  // as the device does
      return seconds / repeats;
    };
    StreamTimer timer(*device_);  // chooses its repeats by the first call
    const auto ours = [&] {
      return timer.seconds([&](Stream& stream, std::int64_t) {
        device_->gemm({.input = input.data(),
                       .weights = weights.data(),
                       .output = output.data(),
                       .m = rows,
                       .n = width,
                       .k = width},
                      stream);
      });
    };
    expect_near("GEMM of " + std::to_string(rows) + " rows", ours, direct);
  }
}

TEST_F(Ratios, CopiesTakeAsLongAsMemcpy) {
  if (std::getenv("KVTIER_TEST_RATIOS") == nullptr) {
    GTEST_SKIP() << "comparisons of speed need a quiet machine; KVTIER_TEST_RATIOS=1 runs them";
  }
  for (const std::int64_t bytes :
       {std::int64_t{64} << 10, std::int64_t{1} << 20, std::int64_t{32} << 20}) {
    const Buffer from = random(bytes / 4);
    const Buffer to = random(bytes / 4);
    const int repeats = static_cast<int>(std::max<std::int64_t>(1, (4 << 20) / bytes));
    const auto direct = [&] {
      return seconds_of([&] {
               for (int i = 0; i < repeats; ++i) {
                 std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
               }
             }) /
             repeats;
    };
    StreamTimer timer(*device_);  // chooses its repeats by the first call
    const auto ours = [&] {
      return timer.seconds([&](Stream& stream, std::int64_t) {
        device_->copy(to.data(), from.data(), Bytes(bytes), stream);
      });
    };
    expect_near("copy of " + std::to_string(bytes >> 10) + " KiB", ours, direct);
  }
}

}  // namespace
}  // namespace kvtier::calibrate
