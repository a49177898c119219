#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/policy/policy.hpp"

/// Writing a policy to start from, with its test.
namespace kvtier {

enum class NewPolicyKind { eviction, admission, prefetch, order, routing };
constexpr auto enum_names(NewPolicyKind) {
  return std::array{
      std::pair<std::string_view, NewPolicyKind>{"eviction", NewPolicyKind::eviction},
      std::pair<std::string_view, NewPolicyKind>{"admission", NewPolicyKind::admission},
      std::pair<std::string_view, NewPolicyKind>{"prefetch", NewPolicyKind::prefetch},
      std::pair<std::string_view, NewPolicyKind>{"order", NewPolicyKind::order},
      std::pair<std::string_view, NewPolicyKind>{"routing", NewPolicyKind::routing}};
}

struct NewPolicy {
  std::string name;
  NewPolicyKind kind = NewPolicyKind::eviction;
  /// The root of kvtier's sources, or for a library any folder, which is made if need be.
  std::filesystem::path out;
  /// One source file of a shared library, instead of a policy among those of `policies`.
  bool plugin = false;
};

struct NewPolicyFiles {
  /// Seen from `out`, in the order in which they were written.
  std::vector<std::filesystem::path> written;
  /// The next steps: each is a line of explanation or a command.
  std::vector<std::string> next_steps;
};

/// Writes the files, all or none. Throws ConfigError for a name that is none or is taken, a file
/// that is there already, or an `out` without kvtier's sources; DeviceError if it cannot be
/// written.
[[nodiscard]] NewPolicyFiles write_new_policy(const NewPolicy& policy,
                                              const PolicyRegistry& registry);

}  // namespace kvtier
