#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

/// How one number is measured: samples are taken until their median is known well enough, or the
/// time is up. Nothing here knows what is measured, or on what.
namespace kvtier::calibrate {

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::int64_t now_ns() = 0;
};
/// std::chrono::steady_clock.
[[nodiscard]] Clock& steady_clock();

/// Whether something else used the machine while a sample was taken.
class DisturbanceMonitor {
 public:
  virtual ~DisturbanceMonitor() = default;
  virtual void begin() = 0;
  /// Since begin().
  [[nodiscard]] virtual bool disturbed() = 0;
};

struct StopRules {
  /// Samples that are taken first and thrown away: caches, clocks and the allocator settle.
  int warm_up = 2;
  int samples_min = 5;
  int samples_max = 100;
  /// Enough, once the standard error of the median is below this share of it. For a bell curve it
  /// is 1.2533 sigma / sqrt(n), and sigma is the distance of the quartiles / 1.349: 0.929 x (p75 -
  /// p25) / sqrt(n).
  double relative_error = 0.01;
  /// After it no further sample is started; at least one is.
  double budget_seconds = 0.25;
  /// While every sample was disturbed, the budget may be exceeded this many times over.
  double patience = 3;
};

struct Measured {
  double p25_seconds = 0;
  double median_seconds = 0;
  double p75_seconds = 0;
  /// Samples that count, and samples that were rejected because something else ran.
  std::int64_t n = 0;
  std::int64_t disturbed = 0;
  /// Samples that were rejected because no machine is that fast.
  std::int64_t impossible = 0;
  /// The error criterion was met.
  bool converged = false;
  /// The samples that count, ascending.
  std::vector<double> sorted_seconds;
};

/// The samples of both, as if taken in one go.
[[nodiscard]] Measured pool(const Measured& a, const Measured& b);

/// The rules of one of several visits that together cost and know about as much as one by `rules`.
[[nodiscard]] StopRules visit_rules(const StopRules& rules, int visits);

/// One sample: does the work once and returns how long it took.
using Sample = std::function<double()>;

/// Calls `sample` by the rules. `limit_seconds` is the time below which a sample is a mistake.
/// `check` is called before each sample and may throw to give up. With n = 0 nothing was measured.
[[nodiscard]] Measured measure(const StopRules& rules, double limit_seconds, const Sample& sample,
                               Clock& clock, DisturbanceMonitor& monitor,
                               const std::function<void()>& check);

/// Sees what this process's threads waited for a processor, and what the hypervisor took; for work
/// that keeps to the processors it has. Where the kernel tells neither, nothing counts as
/// disturbed.
class SchedulerMonitor final : public DisturbanceMonitor {
 public:
  /// All in seconds.
  struct Thread {
    double ran = 0;
    double waited = 0;
  };
  /// What a sample was, from its queueing to its end.
  struct Seen {
    double elapsed = 0;
    /// The thread that takes samples, and all others of the process together.
    Thread host;
    Thread others;
    double stolen = 0;
  };

  void begin() override;
  [[nodiscard]] bool disturbed() override;

 private:
  Seen at_begin_;
};

/// More than a tenth of the sample was waited or stolen. That the thread that takes samples and
/// those that work wait for each other is no disturbance: it happens where samples are queued and
/// fetched, not where they are timed. Nor is a tenth of a millisecond, as waking a thread takes
/// some tens of microseconds on any machine.
[[nodiscard]] bool is_disturbed(const SchedulerMonitor::Seen& seen);

/// For work that has more threads than there are processors, as interference is what it measures.
class NoMonitor final : public DisturbanceMonitor {
 public:
  void begin() override {}
  [[nodiscard]] bool disturbed() override { return false; }
};

/// A cell whose first sample already takes longer than its budget allows.
class OverBudget : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A cell that did not come about as it has to; this says nothing of other cells.
class CannotMeasure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kvtier::calibrate
