/// Memory is that of live sessions and stored entries, not that of the trace: ten million turns
/// stream through one run.

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

// The sanitizers keep freed memory and shadow the rest.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct Measured {
  double turns = 0;
  double slots_in_use = 0;
  double queue_longest = 0;
  double seconds = 0;
  double peak_mebibytes = 0;
};

struct Process {
  std::vector<double> values;
  double peak_mebibytes = 0;
};

/// Calls `work`, which fills in `count` numbers, in a process of its own, so that its peak is not
/// that of another run.
template <class Work>
Process run_apart(std::size_t count, Work work) {
  int ends[2];
  if (pipe(ends) != 0) {
    throw std::runtime_error("pipe failed");
  }
  std::vector<double> values(count);
  const auto size = static_cast<ssize_t>(count * sizeof(double));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      work(values);
      code = write(ends[1], values.data(), static_cast<std::size_t>(size)) == size ? 0 : 1;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    _exit(code);
  }
  close(ends[1]);
  const bool complete =
      child > 0 && read(ends[0], values.data(), static_cast<std::size_t>(size)) == size;
  close(ends[0]);
  int status = 0;
  rusage usage{};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_TRUE(complete && WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the process failed";
  return {values, static_cast<double>(usage.ru_maxrss) / 1024};
}

Measured run_long(std::int64_t sessions) {
  const auto begin = std::chrono::steady_clock::now();
  const Process process = run_apart(3, [&](std::vector<double>& values) {
    // A little less often than in the example, whose share of slots in use counts the empty
    // beginning and end.
    const Json result = simulate(resolved("examples/planner-70.json",
                                          {fmt::format("/workload/sessions={}", sessions),
                                           fmt::format("/workload/warmup_turns={}", sessions / 2),
                                           "/workload/arrival_rate=0.226/s", "/serving/slots=24"}),
                                 builtin_policies());
    values = {number_at(result, "/workload/turns"),
              number_at(result, "/load/slots_in_use_fraction"),
              number_at(result, "/load/queue_length/max")};
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const Measured m{.turns = process.values[0],
                   .slots_in_use = process.values[1],
                   .queue_longest = process.values[2],
                   .seconds = seconds.count(),
                   .peak_mebibytes = process.peak_mebibytes};
  fmt::print(
      "{:.0f} turns: slots in use {:.3f}, longest queue {:.0f}, peak {:.1f} MiB, {:.1f} s, "
      "{:.0f} turns/s\n",
      m.turns, m.slots_in_use, m.queue_longest, m.peak_mebibytes, m.seconds, m.turns / m.seconds);
  return m;
}

/// The measurement itself: a process that touches 200 MiB has a peak of little more than that.
TEST(PeakMemory, IsMeasured) {
  if (kSanitized) {
    GTEST_SKIP() << "memory is not measured under a sanitizer";
  }
  constexpr double kMebibytes = 200;
  const Process process = run_apart(1, [](std::vector<double>& values) {
    const std::vector<char> touched(static_cast<std::size_t>(kMebibytes) << 20, 'x');
    values[0] = touched[touched.size() / 2];
  });
  EXPECT_GT(process.peak_mebibytes, kMebibytes);
  EXPECT_LT(process.peak_mebibytes, 1.2 * kMebibytes);
}

TEST(LongTrace, TakesTheMemoryOfItsLiveSessionsForTenMillionTurns) {
  const std::int64_t sessions = kSanitized ? 17600 : 1760000;
  const Measured tenth = run_long(sessions / 10);
  const Measured whole = run_long(sessions);
  if (kSanitized) {
    GTEST_SKIP() << "memory is not measured under a sanitizer";
  }
  EXPECT_NEAR(whole.slots_in_use, 0.7, 0.05);
  EXPECT_GT(whole.turns, 9.9e6);
  EXPECT_LT(whole.peak_mebibytes, 1024);
  // Ten times the turns: what grows is chance, the longest of ten times as many queues.
  EXPECT_LT(whole.peak_mebibytes, 1.5 * tenth.peak_mebibytes);
}

}  // namespace
}  // namespace kvtier::test
