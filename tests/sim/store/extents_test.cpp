/// Extents and nodes do what a plain store of blocks does, call by call.

#include <cstdlib>

#include <gtest/gtest.h>

#include "sim/store/extent_store.hpp"
#include "sim/store/reference_store.hpp"
#include "tests/sim/store/random_stores.hpp"

namespace kvtier {
namespace {

TEST(Extents, CannotBeToldFromSingleBlocks) {
  const char* wanted = std::getenv("KVTIER_TEST_CASES");
  const int cases = wanted != nullptr ? std::atoi(wanted) : 1'000;
  for (int seed = 1; seed <= cases; ++seed) {
    RandomStream random(static_cast<std::uint64_t>(seed), "stores");
    const StoreRules rules = random_rules(random);
    RandomContexts contexts(random);
    const auto extents = make_extent_store(rules, contexts.streams());
    const auto reference = make_reference_store(rules, contexts.streams());
    const std::string difference =
        first_difference(*extents, *reference, rules, contexts, random, 150);
    ASSERT_EQ(difference, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvtier
