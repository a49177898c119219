#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/naming_generator.hpp"
#include "traces/popularity.hpp"

namespace kvtier {

/// Order of the documents of a request.
enum class DocumentOrder {
  drawn,   // as they were drawn
  sorted,  // the most popular first, so that the same documents are always in the same order
};
constexpr auto enum_names(DocumentOrder) {
  return std::array{std::pair<std::string_view, DocumentOrder>{"drawn", DocumentOrder::drawn},
                    std::pair<std::string_view, DocumentOrder>{"sorted", DocumentOrder::sorted}};
}

/// Parameters of RagGenerator. RAGCache (arXiv 2404.12457) finds that 3 % of the documents take 60
/// % of the requests; so do 10,000 documents with an exponent of 0.96. All other values are our
/// choices.
struct RagParameters {
  std::int64_t documents = 10000;
  double popularity_exponent = 0.96;
  std::int64_t documents_per_request = 2;
  DocumentOrder order = DocumentOrder::drawn;
  Tokens instruction_tokens{200};
  double document_tokens_median = 1000;
  double document_tokens_sigma = 0.5;
  Tokens document_tokens_max{8192};
  Tokens question_tokens{64};
  Tokens response_tokens{256};
};

template <class V>
void describe(V& v, RagParameters& c) {
  const auto tokens = between(1, 1e7);
  v.field("documents", c.documents, "Number of documents.", between(1, 1e7));
  v.field("popularity_exponent", c.popularity_exponent,
          "Zipf exponent of the documents' popularity: the document of rank k is drawn with a "
          "probability proportional to k^-exponent.",
          between(0, 10));
  v.field("documents_per_request", c.documents_per_request,
          "Number of different documents of a request.", between(1, 1000));
  v.field("order", c.order,
          "Order of a request's documents: drawn (order of the draws) or sorted (the most popular "
          "first, so "
          "that equal documents have equal order).");
  v.field("instruction_tokens", c.instruction_tokens,
          "Tokens of the instructions before the documents, equal in all requests.",
          between(0, 1e7));
  v.field("document_tokens_median", c.document_tokens_median,
          "Median tokens of a document (lognormal).",
          {.minimum = 0, .maximum = 1e7, .minimum_excluded = true});
  v.field("document_tokens_sigma", c.document_tokens_sigma,
          "Standard deviation of their logarithm.", between(0, 10));
  v.field("document_tokens_max", c.document_tokens_max, "Most tokens of a document.", tokens);
  v.field("question_tokens", c.question_tokens,
          "Tokens of the question after the documents, which no other request has.", tokens);
  v.field("response_tokens", c.response_tokens, "Tokens of a response.", tokens);
}

/// Synthetic sessions of one request each, without end and without times: instructions, documents
/// by popularity, and a question. Requests share the instructions, and the documents up to the
/// first difference in order.
///
/// Documents are drawn without replacement from the stream "workload/rag_documents", and their
/// lengths once from "workload/document_lengths". A tree keeps the sequences of documents so far,
/// about 40 bytes for each distinct prefix of a sequence. With many documents in drawn order,
/// nearly every request adds prefixes.
class RagGenerator final : public NamingGenerator {
 public:
  RagGenerator(const RagParameters& parameters, std::uint64_t seed, SharedStreams streams);

  bool next(SessionSpec& session) override;

 private:
  /// A sequence of documents.
  struct Node {
    std::uint32_t number = 0;
    /// Stream of the sequence's tokens.
    StreamId stream;
  };
  void draw_documents();

  RagParameters parameters_;
  Popularity popularity_;
  RandomStream documents_stream_;
  /// Tokens by document.
  std::vector<std::int32_t> lengths_;
  Context instructions_;
  /// By the number of the sequence without its last document, and that document. Never iterated.
  std::unordered_map<std::uint64_t, Node> nodes_;
  std::vector<std::int64_t> drawn_;
  std::int64_t generated_ = 0;
};

}  // namespace kvtier
