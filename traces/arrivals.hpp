#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"
#include "traces/trace_source.hpp"

/// Arrivals of sessions, think times, and sampling of sessions from a table, for generators and
/// traces.
namespace kvtier {

enum class ThinkTimeModel {
  exponential,
  constant,
  lognormal,
  mixed,
  output_proportional,
  trace,
  logged
};

constexpr auto enum_names(ThinkTimeModel) {
  return std::array{
      std::pair<std::string_view, ThinkTimeModel>{"exponential", ThinkTimeModel::exponential},
      std::pair<std::string_view, ThinkTimeModel>{"constant", ThinkTimeModel::constant},
      std::pair<std::string_view, ThinkTimeModel>{"lognormal", ThinkTimeModel::lognormal},
      std::pair<std::string_view, ThinkTimeModel>{"mixed", ThinkTimeModel::mixed},
      std::pair<std::string_view, ThinkTimeModel>{"output_proportional",
                                                  ThinkTimeModel::output_proportional},
      std::pair<std::string_view, ThinkTimeModel>{"trace", ThinkTimeModel::trace},
      std::pair<std::string_view, ThinkTimeModel>{"logged", ThinkTimeModel::logged}};
}

/// The longest think time, so that the times of a run stay far from overflow.
inline constexpr SimDuration kThinkTimeMax{std::int64_t{365} * 86400 * 1000000000};

enum class PauseModel { exponential, constant, lognormal };
constexpr auto enum_names(PauseModel) {
  return std::array{std::pair<std::string_view, PauseModel>{"exponential", PauseModel::exponential},
                    std::pair<std::string_view, PauseModel>{"constant", PauseModel::constant},
                    std::pair<std::string_view, PauseModel>{"lognormal", PauseModel::lognormal}};
}

/// One of the two distributions of the mixed model.
struct PauseConfig {
  PauseModel model = PauseModel::exponential;
  SimDuration mean{std::int64_t{60} * 1000000000};
  std::optional<SimDuration> median{};
  double sigma = 1;

  friend bool operator==(const PauseConfig&, const PauseConfig&) = default;
};

template <class V>
void describe(V& v, PauseConfig& c) {
  const auto at_most_a_year = between(0, static_cast<double>(kThinkTimeMax.ns));
  v.field("model", c.model, "exponential, constant or lognormal.");
  v.field("mean", c.mean, "Mean; for lognormal only if it has no median.", at_most_a_year);
  v.field("median", c.median, "Median, for lognormal.", at_most_a_year);
  v.field("sigma", c.sigma, "Standard deviation of the logarithm, for lognormal.", between(0, 10));
}

/// Think times of users who come back soon, and of users who come back after hours. Each session
/// has one of the two.
struct MixedThinkTimes {
  double away_share = 0.1;
  PauseConfig soon{};
  PauseConfig away{.model = PauseModel::lognormal,
                   .median = SimDuration(std::int64_t{3} * 3600 * 1000000000)};

  friend bool operator==(const MixedThinkTimes&, const MixedThinkTimes&) = default;
};

template <class V>
void describe(V& v, MixedThinkTimes& c) {
  v.field("away_share", c.away_share, "Share of the sessions that have the think times `away`.",
          between(0, 1));
  v.field("soon", c.soon, "Think times of the other sessions.");
  v.field("away", c.away, "Think times of the share away_share.");
}

/// Time from a turn's last token to the next turn of its session. The exponential default is for
/// the closed loop of AttentionStore (arXiv 2403.19708), whose paper gives no think time.
/// `output_proportional` is the minimum gap of Pensieve (arXiv 2312.05516, section 6.1).
struct ThinkTimeConfig {
  ThinkTimeModel model = ThinkTimeModel::exponential;
  SimDuration mean{std::int64_t{60} * 1000000000};
  SimDuration minimum{std::int64_t{5} * 1000000000};
  SimDuration per_output_token{std::int64_t{100} * 1000000};
  std::optional<SimDuration> median{};
  double sigma = 1;
  MixedThinkTimes mixed{};

  friend bool operator==(const ThinkTimeConfig&, const ThinkTimeConfig&) = default;
};

template <class V>
void describe(V& v, ThinkTimeConfig& c) {
  const auto at_most_a_year = between(0, static_cast<double>(kThinkTimeMax.ns));
  v.field("model", c.model,
          "exponential (independent, with a mean), constant, lognormal (with a median or a mean, "
          "and sigma), mixed (a share of the sessions has other think times), output_proportional "
          "(the tokens of the previous response times per_output_token, at least the minimum), "
          "trace (as recorded), or logged (an open loop: a turn arrives at its recorded time, or "
          "at the end of the previous turn if that is later).");
  v.field("mean", c.mean,
          "Mean of the exponential model, and of the lognormal one if it has no median; value of "
          "the constant one.",
          at_most_a_year);
  v.field("minimum", c.minimum, "Least think time of the output_proportional model.",
          at_most_a_year);
  v.field("per_output_token", c.per_output_token,
          "Think time per token of the previous response in the output_proportional model.",
          at_most_a_year);
  v.field("median", c.median, "Median of the lognormal model.", at_most_a_year);
  v.field("sigma", c.sigma, "Standard deviation of the logarithm, in the lognormal model.",
          between(0, 10));
  v.field("mixed", c.mixed, "Parameters of the mixed model.");
}

/// Sets the think times of turns; draws from the stream "workload/think_times".
class ThinkTimes {
 public:
  ThinkTimes(const ThinkTimeConfig& config, std::uint64_t seed);

