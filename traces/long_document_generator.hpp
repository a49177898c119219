#pragma once

#include <cstdint>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Parameters of LongDocumentGenerator. The defaults are those of AttentionStore's experiment with
/// long sequences (arXiv 2403.19708, figures 25 and 26): documents of 4K to 28K tokens, six tasks
/// of 256 input and 64 output tokens on each.
struct LongDocumentParameters {
  Tokens document_tokens_min{4096};
  Tokens document_tokens_max{28672};
  std::int64_t tasks = 6;
  Tokens task_input_tokens{256};
  Tokens task_output_tokens{64};
};

template <class V>
void describe(V& v, LongDocumentParameters& c) {
  const auto tokens = between(1, 1e7);
  v.field("document_tokens_min", c.document_tokens_min, "Tokens of the shortest document.", tokens);
  v.field("document_tokens_max", c.document_tokens_max,
          "Tokens of the longest document; lengths in between are equally likely.", tokens);
  v.field("tasks", c.tasks,
          "Tasks on one document, one turn each; the first turn brings the document.",
          between(1, 1e6));
  v.field("task_input_tokens", c.task_input_tokens, "Tokens of a task's input.", tokens);
  v.field("task_output_tokens", c.task_output_tokens, "Tokens of a task's response.", tokens);
}

/// Sessions of several tasks on one document, without end and without times. The first turn's user
/// tokens are the document and the first task; the later turns find the document in their history.
/// Lengths draw from the stream "workload/document_lengths", one for each session.
class LongDocumentGenerator final : public SessionSource {
 public:
  LongDocumentGenerator(const LongDocumentParameters& parameters, std::uint64_t seed);

  bool next(SessionSpec& session) override;

 private:
  LongDocumentParameters parameters_;
  RandomStream lengths_stream_;
  std::int64_t generated_ = 0;
};

}  // namespace kvtier
