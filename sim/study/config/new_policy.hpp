#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/policy/policy.hpp"

/// Writes a new policy and its test from templates.
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
  /// The root of kvtier's sources; for a library any folder, which is created if needed.
  std::filesystem::path out;
  /// Writes the source of a shared library instead of a policy of the folder `policies`.
  bool plugin = false;
};

struct NewPolicyFiles {
  /// Paths relative to `out`, in the order of writing.
  std::vector<std::filesystem::path> written;
  /// The user's next steps: each is a line of explanation or a command.
  std::vector<std::string> next_steps;
};

/// Writes all files or none. Throws ConfigError for an invalid or used name, an existing file, or
/// an `out` without kvtier's sources, and DeviceError if a file cannot be written.
[[nodiscard]] NewPolicyFiles write_new_policy(const NewPolicy& policy,
                                              const PolicyRegistry& registry);

}  // namespace kvtier
