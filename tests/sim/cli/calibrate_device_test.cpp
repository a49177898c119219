/// What a run of `kvtier calibrate` that is interrupted leaves.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "hw/profile.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using CalibrateRun = ProgramTest;

TEST_F(CalibrateRun, KeepsWhatAnInterruptedRunMeasured) {
  Started run = start({"calibrate", "--out", "p.json"});
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!std::filesystem::exists(path("p.json.partial")) &&
         std::chrono::steady_clock::now() < give_up && run.running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  run.signal(SIGINT);
  const Outcome outcome = run.outcome();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("kvtier: interrupted; what was measured is in p.json.partial, and "
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
