#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "hw/model/hardware.hpp"
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
  v.field(
      "noticed_after", c.noticed_after,
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

/// Hardware of some instances, written as /hardware is.
struct InstanceHardware {
  HardwareConfig config;

  friend bool operator==(const InstanceHardware&, const InstanceHardware&) = default;
};
void read_config(InstanceHardware& hardware, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const InstanceHardware& hardware);
[[nodiscard]] Json config_schema(const InstanceHardware& hardware);

/// Neighbouring instances that differ from the others.
struct InstanceGroupConfig {
  std::int64_t first = 0;
  std::optional<std::int64_t> instances;
  std::optional<InstanceHardware> hardware;
  std::optional<std::int64_t> slots;
  std::optional<Tokens> token_budget;

  /// Whether an instance is one of them.
  [[nodiscard]] bool has(std::int64_t instance) const {
    return instance >= first && (!instances || instance < first + *instances);
  }

  friend bool operator==(const InstanceGroupConfig&, const InstanceGroupConfig&) = default;
};
template <class V>
void describe(V& v, InstanceGroupConfig& c) {
  v.field("first", c.first, "Number of the first of these instances, from 0.", at_least(0));
  v.field("instances", c.instances, "How many they are; \"rest\": all from the first one on.",
          or_word("rest", at_least(1)));
  v.field("hardware", c.hardware,
          "Hardware of each of them, a preset's name or an object with the keys of /hardware; "
          "\"same\": /hardware.",
          or_word("same"));
  v.field("slots", c.slots, "In place of /serving/slots; \"same\": that value.",
          or_word("same", between(1, 4096)));
  v.field("token_budget", c.token_budget,
          "In place of /serving/token_budget; \"same\": that value.", or_word("same", at_least(1)));
}

/// The network between instances.
struct NetworkConfig {
  BytesPerSecond rate{0};
  SimDuration latency{10'000};
  std::optional<BytesPerSecond> core;

  friend bool operator==(const NetworkConfig&, const NetworkConfig&) = default;
};
template <class V>
void describe(V& v, NetworkConfig& c) {
  v.field("rate", c.rate, "What each instance sends, and what it receives, at most.",
          required(positive()));
  v.field("latency", c.latency, "Of each transfer, behind its bytes.", non_negative());
  v.field("core", c.core,
          "What all transfers together get, an oversubscribed core; \"none\": no limit.",
          or_word("none", positive()));
}

/// A tier that can be shared.
enum class SharedTier : std::uint8_t { dram, cxl, ssd };
constexpr auto enum_names(SharedTier) {
  return std::array{std::pair{"dram", SharedTier::dram}, std::pair{"cxl", SharedTier::cxl},
                    std::pair{"ssd", SharedTier::ssd}};
}
[[nodiscard]] constexpr std::string_view to_string(SharedTier tier) {
  return enum_names(tier)[static_cast<std::size_t>(tier)].first;
}

/// The slowest tier of the system as one pool of all instances, which they reach over the network:
/// a store with memory of its own, or the sum of segments that the instances give to it (Mooncake,
/// FAST 2025, section 5).
struct SharedTierConfig {
  SharedTier tier = SharedTier::dram;
  std::optional<KvSize> capacity;
  std::optional<BytesPerSecond> rate;

  friend bool operator==(const SharedTierConfig&, const SharedTierConfig&) = default;
};
template <class V>
void describe(V& v, SharedTierConfig& c) {
  v.field("tier", c.tier, "The slowest tier of /system/tiers.");
  v.field("capacity", c.capacity,
          "Size of a store of its own; \"segments\": the instances' tiers together, over which "
          "blocks are spread evenly.",
          or_word("segments"));
  v.field("rate", c.rate,
          "Rate each way of the link of a store of its own; \"network\": that of one instance. "
          "Segments are read and written over the links of all instances.",
          or_word("network", positive()));
}

/// Which prompts a prefill instance computes; the names in brackets are Dynamo's.
enum class PrefillDecision {
  always,           // all
  net_new,          // those of which the decode instance lacks much (isl_bounding)
  load,             // those for which a prefill instance is free enough (prefill_load)
  net_new_or_load,  // those for which both say so (isl_or_load)
};
constexpr auto enum_names(PrefillDecision) {
  return std::array{std::pair{"always", PrefillDecision::always},
                    std::pair{"net_new", PrefillDecision::net_new},
                    std::pair{"load", PrefillDecision::load},
                    std::pair{"net_new_or_load", PrefillDecision::net_new_or_load}};
}

/// How the KV of a prompt comes to the decode instance.
enum class KvTransfer {
  pull,  // after the prefill (vLLM's NIXL connector)
  push,  // during the prefill, layer by layer, into memory that is taken before it (SGLang)
};
constexpr auto enum_names(KvTransfer) {
  return std::array{std::pair{"pull", KvTransfer::pull}, std::pair{"push", KvTransfer::push}};
}

/// Prefill and decode on different instances, as vLLM's NIXL connector has it: a decode instance is
/// chosen, a prefill instance computes the prompt and keeps its KV, the decode instance takes
/// memory for the prompt, pulls what its own prefix cache lacks, computes the prompt's last token
/// anew and goes on. With KvTransfer::push, as SGLang has it, the memory is taken first.
struct DisaggregationConfig {
  std::int64_t prefill = 1;
  PolicyChoice decode_router{.name = "least_requests", .parameters = {}};
  KvTransfer transfer = KvTransfer::pull;
  PrefillDecision decide = PrefillDecision::always;
  Tokens net_new_tokens{2048};
  double net_new_share = 0.7;
  Tokens waiting_tokens{8192};

  [[nodiscard]] bool asks_net_new() const {
    return decide == PrefillDecision::net_new || decide == PrefillDecision::net_new_or_load;
  }
  [[nodiscard]] bool asks_load() const {
    return decide == PrefillDecision::load || decide == PrefillDecision::net_new_or_load;
  }

  friend bool operator==(const DisaggregationConfig&, const DisaggregationConfig&) = default;
};
template <class V>
void describe(V& v, DisaggregationConfig& c) {
  v.field("prefill", c.prefill, "The first so many instances prefill only. The others decode.",
          required(at_least(1)));
  v.field("decode_router", c.decode_router,
          "Routing policy of the instances that decode. /cluster/router is that of the others.");
  v.field(
      "transfer", c.transfer,
      "pull: the prompt is computed, then the decode instance takes memory for it and pulls its "
      "KV. push: the decode instance takes memory first, and the prefill sends each layer's KV "
      "when it is computed.");
  v.field("decide", c.decide,
          "Which prompts a prefill instance computes: always, or net_new: not those of which the "
          "decode instance lacks fewer tokens than net_new_tokens and a smaller share than "
          "net_new_share; load: not if every prefill instance has waiting_tokens or more to "
          "compute, as the router last heard; net_new_or_load: neither. The decode instance "
          "computes the others itself.");
  v.field("net_new_tokens", c.net_new_tokens, "See decide; Dynamo's default is 2,048.",
          non_negative());
  v.field("net_new_share", c.net_new_share, "See decide; Dynamo's default is 0.7.", between(0, 1));
  v.field("waiting_tokens", c.waiting_tokens,
          "See decide: tokens of prompts that an instance has still to compute.", positive());
}

struct ClusterConfig {
  std::int64_t instances = 1;
  std::vector<InstanceGroupConfig> groups;
  PolicyChoice router{.name = "session", .parameters = {}};
  SimDuration report_interval{0};
  SimDuration event_delay{0};
  std::optional<NetworkConfig> network;
  std::optional<SharedTierConfig> shared;
  std::optional<DisaggregationConfig> disaggregation;
  std::vector<LostInstanceConfig> lost;
  std::vector<SlowInstanceConfig> slow;

  friend bool operator==(const ClusterConfig&, const ClusterConfig&) = default;
};
template <class V>
void describe(V& v, ClusterConfig& c) {
  v.field("instances", c.instances, "Instances, each with all of /hardware.", between(1, 4096));
  v.field("groups", c.groups,
          "Instances that differ from the others. An instance of several groups is of the last.");
  v.field("router", c.router,
          "Routing policy: which instance a request goes to. In a system that stores the KV of "
          "sessions, without /system/blocks, it is asked once a session.");
  v.field("report_interval", c.report_interval,
          "Instances report their load to the router so often. 0: the router sees it at once.",
          non_negative());
  v.field("event_delay", c.event_delay,
          "The router learns so much later which blocks an instance has stored or removed.",
          non_negative());
  v.field("network", c.network, "The network between instances; \"none\": nothing crosses it.");
  v.field("shared", c.shared,
          "A tier that all instances share; \"none\": each has tiers of its own.");
  v.field("disaggregation", c.disaggregation,
          "Prefill and decode on different instances; \"none\": each instance does both.");
  v.field("lost", c.lost, "Instances that are lost during the run.");
  v.field("slow", c.slow, "Instances that are slow during a part of the run.");
}

}  // namespace kvtier
