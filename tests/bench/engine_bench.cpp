/// Whole runs: turns a second, beside what a plain binary heap costs on the same machine, and the
/// memory of a run.

#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/replay/untimed.hpp"
#include "tests/bench/support.hpp"

namespace kvtier::bench {
namespace {

/// Runs `run`, which returns the turns of one run, and reports turns a second of processor time,
/// the time of a turn, and how many pops and pushes of a binary heap a turn takes as long as.
template <class Run>
void measure_turns(benchmark::State& state, Run run) {
  double turns = 0;
  const double begin = thread_seconds();
  for (auto _ : state) {
    turns += run();
  }
  const double seconds = thread_seconds() - begin;
  const double ns_per_turn = seconds * 1e9 / turns;
  state.counters["turns_per_second"] = turns / seconds;
  state.counters["turn_ns"] = ns_per_turn;
  state.counters["heap_pop_push_ns"] = heap_pop_push_ns();
  state.counters["turn_over_heap"] = ns_per_turn / heap_pop_push_ns();
}

double turns_of(const Json& result) { return result["workload"]["turns"].get<double>(); }

/// The paper's run of 9,000 sessions with one system, policies and workload included.
void BM_NineThousandSessions(benchmark::State& state, const std::string& system) {
  const RunConfig config = paper_run({"/system=" + system});
  const PolicyRegistry registry = builtin_policies();
  measure_turns(state, [&] { return turns_of(simulate(config, registry)); });
}
BENCHMARK_CAPTURE(BM_NineThousandSessions, attentionstore, "attentionstore")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_NineThousandSessions, attentionstore_lru, "attentionstore_lru")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_NineThousandSessions, attentionstore_fifo, "attentionstore_fifo")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_NineThousandSessions, recompute, "recompute")->Unit(benchmark::kMillisecond);

/// At about 0.7 utilization, with exact sizes: what a planner runs.
void BM_WithinCapacity(benchmark::State& state) {
  const RunConfig config =
      paper_run({"/workload/arrival_rate=0.24/s", "/serving/kv_reservation=exact"});
  const PolicyRegistry registry = builtin_policies();
  measure_turns(state, [&] { return turns_of(simulate(config, registry)); });
}
BENCHMARK(BM_WithinCapacity)->Unit(benchmark::kMillisecond);

/// The same accesses without a clock.
void BM_Untimed(benchmark::State& state, const std::string& system) {
  const RunConfig config = paper_run({"/system=" + system});
  const PolicyRegistry registry = builtin_policies();
  measure_turns(state, [&] { return turns_of(simulate_untimed(config, registry)); });
}
BENCHMARK_CAPTURE(BM_Untimed, attentionstore_lru, "attentionstore_lru")
    ->Unit(benchmark::kMillisecond);

/// Peak resident memory of a process that does the paper's run once, program included.
void BM_PeakMemory(benchmark::State& state) {
  const RunConfig config = paper_run({});
  const PolicyRegistry registry = builtin_policies();
  double mebibytes = 0;
  for (auto _ : state) {
    const pid_t child = fork();
    if (child == 0) {
      benchmark::DoNotOptimize(simulate(config, registry));
      _exit(0);
    }
    int status = 0;
    rusage usage{};
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) {
      state.SkipWithError("the run failed");
      return;
    }
    mebibytes = static_cast<double>(usage.ru_maxrss) / 1024;
  }
  state.counters["peak_MiB"] = mebibytes;
}
BENCHMARK(BM_PeakMemory)->Unit(benchmark::kMillisecond)->Iterations(1);

/// Drawing the workload alone: sessions, lengths, arrivals and think times.
void BM_Generator(benchmark::State& state) {
  const RunConfig config = paper_run({});
  std::int64_t turns = 0;
  for (auto _ : state) {
    const auto source = make_source(config.workload, 1, {});
    SessionSpec session;
    while (source->next(session)) {
      turns += static_cast<std::int64_t>(session.turns.size());
    }
  }
  state.counters["turns_per_second"] =
      benchmark::Counter(static_cast<double>(turns), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Generator)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvtier::bench
