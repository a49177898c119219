#include "traces/long_document_generator.hpp"

#include "sim/core/assert.hpp"

namespace kvtier {

LongDocumentGenerator::LongDocumentGenerator(const LongDocumentParameters& parameters,
                                             std::uint64_t seed)
    : parameters_(parameters), lengths_stream_(seed, "workload/document_lengths") {
  KVTIER_ASSERT(parameters.document_tokens_min <= parameters.document_tokens_max,
                "a range of lengths");
}

bool LongDocumentGenerator::next(SessionSpec& session) {
  const LongDocumentParameters& p = parameters_;
  const std::int64_t lengths = (p.document_tokens_max - p.document_tokens_min).value + 1;
  const Tokens document = p.document_tokens_min + Tokens(lengths_stream_.index(lengths));
  session.id = generated_++;
  session.arrival = SimTime();
  session.shared_prompt = SharedPrompt();
  session.turns.assign(static_cast<std::size_t>(p.tasks),
                       {p.task_input_tokens, p.task_output_tokens, SimDuration()});
  session.turns.front().user += document;
  return true;
}

}  // namespace kvtier
