#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "sim/core/streams.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// The requests that wait in a queue, by the streams of their prompts. A request needs a stream's
/// blocks up to the end of its path there. O(log n) per stretch of a path.
class WaitingRequests {
 public:
  /// The end of each request's path in one stream.
  using Ends = std::map<QueuePosition, std::int64_t>;

  void add(QueuePosition position, const std::vector<Stretch>& path) {
    paths_[position] = path;
    for (const Stretch& stretch : path) {
      in_stream_[stretch.stream][position] = stretch.end;
    }
  }
  /// Returns its path; empty if it was not added.
  std::vector<Stretch> remove(QueuePosition position) {
    const auto found = paths_.extract(position);
    if (found.empty()) {
      return {};
    }
    for (const Stretch& stretch : found.mapped()) {
      const auto ends = in_stream_.find(stretch.stream);
      ends->second.erase(position);
      if (ends->second.empty()) {
        in_stream_.erase(ends);
      }
    }
    return found.mapped();
  }
  [[nodiscard]] const Ends& in(StreamId stream) const {
    static const Ends kNone;
    const auto found = in_stream_.find(stream);
    return found != in_stream_.end() ? found->second : kNone;
  }
  /// Position of the first request that needs a block; kNotQueued if none does.
  [[nodiscard]] QueuePosition first(StreamId stream, std::int64_t block) const {
    const Ends& ends = in(stream);
    const auto found =
        std::ranges::find_if(ends, [&](const auto& one) { return one.second > block; });
    return found != ends.end() ? found->first : kNotQueued;
  }

 private:
  std::map<QueuePosition, std::vector<Stretch>> paths_;
  std::map<StreamId, Ends> in_stream_;
};

}  // namespace kvtier
