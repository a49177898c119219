#include <array>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "sim/policy/conformance.hpp"
#include "sim/policy/random_traffic.hpp"
#include "sim/policy/trial_cluster.hpp"

namespace kvtier {
namespace {

using Kind = PolicyKind<RoutingPolicy>;
using Check = ConformanceCheck<RoutingPolicy>;

constexpr int kSteps = 1'000;
constexpr RoutingFacts kFacts{.instances = 5, .block_tokens = Tokens(16)};

/// Choices in random traffic, one after the other.
std::vector<InstanceId> choices_of(const Kind& kind, const PolicyParameters& parameters,
                                   std::uint64_t seed) {
  TrialCluster cluster(kind, kFacts, parameters, seed);
  RandomTraffic traffic(seed, kFacts.block_tokens);
  std::vector<InstanceId> choices;
  for (int step = 0; step < kSteps; ++step) {
    traffic.step(cluster,
                 [&](const RoutedRequest&, InstanceId chosen) { choices.push_back(chosen); });
    cluster.check();
  }
  traffic.drain(cluster);
  cluster.check();
  return choices;
}

void every_choice_is_a_candidate(const Kind& kind, const PolicyParameters& parameters) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    static_cast<void>(choices_of(kind, parameters, seed));
  }
}

void the_same_calls_give_the_same_choices(const Kind& kind, const PolicyParameters& parameters) {
  if (choices_of(kind, parameters, 7) != choices_of(kind, parameters, 7)) {
    throw ConformanceError("the same calls give other choices");
  }
}

void the_only_candidate_is_chosen(const Kind& kind, const PolicyParameters& parameters) {
  const RandomTraffic traffic(1, kFacts.block_tokens);
  const std::vector<BlockHash> blocks = traffic.prompt(3, 8);
  const RoutedRequest request{.session = 3, .prompt = Tokens(130), .blocks = blocks};
  for (std::uint32_t last = 0; last < kFacts.instances; ++last) {
    TrialCluster cluster(kind, kFacts, parameters);
    // Another instance may have the prompt and the session.
    RoutedRequest again = request;
    cluster.store(cluster.send(again), blocks);
    for (std::uint32_t other = 0; other < kFacts.instances; ++other) {
      if (other != last) {
        cluster.lose(InstanceId{other});
      }
    }
    for (again.id = 1; again.id < 4; ++again.id) {
      static_cast<void>(cluster.send(again));  // the cluster refuses one that is lost
      cluster.check();
    }
  }
}

void a_lost_instance_comes_back(const Kind& kind, const PolicyParameters& parameters) {
  TrialCluster cluster(kind, kFacts, parameters);
  RandomTraffic traffic(5, kFacts.block_tokens);
  const auto ignore = [](const RoutedRequest&, InstanceId) {};
  for (int round = 0; round < 20; ++round) {
    const InstanceId lost = cluster.candidates()[cluster.candidates().size() / 2];
    cluster.lose(lost);
    cluster.check();
    for (int step = 0; step < 20; ++step) {
      traffic.step(cluster, ignore);
    }
    if (!cluster.load(lost).alive) {
      cluster.join(lost);
    }
    // The traffic may have lost other instances.
    for (std::uint32_t i = 0; i < kFacts.instances; ++i) {
      if (!cluster.load(InstanceId{i}).alive) {
        cluster.join(InstanceId{i});
      }
    }
    cluster.check();
  }
}

void groups_may_be_small_or_large(const Kind& kind, const PolicyParameters& parameters) {
  const std::int64_t most = kind.make(parameters)->needs().instances_max;
  for (const std::int64_t instances : {std::int64_t{1}, std::int64_t{1'000}}) {
    if (instances > most) {
      continue;
    }
    TrialCluster cluster(kind, {.instances = instances, .block_tokens = Tokens(512)}, parameters);
    RandomTraffic traffic(9, Tokens(512));
    for (int step = 0; step < 200; ++step) {
      traffic.step(cluster, [](const RoutedRequest&, InstanceId) {});
    }
    cluster.check();
  }
}

void prompts_may_be_empty_or_short(const Kind& kind, const PolicyParameters& parameters) {
  TrialCluster cluster(kind, kFacts, parameters);
  for (std::uint64_t id = 0; id < 20; ++id) {
    cluster.send({.id = id, .prompt = Tokens(static_cast<std::int64_t>(id) % 3)});
    if (id % 2 == 0) {
      cluster.first_token(id);
    }
    cluster.check();
  }
  for (std::uint64_t id = 0; id < 20; ++id) {
    cluster.finish(id);
  }
  cluster.check();
}

void every_phase_is_served(const Kind& kind, const PolicyParameters& parameters) {
  for (const RoutingPhase phase : {RoutingPhase::prefill, RoutingPhase::decode}) {
    TrialCluster cluster(kind, {.instances = 3, .block_tokens = Tokens(16), .phase = phase},
                         parameters);
    RandomTraffic traffic(4, Tokens(16));
    for (int step = 0; step < 400; ++step) {
      traffic.step(cluster, [](const RoutedRequest&, InstanceId) {});
    }
    cluster.check();
  }
}

void needs_follow_from_the_parameters(const Kind& kind, const PolicyParameters& parameters) {
  const auto policy = kind.make(parameters);
  const RoutingNeeds before = policy->needs();
  policy->on_start(kFacts);
  const RoutingNeeds after = policy->needs();
  if (before.blocks != after.blocks || before.block_events != after.block_events ||
      before.instances_max != after.instances_max) {
    throw ConformanceError("needs() changes when the run starts");
  }
  if (before.instances_max < 1) {
    throw ConformanceError("needs() allows no instance");
  }
}

constexpr std::array kChecks{
    Check{"EveryChoiceIsACandidate", every_choice_is_a_candidate},
    Check{"TheSameCallsGiveTheSameChoices", the_same_calls_give_the_same_choices},
    Check{"TheOnlyCandidateIsChosen", the_only_candidate_is_chosen},
    Check{"ALostInstanceComesBack", a_lost_instance_comes_back},
    Check{"GroupsMayBeSmallOrLarge", groups_may_be_small_or_large},
    Check{"PromptsMayBeEmptyOrShort", prompts_may_be_empty_or_short},
    Check{"EveryPhaseIsServed", every_phase_is_served},
    Check{"NeedsFollowFromTheParameters", needs_follow_from_the_parameters}};

}  // namespace

std::span<const Check> routing_checks() { return kChecks; }

std::vector<std::string> routing_problems(const Kind& kind, const ExceptionName& name_exception) {
  return detail::problems_in_checks(kind, routing_checks(), name_exception);
}

}  // namespace kvtier
