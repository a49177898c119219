#include "traces/sharegpt_generator.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/assert.hpp"
#include "traces/rounding.hpp"

namespace kvtier {
namespace {

std::int64_t round_into(double value, std::int64_t minimum, std::int64_t maximum) {
  return round_non_negative(
      std::clamp(value, static_cast<double>(minimum), static_cast<double>(maximum)));
}

}  // namespace

ShareGptGenerator::ShareGptGenerator(const ShareGptParameters& parameters, std::uint64_t seed)
    : parameters_(parameters),
      turns_mu_(std::log(parameters.turns_median)),
      user_mu_(std::log(parameters.user_tokens_median)),
      assistant_mu_(std::log(parameters.assistant_tokens_median)),
      turns_stream_(seed, "workload/turns"),
      scales_stream_(seed, "workload/session_scales"),
      lengths_stream_(seed, "workload/lengths") {
  KVTIER_ASSERT(1 <= parameters.turns_min && parameters.turns_min <= parameters.turns_max,
                "a range of turns");
}

bool ShareGptGenerator::next(SessionSpec& session) {
  const ShareGptParameters& p = parameters_;
  std::int64_t turns = 1;
  if (turns_stream_.uniform() >= p.single_turn_fraction) {
    turns = round_into(turns_stream_.lognormal(turns_mu_, p.turns_sigma), p.turns_min, p.turns_max);
  }
  // Scaling in the logarithm avoids a multiplication and its rounding.
  const double scale = p.session_scale_sigma * scales_stream_.normal();
  session.id = generated_++;
  session.arrival = SimTime();
  session.shared_prompt = SharedPrompt();
  session.turns.resize(static_cast<std::size_t>(turns));
  for (Turn& turn : session.turns) {
    const double user = lengths_stream_.lognormal(user_mu_ + scale, p.user_tokens_sigma);
    const double assistant =
        lengths_stream_.lognormal(assistant_mu_ + scale, p.assistant_tokens_sigma);
    turn.user = Tokens(round_into(user, 1, p.message_cap.value));
    turn.assistant = Tokens(round_into(assistant, 1, p.message_cap.value));
    turn.think = SimDuration();
  }
  return true;
}

}  // namespace kvtier
