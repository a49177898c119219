/// The files of an interrupted `kvtier calibrate`.

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>

#include "hw/profile/profile.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using CalibrateRun = ProgramTest;

TEST_F(CalibrateRun, KeepsTheCellsOfAnInterruptedRun) {
  Started run = start({"calibrate", "--out", "p.json"});
  ASSERT_TRUE(run.runs_until([&] { return std::filesystem::exists(path("p.json.partial")); }));
  run.signal(SIGINT);
  const Outcome outcome = run.outcome();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("kvtier: interrupted; the finished cells are in p.json.partial, and "
                             "--resume goes on from there\n"),
            std::string::npos)
      << outcome.err;
  EXPECT_EQ(files(), std::vector<std::string>{"p.json.partial"});
  const Profile kept = read_profile(path("p.json.partial"));
  ASSERT_FALSE(kept.tables.empty());
  EXPECT_EQ(kept.provenance.model, "kvtier-small");
}

}  // namespace
}  // namespace kvtier::test
