/// `kvtier new policy`: its files and its refusals. new_policy_slow_test.cpp builds it.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

class NewPolicy : public ProgramTest {
 protected:
  /// A folder that looks like kvtier's sources.
  void make_sources() const {
    fs::create_directories(path("policies"));
    write("policies/registry.cpp", "");
  }
};

TEST_F(NewPolicy, WritesAPolicyAndItsTestAmongThePolicies) {
  make_sources();
  const Outcome outcome = kvtier({"new", "policy", "least_tokens"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "wrote policies/eviction/least_tokens.hpp\n"
            "wrote policies/eviction/least_tokens.cpp\n"
            "wrote tests/policies/eviction/least_tokens_test.cpp\n"
            "\n"
            "next, in .:\n"
            "  policies/registry.cpp: #include \"policies/eviction/least_tokens.hpp\"\n"
            "  policies/registry.cpp: least_tokens_eviction() in the list .eviction\n"
            "  cmake --preset release\n"
            "  cmake --build --preset release --target kvtier tests_policies\n"
            "  build/release/tests/tests_policies "
            "--gtest_filter='LeastTokens*:*/least_tokens_*'\n"
            "  build/release/bin/kvtier check policy least_tokens\n"
            "  build/release/bin/kvtier simulate CONFIG "
            "--set /system/tiers/dram/eviction=least_tokens\n");
  EXPECT_NE(read("policies/eviction/least_tokens.cpp").find("class LeastTokensEviction"),
            std::string::npos);
  EXPECT_EQ(read("policies/eviction/least_tokens.cpp").find('@'), std::string::npos);
  EXPECT_EQ(read("tests/policies/eviction/least_tokens_test.cpp").find('@'), std::string::npos);
}

TEST_F(NewPolicy, WritesTheSourceOfALibraryIntoAnyFolder) {
  const Outcome outcome =
      kvtier({"new", "policy", "mine", "--kind", "order", "--library", "--out", "new/folder"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string include = KVTIER_SOURCE_DIR;
  EXPECT_EQ(outcome.out,
            "wrote new/folder/mine.cpp\n"
            "wrote new/folder/mine_test.cpp\n"
            "\n"
            "next, in new/folder:\n"
            "  g++ -std=c++20 -O2 -fPIC -shared -I " +
                include +
                " mine.cpp -o libmine.so\n"
                "  g++ -std=c++20 -I " +
                include +
                " mine_test.cpp -lgtest -lgtest_main -o mine_test\n"
                "  ./mine_test\n"
                "  kvtier check policy mine --plugin ./libmine.so\n"
                "  kvtier simulate CONFIG --plugin ./libmine.so --set /system/order=mine\n");
}

TEST_F(NewPolicy, WritesARouter) {
  make_sources();
  const Outcome outcome = kvtier({"new", "policy", "my_router", "--kind", "routing"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"wrote policies/routing/my_router.cpp\n", "my_router_routing() in the list .routing\n",
        "--set /cluster/router=my_router\n"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << outcome.out;
  }
  EXPECT_NE(read("policies/routing/my_router.cpp").find("class MyRouterRouting"),
            std::string::npos);
  EXPECT_NE(read("policies/routing/my_router.hpp").find("PolicyKind<RoutingPolicy>"),
            std::string::npos);
}

TEST_F(NewPolicy, RefusesANameThatIsTaken) {
  make_sources();
  expect_bad_input({"new", "policy", "lru"},
                   {"NAME: there is a policy \"lru\" of kind eviction already"});
  // It is free among the policies of another kind.
  EXPECT_EQ(kvtier({"new", "policy", "lru", "--kind", "admission"}).code, 0);
}

TEST_F(NewPolicy, RefusesFilesThatAreThere) {
  make_sources();
  ASSERT_EQ(kvtier({"new", "policy", "mine"}).code, 0);
  expect_bad_input({"new", "policy", "mine"},
                   {"./policies/eviction/mine.hpp: is there already",
                    "./policies/eviction/mine.cpp: is there already",
                    "./tests/policies/eviction/mine_test.cpp: is there already"});
}

TEST_F(NewPolicy, RefusesANameThatIsNoIdentifier) {
  make_sources();
  for (const std::string name : {"My", "9lives", "a-b", "a__b", "a_", "../a", ""}) {
    expect_bad_input({"new", "policy", name},
                     {"NAME: expected small letters, digits and single underscores between them, "
                      "beginning with a letter, got \"" +
                      name + "\""});
  }
  EXPECT_EQ(files(), std::vector<std::string>{"policies"});
}

TEST_F(NewPolicy, RefusesAnUnknownKind) {
  const Outcome outcome = kvtier({"new", "policy", "mine", "--kind", "evicton"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err,
            "kvtier: --kind: expected one of eviction, admission, prefetch, order, routing, got "
            "\"evicton\" (did you mean \"eviction\"?)\n"
            "kvtier: see kvtier new policy --help\n");
}

TEST_F(NewPolicy, RefusesAFolderWithoutTheSources) {
  expect_bad_input({"new", "policy", "mine", "--out", "there"},
                   {"--out: expected the root of kvtier's sources, got \"there\"; --library writes "
                    "a policy that needs none"});
}

TEST_F(NewPolicy, RefusesAFileForAFolder) {
  write("file", "");
  expect_bad_input({"new", "policy", "mine", "--library", "--out", "file"},
                   {"--out: expected a folder, got the file file"});
}

TEST_F(NewPolicy, AFolderThatCannotBeWrittenIsAFailure) {
  // No user may write there, not even root.
  const Outcome outcome = kvtier({"new", "policy", "mine", "--library", "--out", "/proc"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: /proc/mine.cpp: cannot write: No such file or directory\n");
  EXPECT_EQ(outcome.out, "");
}

}  // namespace
}  // namespace kvtier::test
