/// Extents and nodes do what a plain store of blocks does, call by call.

#include <cstdlib>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/store/stores.hpp"
#include "tests/sim/store/random_stores.hpp"

namespace kvtier {
namespace {

TEST(Extents, CannotBeToldFromSingleBlocks) {
  const char* wanted = std::getenv("KVTIER_TEST_CASES");
  const int cases = wanted != nullptr ? std::atoi(wanted) : 1'000;
  const PolicyRegistry registry = builtin_policies();
  for (int seed = 1; seed <= cases; ++seed) {
    RandomStream random(static_cast<std::uint64_t>(seed), "stores");
    const StoreRules rules = random_rules(random);
    RandomContexts contexts(random);
    const bool several = rules.pools.back().shared;
    const std::size_t instances = several ? 1 + static_cast<std::size_t>(random.index(3)) : 1;
    const auto extents = make_stores(rules, contexts.streams(), registry, instances);
    const auto reference = make_reference_stores(rules, contexts.streams(), registry, instances);
    const std::string difference =
        first_difference(extents, reference, rules, contexts, random, 150);
    ASSERT_EQ(difference, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvtier
