#pragma once

#include <array>
#include <cstdint>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// The work of one instance of a cluster over time, in a fixed number of intervals. When the run
/// outgrows them, each two become one.
class InstanceSeries {
 public:
  static constexpr std::size_t kIntervals = 32;

  /// So many requests are on the instance from now on.
  void set_requests(std::int64_t requests, SimTime now);
  /// A request ends; so much of its prompt was found.
  void add(Tokens prompt, Tokens found, SimTime now);
  /// Intervals up to `end`: {"interval_seconds", "requests", "hit_rate"}, where the latter two are
  /// lists of the mean number of requests on the instance and the share of prompt tokens that were
  /// found (null in an interval in which no request ends).
  [[nodiscard]] Json report(SimTime end);

 private:
  struct Interval {
    double request_ns = 0;
    std::int64_t prompt = 0;
    std::int64_t found = 0;
  };
  [[nodiscard]] std::size_t interval_at(SimTime now);
  void advance(SimTime now);

  std::array<Interval, kIntervals> intervals_{};
  std::int64_t width_ns_ = 1'000'000'000;
  std::int64_t requests_ = 0;
  SimTime since_;
};

}  // namespace kvtier
