/// `kvtier report`: exit codes and outputs.

#include "sim/study/report/report.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

class ReportCommand : public ProgramTest {
 protected:
  ReportCommand() { write_run(); }
  void SetUp() override {
    if (page_parts().chart_library.empty()) {
      GTEST_SKIP() << "kvtier was built without Chart.js (libjs-chart.js)";
    }
    ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "a.json", "--occupancy"}).code, 0);
  }
};

TEST_F(ReportCommand, WritesOnePageThatHoldsAllThatItNeeds) {
  const Outcome outcome = kvtier({"report", "a.json", "--out", "a.html"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(files(), (Names{"a.html", "a.json", "run.json"}));
  const std::string page = read("a.html");
  EXPECT_EQ(page.find("<!DOCTYPE html>"), 0U);
  for (const char* part : {"Chart.js v3", "Released under the MIT License", "Permission is hereby",
                           "id=\"drawings\"", "KV stored in DRAM", "default-src 'none'"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* loaded : {"src=", "@import", "url(", "<link rel=\"stylesheet\""}) {
    EXPECT_EQ(page.substr(0, page.find("<script>")).find(loaded), std::string::npos) << loaded;
  }
}

TEST_F(ReportCommand, WritesTheSameBytesAgain) {
  ASSERT_EQ(kvtier({"report", "a.json", "--out", "a.html"}).code, 0);
  ASSERT_EQ(kvtier({"report", "a.json", "--out", "b.html"}).code, 0);
  EXPECT_EQ(read("a.html"), read("b.html"));
}

TEST_F(ReportCommand, NamesAllProblemsAndWritesNothing) {
  write("b.json", R"({"format": "kvtier.result/9"})");
  write("page.html", "old");
  expect_bad_input({"report", "b.json", "a.json", "nowhere.json", "--out", "page.html"},
                   {"b.json: /format: expected one of kvtier.result/1, kvtier.untimed/1, "
                    "kvtier.compare/1, kvtier.capacity/1, kvtier.plan/1, "
                    "kvtier.miss_ratio_curve/1, kvtier.reproduce/1, kvtier.validation/1, "
                    "kvtier.validations/1, or the lines of a sweep, got \"kvtier.result/9\"",
                    "nowhere.json: no such file"});
  EXPECT_EQ(read("page.html"), "old");
  EXPECT_EQ(files(), (Names{"a.json", "b.json", "page.html", "run.json"}));
}

TEST_F(ReportCommand, NeedsAFileToWrite) {
  std::filesystem::create_directory(path("folder"));
  expect_bad_input({"report", "a.json", "--out", "folder"},
                   {"--out: expected a file, got the folder folder"});
  expect_bad_input({"report", "a.json", "--out", "-"},
                   {"--out: expected a file, got standard output (-)"});
  write("a.json", "{}");
  expect_bad_input({"report", "a.json", "--out", "./a.json"}, {"--out: ./a.json is also an input"});
  expect_bad_input({"report", "a.json"}, {"--out is required", "see kvtier report --help"});
  expect_bad_input({"report", "--out", "a.html"},
                   {"RESULT is required", "see kvtier report --help"});
}

TEST_F(ReportCommand, FailsIfItCannotWrite) {
  const Outcome outcome = kvtier({"report", "a.json", "--out", "nowhere/a.html"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err, "kvtier: nowhere/a.html: cannot write: No such file or directory\n");
}

using Occupancy = ReportCommand;

TEST_F(Occupancy, IsAddedToAResultThatIsOtherwiseTheSame) {
  ASSERT_EQ(kvtier({"simulate", "run.json", "--json", "plain.json"}).code, 0);
  json with = read_json("a.json");
  EXPECT_FALSE(with["occupancy"]["seconds"].empty());
  with.erase("occupancy");
  EXPECT_EQ(with, read_json("plain.json"));
}

TEST_F(Occupancy, NeedsAResultAndAClock) {
  expect_bad_input({"simulate", "run.json", "--occupancy"},
                   {"--occupancy requires --json", "see kvtier simulate --help"});
  expect_bad_input({"simulate", "run.json", "--json", "b.json", "--occupancy", "--untimed",
                    "--timeline", "t.json"},
                   {"--timeline: an untimed replay has no clock",
                    "--occupancy: an untimed replay has no clock"});
  expect_bad_input(
      {"simulate", "run.json", "--json", "b.json", "--occupancy", "--find-capacity", "turns>=1"},
      {"--occupancy: shows one run, --find-capacity makes many"});
}

}  // namespace
}  // namespace kvtier::test
