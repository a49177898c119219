#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

/// The measurement of one number: samples are taken until their median is precise enough, or the
/// time is up. It knows no operation and no device.
namespace kvtier::calibrate {

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::int64_t now_ns() = 0;
};
/// std::chrono::steady_clock.
[[nodiscard]] Clock& steady_clock();

/// Tells whether other work used the machine while a sample was taken.
class DisturbanceMonitor {
 public:
  virtual ~DisturbanceMonitor() = default;
  virtual void begin() = 0;
  /// Since begin().
  [[nodiscard]] virtual bool disturbed() = 0;
};

struct StopRules {
  /// Warm-up samples, not counted: caches, clocks and the allocator settle.
  int warm_up = 2;
  int samples_min = 5;
  int samples_max = 100;
  /// Stops when the standard error of the median is below this share of it. For a normal
  /// distribution the error is 1.2533 sigma / sqrt(n), and sigma is the distance of the quartiles /
  /// 1.349: 0.929 x (p75 - p25) / sqrt(n).
  double relative_error = 0.01;
  /// No sample starts after this time, except the first.
  double budget_seconds = 0.25;
  /// If every sample was disturbed, the budget may be exceeded by this factor.
  double patience = 3;
};

struct Measured {
  double p25_seconds = 0;
  double median_seconds = 0;
  double p75_seconds = 0;
  /// Samples that count, and samples rejected for other work on the machine.
  std::int64_t n = 0;
  std::int64_t disturbed = 0;
  /// Samples rejected for times below the limit.
  std::int64_t impossible = 0;
  /// The error criterion was met.
  bool converged = false;
  /// The samples that count, ascending.
  std::vector<double> sorted_seconds;
};

/// Joins the samples of two visits.
[[nodiscard]] Measured pool(const Measured& a, const Measured& b);

/// Rules of one of several visits. Together they cost about as much, and are as precise, as one
/// visit by `rules`.
[[nodiscard]] StopRules visit_rules(const StopRules& rules, int visits);

/// One sample: does the work once and returns its time.
using Sample = std::function<double()>;

/// Calls `sample` by the rules. `limit_seconds` is the time below which a sample is a mistake.
/// `check` is called before each sample and may throw to stop. n = 0: nothing was measured.
[[nodiscard]] Measured measure(const StopRules& rules, double limit_seconds, const Sample& sample,
                               Clock& clock, DisturbanceMonitor& monitor,
                               const std::function<void()>& check);

/// Detects disturbance by the time that this process's threads waited for a processor, and the time
/// that the hypervisor took. For work with no more threads than processors. If the kernel tells
/// neither, no sample counts as disturbed.
class SchedulerMonitor final : public DisturbanceMonitor {
 public:
  /// All in seconds.
  struct Thread {
    double ran = 0;
    double waited = 0;
  };
  /// Times of a sample, from its queueing to its end.
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

/// True if more than a tenth of the sample was waited or stolen. The sampling thread and the
/// working threads wait for each other outside of the timed part, which does not count. A tenth of
/// a millisecond does not count either, because waking a thread takes some tens of microseconds.
[[nodiscard]] bool is_disturbed(const SchedulerMonitor::Seen& seen);

/// For work with more threads than processors, which measures interference.
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

/// A cell whose measurement failed. Other cells are not affected.
class CannotMeasure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kvtier::calibrate
