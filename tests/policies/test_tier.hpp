#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/policy/random_driver.hpp"
#include "sim/policy/trial_tier.hpp"

/// Trial tiers with kvtier's own policies.
namespace kvtier::test {

inline PolicyKind<EvictionPolicy> eviction_kind(const std::string& name) {
  return known_policy(builtin_policies().eviction, name);
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

/// The set of entries in the order in which `next` names them, given the entries so far; empty if
/// `next` names kNoEntry before there is enough room. For policies that take whole entries.
template <class Next>
std::vector<EntryId> set_by_scans(const TrialTier& tier, Bytes wanted, Next next) {
  std::vector<EntryId> set;
  std::set<EntryId> taken;
  for (Bytes freed; freed < wanted;) {
    const EntryId entry = next(taken);
    if (!entry.valid()) {
      return {};
    }
    set.push_back(entry);
    taken.insert(entry);
    freed += tier.residents().at(entry).view.bytes;
  }
  return set;
}

inline std::vector<EntryId> entries_of(const std::vector<Victim>& victims) {
  std::vector<EntryId> entries;
  for (const Victim& victim : victims) {
    entries.push_back(victim.entry);
  }
  return entries;
}

/// Compares each set with the one that repeatedly takes the offered entry that `before` orders
/// before all others.
template <class Before>
void expect_sets_by_scans(const PolicyKind<EvictionPolicy>& kind, std::uint64_t seed,
                          Before before) {
  TrialTier tier(kind);
  RandomDriver driver(seed, false);
  int victims = 0;
  for (int step = 0; step < 20'000 && !testing::Test::HasFailure(); ++step) {
    driver.step({&tier}, [&](const RandomDriver::Selection& selection, const auto& sets) {
      const auto expected =
          set_by_scans(tier, selection.wanted, [&](const std::set<EntryId>& taken) {
            EntryId first = kNoEntry;
            for (const auto& [entry, resident] : tier.residents()) {
              const bool may_leave = resident.offered() && !taken.contains(entry);
              const bool is_before =
                  !first.valid() || before(resident.view, tier.residents().at(first).view);
              first = may_leave && is_before ? entry : first;
            }
            return first;
          });
      EXPECT_EQ(entries_of(sets.front()), expected) << "step " << step;
      victims += static_cast<int>(expected.size());
    });
  }
  EXPECT_GT(victims, 1'000);
}

using kvtier::FalseView;
using kvtier::RandomDriver;

}  // namespace kvtier::test
