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

/// One workload of a mix.
struct MixedSource {
  std::unique_ptr<SessionSource> sessions;
  /// Draws new think times; nullopt keeps those of the sessions.
  std::optional<ThinkTimes> think_times;
  double weight = 1;
  /// Priority of its sessions.
  std::int64_t priority = 0;
  /// For errors: the JSON pointer and name of this part of the mix, and its trace or generator.
  std::string name;
};

/// Sessions drawn from several workloads, each by its weight over the sum of all, from the stream
/// "workload/mix". A session's class is the position of its workload. Never ends: if a drawn trace
/// has no session left, it throws ConfigError.
class MixSource final : public SessionSource {
 public:
  /// `streams` belong to all workloads; null if they name no tokens.
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
  /// Number of sessions drawn from each workload.
  std::vector<std::int64_t> given_of_;
  /// Unique ids of shared prompts, by workload and the id there.
  std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> shared_prompts_;
};

}  // namespace kvtier
