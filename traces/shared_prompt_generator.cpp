#include "traces/shared_prompt_generator.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {

SharedPromptGenerator::SharedPromptGenerator(const SharedPromptParameters& parameters,
                                             const ShareGptParameters& conversations,
                                             std::uint64_t seed)
    : conversations_(conversations, seed),
      popularity_(parameters.prompts, parameters.popularity_exponent),
      choices_stream_(seed, "workload/shared_prompts") {
  KVTIER_ASSERT(parameters.tokens_min <= parameters.tokens_max, "a range of lengths");
  RandomStream lengths(seed, "workload/shared_prompt_tokens");
  const std::int64_t range = (parameters.tokens_max - parameters.tokens_min).value + 1;
  for (std::int64_t rank = 1; rank <= parameters.prompts; ++rank) {
    tokens_.push_back(parameters.tokens_min + Tokens(lengths.index(range)));
  }
}

bool SharedPromptGenerator::next(SessionSpec& session) {
  const bool made = conversations_.next(session);
  const std::int64_t id = popularity_.draw(choices_stream_);
  session.shared_prompt = {.id = id, .tokens = tokens_[static_cast<std::size_t>(id)]};
  return made;
}

}  // namespace kvtier
