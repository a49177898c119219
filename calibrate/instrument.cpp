#include "calibrate/instrument.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "sim/core/statistics.hpp"

namespace kvtier::calibrate {
namespace {

constexpr double kNanosecond = 1e-9;

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] std::int64_t now_ns() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

SchedulerMonitor::Seen seen_so_far() {
  SchedulerMonitor::Seen seen{.elapsed =
                                  static_cast<double>(steady_clock().now_ns()) * kNanosecond};
  std::error_code none;
  const std::string host = std::to_string(::gettid());
  // Documentation/scheduler/sched-stats.rst: time on a processor, time waiting for one, both in ns.
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", none)) {
    std::ifstream in(task.path() / "schedstat");
    double ran_ns = 0;
    double waited_ns = 0;
    if (in >> ran_ns >> waited_ns) {
      SchedulerMonitor::Thread& thread = task.path().filename() == host ? seen.host : seen.others;
      thread.ran += ran_ns * kNanosecond;
      thread.waited += waited_ns * kNanosecond;
    }
  }
  // man 5 proc: cpu user nice system idle iowait irq softirq steal.
  std::ifstream in("/proc/stat");
  std::string word;
  in >> word;
  double ticks[8] = {};
  for (double& value : ticks) {
    in >> value;
  }
  if (in) {
    seen.stolen = ticks[7] / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  return seen;
}

/// Computes the quantiles of the samples taken so far.
void summarize(Measured& measured) {
  const std::vector<double>& sorted = measured.sorted_seconds;
  if (!sorted.empty()) {
    measured.p25_seconds = quantile(sorted, 0.25);
    measured.median_seconds = quantile(sorted, 0.5);
    measured.p75_seconds = quantile(sorted, 0.75);
    measured.n = static_cast<std::int64_t>(sorted.size());
  }
}

}  // namespace

Clock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

Measured measure(const StopRules& rules, double limit_seconds, const Sample& sample, Clock& clock,
                 DisturbanceMonitor& monitor, const std::function<void()>& check) {
  constexpr double kErrorOfMedian = 0.929;
  const std::int64_t begin = clock.now_ns();
  const auto passed = [&] { return static_cast<double>(clock.now_ns() - begin) * kNanosecond; };
  for (int i = 0; i < rules.warm_up; ++i) {
    check();
    sample();
    if (passed() > rules.budget_seconds) {
      if (i == 0 && passed() > rules.patience * rules.budget_seconds) {
        throw OverBudget(fmt::format("one run takes {:.1f} s, a cell may take {:.2g} s", passed(),
                                     rules.budget_seconds));
      }
      break;
    }
  }
  Measured result;
  std::vector<double>& sorted = result.sorted_seconds;
  while (static_cast<int>(sorted.size()) < rules.samples_max) {
    const double budget = rules.budget_seconds * (sorted.empty() ? rules.patience : 1);
    if (result.disturbed + result.impossible + static_cast<std::int64_t>(sorted.size()) > 0 &&
        passed() >= budget) {
      break;
    }
    check();
    monitor.begin();
    const double seconds = sample();
    if (monitor.disturbed()) {
      ++result.disturbed;
      continue;
    }
    if (!(seconds >= limit_seconds) || seconds <= 0) {
      ++result.impossible;
      continue;
    }
    sorted.insert(std::ranges::upper_bound(sorted, seconds), seconds);
    const auto n = static_cast<double>(sorted.size());
    const double distance = quantile(sorted, 0.75) - quantile(sorted, 0.25);
    if (static_cast<int>(sorted.size()) >= rules.samples_min &&
        kErrorOfMedian * distance / std::sqrt(n) <= rules.relative_error * quantile(sorted, 0.5)) {
      result.converged = true;
      break;
    }
  }
  summarize(result);
  return result;
}

Measured pool(const Measured& a, const Measured& b) {
  Measured both{.disturbed = a.disturbed + b.disturbed,
                .impossible = a.impossible + b.impossible,
                .converged = a.converged && b.converged};
  std::ranges::merge(a.sorted_seconds, b.sorted_seconds, std::back_inserter(both.sorted_seconds));
  summarize(both);
  return both;
}

StopRules visit_rules(const StopRules& rules, int visits) {
  StopRules result = rules;
  result.samples_min = (rules.samples_min + visits - 1) / visits;
  result.samples_max = (rules.samples_max + visits - 1) / visits;
  result.relative_error = rules.relative_error * std::sqrt(static_cast<double>(visits));
  result.budget_seconds = rules.budget_seconds / visits;
  result.patience = rules.patience * visits;
  return result;
}

bool is_disturbed(const SchedulerMonitor::Seen& seen) {
  constexpr double kShare = 0.1;
  constexpr double kWaking = 1e-4;
  const double waited = std::max(0.0, seen.host.waited - seen.others.ran) +
                        std::max(0.0, seen.others.waited - seen.host.ran);
  return waited > kShare * seen.elapsed + kWaking || seen.stolen > kShare * seen.elapsed;
}

void SchedulerMonitor::begin() { at_begin_ = seen_so_far(); }

bool SchedulerMonitor::disturbed() {
  const Seen now = seen_so_far();
  const auto since = [](const Thread& before, const Thread& after) {
    // The sum has no time of threads that have ended.
    return Thread{.ran = std::max(0.0, after.ran - before.ran),
                  .waited = std::max(0.0, after.waited - before.waited)};
  };
  return is_disturbed({.elapsed = now.elapsed - at_begin_.elapsed,
                       .host = since(at_begin_.host, now.host),
                       .others = since(at_begin_.others, now.others),
                       .stolen = now.stolen - at_begin_.stolen});
}

}  // namespace kvtier::calibrate
