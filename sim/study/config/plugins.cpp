#include "sim/study/config/plugins.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "policies/registry.hpp"
#include "sim/core/errors.hpp"
#include "sim/policy/conformance.hpp"
#include "sim/policy/plugin.hpp"
#include "sim/study/config/guarded_policies.hpp"

namespace kvtier {
namespace {

/// The policies that the library adds. Throws ConfigError.
PolicyRegistry policies_of(const std::string& library, const std::string& origin) {
  if (library.empty()) {
    throw ConfigError(fmt::format("{}: expected the name of a shared library", origin));
  }
  // dlopen searches the system's libraries for a name without a slash.
  const std::string path = std::filesystem::absolute(library).string();
  void* const loaded = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    throw ConfigError(fmt::format("{}: cannot be loaded: {}", origin, ::dlerror()));
  }
  const auto* const plugin = static_cast<const PolicyPlugin*>(::dlsym(loaded, kPolicyPluginSymbol));
  if (plugin == nullptr) {
    throw ConfigError(fmt::format("{}: has no {}: expected a library with KVTIER_POLICY_PLUGIN",
                                  origin, kPolicyPluginSymbol));
  }
  if (plugin->version != kPolicyInterfaceVersion) {
    throw ConfigError(
        fmt::format("{}: has version {} of the policy interface, this kvtier has {}; build it with "
                    "this kvtier's headers",
                    origin, plugin->version, kPolicyInterfaceVersion));
  }
  if (plugin->layout != detail::policy_layout()) {
    throw ConfigError(fmt::format(
        "{}: was built by a compiler or standard library that differs from this kvtier's", origin));
  }
  if (plugin->add_policies == nullptr) {
    throw ConfigError(fmt::format("{}: add_policies is null: expected a function", origin));
  }
  PolicyRegistry added;
  try {
    plugin->add_policies(added);
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("{}: add_policies failed: {}", origin, error.what()));
  }
  if (added.eviction.empty() && added.admission.empty() && added.prefetch.empty() &&
      added.order.empty() && added.routing.empty()) {
    throw ConfigError(fmt::format("{}: has no policy", origin));
  }
  return added;
}

template <class Interface>
void check_kinds(const char* what, std::vector<PolicyKind<Interface>>& all,
                 std::vector<PolicyKind<Interface>>& added, const std::string& origin,
                 std::vector<std::string>& problems) {
  for (auto& kind : added) {
    const std::string label = fmt::format("{}: {} policy \"{}\"", origin, what, kind.name);
    for (const std::string& problem : declaration_problems(kind)) {
      problems.push_back(fmt::format("{}: {}", label, problem));
    }
    if (find_policy(all, kind.name) != nullptr) {
      problems.push_back(fmt::format("{}: this name is already used", label));
    }
    all.push_back(std::move(kind));
  }
}

/// Replaces the last kinds of each list by those of `added`, which were added to them.
void replace_added(PolicyRegistry& registry, PolicyRegistry added) {
  const auto replace = [](auto& all, auto& with) {
    std::move(with.begin(), with.end(), all.end() - std::ssize(with));
  };
  replace(registry.eviction, added.eviction);
  replace(registry.admission, added.admission);
  replace(registry.prefetch, added.prefetch);
  replace(registry.order, added.order);
  replace(registry.routing, added.routing);
}

}  // namespace

std::vector<std::string> add_policies(PolicyRegistry& registry, PolicyRegistry added,
                                      const std::string& origin) {
  std::vector<std::string> problems;
  PolicyRegistry all = registry;
  check_kinds("eviction", all.eviction, added.eviction, origin, problems);
  check_kinds("admission", all.admission, added.admission, origin, problems);
  check_kinds("prefetch", all.prefetch, added.prefetch, origin, problems);
  check_kinds("order", all.order, added.order, origin, problems);
  check_kinds("routing", all.routing, added.routing, origin, problems);
  if (problems.empty()) {
    registry = std::move(all);
  }
  return problems;
}

PolicyRegistry load_policies(const std::vector<std::string>& libraries, bool name_errors) {
  PolicyRegistry registry = builtin_policies();
  std::vector<std::string> problems;
  const auto add = [&](const std::vector<std::string>& more) {
    problems.insert(problems.end(), more.begin(), more.end());
  };
  for (const std::string& library : libraries) {
    const std::string origin = fmt::format("--plugin: {}", library);
    try {
      const PolicyRegistry added = policies_of(library, origin);
      PolicyRegistry checked = registry;
      add(add_policies(checked, added, origin));
      registry = std::move(checked);
      if (name_errors && problems.empty()) {
        replace_added(registry, guarded(added, origin));
      }
    } catch (const ConfigError& error) {
      add(error.problems());
    }
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  return registry;
}

}  // namespace kvtier
