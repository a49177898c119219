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

/// When sessions arrive, how long users think, and which sessions of a table are drawn: what
/// generators and traces share.
namespace kvtier {

enum class ThinkTimeModel { exponential, constant, output_proportional, trace, logged };

constexpr auto enum_names(ThinkTimeModel) {
  return std::array{
      std::pair<std::string_view, ThinkTimeModel>{"exponential", ThinkTimeModel::exponential},
      std::pair<std::string_view, ThinkTimeModel>{"constant", ThinkTimeModel::constant},
      std::pair<std::string_view, ThinkTimeModel>{"output_proportional",
                                                  ThinkTimeModel::output_proportional},
      std::pair<std::string_view, ThinkTimeModel>{"trace", ThinkTimeModel::trace},
      std::pair<std::string_view, ThinkTimeModel>{"logged", ThinkTimeModel::logged}};
}

/// No think time is longer, so that the times of a run stay far from overflow.
inline constexpr SimDuration kThinkTimeMax{std::int64_t{365} * 86400 * 1000000000};

/// Time from a turn's last token to the next turn of its session. The exponential default is
/// AttentionStore's (arXiv 2403.19708) closed loop, whose think time the paper leaves open;
/// `output_proportional` is the minimum gap of Pensieve (arXiv 2312.05516, section 6.1).
struct ThinkTimeConfig {
  ThinkTimeModel model = ThinkTimeModel::exponential;
  SimDuration mean{std::int64_t{60} * 1000000000};
  SimDuration minimum{std::int64_t{5} * 1000000000};
  SimDuration per_output_token{std::int64_t{100} * 1000000};
};

template <class V>
void describe(V& v, ThinkTimeConfig& c) {
  const auto at_most_a_year = between(0, static_cast<double>(kThinkTimeMax.ns));
  v.field(
      "model", c.model,
      "exponential (independent, with a mean), constant, output_proportional (the tokens of "
      "the previous "
      "response times per_output_token, at least the minimum), trace (as recorded), or logged (an "
      "open loop: a turn arrives at its recorded time, or when the turn before has ended if "
      "that is later).");
  v.field("mean", c.mean, "Mean of the exponential model, value of the constant one.",
          at_most_a_year);
  v.field("minimum", c.minimum, "Least think time of the output_proportional model.",
          at_most_a_year);
  v.field("per_output_token", c.per_output_token,
          "Think time per token of the previous response in the output_proportional model.",
          at_most_a_year);
}

/// Gives the turns of sessions their think times; draws from the stream "workload/think_times".
class ThinkTimes {
 public:
  ThinkTimes(const ThinkTimeConfig& config, std::uint64_t seed);

  /// Sets `think` of all turns: zero for the first, at most kThinkTimeMax for the others. The
  /// models `trace` and `logged` change nothing.
  void apply(std::vector<Turn>& turns);

 private:
  ThinkTimeConfig config_;
  RandomStream stream_;
};

/// What the time between two arrivals is drawn from. `trace` draws nothing.
enum class ArrivalModel { poisson, gamma, weibull, trace };
constexpr auto enum_names(ArrivalModel) {
  return std::array{std::pair<std::string_view, ArrivalModel>{"poisson", ArrivalModel::poisson},
                    std::pair<std::string_view, ArrivalModel>{"gamma", ArrivalModel::gamma},
                    std::pair<std::string_view, ArrivalModel>{"weibull", ArrivalModel::weibull},
                    std::pair<std::string_view, ArrivalModel>{"trace", ArrivalModel::trace}};
}

/// Arrival times from zero on, whose gaps are independent: exponential (a Poisson process), or
/// gamma or Weibull with a coefficient of variation (CV: standard deviation over mean). Logs of
/// production have a CV over 1: bursts. At 1 all three are the same distribution. Draws from the
/// stream "workload/arrivals".
class Arrivals {
 public:
  /// `rate` > 0, in sessions per second; `cv` > 0 is not looked at for a Poisson process.
  Arrivals(ArrivalModel model, PerSecond rate, double cv, std::uint64_t seed);

  /// The next arrival; throws ConfigError if it lies beyond the time that can be simulated.
  [[nodiscard]] SimTime next();

 private:
  [[nodiscard]] double draw_gap_ns();

  ArrivalModel model_;
  double mean_gap_ns_;
  double shape_ = 1;
  double scale_ns_;
  RandomStream stream_;
  SimTime last_{};
};

/// The shape at which a Weibull distribution has this CV: the k of
/// cv^2 + 1 = Gamma(1 + 2/k) / Gamma(1 + 1/k)^2.
[[nodiscard]] double weibull_shape(double cv);

/// Draws sessions with replacement from a table held in memory: 8 bytes a turn (16 with think
/// times) and 8 a session (24 where they have shared prompts). Draws from the stream
/// "workload/bootstrap"; never ends.
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

  std::vector<std::size_t> begins_;  // of each session in the two below, then the end of the last
  std::vector<Messages> messages_;
  std::vector<SimDuration> think_;            // or gaps of arrivals; empty if the table has none
  std::vector<SharedPrompt> shared_prompts_;  // by session, up to the last that has one
  ImportReport report_;
  RandomStream stream_;
  std::int64_t drawn_ = 0;
};

}  // namespace kvtier
