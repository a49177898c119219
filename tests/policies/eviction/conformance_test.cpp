/// The duties of every eviction policy, checked for all registered ones, each with its default
/// parameters and with each parameter set to small values.

#include "sim/policy/conformance.hpp"

#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"

namespace kvtier {
namespace {

struct Case {
  std::string label;
  PolicyKind<EvictionPolicy> kind;
  PolicyParameters parameters;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.label; }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& kind : builtin_policies().eviction) {
    for (const ConformanceCase& with : conformance_cases(kind.parameters)) {
      cases.push_back({kind.name + "_" + with.label, kind, with.parameters});
    }
  }
  return cases;
}

class EvictionConformance : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Registered, EvictionConformance, testing::ValuesIn(all_cases()),
                         [](const auto& instance) { return instance.param.label; });

TEST_P(EvictionConformance, EveryCheckPasses) {
  for (const ConformanceCheck<EvictionPolicy>& check : eviction_checks()) {
    SCOPED_TRACE(check.name);
    EXPECT_NO_THROW(check.run(GetParam().kind, GetParam().parameters));
  }
}

}  // namespace
}  // namespace kvtier
