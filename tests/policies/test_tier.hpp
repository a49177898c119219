#pragma once

#include <memory>
#include <string>

#include "policies/registry.hpp"
#include "sim/core/assert.hpp"
#include "sim/policy/random_driver.hpp"
#include "sim/policy/trial_tier.hpp"

/// Trial tiers of the policies that kvtier has.
namespace kvtier::test {

inline PolicyKind<EvictionPolicy> eviction_kind(const std::string& name) {
  const PolicyRegistry registry = builtin_policies();
  const auto* kind = find_policy(registry.eviction, name);
  KVTIER_ASSERT(kind != nullptr, "the policy is registered");
  return *kind;
}

inline std::unique_ptr<EvictionPolicy> make_eviction(const std::string& name,
                                                     const PolicyParameters& parameters = {}) {
  auto policy = eviction_kind(name).make(parameters);
  policy->on_start(trial_facts());
  return policy;
}

class TestTier final : public TrialTier {
 public:
  explicit TestTier(const std::string& policy, const PolicyParameters& parameters = {})
      : TrialTier(eviction_kind(policy), parameters) {}
};

using kvtier::FalseView;
using kvtier::RandomDriver;

}  // namespace kvtier::test
