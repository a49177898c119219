#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <boost/container/small_vector.hpp>

#include "sim/core/assert.hpp"
#include "sim/core/streams.hpp"
#include "sim/core/window.hpp"
#include "sim/policy/grow.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// The requests that wait in a queue, by the streams of their prompts. A request needs a stream's
/// blocks up to the end of its path there. A request is added in O(1) per stretch of its path. Its
/// removal moves the later requests of its streams. Few requests with short paths take no memory
/// of their own.
class WaitingRequests {
 public:
  using Path = boost::container::small_vector<Stretch, 2>;
  /// The end of a request's path in one stream.
  struct PathEnd {
    QueuePosition position;
    std::int64_t end = 0;
  };
  /// In order of position.
  using Ends = boost::container::small_vector<PathEnd, 1>;

  /// The position is later than all before.
  void add(QueuePosition position, std::span<const Stretch> path) {
    paths_.add(position.value).assign(path.begin(), path.end());
    for (const Stretch& stretch : path) {
      if (stretch.stream.value >= in_stream_.size()) [[unlikely]] {
        grow(in_stream_, static_cast<std::size_t>(stretch.stream.value) + 1);
      }
      Ends& ends = in_stream_[stretch.stream.value];
      KVTIER_ASSERT(ends.empty() || ends.back().position < position,
                    "requests begin to wait at the end of the queue");
      ends.push_back({position, stretch.end});
    }
  }
  /// Returns its path; empty if it was not added.
  Path remove(QueuePosition position) {
    const Path* found = paths_.find(position.value);
    if (found == nullptr) {
      return {};
    }
    const Path path = *found;
    paths_.remove(position.value);
    for (const Stretch& stretch : path) {
      Ends& ends = in_stream_[stretch.stream.value];
      ends.erase(std::ranges::lower_bound(ends, position, {}, &PathEnd::position));
    }
    return path;
  }
  [[nodiscard]] const Ends& in(StreamId stream) const {
    static const Ends kNone;
    return stream.value < in_stream_.size() ? in_stream_[stream.value] : kNone;
  }
  /// Position of the first request that needs a block; kNotQueued if none does.
  [[nodiscard]] QueuePosition first(StreamId stream, std::int64_t block) const {
    for (const PathEnd& one : in(stream)) {
      if (one.end > block) {
        return one.position;
      }
    }
    return kNotQueued;
  }

 private:
  Window<Path> paths_;
  std::vector<Ends> in_stream_;
};

}  // namespace kvtier
