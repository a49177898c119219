/// Reads by io_uring against fio with the same job on the same file, in turns within one run.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calibrate/measure.hpp"
#include "hw/device/cpu_device.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/statistics.hpp"

namespace kvtier::calibrate {
namespace {

constexpr double kBand = 0.05;
constexpr int kRounds = 5;
constexpr std::int64_t kFile = std::int64_t{512} << 20;

std::string output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) {
    text += buffer;
  }
  return pipe != nullptr && ::pclose(pipe) == 0 ? text : "";
}

/// Random reads a second by fio: field 8 of its terse format, version 3.
double fio_reads_per_second(const std::string& file, std::int64_t block, std::int64_t depth) {
  const std::string text = output_of(
      "fio --name=reads --filename=" + file + " --size=" + std::to_string(kFile) +
      " --rw=randread --norandommap --random_generator=tausworthe64 --bs=" + std::to_string(block) +
      " --iodepth=" + std::to_string(depth) +
      " --thread --ioengine=io_uring --fixedbufs --registerfiles --direct=1 --runtime=1 "
      "--time_based"
      " --allow_file_create=0 --output-format=terse --terse-version=3 2>/dev/null");
  std::size_t at = 0;
  for (int field = 1; field < 8; ++field) {
    at = text.find(';', at);
    if (at == std::string::npos) {
      return 0;
    }
    ++at;
  }
  return std::strtod(text.c_str() + at, nullptr);
}

TEST(Ratios, ReadsAreAsFastAsFios) {
  if (std::getenv("KVTIER_TEST_RATIOS") == nullptr) {
    GTEST_SKIP() << "comparisons of speed need a quiet machine; KVTIER_TEST_RATIOS=1 runs them";
  }
  if (std::system("fio --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "fio is not installed";
  }
  std::unique_ptr<ScratchFile> file;
  try {
    file = std::make_unique<ScratchFile>(testing::TempDir(), Bytes(kFile));
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  const int descriptor = file->descriptor();
  std::shared_ptr<StorageBench> bench;
  try {
    bench = make_storage_bench(
        [descriptor](StorageOptions options) {
          options.kind = StorageEngineKind::uring;
          return open_storage_engine(descriptor, options);
        },
        Bytes(kFile));
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  const auto device = make_cpu_device(1);
  const Target target{.device = *device, .full = true, .memory = Bytes(std::int64_t{1} << 30)};
  const std::string path =
      "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor);
  int cells = 0;
  for (const PlannedTable& table : plan_storage(target, bench)) {
    // fio reads without pauses. Its buffers are in small pages, so a long read needs more pieces.
    if (table.table.operation != OperationId::drive_read || table.table.variant == kAfterIdle) {
      continue;
    }
    for (const PlannedCell& cell : table.cells) {
      const std::int64_t block = cell.at[0];
      const std::int64_t depth = cell.at[1];
      if ((block != 4096 && block != 65536 && block != (1 << 20)) || (depth != 1 && depth != 16)) {
        continue;
      }
      ++cells;
      const Sample sample = cell.prepare();
      std::vector<double> ratios;
      double ours = 0;
      double fio = 0;
      // Drives and neighbours change from second to second, so that each round has its own ratio.
      for (int round = 0; round < kRounds; ++round) {
        fio = fio_reads_per_second(path, block, depth);
        ASSERT_GT(fio, 0) << "fio did not run";
        std::vector<double> seconds;
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        while (std::chrono::steady_clock::now() < end) {
          seconds.push_back(sample());
        }
        ours = static_cast<double>(seconds.size()) /
               std::accumulate(seconds.begin(), seconds.end(), 0.0);
        ratios.push_back(ours / fio);
      }
      std::ranges::sort(ratios);
      const double median = quantile(ratios, 0.5);
      std::printf("%4ld KiB, %2ld in flight: %.0f reads/s, fio %.0f; ratio %.3f (%.3f to %.3f)\n",
                  block >> 10, depth, ours, fio, median, ratios.front(), ratios.back());
      double load = 0;
      const auto processors = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
      if (median < 1 - kBand && ::getloadavg(&load, 1) == 1 && load > processors) {
        GTEST_SKIP() << "a load average of " << load << " is too much to compare two programs";
      }
      EXPECT_GE(median, 1 - kBand) << block << " bytes, " << depth << " in flight";
    }
  }
  EXPECT_EQ(cells, 6);
}

}  // namespace
}  // namespace kvtier::calibrate
