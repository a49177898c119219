/// The contract of every router, on every policy of the registry.

#include "sim/policy/conformance.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"

namespace kvtier {
namespace {

class RoutingConformance : public testing::TestWithParam<PolicyKind<RoutingPolicy>> {};

TEST_P(RoutingConformance, EveryCheckPasses) {
  EXPECT_EQ(routing_problems(GetParam()), std::vector<std::string>{});
}

INSTANTIATE_TEST_SUITE_P(Policies, RoutingConformance,
                         testing::ValuesIn(builtin_policies().routing),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvtier
