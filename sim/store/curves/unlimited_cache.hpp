#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/core/streams.hpp"

namespace kvtier {

/// A cache without limit: it has the blocks of all earlier requests. In the order of a run's
/// look-ups, no store of the run finds more.
class UnlimitedCache {
 public:
  /// Keeps a reference to `streams`.
  UnlimitedCache(const Streams& streams, Tokens block) : streams_(&streams), block_(block) {}

  /// Tokens of the leading blocks of a prompt that are there.
  [[nodiscard]] Tokens find(const Context& prompt) {
    std::int64_t found = 0;
    path(prompt);
    for (const Stretch& stretch : path_) {
      found = std::clamp(end_of(stretch.stream), stretch.begin, stretch.end);
      if (found < stretch.end) {
        break;
      }
    }
    return block_ * found;
  }
  /// The same for a request, whose blocks come in: those of its prompt, and of `whole` if its
  /// response is known.
  [[nodiscard]] Tokens serve(const Context& prompt, const Context& whole) {
    const Tokens found = find(prompt);
    add(prompt);
    if (whole.stream.valid()) {
      add(whole);
    }
    return found;
  }
  /// A context's blocks come in.
  void add(const Context& context) {
    path(context);
    for (const Stretch& stretch : path_) {
      std::int64_t& end = end_of(stretch.stream);
      end = std::max(end, stretch.end);
    }
  }

 private:
  void path(const Context& context) {
    streams_->path(context.stream, context.tokens / block_, block_.value, path_);
  }
  std::int64_t& end_of(StreamId stream) {
    if (stream.value >= ends_.size()) {
      ends_.resize(static_cast<std::size_t>(stream.value) + 1);
    }
    return ends_[stream.value];
  }

  const Streams* streams_;
  Tokens block_;
  /// By stream, the end of the longest context in it, in blocks.
  std::vector<std::int64_t> ends_;
  std::vector<Stretch> path_;
};

}  // namespace kvtier
