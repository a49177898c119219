/// The files of `kvtier new policy` compile without a warning, pass their test as written, and work
/// as a library.

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

class NewPolicyBuilt : public ProgramTest, public testing::WithParamInterface<const char*> {
 protected:
  /// In the test's folder; its output is shown if it fails.
  void run(const std::string& command) const {
    const std::string line =
        "cd '" + path("").string() + "' && " + command + " >log 2>&1 || { cat log >&2; exit 1; }";
    EXPECT_EQ(std::system(line.c_str()), 0) << command;
  }
  /// Those of kvtier's own build.
  static constexpr const char* kWarnings =
      " -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -Werror ";
  const std::string compiler_ = std::string(KVTIER_COMPILER) + kWarnings;
  const std::string sources_ = " -I " KVTIER_SOURCE_DIR " ";
};

TEST_P(NewPolicyBuilt, PassesItsTestAmongThePolicies) {
  fs::create_directories(path("policies"));
  write("policies/registry.cpp", "");
  ASSERT_EQ(kvtier({"new", "policy", "my_own", "--kind", GetParam()}).code, 0);
  run(compiler_ + "-I ." + sources_ + "policies/*/my_own.cpp tests/policies/*/my_own_test.cpp " +
      KVTIER_LIBRARIES + " -lfmt -lgtest -lgtest_main -o mine");
  run("./mine");
}

TEST_P(NewPolicyBuilt, WorksAsALibrary) {
  ASSERT_EQ(kvtier({"new", "policy", "my_own", "--kind", GetParam(), "--library"}).code, 0);
  run(compiler_ + "-O2 -fPIC -shared" + sources_ + "my_own.cpp -o libmy_own.so");
  run(compiler_ + sources_ + "my_own_test.cpp -lgtest -lgtest_main -o my_own_test");
  run("./my_own_test");
  const Outcome check = kvtier({"check", "policy", "my_own", "--plugin", "./libmy_own.so"});
  EXPECT_EQ(check.code, 0) << check.err;
  const std::string kind = GetParam();
  if (kind == "routing") {
    return;  // no run has a router
  }
  const bool of_tier = kind == "eviction" || kind == "admission";
  write_run();
  const Outcome run =
      kvtier({"simulate", "run.json", "--plugin", "./libmy_own.so",
              "--set=/system/" + (of_tier ? "tiers/dram/" + kind : kind) + "=my_own"});
  EXPECT_EQ(run.code, 0) << run.err;
}

INSTANTIATE_TEST_SUITE_P(Kinds, NewPolicyBuilt,
                         testing::Values("eviction", "admission", "prefetch", "order", "routing"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvtier::test
