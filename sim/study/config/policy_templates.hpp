#pragma once

#include <array>
#include <string_view>

/// The files of policies/templates, which the build embeds in the program.
namespace kvtier {

struct PolicyTemplate {
  std::string_view code;
  std::string_view test;
};

struct PolicyTemplates {
  std::string_view header;
  /// In the order of NewPolicyKind.
  std::array<PolicyTemplate, 5> kinds;
};

[[nodiscard]] const PolicyTemplates& policy_templates();

}  // namespace kvtier
