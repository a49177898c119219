#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/histogram.hpp"
#include "sim/core/streams.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Sharing among the requests of a trace that names its blocks: the hits of a cache without limits,
/// and the branching of prefixes. Holds 32 bytes per request.
class BlockStatistics {
 public:
  /// Keeps a reference to `streams`.
  BlockStatistics(const Streams& streams, const NamedBlocks& named)
      : streams_(&streams), named_(named) {}

  void add(const SessionSpec& session);
  /// Adds the requests of `other`, which had a cache of their own.
  void merge(const BlockStatistics& other);
  [[nodiscard]] std::int64_t requests() const {
    return static_cast<std::int64_t>(requests_.size());
  }

  /// {"block_tokens", "requests", "blocks", "distinct_blocks", "reused_blocks_fraction",
  /// "prompt_tokens", "ideal_hits": {"blocks", "tokens", "requests"},
  /// "ideal_hit_rate": {"blocks", "tokens", "requests"},
  /// "ideal_hit_rate_second_half": {...}, "prefixes_per_request": distribution}
  ///
  /// Blocks are the blocks that requests ask for, without those that the recorded server had (see
  /// SessionSpec). Ideal hits are leading blocks that an earlier request had, in its prompt or its
  /// named response. A reused block is in several requests. The second half is the second half of
  /// the requests.
  [[nodiscard]] Json report() const;

 private:
  struct Request {
    std::int64_t blocks = 0;
    std::int64_t hit_blocks = 0;
    std::int64_t tokens = 0;
    std::int64_t hit_tokens = 0;
  };
  /// Ends of the longest and the second longest context in a stream.
  struct Used {
    std::int64_t once = 0;
    std::int64_t twice = 0;
  };
  /// `found`: the tokens of the prompt that are not asked for.
  void add(const Context& prompt, Tokens found);
  void add_response(const Context& whole);
  [[nodiscard]] Used& used(StreamId stream);

  const Streams* streams_;
  NamedBlocks named_;
  std::vector<Request> requests_;
  std::vector<Used> used_;
  std::int64_t distinct_ = 0;
  std::int64_t reused_ = 0;
  Histogram prefixes_;
  std::vector<Stretch> path_;
};

}  // namespace kvtier
