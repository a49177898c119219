#pragma once

#include <cstdint>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Parameters of LongContextGenerator. Contexts have the lengths of LongAlign's instructions (arXiv
/// 2401.18058), 8K to 64K tokens. Their distribution and the questions are our choices.
struct LongContextParameters {
  Tokens context_tokens_min{8192};
  Tokens context_tokens_max{65536};
  std::int64_t questions = 4;
  Tokens question_tokens{64};
  Tokens answer_tokens{256};
};

template <class V>
void describe(V& v, LongContextParameters& c) {
  const auto tokens = between(1, 1e7);
  v.field("context_tokens_min", c.context_tokens_min,
          "Tokens of the shortest context (LongAlign, arXiv 2401.18058: 8K to 64K).", tokens);
  v.field("context_tokens_max", c.context_tokens_max,
          "Tokens of the longest context; the logarithm of the length is uniform in between.",
          tokens);
  v.field("questions", c.questions,
          "Questions on one context, one turn each; the first turn brings the context.",
          between(1, 1e6));
  v.field("question_tokens", c.question_tokens, "Tokens of a question.", tokens);
  v.field("answer_tokens", c.answer_tokens, "Tokens of an answer.", tokens);
}

/// Synthetic sessions of several questions on one long context, without end and without times. The
/// first turn's user tokens are the context and the first question. Contexts have
/// round(min x (max / min)^u) tokens, u uniform in [0, 1) from the stream
/// "workload/context_lengths", one for each session.
class LongContextGenerator final : public SessionSource {
 public:
  LongContextGenerator(const LongContextParameters& parameters, std::uint64_t seed);

  bool next(SessionSpec& session) override;

 private:
  LongContextParameters parameters_;
  double log_range_;
  RandomStream lengths_stream_;
  std::int64_t generated_ = 0;
};

}  // namespace kvtier
