#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "sim/core/streams.hpp"
#include "sim/store/rules.hpp"

namespace kvtier {

/// How often blocks came into the pool above an edge (FrequencyFilter).
class WriteFrequencies {
 public:
  explicit WriteFrequencies(const std::optional<FrequencyFilter>& filter) : filter_(filter) {}

  void advance(SimTime now) {
    while (filter_ && fallen_ + filter_->forget_every <= now) {
      fallen_ = fallen_ + filter_->forget_every;
      if (counts_.empty()) {
        const std::int64_t periods = (now - fallen_).ns / filter_->forget_every.ns;
        fallen_ = fallen_ + SimDuration(periods * filter_->forget_every.ns);
      }
      fall();
    }
  }

  /// A block comes into the pool above. Returns whether it is written to the next one.
  [[nodiscard]] bool admit(StreamId stream, std::int64_t block) {
    if (!filter_) {
      return true;
    }
    auto [found, is_new] = counts_.try_emplace({stream, block}, 1);
    if (is_new) {
      ++streams_[stream];
    } else {
      found->second = std::min(found->second * 2, kMost);
    }
    const bool admitted = found->second >= filter_->least;
    while (static_cast<std::int64_t>(counts_.size()) > filter_->entries) {
      fall();
    }
    return admitted;
  }
  [[nodiscard]] std::int64_t count(StreamId stream, std::int64_t block) const {
    const auto found = counts_.find({stream, block});
    return found == counts_.end() ? 0 : found->second;
  }
  /// The stream's number means this stream as long as blocks of it are counted.
  [[nodiscard]] bool remembers(StreamId stream) const { return streams_.contains(stream); }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 40;

  void fall() {
    for (auto at = counts_.begin(); at != counts_.end();) {
      if (--at->second > 0) {
        ++at;
        continue;
      }
      const auto stream = streams_.find(at->first.first);
      if (--stream->second == 0) {
        streams_.erase(stream);
      }
      at = counts_.erase(at);
    }
  }

  std::optional<FrequencyFilter> filter_;
  std::map<std::pair<StreamId, std::int64_t>, std::int64_t> counts_;
  /// Blocks that are counted, by stream.
  std::map<StreamId, std::int64_t> streams_;
  SimTime fallen_;
};

}  // namespace kvtier
