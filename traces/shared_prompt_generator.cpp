#include "traces/shared_prompt_generator.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/assert.hpp"

namespace kvtier {

SharedPromptGenerator::SharedPromptGenerator(const SharedPromptParameters& parameters,
                                             const ShareGptParameters& conversations,
                                             std::uint64_t seed)
    : conversations_(conversations, seed), choices_stream_(seed, "workload/shared_prompts") {
  KVTIER_ASSERT(parameters.prompts > 0 && parameters.tokens_min <= parameters.tokens_max,
                "prompts and a range of lengths");
  RandomStream lengths(seed, "workload/shared_prompt_tokens");
  const std::int64_t range = (parameters.tokens_max - parameters.tokens_min).value + 1;
  double sum = 0;
  for (std::int64_t rank = 1; rank <= parameters.prompts; ++rank) {
    tokens_.push_back(parameters.tokens_min + Tokens(lengths.index(range)));
    sum += std::pow(static_cast<double>(rank), -parameters.popularity_exponent);
    weights_.push_back(sum);
  }
}

bool SharedPromptGenerator::next(SessionSpec& session) {
  const bool made = conversations_.next(session);
  const double drawn = choices_stream_.uniform() * weights_.back();
  const auto found = std::upper_bound(weights_.begin(), weights_.end(), drawn);
  // The product may round up to the sum.
  const auto id = std::min(found - weights_.begin(), std::ssize(weights_) - 1);
  session.shared_prompt = {.id = id, .tokens = tokens_[static_cast<std::size_t>(id)]};
  return made;
}

}  // namespace kvtier
