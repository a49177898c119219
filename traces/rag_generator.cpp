#include "traces/rag_generator.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/core/assert.hpp"
#include "traces/rounding.hpp"

namespace kvtier {

RagGenerator::RagGenerator(const RagParameters& parameters, std::uint64_t seed,
                           SharedStreams streams)
    : NamingGenerator(std::move(streams)),
      parameters_(parameters),
      popularity_(parameters.documents, parameters.popularity_exponent),
      documents_stream_(seed, "workload/rag_documents") {
  KVTIER_ASSERT(parameters.documents_per_request <= parameters.documents,
                "a request has different documents");
  RandomStream lengths(seed, "workload/document_lengths");
  const double mu = std::log(parameters.document_tokens_median);
  const auto most = static_cast<double>(parameters.document_tokens_max.value);
  lengths_.reserve(static_cast<std::size_t>(parameters.documents));
  for (std::int64_t i = 0; i < parameters.documents; ++i) {
    const double tokens = lengths.lognormal(mu, parameters.document_tokens_sigma);
    lengths_.push_back(
        static_cast<std::int32_t>(round_non_negative(std::clamp(tokens, 1.0, most))));
  }
  if (parameters.instruction_tokens > Tokens(0)) {
    instructions_ = {open(), parameters.instruction_tokens};
  }
}

void RagGenerator::draw_documents() {
  // Limit of redraws: if few documents have nearly all of the popularity, drawing a new one takes
  // long.
  constexpr int kDraws = 64;
  drawn_.clear();
  const auto has = [this](std::int64_t document) {
    return std::find(drawn_.begin(), drawn_.end(), document) != drawn_.end();
  };
  for (std::int64_t i = 0; i < parameters_.documents_per_request; ++i) {
    std::int64_t document = popularity_.draw(documents_stream_);
    for (int draw = 1; draw < kDraws && has(document); ++draw) {
      document = popularity_.draw(documents_stream_);
    }
    if (has(document)) {  // takes the most popular document left
      for (document = 0; has(document);) {
        ++document;
      }
    }
    drawn_.push_back(document);
  }
  if (parameters_.order == DocumentOrder::sorted) {
    std::sort(drawn_.begin(), drawn_.end());
  }
}

bool RagGenerator::next(SessionSpec& session) {
  draw_documents();
  Context prompt = instructions_;
  std::uint32_t sequence = 0;  // the empty sequence
  bool is_known = true;
  for (const std::int64_t document : drawn_) {
    const std::uint64_t key = std::uint64_t{sequence} << 32U | static_cast<std::uint64_t>(document);
    if (is_known) {
      const auto found = nodes_.find(key);
      is_known = found != nodes_.end();
      if (is_known) {
        sequence = found->second.number;
        prompt.stream = found->second.stream;
      } else {
        prompt.stream = open(prompt);
      }
    }
    prompt.tokens += Tokens(lengths_[static_cast<std::size_t>(document)]);
    if (!is_known) {
      KVTIER_ASSERT(nodes_.size() < UINT32_MAX, "sequences of documents have numbers");
      sequence = static_cast<std::uint32_t>(nodes_.size() + 1);
      nodes_.emplace(key, Node{sequence, prompt.stream});
    }
  }
  if (is_known) {  // the question forks from the documents
    prompt.stream = open(prompt);
  }
  prompt.tokens += parameters_.question_tokens;
  clear(session);
  session.id = generated_++;
  add_turn(session, prompt, prompt.tokens, parameters_.response_tokens);
  return true;
}

}  // namespace kvtier
