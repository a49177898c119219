/// The program of `make demo` is kvtier with one command, and needs no library of the others.

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

class Demo : public ProgramTest {};

TEST_F(Demo, ComparesAsTheWholeProgramDoes) {
  write_run();
  for (const char* json : {"-", ""}) {
    const std::vector<std::string> arguments{
        "compare", "run.json", "--systems", "recompute,attentionstore", "--json", json};
    const Outcome demo = kvtier_demo(arguments);
    EXPECT_EQ(demo.code, 0) << demo.err;
    EXPECT_NE(demo.out, "");
    EXPECT_EQ(demo.out, kvtier(arguments).out);
  }
}

TEST_F(Demo, RefusesOtherCommands) {
  const Outcome outcome = kvtier_demo({"simulate", "run.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("unknown command \"simulate\""), std::string::npos) << outcome.err;
}

TEST_F(Demo, NamesNoLibraryOfDevices) {
  const std::string demo = read_file(KVTIER_DEMO_PROGRAM);
  const std::string whole = read_file(KVTIER_PROGRAM);
  for (const char* library : {"libopenblas", "liburing"}) {
    EXPECT_EQ(demo.find(library), std::string::npos) << library;
    EXPECT_NE(whole.find(library), std::string::npos) << "the check reads nothing";
  }
}

class Program : public ProgramTest {};

// OpenBLAS starts threads and reserves memory when it is loaded: where these are limited it ended
// the program, or kept it from ending.
TEST_F(Program, StartsWithoutOpenBlas) {
  ::setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);  // the loader lists libraries and runs nothing
  const Outcome libraries = kvtier({"--version"});
  ::unsetenv("LD_TRACE_LOADED_OBJECTS");
  EXPECT_NE(libraries.out.find("libarchive"), std::string::npos) << libraries.out;
  EXPECT_EQ(libraries.out.find("libopenblas"), std::string::npos) << libraries.out;
}

TEST_F(Program, EndsWhereMemoryIsLimited) {
  write_run();
  const Outcome outcome =
      Started({"-c", "ulimit -v 150000 && exec " KVTIER_PROGRAM " simulate run.json"}, path("."),
              path("../limited"), "/bin/sh")
          .outcome();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace kvtier::test
