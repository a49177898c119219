#pragma once

#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

/// Checks of the duties of every policy: a full declaration, and answers on which a tier or a
/// cluster can rely.
namespace kvtier {

/// Thrown by a check if a policy breaks a duty.
class ConformanceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parameters for one run of the checks.
struct ConformanceCase {
  std::string label;
  PolicyParameters parameters;
};
/// The defaults, and each parameter set to small values.
[[nodiscard]] std::vector<ConformanceCase> conformance_cases(
    const std::vector<PolicyParameter>& parameters);

template <class Interface>
struct ConformanceCheck {
  /// The duty, written as a test name.
  const char* name;
  /// Throws ConformanceError. Also passes on InvariantError of the policy's own checks, and other
  /// exceptions of the policy.
  void (*run)(const PolicyKind<Interface>& kind, const PolicyParameters& parameters);
};
[[nodiscard]] std::span<const ConformanceCheck<EvictionPolicy>> eviction_checks();
[[nodiscard]] std::span<const ConformanceCheck<RoutingPolicy>> routing_checks();

/// Type and message of an exception, such as "std::out_of_range: vector::at".
[[nodiscard]] std::string exception_name(const std::exception& error);
/// Text of an exception that a policy threw; may rethrow it.
using ExceptionName = std::function<std::string(const std::exception&)>;

/// Runs every check in every case. Returns a line for each failure or exception, and none if the
/// policy conforms. Exceptions outside std::exception pass through.
[[nodiscard]] std::vector<std::string> eviction_problems(
    const PolicyKind<EvictionPolicy>& kind, const ExceptionName& name_exception = exception_name);
[[nodiscard]] std::vector<std::string> routing_problems(
    const PolicyKind<RoutingPolicy>& kind, const ExceptionName& name_exception = exception_name);

/// Whether a name has only small letters, digits and underscores, and begins with a letter.
[[nodiscard]] bool is_policy_name(const std::string& name);

namespace detail {
template <class Interface>
[[nodiscard]] std::vector<std::string> problems_in_checks(
    const PolicyKind<Interface>& kind, std::span<const ConformanceCheck<Interface>> checks,
    const ExceptionName& name_exception) {
  std::vector<std::string> problems;
  for (const ConformanceCase& with : conformance_cases(kind.parameters)) {
    for (const ConformanceCheck<Interface>& check : checks) {
      const auto add = [&](const std::string& what) {
        problems.push_back(std::string(check.name) + " (" + with.label + "): " + what);
      };
      try {
        check.run(kind, with.parameters);
      } catch (const ConformanceError& error) {
        add(error.what());
      } catch (const InvariantError& error) {
        add(error.what());
      } catch (const std::exception& error) {
        add("the policy throws " + name_exception(error));
      }
    }
  }
  return problems;
}
[[nodiscard]] std::vector<std::string> declaration_problems(
    const std::string& name, const std::string& summary, const std::string& source,
    const std::vector<PolicyParameter>& parameters);
}  // namespace detail

/// A line for each part that the declaration lacks; none if it is complete.
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
    const auto add = [&](const std::string& why) {
      const std::string what =
          parameters.empty() ? "the defaults" : "the ends of " + parameters.begin()->first;
      problems.push_back("no policy is made of " + what + why);
    };
    try {
      if (kind.make(parameters) == nullptr) {
        add("");
      }
    } catch (const std::exception& error) {
      add(": it throws " + exception_name(error));
    }
  }
  return problems;
}

}  // namespace kvtier
