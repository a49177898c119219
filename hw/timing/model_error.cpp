#include "hw/timing/model_error.hpp"

#include <algorithm>
#include <cmath>

namespace kvtier {
namespace {

using Ranges = std::array<ErrorRange, kTimeSourceNames.size()>;

/// Attention over cached tokens takes 0.38 of the law's time at 63 GB/s, which vLLM attained on an
/// H100 (blog of January 2026), in place of the law's 24 GB/s. On an A800 a tenth of the cells
/// takes 1.27 times the law (configs/profiles/README.md).
constexpr ErrorRange kCachedLaw{.low = 0.38, .high = 1.27};

/// Measured by predicted TPOT: 10th and 90th percentiles of one half of aiconfigurator's 2,504
/// published runs on H100 and B200, by quantile regression over shares. `kvtier reproduce engines
/// --measured` prints the fit, and the coverage in the other half.
constexpr Ranges kDense{{
    {.low = 0.92, .high = 1.16},
    {.low = 0.92, .high = 1.37},
    {.low = 0.96, .high = 1.52},
    kCachedLaw,
}};
constexpr Ranges kExperts{{
    {.low = 0.90, .high = 1.36},
    {.low = 0.80, .high = 1.23},
    {.low = 1.00, .high = 2.07},
    kCachedLaw,
}};

/// The sum of the sources' logarithms of errors, weighted by `shares`.
ErrorRange weighted(const TimeOrigin& origin, const SourceShares& shares) {
  const Ranges& ranges = origin.has_experts ? kExperts : kDense;
  const double factor = std::abs(std::log(origin.sibling_factor)) / 2 * shares[TimeSource::sibling];
  double low = -factor;
  double high = factor;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    low += shares.all[i] * std::log(ranges[i].low);
    high += shares.all[i] * std::log(ranges[i].high);
  }
  return {.low = std::exp(low), .high = std::exp(high)};
}

bool is_shared(TimeSource source, const TimeOrigin& one, const TimeOrigin& other) {
  switch (source) {
    case TimeSource::measured:
    case TimeSource::cached_law:
      return true;
    case TimeSource::sibling:
      return one.relative == other.relative && one.sibling_factor == other.sibling_factor;
    case TimeSource::roofline:
      return one.gpu == other.gpu;
  }
  return false;
}

}  // namespace

SourceShares source_shares(const TimeShares& shares, bool is_sibling) {
  SourceShares result;
  result[TimeSource::roofline] = shares.roofline;
  result[TimeSource::cached_law] = shares.cached_law;
  result[is_sibling ? TimeSource::sibling : TimeSource::measured] =
      std::max(0.0, 1 - shares.roofline - shares.cached_law);
  return result;
}

std::string class_of(const SourceShares& shares) {
  constexpr double kMost = 0.9;
  const auto most = std::ranges::max_element(shares.all);
  return *most < kMost ? "mixed"
                       : kTimeSourceNames[static_cast<std::size_t>(most - shares.all.begin())];
}

ErrorRange mean_range(const ErrorRange& one, const ErrorRange& other, double share_of_one) {
  return {.low = std::pow(one.low, share_of_one) * std::pow(other.low, 1 - share_of_one),
          .high = std::pow(one.high, share_of_one) * std::pow(other.high, 1 - share_of_one)};
}

ErrorRange error_range(const TimeOrigin& origin) { return weighted(origin, origin.shares); }

ErrorRange error_range_beside(const TimeOrigin& one, const TimeOrigin& other) {
  SourceShares own = one.shares;
  if (one.has_experts == other.has_experts) {
    for (std::size_t i = 0; i < own.all.size(); ++i) {
      if (is_shared(static_cast<TimeSource>(i), one, other)) {
        own.all[i] -= std::min(own.all[i], other.shares.all[i]);
      }
    }
  }
  return weighted(one, own);
}

}  // namespace kvtier