  /// Sets `think` of all turns: zero for the first, at most kThinkTimeMax for the others. The
  /// models `trace` and `logged` change nothing.
  void apply(std::vector<Turn>& turns);

 private:
  [[nodiscard]] SimDuration draw(const PauseConfig& pause);

  ThinkTimeConfig config_;
  RandomStream stream_;
};

/// The distribution of the time between two arrivals. `trace` draws nothing.
enum class ArrivalModel { poisson, gamma, weibull, diurnal, trace };
constexpr auto enum_names(ArrivalModel) {
  return std::array{std::pair<std::string_view, ArrivalModel>{"poisson", ArrivalModel::poisson},
                    std::pair<std::string_view, ArrivalModel>{"gamma", ArrivalModel::gamma},
                    std::pair<std::string_view, ArrivalModel>{"weibull", ArrivalModel::weibull},
                    std::pair<std::string_view, ArrivalModel>{"diurnal", ArrivalModel::diurnal},
                    std::pair<std::string_view, ArrivalModel>{"trace", ArrivalModel::trace}};
}

/// A rate that changes over a day: rate(t) = mean rate x (1 + amplitude x sin(2 pi t / period)).
struct DiurnalRate {
  double amplitude = 0.5;
  SimDuration period{std::int64_t{86400} * 1000000000};

  friend bool operator==(const DiurnalRate&, const DiurnalRate&) = default;
};

template <class V>
void describe(V& v, DiurnalRate& c) {
  v.field("amplitude", c.amplitude,
          "Largest deviation of the rate from its mean, as a share of the mean.", between(0, 1));
  v.field("period", c.period,
          "Time between two peaks of the rate; a run begins a quarter of a period before a peak.",
          positive());
}

/// Arrival times from zero on. The gaps are independent and exponential (a Poisson process), or
/// gamma or Weibull with a coefficient of variation (CV: standard deviation over mean). Production
/// logs have bursts: a CV over 1. At 1 all three are the same distribution. A diurnal process is a
/// Poisson process whose rate changes. Arrivals are drawn at the highest rate, and each is kept
/// with the probability (rate at its time) / (highest rate). Draws from the stream
/// "workload/arrivals".
class Arrivals {
 public:
  /// `rate` > 0, in sessions per second; `cv` > 0 is for gamma and Weibull only, `diurnal` for the
  /// diurnal process. `key` is the config's key of the rate, for errors.
  Arrivals(ArrivalModel model, PerSecond rate, double cv, std::uint64_t seed,
           const DiurnalRate& diurnal = {}, const char* key = "/workload/arrival_rate");

  /// The next arrival; throws ConfigError if it lies beyond the time that can be simulated.
  [[nodiscard]] SimTime next();

 private:
  [[nodiscard]] double draw_gap_ns();
  [[nodiscard]] SimTime next_at(double gap_ns);
  [[nodiscard]] bool keeps(SimTime at);

  ArrivalModel model_;
  DiurnalRate diurnal_;
  const char* key_;
  double mean_gap_ns_;
  double shape_ = 1;
  double scale_ns_;
  RandomStream stream_;
  SimTime last_{};
};

/// The shape k of a Weibull distribution with this CV: cv^2 + 1 = Gamma(1 + 2/k) / Gamma(1 +
/// 1/k)^2.
[[nodiscard]] double weibull_shape(double cv);

/// Draws sessions with replacement from a table in memory, which takes 8 bytes per turn (16 with
/// think times) and 8 per session (24 with shared prompts). Uses the stream "workload/bootstrap";
/// never ends.
class BootstrapSource final : public SessionSource {
 public:
  /// Reads `table` to its end; it needs at least one session.
  BootstrapSource(TraceSource& table, std::uint64_t seed);

  bool next(SessionSpec& session) override;

  [[nodiscard]] const ImportReport& report() const { return report_; }

 private:
  struct Messages {
    std::uint32_t user;
    std::uint32_t assistant;
  };

  std::vector<std::size_t> begins_;  // first turn of each session, then the number of turns
  std::vector<Messages> messages_;
  std::vector<SimDuration> think_;            // or times between arrivals; may be empty
  std::vector<SharedPrompt> shared_prompts_;  // by session, up to the last with a shared prompt
  ImportReport report_;
  RandomStream stream_;
  std::int64_t drawn_ = 0;
};

}  // namespace kvtier
