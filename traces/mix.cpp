#include "traces/mix.hpp"

#include <utility>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {

MixSource::MixSource(std::vector<MixedSource> workloads, std::uint64_t seed, SharedStreams streams)
    : workloads_(std::move(workloads)),
      stream_(seed, "workload/mix"),
      streams_(std::move(streams)),
      given_of_(workloads_.size()) {
  KVTIER_ASSERT(!workloads_.empty(), "there are workloads to mix");
  for (const MixedSource& workload : workloads_) {
    weights_ += workload.weight;
  }
}

bool MixSource::next(SessionSpec& session) {
  double drawn = stream_.uniform() * weights_;
  drawn_ = 0;
  while (drawn_ + 1 < workloads_.size() && drawn >= workloads_[drawn_].weight) {
    drawn -= workloads_[drawn_++].weight;
  }
  MixedSource& workload = workloads_[drawn_];
  if (!workload.sessions->next(session)) {
    throw ConfigError(
        fmt::format("{}: the trace ends after {} sessions, but the mix draws more (\"replay\": "
                    "\"bootstrap\" draws any number)",
                    workload.name, given_of_[drawn_]));
  }
  ++given_of_[drawn_];
  session.id = given_++;
  session.group = SessionSpec::kNoGroup;  // numbers of a trace mean nothing beside other workloads
  session.arrival = SimTime();
  session.workload_class = static_cast<std::int32_t>(drawn_);
  session.priority = workload.priority;
  if (session.shared_prompt.tokens.value > 0) {
    std::int64_t& id = session.shared_prompt.id;
    id = shared_prompts_.try_emplace({drawn_, id}, std::ssize(shared_prompts_)).first->second;
  }
  if (workload.think_times) {
    workload.think_times->apply(session.turns);
  }
  return true;
}

bool MixSource::next_started(SessionSpec& session) {
  return workloads_[drawn_].sessions->next_started(session);
}

}  // namespace kvtier
