#include "traces/arrivals.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "traces/rounding.hpp"

namespace kvtier {
namespace {

SimDuration limited(double ns) {
  return SimDuration(round_non_negative(std::min(ns, static_cast<double>(kThinkTimeMax.ns))));
}

double lognormal_mu(SimDuration mean, std::optional<SimDuration> median, double sigma) {
  return median ? std::log(static_cast<double>(median->ns))
                : std::log(static_cast<double>(mean.ns)) - sigma * sigma / 2;
}

}  // namespace

ThinkTimes::ThinkTimes(const ThinkTimeConfig& config, std::uint64_t seed)
    : config_(config), stream_(seed, "workload/think_times") {}

SimDuration ThinkTimes::draw(const PauseConfig& pause) {
  switch (pause.model) {
    case PauseModel::exponential:
      return limited(stream_.exponential(static_cast<double>(pause.mean.ns)));
    case PauseModel::lognormal:
      return limited(
          stream_.lognormal(lognormal_mu(pause.mean, pause.median, pause.sigma), pause.sigma));
    case PauseModel::constant:
      break;
  }
  return pause.mean;
}

void ThinkTimes::apply(std::vector<Turn>& turns) {
  const auto set = [&](const auto& pause_before) {
    turns.front().think = SimDuration();
    for (std::size_t i = 1; i < turns.size(); ++i) {
      turns[i].think = pause_before(i);
    }
  };
  switch (config_.model) {
    case ThinkTimeModel::exponential: {
      const auto mean = static_cast<double>(config_.mean.ns);
      set([&](std::size_t) { return limited(stream_.exponential(mean)); });
      break;
    }
    case ThinkTimeModel::constant:
      set([&](std::size_t) { return config_.mean; });
      break;
    case ThinkTimeModel::lognormal: {
      const PauseConfig pause{.model = PauseModel::lognormal,
                              .mean = config_.mean,
                              .median = config_.median,
                              .sigma = config_.sigma};
      set([&](std::size_t) { return draw(pause); });
      break;
    }
    case ThinkTimeModel::mixed: {
      const MixedThinkTimes& mixed = config_.mixed;
      const PauseConfig& pause = stream_.uniform() < mixed.away_share ? mixed.away : mixed.soon;
      set([&](std::size_t) { return draw(pause); });
      break;
    }
    case ThinkTimeModel::output_proportional:
      set([&](std::size_t i) {
        return std::max(config_.minimum,
                        limited(static_cast<double>(config_.per_output_token.ns) *
                                static_cast<double>(turns[i - 1].assistant.value)));
      });
      break;
    case ThinkTimeModel::trace:
    case ThinkTimeModel::logged:
      break;
  }
}

double weibull_shape(double cv) {
  // Bisection: the CV falls as the shape grows. The limits have CVs of over 1000 and under 0.002.
  double low = 0.09;
  double high = 1000;
  constexpr int kHalvings = 60;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    const double mean = std::tgamma(1 + 1 / middle);
    const bool too_wide = std::tgamma(1 + 2 / middle) / (mean * mean) - 1 > cv * cv;
    (too_wide ? low : high) = middle;
  }
  return high;
}

Arrivals::Arrivals(ArrivalModel model, PerSecond rate, double cv, std::uint64_t seed,
                   const DiurnalRate& diurnal, const char* key)
    : model_(model),
      diurnal_(diurnal),
      key_(key),
      mean_gap_ns_(1e9 / rate.value),
      scale_ns_(mean_gap_ns_),
      stream_(seed, "workload/arrivals") {
  KVTIER_ASSERT(rate.value > 0 && cv > 0, "sessions arrive at a positive rate, with a CV");
  if (model == ArrivalModel::gamma) {
    shape_ = 1 / (cv * cv);
    scale_ns_ = mean_gap_ns_ / shape_;
  } else if (model == ArrivalModel::weibull) {
    shape_ = weibull_shape(cv);
    scale_ns_ = mean_gap_ns_ / std::tgamma(1 + 1 / shape_);
  } else if (model == ArrivalModel::diurnal) {
    scale_ns_ = mean_gap_ns_ / (1 + diurnal.amplitude);
  }
}

double Arrivals::draw_gap_ns() {
  switch (model_) {
    case ArrivalModel::gamma:
      return stream_.gamma(shape_, scale_ns_);
    case ArrivalModel::weibull:
      return stream_.weibull(shape_, scale_ns_);
    case ArrivalModel::diurnal:
      return stream_.exponential(scale_ns_);
    case ArrivalModel::poisson:
    case ArrivalModel::trace:
      break;
  }
  return stream_.exponential(mean_gap_ns_);
}

SimTime Arrivals::next_at(double gap_ns) {
  if (!(gap_ns < static_cast<double>(kTraceTimeNsMax - last_.ns))) {
    throw ConfigError(fmt::format(
        "{}: at one session every {:.3g} s on average, sessions arrive beyond the {} years that "
        "can be simulated",
        key_, mean_gap_ns_ * 1e-9, kTraceTimeNsMax / kThinkTimeMax.ns));
  }
  return last_ + SimDuration(round_non_negative(gap_ns));
}

bool Arrivals::keeps(SimTime at) {
  const auto period = static_cast<double>(diurnal_.period.ns);
  const double phase = static_cast<double>(at.ns % diurnal_.period.ns) / period;
  const double rate = 1 + diurnal_.amplitude * std::sin(2 * std::numbers::pi * phase);
  return stream_.uniform() * (1 + diurnal_.amplitude) < rate;
}

SimTime Arrivals::next() {
  // Terminates, because next_at throws at the end of the clock's range.
  do {
    last_ = next_at(draw_gap_ns());
  } while (model_ == ArrivalModel::diurnal && !keeps(last_));
  return last_;
}

BootstrapSource::BootstrapSource(TraceSource& table, std::uint64_t seed)
    : stream_(seed, "workload/bootstrap") {
  SessionSpec session;
  while (table.next(session)) {
    begins_.push_back(messages_.size());
    if (session.shared_prompt.tokens.value > 0) {
      shared_prompts_.resize(begins_.size());
      shared_prompts_.back() = session.shared_prompt;
    }
    for (const Turn& turn : session.turns) {
      messages_.push_back({.user = static_cast<std::uint32_t>(turn.user.value),
                           .assistant = static_cast<std::uint32_t>(turn.assistant.value)});
      if (table.has_think_times() || table.has_turn_arrivals()) {
        think_.push_back(turn.think);
      }
    }
  }
  KVTIER_ASSERT(!begins_.empty(), "a table to draw from has sessions");
  begins_.push_back(messages_.size());
  begins_.shrink_to_fit();
  shared_prompts_.shrink_to_fit();
  messages_.shrink_to_fit();
  think_.shrink_to_fit();
  report_ = table.report();
}

bool BootstrapSource::next(SessionSpec& session) {
  const auto drawn =
      static_cast<std::size_t>(stream_.index(static_cast<std::int64_t>(begins_.size()) - 1));
  session.id = drawn_++;
  session.arrival = SimTime();
  session.shared_prompt = drawn < shared_prompts_.size() ? shared_prompts_[drawn] : SharedPrompt();
  session.turns.clear();
  for (std::size_t i = begins_[drawn]; i < begins_[drawn + 1]; ++i) {
    session.turns.push_back({.user = Tokens(messages_[i].user),
                             .assistant = Tokens(messages_[i].assistant),
                             .think = think_.empty() ? SimDuration() : think_[i]});
  }
  return true;
}

}  // namespace kvtier
