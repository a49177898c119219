#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/store/tier_config.hpp"

/// The keys of /cluster: several instances on one clock, behind a router.
namespace kvtier {

/// An instance that is lost. Its requests go to other instances when the router knows.
struct LostInstanceConfig {
  std::int64_t instance = 0;
  SimDuration at{0};
  std::optional<SimDuration> back;
  SimDuration noticed_after{0};

  friend bool operator==(const LostInstanceConfig&, const LostInstanceConfig&) = default;
};
template <class V>
void describe(V& v, LostInstanceConfig& c) {
  v.field("instance", c.instance, "Number of the instance, from 0.", required(at_least(0)));
  v.field("at", c.at, "When it is lost, with its memory and all requests on it.",
          required(non_negative()));
  v.field("back", c.back, "When it comes back, empty; \"none\": never.", or_word("none"));
  v.field("noticed_after", c.noticed_after,
          "After so long the router knows. Until then it sends requests to the instance, which wait "
          "there. When it knows, all of them are sent to other instances and start over.",
          non_negative());
}

/// An instance whose GPUs are slow for some time.
struct SlowInstanceConfig {
  std::int64_t instance = 0;
  SimDuration from{0};
  std::optional<SimDuration> until;
  double factor = 2;

  friend bool operator==(const SlowInstanceConfig&, const SlowInstanceConfig&) = default;
};
template <class V>
void describe(V& v, SlowInstanceConfig& c) {
  v.field("instance", c.instance, "Number of the instance, from 0.", required(at_least(0)));
  v.field("from", c.from, "GPU work that starts from then on is slow.", non_negative());
  v.field("until", c.until, "And from then on is not; \"none\": it stays slow.", or_word("none"));
  v.field("factor", c.factor, "Its time over the usual one.", required(between(1, 1000)));
}

struct ClusterConfig {
  std::int64_t instances = 1;
  PolicyChoice router{.name = "session", .parameters = {}};
  SimDuration report_interval{0};
  SimDuration event_delay{0};
  std::vector<LostInstanceConfig> lost;
  std::vector<SlowInstanceConfig> slow;

  friend bool operator==(const ClusterConfig&, const ClusterConfig&) = default;
};
template <class V>
void describe(V& v, ClusterConfig& c) {
  v.field("instances", c.instances, "Instances, each with all of /hardware.", between(1, 4096));
  v.field("router", c.router,
          "Routing policy: which instance a request goes to. In a system that stores the KV of "
          "sessions, without /system/blocks, it is asked once a session.");
  v.field("report_interval", c.report_interval,
          "Instances report their load to the router so often. 0: the router sees it at once.",
          non_negative());
  v.field("event_delay", c.event_delay,
          "The router learns so much later which blocks an instance has stored or removed.",
          non_negative());
  v.field("lost", c.lost, "Instances that are lost during the run.");
  v.field("slow", c.slow, "Instances that are slow during a part of the run.");
}

}  // namespace kvtier
