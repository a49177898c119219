#include "sim/policy/plugin.hpp"

#include <cctype>
#include <cstdint>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace kvtier {
namespace {

/// A header's text without comments and blanks.
std::string code_of(const std::string& path) {
  std::ifstream in(std::string(KVTIER_SOURCE_DIR) + "/" + path);
  std::string code;
  for (std::string line; std::getline(in, line);) {
    for (const char c : line.substr(0, line.find("//"))) {
      if (std::isspace(static_cast<unsigned char>(c)) == 0) {
        code += c;
      }
    }
  }
  return code;
}

/// FNV-1a.
std::uint32_t hash_of(const std::string& text) {
  std::uint32_t hash = 2'166'136'261U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16'777'619U;
  }
  return hash;
}

TEST(PolicyPlugin, ItsVersionFollowsTheInterface) {
  std::string code;
  for (const char* header :
       {"sim/policy/policy.hpp", "sim/policy/views.hpp", "sim/policy/victims.hpp",
        "sim/policy/ids.hpp", "sim/policy/routing.hpp", "sim/policy/plugin.hpp"}) {
    const std::string text = code_of(header);
    ASSERT_GT(text.size(), 100U) << header;
    code += text;
  }
  EXPECT_EQ(hash_of(code), 4118327340U)
      << "The headers that libraries of policies are built with have changed. If a library built "
         "with the earlier ones would misunderstand them, raise kPolicyInterfaceVersion; put the "
         "new hash here.";
}

}  // namespace
}  // namespace kvtier
