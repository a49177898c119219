#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "sim/core/assert.hpp"
#include "sim/policy/policy.hpp"
#include "sim/policy/routing.hpp"

/// Policies in a shared library, which kvtier loads at run time. The library needs only headers of
/// sim/policy and sim/core, and does not link with kvtier.
namespace kvtier {

/// Version of the interface. It is raised with every change that breaks libraries built with
/// earlier headers.
inline constexpr std::uint32_t kPolicyInterfaceVersion = 6;

namespace detail {
/// Hash of the layout of the passed types, which depends on compiler and standard library.
constexpr std::uint32_t policy_layout() {
  std::uint32_t hash = 2'166'136'261U;
  for (const std::size_t part : {sizeof(EntryView),
                                 sizeof(QueueChange),
                                 sizeof(Victim),
                                 sizeof(RoomRequest),
                                 sizeof(Victims),
                                 sizeof(QueueView),
                                 sizeof(TierFacts),
                                 sizeof(PrefetchContext),
                                 sizeof(Fetch),
                                 sizeof(RoutingFacts),
                                 sizeof(RoutedRequest),
                                 sizeof(InstanceLoad),
                                 sizeof(RoutingView),
                                 sizeof(RoutingNeeds),
                                 sizeof(PolicyParameter),
                                 sizeof(PolicyParameters),
                                 sizeof(PolicyKind<EvictionPolicy>),
                                 sizeof(PolicyRegistry),
                                 sizeof(std::string),
                                 sizeof(void*),
#ifdef _GLIBCXX_USE_CXX11_ABI
                                 std::size_t{_GLIBCXX_USE_CXX11_ABI},
#endif
#ifdef _LIBCPP_VERSION
                                 std::size_t{_LIBCPP_VERSION},
#endif
                                 std::size_t{__GXX_ABI_VERSION / 1'000}}) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 16'777'619U;
  }
  return hash;
}
}  // namespace detail

/// The object that a library exports as `kvtier_policy_plugin`.
struct PolicyPlugin {
  std::uint32_t version;
  std::uint32_t layout;
  /// Adds the library's policies to an empty registry.
  void (*add_policies)(PolicyRegistry& registry);
};
inline constexpr const char* kPolicyPluginSymbol = "kvtier_policy_plugin";

}  // namespace kvtier

/// Exports the policies that `void function(kvtier::PolicyRegistry&)` adds. Use it once in a
/// library, outside of every namespace. It also defines the function of kvtier that the headers
/// call.
#define KVTIER_POLICY_PLUGIN(function)                                                            \
  namespace kvtier::detail {                                                                      \
  void assertion_failed(const char* condition, const char* message, const char* file, int line) { \
    throw InvariantError(std::string(file) + ":" + std::to_string(line) +                         \
                         ": broken invariant: " + message + " (" + condition + ")");              \
  }                                                                                               \
  }                                                                                               \
  extern "C" [[gnu::visibility("default")]] const ::kvtier::PolicyPlugin kvtier_policy_plugin;    \
  extern "C" const ::kvtier::PolicyPlugin kvtier_policy_plugin = {                                \
      ::kvtier::kPolicyInterfaceVersion, ::kvtier::detail::policy_layout(), &(function)}
