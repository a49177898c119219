#include "traces/arrivals.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/histogram.hpp"
#include "tests/traces/support.hpp"
#include "traces/trace_format.hpp"
#include "traces/turns_table.hpp"

namespace kvtier {
namespace {

using namespace literals;
using testing::config_error_of;
using testing::TempDir;
using testing::text_of;
using testing::turn;

std::vector<std::int64_t> think_times(const ThinkTimeConfig& config, std::vector<Turn> turns) {
  ThinkTimes model(config, 1);
  model.apply(turns);
  std::vector<std::int64_t> result;
  for (const Turn& one : turns) {
    result.push_back(one.think.ns);
  }
  return result;
}

TEST(ThinkTimes, ConstantGivesTheMeanToAllButTheFirstTurn) {
  EXPECT_EQ(think_times({.model = ThinkTimeModel::constant, .mean = 7_s},
                        {turn(1, 1, 9), turn(1, 1, 9), turn(1, 1)}),
            (std::vector<std::int64_t>{0, 7000000000, 7000000000}));
}

TEST(ThinkTimes, OutputProportionalFollowsThePreviousResponse) {
  // Pensieve's gap, max(5 s, 0.1 s x output): 20 tokens give 5 s, 80 give 8 s.
  EXPECT_EQ(think_times({.model = ThinkTimeModel::output_proportional},
                        {turn(1, 20), turn(1, 80), turn(1, 1)}),
            (std::vector<std::int64_t>{0, 5000000000, 8000000000}));
}

TEST(ThinkTimes, TraceKeepsWhatIsThere) {
  EXPECT_EQ(think_times({.model = ThinkTimeModel::trace}, {turn(1, 1), turn(1, 1, 42)}),
            (std::vector<std::int64_t>{0, 42}));
}

TEST(ThinkTimes, ExponentialHasTheMeanAndTheSpread) {
  ThinkTimes model({.mean = 60_s}, 3);
  Histogram values;
  std::vector<Turn> turns(11, turn(1, 1));
  for (int i = 0; i < 10000; ++i) {
    model.apply(turns);
    EXPECT_EQ(turns[0].think, SimDuration());
    for (std::size_t k = 1; k < turns.size(); ++k) {
      values.add(turns[k].think.ns);
    }
  }
  // 100,000 values: the mean's standard deviation is 0.3 %; the median is ln 2 of the mean.
  EXPECT_NEAR(values.mean() / 60e9, 1.0, 0.012);
  EXPECT_NEAR(static_cast<double>(values.quantile(0.5)) / 60e9, std::log(2.0), 0.012);
}

TEST(ThinkTimes, LognormalHasItsMedianOrItsMean) {
  // With a sigma of 1 the mean is e^0.5 of the median; of 100,000 values the median's standard
  // deviation is 0.4 % and the mean's 0.4 %.
  for (const bool by_median : {true, false}) {
    ThinkTimeConfig config{.model = ThinkTimeModel::lognormal, .mean = 60_s};
    if (by_median) {
      config.median = 100_s;
    }
    ThinkTimes model(config, 3);
    Histogram values;
    std::vector<Turn> turns(11, turn(1, 1));
    for (int i = 0; i < 10000; ++i) {
      model.apply(turns);
      for (std::size_t k = 1; k < turns.size(); ++k) {
        values.add(turns[k].think.ns);
      }
    }
    const double median = by_median ? 100e9 : 60e9 / std::exp(0.5);
    EXPECT_NEAR(static_cast<double>(values.quantile(0.5)) / median, 1.0, 0.02);
    EXPECT_NEAR(values.mean() / (median * std::exp(0.5)), 1.0, 0.02);
  }
}

TEST(ThinkTimes, MixedSessionsAreOfOneKind) {
  ThinkTimeConfig config{.model = ThinkTimeModel::mixed};
  config.mixed.away_share = 0.3;
  config.mixed.soon = {.model = PauseModel::constant, .mean = 5_s};
  config.mixed.away = {.model = PauseModel::lognormal, .median = 7200_s, .sigma = 0.1};
  ThinkTimes model(config, 3);
  std::vector<Turn> turns(4, turn(1, 1));
  int away = 0;
  for (int i = 0; i < 10000; ++i) {
    model.apply(turns);
    EXPECT_EQ(turns[0].think, SimDuration());
    away += turns[1].think > 1000_s ? 1 : 0;
    for (std::size_t k = 1; k < turns.size(); ++k) {
      ASSERT_EQ(turns[k].think > 1000_s, turns[1].think > 1000_s);
      ASSERT_TRUE(turns[k].think > 4000_s || turns[k].think == 5_s);
    }
  }
  // A standard deviation of 46.
  EXPECT_NEAR(away, 3000, 200);
}

TEST(ThinkTimes, StayWithinAYear) {
  EXPECT_EQ(
      think_times({.model = ThinkTimeModel::output_proportional, .per_output_token = kThinkTimeMax},
                  {turn(1, INT32_MAX), turn(1, 1)}),
      (std::vector<std::int64_t>{0, kThinkTimeMax.ns}));
}

TEST(Arrivals, PoissonArrivalsHaveTheRateAndNeverDecrease) {
  Arrivals arrivals(ArrivalModel::poisson, PerSecond(2), 1, 5);
  SimTime last;
  Histogram gaps;
  for (int i = 0; i < 100000; ++i) {
    const SimTime next = arrivals.next();
    ASSERT_GE(next, last);
    gaps.add((next - last).ns);
    last = next;
  }
  EXPECT_NEAR(gaps.mean() / 0.5e9, 1.0, 0.012);
  EXPECT_NEAR(static_cast<double>(gaps.quantile(0.5)) / 0.5e9, std::log(2.0), 0.012);
}

TEST(Arrivals, DiurnalArrivalsFollowTheSine) {
  // Ten days of 1,000 s at a mean of 20/s. In the n-th tenth of a day the rate is the mean times
  // 1 + 0.8 x (cos(2 pi (n - 1) / 10) - cos(2 pi n / 10)) x 10 / (2 pi).
  const DiurnalRate day{.amplitude = 0.8, .period = 1000_s};
  Arrivals arrivals(ArrivalModel::diurnal, PerSecond(20), 1, 5, day);
  std::vector<double> tenths(10);
  SimTime last;
  for (;;) {
    const SimTime next = arrivals.next();
    ASSERT_GE(next, last);
    last = next;
    if (next >= SimTime(10'000'000'000'000)) {
      break;
    }
    ++tenths[static_cast<std::size_t>(next.ns % day.period.ns / (day.period.ns / 10))];
  }
  constexpr double kTurn = 2 * 3.14159265358979;
  for (std::size_t n = 0; n < 10; ++n) {
    const double at = static_cast<double>(n) / 10;
    const double rate =
        1 + 0.8 * (std::cos(kTurn * at) - std::cos(kTurn * (at + 0.1))) * 10 / kTurn;
    const double mean = 20000 * rate;
    EXPECT_NEAR(tenths[n], mean, 4 * std::sqrt(mean)) << n;
  }
}

TEST(Arrivals, DiurnalArrivalsWithoutAmplitudeHaveTheRate) {
  Arrivals arrivals(ArrivalModel::diurnal, PerSecond(2), 1, 5, {.amplitude = 0});
  SimTime last;
  for (int i = 0; i < 100000; ++i) {
    last = arrivals.next();
  }
  EXPECT_NEAR(last.seconds() / 50000, 1.0, 0.012);
}

/// Gaps of arrivals in seconds, sorted.
std::vector<double> gaps_of(ArrivalModel model, double rate, double cv, int count) {
  Arrivals arrivals(model, PerSecond(rate), cv, 5);
  std::vector<double> gaps;
  SimTime last;
  for (int i = 0; i < count; ++i) {
    const SimTime next = arrivals.next();
    gaps.push_back((next - last).seconds());
    last = next;
  }
  std::sort(gaps.begin(), gaps.end());
  return gaps;
}

TEST(Arrivals, GammaAndWeibullArrivalsHaveTheMeanAndTheCv) {
  constexpr int kCount = 200000;
  for (const ArrivalModel model : {ArrivalModel::gamma, ArrivalModel::weibull}) {
    for (const double cv : {0.5, 1.0, 2.0}) {
      double sum = 0;
      double squares = 0;
      for (const double gap : gaps_of(model, 4, cv, kCount)) {
        sum += gap;
        squares += gap * gap;
      }
      const double mean = sum / kCount;
      // The mean is a quarter of a second whatever the CV; its standard deviation is
      // cv / sqrt(200,000) of it, under 0.5 %. That of the CV is larger, as tails are heavy.
      EXPECT_NEAR(mean, 0.25, 0.25 * 0.015) << cv;
      EXPECT_NEAR(std::sqrt(squares / kCount - mean * mean) / mean, cv, cv * 0.04);
    }
  }
}

TEST(Arrivals, ACvOfOneGivesAPoissonProcess) {
  // The largest distance between the distribution of 100,000 gaps and that of the exponential
  // (Kolmogorov and Smirnov); it exceeds 1.63 / sqrt(100,000) = 0.0052 once in a hundred times.
  constexpr int kCount = 100000;
  for (const ArrivalModel model :
       {ArrivalModel::poisson, ArrivalModel::gamma, ArrivalModel::weibull}) {
    const std::vector<double> gaps = gaps_of(model, 4, 1, kCount);
    double distance = 0;
    for (int i = 0; i < kCount; ++i) {
      const double expected = 1 - std::exp(-4 * gaps[static_cast<std::size_t>(i)]);
      distance = std::max(distance, std::abs(expected - (i + 0.5) / kCount));
    }
    EXPECT_LT(distance, 0.0052);
  }
}

TEST(Arrivals, GammaArrivalsHaveItsTail) {
  // Shape 1/4, scale 1 (CV 2, mean 1/4): for shapes that small gaps are rarely long, but most are
  // next to nothing. P(gap < x) is about x^(1/4) / Gamma(5/4) near 0: of x = 1e-4, 0.1 / 0.9064 =
  // 0.1103, less 0.0002 for the next term.
  const std::vector<double> gaps = gaps_of(ArrivalModel::gamma, 4, 2, 100000);
  const auto short_ones = std::lower_bound(gaps.begin(), gaps.end(), 1e-4) - gaps.begin();
  EXPECT_NEAR(static_cast<double>(short_ones) / 100000, 0.1103, 0.004);
}

TEST(Arrivals, KnowTheShapeOfAWeibullDistribution) {
  // k = 1 is the exponential, CV 1. k = 1/2: Gamma(1 + 4) / Gamma(1 + 2)^2 - 1 = 24 / 4 - 1 = 5.
  // k = 2 is Rayleigh's: Gamma(2) / Gamma(3/2)^2 - 1 = 4 / pi - 1 = 0.2732.
  EXPECT_NEAR(weibull_shape(1), 1, 1e-12);
  EXPECT_NEAR(weibull_shape(std::sqrt(5.0)), 0.5, 1e-12);
  EXPECT_NEAR(weibull_shape(std::sqrt(4 / 3.14159265358979 - 1)), 2, 1e-11);
}

TEST(Arrivals, RefuseTimesBeyondTheSimulation) {
  const TempDir dir;
  Arrivals arrivals(ArrivalModel::poisson, PerSecond(1e-200), 1, 5);
  EXPECT_EQ(config_error_of(dir, [&] { static_cast<void>(arrivals.next()); }),
            "/workload/arrival_rate: at one session every 1e+200 s on average, sessions arrive "
            "beyond the 146 years that can be simulated");
}

TEST(BootstrapSource, DrawsEverySessionAboutEquallyOften) {
  const TempDir dir;
  TurnsTableReader table(dir.file(
      "t.csv", "conv,turn,user_tokens,assistant_tokens\na,0,1,2\nb,0,3,4\nb,1,5,6\nc,0,7,8\n"));
  BootstrapSource source(table, 1);
  EXPECT_EQ(source.report().sessions, 3);
  std::map<std::string, int> drawn;
  SessionSpec session;
  for (int i = 0; i < 30000; ++i) {
    ASSERT_TRUE(source.next(session));
    EXPECT_EQ(session.id, i);
    session.id = 0;
    ++drawn[text_of({session})];
  }
  ASSERT_EQ(drawn.size(), 3U);
  for (const char* expected : {"0@0: 1/2\n", "0@0: 3/4 5/6\n", "0@0: 7/8\n"}) {
    EXPECT_NEAR(drawn[expected], 10000, 400) << expected;  // five standard deviations
  }
}

TEST(BootstrapSource, KeepsRecordedThinkTimes) {
  const TempDir dir;
  TraceReader table(
      dir.file("t",
               "{\"format\":\"kvtier.trace/"
               "1\",\"think_times\":true}\n{\"id\":0,\"turns\":[[1,2,0],[3,4,5]]}\n"));
  BootstrapSource source(table, 1);
  SessionSpec session;
  ASSERT_TRUE(source.next(session));
  EXPECT_EQ(text_of({session}), "0@0: 1/2 3/4+5\n");
}

TEST(BootstrapSource, KeepsSharedPromptsWithTheirSessions) {
  const TempDir dir;
  TraceReader table(dir.file("t",
                             "{\"format\":\"kvtier.trace/1\"}\n"
                             "{\"id\":0,\"turns\":[[1,2]]}\n"
                             "{\"id\":1,\"shared_prompt\":[8,100],\"turns\":[[3,4]]}\n"
                             "{\"id\":2,\"turns\":[[5,6]]}\n"
                             "{\"id\":3,\"shared_prompt\":[8,100],\"turns\":[[7,8]]}\n"
                             "{\"id\":4,\"turns\":[[9,10]]}\n"));
  BootstrapSource source(table, 1);
  std::set<std::string> drawn;
  SessionSpec session;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(source.next(session));
    session.id = 0;
    drawn.insert(text_of({session}));
  }
  EXPECT_EQ(drawn, (std::set<std::string>{"0@0: 1/2\n", "0@0: (8: 100) 3/4\n", "0@0: 5/6\n",
                                          "0@0: (8: 100) 7/8\n", "0@0: 9/10\n"}));
}

}  // namespace
}  // namespace kvtier
