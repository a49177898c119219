#include "tests/bench/support.hpp"

#include <ctime>
#include <queue>

#include <benchmark/benchmark.h>

#include "sim/study/config/resolve.hpp"

namespace kvtier::bench {

RunConfig paper_run(const std::vector<std::string>& settings) {
  const std::filesystem::path configs = std::filesystem::path(KVTIER_SOURCE_DIR) / "configs";
  ConfigRequest request;
  request.file = configs / "papers/attentionstore/llama2-13b.json";
  for (const std::string& setting : settings) {
    request.overrides.push_back(parse_override(setting));
  }
  return resolve_config(request, ConfigDirectory(configs), builtin_policies()).config;
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double heap_pop_push_ns() {
  static const double ns = [] {
    constexpr std::int64_t kPending = 1024;
    constexpr std::int64_t kPairs = 10000000;
    const auto later = [](const TimedEvent& a, const TimedEvent& b) { return earlier(b, a); };
    std::priority_queue<TimedEvent, std::vector<TimedEvent>, decltype(later)> heap(later);
    Waits waits;
    std::uint64_t sequence = 0;
    for (std::int64_t i = 0; i < kPending; ++i) {
      heap.push({.time = SimTime(waits.next()), .order = sequence++});
    }
    const double begin = thread_seconds();
    for (std::int64_t i = 0; i < kPairs; ++i) {
      const TimedEvent event = heap.top();
      heap.pop();
      heap.push({.time = SimTime(event.time.ns + waits.next()), .order = sequence++});
    }
    const double seconds = thread_seconds() - begin;
    benchmark::DoNotOptimize(heap.top());
    return seconds * 1e9 / static_cast<double>(kPairs);
  }();
  return ns;
}

}  // namespace kvtier::bench
