#pragma once

#include <cstdint>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Parameters of ShareGptGenerator. The defaults are fitted to the statistics that AttentionStore
/// (arXiv 2403.19708, section 2.3) gives of ShareGPT: 73 % of the sessions have several turns, 5.75
/// turns on average, 47 % of the sessions exceed 2K tokens and 30 % exceed 4K.
struct ShareGptParameters {
  double single_turn_fraction = 0.27;
  double turns_median = 4.6;
  double turns_sigma = 1.0;
  std::int64_t turns_min = 2;
  std::int64_t turns_max = 40;
  double session_scale_sigma = 0.6;
  double user_tokens_median = 60;
  double user_tokens_sigma = 1.4;
  double assistant_tokens_median = 330;
  double assistant_tokens_sigma = 0.9;
  Tokens message_cap{2000};
};

template <class V>
void describe(V& v, ShareGptParameters& c) {
  // A larger sigma would overflow.
  const auto sigma = between(0, 10);
  const Limits median{.minimum = 0, .maximum = 1e9, .minimum_excluded = true};
  v.field("single_turn_fraction", c.single_turn_fraction,
          "Share of the sessions that have one turn.", between(0, 1));
  v.field("turns_median", c.turns_median,
          "Median turns of the other sessions (lognormal, rounded).", median);
  v.field("turns_sigma", c.turns_sigma, "Standard deviation of the logarithm of their turns.",
          sigma);
  v.field("turns_min", c.turns_min, "Least turns of the other sessions.", between(1, 1e6));
  v.field("turns_max", c.turns_max, "Most turns of the other sessions.", between(1, 1e6));
  v.field("session_scale_sigma", c.session_scale_sigma,
          "Standard deviation of the logarithm of the factor (median 1) that all messages of a "
          "session share.",
          sigma);
  v.field("user_tokens_median", c.user_tokens_median,
          "Median tokens of a user's message (lognormal).", median);
  v.field("user_tokens_sigma", c.user_tokens_sigma, "Standard deviation of their logarithm.",
          sigma);
  v.field("assistant_tokens_median", c.assistant_tokens_median,
          "Median tokens of a response (lognormal).", median);
  v.field("assistant_tokens_sigma", c.assistant_tokens_sigma,
          "Standard deviation of their logarithm.", sigma);
  v.field("message_cap", c.message_cap, "Most tokens of a message, after scaling.",
          between(1, INT32_MAX));
}

/// Sessions like ShareGPT's conversations, without end and without times. A session has one turn
/// with probability `single_turn_fraction`, else round(lognormal(ln turns_median, turns_sigma))
/// turns, clipped to turns_min .. turns_max. Message lengths are lognormal, scaled by one lognormal
/// factor per session, rounded, and clipped to 1 .. message_cap.
///
/// Turns, factors and lengths have their own streams ("workload/turns", "workload/session_scales",
/// "workload/lengths"), so the first n sessions do not depend on the number of sessions.
class ShareGptGenerator final : public SessionSource {
 public:
  ShareGptGenerator(const ShareGptParameters& parameters, std::uint64_t seed);

  bool next(SessionSpec& session) override;

 private:
  ShareGptParameters parameters_;
  double turns_mu_;
  double user_mu_;
  double assistant_mu_;
  RandomStream turns_stream_;
  RandomStream scales_stream_;
  RandomStream lengths_stream_;
  std::int64_t generated_ = 0;
};

}  // namespace kvtier
