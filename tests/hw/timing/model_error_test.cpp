#include "hw/timing/model_error.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/rng.hpp"

namespace kvtier {
namespace {

TimeOrigin pure(TimeSource source, bool has_experts = false) {
  TimeOrigin origin{.shares = {}, .gpu = "a", .relative = {}, .has_experts = has_experts};
  origin.shares[source] = 1;
  return origin;
}

TimeOrigin mixture(double roofline, double cached_law, bool is_sibling = false) {
  TimeOrigin origin{
      .shares = source_shares({.roofline = roofline, .cached_law = cached_law}, is_sibling),
      .gpu = "a",
      .relative = is_sibling ? "b" : ""};
  return origin;
}

double width(const ErrorRange& range) { return range.high / range.low; }

TEST(SourceShares, AddUpToOne) {
  RandomStream random(1, "shares");
  for (int i = 0; i < 1000; ++i) {
    const double roofline = random.uniform();
    const double law = (1 - roofline) * random.uniform();
    for (const bool is_sibling : {false, true}) {
      const SourceShares shares =
          source_shares({.roofline = roofline, .cached_law = law}, is_sibling);
      EXPECT_NEAR(std::accumulate(shares.all.begin(), shares.all.end(), 0.0), 1, 1e-12);
      EXPECT_EQ(shares[is_sibling ? TimeSource::measured : TimeSource::sibling], 0);
    }
  }
}

TEST(ClassOf, IsTheSourceOfNineTenths) {
  EXPECT_EQ(class_of(source_shares({}, false)), "measured");
  EXPECT_EQ(class_of(source_shares({.roofline = 0.05}, true)), "sibling");
  EXPECT_EQ(class_of(source_shares({.roofline = 0.2}, true)), "mixed");
  EXPECT_EQ(class_of(source_shares({.roofline = 0.95}, false)), "roofline");
  EXPECT_EQ(class_of(source_shares({.cached_law = 0.95}, false)), "cached_law");
}

TEST(ErrorRanges, OfAMixtureLieBetweenThoseOfItsSources) {
  RandomStream random(1, "mixtures");
  for (int i = 0; i < 1000; ++i) {
    TimeOrigin origin = mixture(random.uniform() / 2, random.uniform() / 2);
    origin.has_experts = i % 2 == 0;
    std::vector<ErrorRange> pure_ranges;
    for (const TimeSource source :
         {TimeSource::measured, TimeSource::roofline, TimeSource::cached_law}) {
      pure_ranges.push_back(error_range(pure(source, origin.has_experts)));
    }
    const ErrorRange mixed = error_range(origin);
    const auto [low, high] = std::ranges::minmax(pure_ranges, {}, &ErrorRange::low);
    const auto [lowest, highest] = std::ranges::minmax(pure_ranges, {}, &ErrorRange::high);
    EXPECT_GE(mixed.low, low.low);
    EXPECT_LE(mixed.low, high.low);
    EXPECT_GE(mixed.high, lowest.high);
    EXPECT_LE(mixed.high, highest.high);
    EXPECT_LT(mixed.low, mixed.high);
  }
}

TEST(ErrorRanges, WidenWithTheShareOfTheRoofline) {
  for (const bool is_sibling : {false, true}) {
    for (const bool has_experts : {false, true}) {
      double narrower = 0;
      for (double share = 0; share <= 1; share += 0.125) {
        TimeOrigin origin = mixture(share, 0, is_sibling);
        origin.has_experts = has_experts;
        const double now = width(error_range(origin));
        EXPECT_GT(now, narrower);
        narrower = now;
      }
    }
  }
}

TEST(ErrorRanges, WidenWithTheDistanceOfASiblingsFactorFromOne) {
  TimeOrigin origin = mixture(0, 0, true);
  const ErrorRange same = error_range(origin);
  origin.sibling_factor = 2.25;  // its root is 1.5
  EXPECT_NEAR(error_range(origin).low, same.low / 1.5, 1e-12);
  EXPECT_NEAR(error_range(origin).high, same.high * 1.5, 1e-12);
  origin.sibling_factor = 1 / 2.25;
  EXPECT_NEAR(error_range(origin).high, same.high * 1.5, 1e-12);
}

TEST(ErrorRangesBeside, LeaveOutWhatBothTimesShare) {
  const TimeOrigin measured = pure(TimeSource::measured);
  TimeOrigin other = measured;
  other.gpu = "b";
  EXPECT_EQ(error_range_beside(measured, other), ErrorRange{});
  const TimeOrigin sibling = mixture(0, 0, true);
  EXPECT_EQ(error_range_beside(sibling, sibling), ErrorRange{});
  EXPECT_EQ(error_range_beside(sibling, measured), error_range(sibling));
  EXPECT_EQ(error_range_beside(measured, sibling), error_range(measured));
  TimeOrigin relative_of_another = sibling;
  relative_of_another.relative = "c";
  EXPECT_EQ(error_range_beside(sibling, relative_of_another), error_range(sibling));
  TimeOrigin roofline = pure(TimeSource::roofline);
  EXPECT_EQ(error_range_beside(roofline, roofline), ErrorRange{});
  TimeOrigin roofline_of_another = roofline;
  roofline_of_another.gpu = "b";
  EXPECT_EQ(error_range_beside(roofline, roofline_of_another), error_range(roofline));
  EXPECT_EQ(error_range_beside(measured, pure(TimeSource::measured, true)), error_range(measured));
}

/// The share of the law that one time has and the other has not.
TEST(ErrorRangesBeside, KeepTheDifferenceOfShares) {
  const TimeOrigin cached = mixture(0, 0.75);
  const TimeOrigin computed = mixture(0, 0.25);
  const ErrorRange own = error_range_beside(cached, computed);
  TimeOrigin half = mixture(0, 0.5);
  half.shares[TimeSource::measured] = 0;
  EXPECT_NEAR(own.low, error_range(half).low, 1e-12);
  EXPECT_NEAR(own.high, error_range(half).high, 1e-12);
}

}  // namespace
}  // namespace kvtier
