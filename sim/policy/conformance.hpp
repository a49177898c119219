#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/policy/policy.hpp"

/// What every policy owes: a declaration in full and, of an eviction policy, answers that its tier
/// can rely on.
namespace kvtier {

/// What a policy does not keep to.
class ConformanceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parameters to look at a policy with.
struct ConformanceCase {
  std::string label;
  PolicyParameters parameters;
};
/// The defaults, and each parameter set to small values.
[[nodiscard]] std::vector<ConformanceCase> conformance_cases(
    const std::vector<PolicyParameter>& parameters);

struct ConformanceCheck {
  /// What is expected, as a test's name.
  const char* name;
  /// Throws ConformanceError, or InvariantError where a check of the policy's own fails.
  void (*run)(const PolicyKind<EvictionPolicy>& kind, const PolicyParameters& parameters);
};
[[nodiscard]] std::span<const ConformanceCheck> eviction_checks();

/// Every check in every case: a line for each that fails, none of a policy that conforms.
[[nodiscard]] std::vector<std::string> eviction_problems(const PolicyKind<EvictionPolicy>& kind);

/// A name of small letters, digits and underscores, beginning with a letter: as in configs.
[[nodiscard]] bool is_policy_name(const std::string& name);

namespace detail {
[[nodiscard]] std::vector<std::string> declaration_problems(
    const std::string& name, const std::string& summary, const std::string& source,
    const std::vector<PolicyParameter>& parameters);
}  // namespace detail

/// A line for everything that the declaration lacks, none if it is in full.
template <class Interface>
[[nodiscard]] std::vector<std::string> declaration_problems(const PolicyKind<Interface>& kind) {
  std::vector<std::string> problems =
      detail::declaration_problems(kind.name, kind.summary, kind.source, kind.parameters);
  if (!kind.make) {
    problems.push_back("nothing makes the policy");
    return problems;
  }
  std::vector<PolicyParameters> cases{{}};
  for (const PolicyParameter& parameter : kind.parameters) {
    cases.push_back({{parameter.name, parameter.minimum}});
    cases.push_back({{parameter.name, parameter.maximum}});
  }
  for (const PolicyParameters& parameters : cases) {
    if (kind.make(parameters) == nullptr) {
      problems.push_back(parameters.empty()
                             ? "no policy is made of the defaults"
                             : "no policy is made of the ends of " + parameters.begin()->first);
    }
  }
  return problems;
}

}  // namespace kvtier
