#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/popularity.hpp"
#include "traces/session.hpp"
#include "traces/sharegpt_generator.hpp"

namespace kvtier {

/// Parameters of SharedPromptGenerator. CaR (University of Connecticut) names virtual assistants,
/// with many users of one prompt, but gives no figures: the defaults are our choices.
struct SharedPromptParameters {
  std::int64_t prompts = 20;
  Tokens tokens_min{200};
  Tokens tokens_max{1000};
  double popularity_exponent = 1;
};

template <class V>
void describe(V& v, SharedPromptParameters& c) {
  const auto tokens = between(1, 1e7);
  v.field("prompts", c.prompts, "Number of different prompts.", between(1, 1e6));
  v.field("tokens_min", c.tokens_min, "Tokens of the shortest prompt.", tokens);
  v.field("tokens_max", c.tokens_max,
          "Tokens of the longest prompt; lengths in between are equally likely. It needs a context "
          "window with at least 2 tokens more.",
          tokens);
  v.field("popularity_exponent", c.popularity_exponent,
          "Zipf exponent of the prompts' popularity: a session begins with the prompt of rank k "
          "with a probability proportional to k^-exponent. 0: all prompts are equally popular.",
          between(0, 10));
}

/// Synthetic sessions of virtual assistants, without end and without times: conversations of
/// ShareGptGenerator that begin with one of a few shared prompts. A prompt's id is its rank minus
/// one; 0 is the most popular.
///
/// The prompts' lengths draw from the stream "workload/shared_prompt_tokens", the choice of a
/// session's prompt from "workload/shared_prompts"; so the conversations are those of the sharegpt
/// generator, whatever these parameters are.
class SharedPromptGenerator final : public SessionSource {
 public:
  SharedPromptGenerator(const SharedPromptParameters& parameters,
                        const ShareGptParameters& conversations, std::uint64_t seed);

  bool next(SessionSpec& session) override;

 private:
  ShareGptGenerator conversations_;
  Popularity popularity_;
  RandomStream choices_stream_;
  std::vector<Tokens> tokens_;  // by id
};

}  // namespace kvtier
