#include "policies/registry.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/policy/conformance.hpp"
#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {
namespace {

template <class Interface>
std::vector<std::string> names(const std::vector<PolicyKind<Interface>>& kinds) {
  std::vector<std::string> found;
  for (const auto& kind : kinds) {
    found.push_back(kind.name);
  }
  return found;
}

template <class Interface>
void expect_declared_in_full(const std::vector<PolicyKind<Interface>>& kinds) {
  EXPECT_FALSE(kinds.empty());
  std::set<std::string> seen;
  for (const PolicyKind<Interface>& kind : kinds) {
    SCOPED_TRACE(kind.name);
    EXPECT_TRUE(seen.insert(kind.name).second) << "two policies of one name";
    EXPECT_EQ(find_policy(kinds, kind.name), &kind);
    EXPECT_EQ(declaration_problems(kind), std::vector<std::string>{});
  }
}

TEST(Registry, EveryEvictionPolicyIsDeclaredInFull) {
  expect_declared_in_full(builtin_policies().eviction);
}

TEST(Registry, EveryAdmissionPolicyIsDeclaredInFull) {
  expect_declared_in_full(builtin_policies().admission);
}

TEST(Registry, EveryPrefetchPolicyIsDeclaredInFull) {
  expect_declared_in_full(builtin_policies().prefetch);
}

TEST(Registry, EveryOrderPolicyIsDeclaredInFull) {
  expect_declared_in_full(builtin_policies().order);
}

TEST(Registry, EveryRoutingPolicyIsDeclaredInFull) {
  expect_declared_in_full(builtin_policies().routing);
}

TEST(Registry, HoldsThePoliciesOfThePapers) {
  const PolicyRegistry registry = builtin_policies();
  const auto has = [](const std::vector<std::string>& all, const std::string& name) {
    return std::ranges::find(all, name) != all.end();
  };
  for (const char* name : {"fifo", "lru", "scheduler_aware"}) {
    EXPECT_TRUE(has(names(registry.eviction), name)) << name;
  }
  for (const char* name : {"none", "look_ahead"}) {
    EXPECT_TRUE(has(names(registry.prefetch), name)) << name;
  }
  EXPECT_TRUE(has(names(registry.order), "fcfs"));
}

TEST(Registry, PoliciesDeclareTheirNeeds) {
  const PolicyRegistry registry = builtin_policies();
  EXPECT_EQ(find_policy(registry.eviction, "lru")->knowledge, Knowledge::online);
  EXPECT_EQ(find_policy(registry.eviction, "fifo")->knowledge, Knowledge::online);
  EXPECT_EQ(find_policy(registry.eviction, "scheduler_aware")->knowledge, Knowledge::look_ahead);
  EXPECT_EQ(find_policy(registry.prefetch, "none")->knowledge, Knowledge::online);
  EXPECT_EQ(find_policy(registry.prefetch, "look_ahead")->knowledge, Knowledge::look_ahead);
}

TEST(Registry, MakesPoliciesThatShareNothing) {
  const PolicyRegistry registry = builtin_policies();
  const auto& lru = *find_policy(registry.eviction, "lru");
  const auto first = lru.make({});
  const auto second = lru.make({});
  first->on_insert(EntryView{.id = EntryId{0}}, SimTime(0));
  VictimSet offers;
  offers.offer(EntryId{0}, Bytes(1));
  EXPECT_TRUE(offers.choose(*first, {}, Bytes(1)));
  EXPECT_FALSE(offers.choose(*second, {}, Bytes(1)));
}

}  // namespace
}  // namespace kvtier
