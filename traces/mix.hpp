#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/rng.hpp"
#include "traces/arrivals.hpp"
#include "traces/naming_generator.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// One of the workloads that are mixed.
struct MixedSource {
  std::unique_ptr<SessionSource> sessions;
  /// Without them, those of the sessions are kept.
  std::optional<ThinkTimes> think_times;
  double weight = 1;
  /// Priority of its sessions.
  std::int64_t priority = 0;
  /// For errors: the JSON pointer and name of this part of the mix, and its trace or generator.
  std::string name;
};

/// Sessions drawn from several workloads, each by its weight over the sum of all, from the stream
/// "workload/mix". A session's class is the position of its workload. Never ends by itself: a
/// trace that has no session left when one is drawn is a ConfigError.
class MixSource final : public SessionSource {
 public:
  /// `streams` are those of all of them, or null if they name no tokens.
  MixSource(std::vector<MixedSource> workloads, std::uint64_t seed, SharedStreams streams);

  bool next(SessionSpec& session) override;
  bool next_started(SessionSpec& session) override;
  [[nodiscard]] Streams* streams() override { return streams_.get(); }

 private:
  std::vector<MixedSource> workloads_;
  double weights_ = 0;
  RandomStream stream_;
  SharedStreams streams_;
  std::size_t drawn_ = 0;
  std::int64_t given_ = 0;
  /// Sessions given from each workload.
  std::vector<std::int64_t> given_of_;
  /// Numbers of the workloads' prompts, which have the same ids as those of others.
  std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> shared_prompts_;
};

}  // namespace kvtier
