#include "traces/long_context_generator.hpp"

#include <cmath>

#include "sim/core/assert.hpp"
#include "traces/rounding.hpp"

namespace kvtier {

LongContextGenerator::LongContextGenerator(const LongContextParameters& parameters,
                                           std::uint64_t seed)
    : parameters_(parameters),
      log_range_(std::log(static_cast<double>(parameters.context_tokens_max.value) /
                          static_cast<double>(parameters.context_tokens_min.value))),
      lengths_stream_(seed, "workload/context_lengths") {
  KVTIER_ASSERT(parameters.context_tokens_min <= parameters.context_tokens_max,
                "a range of lengths");
}

bool LongContextGenerator::next(SessionSpec& session) {
  const LongContextParameters& p = parameters_;
  const Tokens context(round_non_negative(static_cast<double>(p.context_tokens_min.value) *
                                          std::exp(log_range_ * lengths_stream_.uniform())));
  session.id = generated_++;
  session.arrival = SimTime();
  session.shared_prompt = SharedPrompt();
  session.turns.assign(static_cast<std::size_t>(p.questions),
                       {p.question_tokens, p.answer_tokens, SimDuration()});
  session.turns.front().user += context;
  return true;
}

}  // namespace kvtier
