/// Every paper that can be reproduced: its bands hold, and docs/papers.md has the program's output.

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Rows that are known to be out of their band; each paper's page says why.
const std::set<std::string> kKnownOut;

class Reproduction : public ProgramTest {};

TEST_F(Reproduction, IsInsideItsBandsAndShownAsTheProgramPrintsIt) {
  std::set<std::string> papers;
  for (const auto& folder : fs::directory_iterator(configs() / "papers")) {
    if (fs::exists(folder.path() / "reproduction.json")) {
      papers.insert(folder.path().filename().string());
    }
  }
  ASSERT_FALSE(papers.empty());
  std::set<std::string> shown;
  std::set<std::string> out;
  const fs::path page = fs::path(KVTIER_SOURCE_DIR) / "docs/papers.md";
  std::string text = read_file(page);
  replace_outputs(text, [&](const std::string& command, std::string& output) {
    std::vector<std::string> arguments = split_words(command);
    ASSERT_EQ(arguments.size(), 3U) << command;
    ASSERT_EQ(arguments[0], "kvtier");
    ASSERT_EQ(arguments[1], "reproduce");
    const std::string paper = arguments[2];
    shown.insert(paper);
    const std::string numbers = paper + ".json";
    const Outcome outcome = kvtier({"reproduce", paper, "--json", numbers});
    ASSERT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.err;
    output = outcome.out;
    const json result = read_json(numbers);
    EXPECT_EQ(outcome.code, result["values_out_of_band"] == 0 ? 0 : 1);
    EXPECT_GT(result["values_in_band"], 0);
    for (const auto& [figure, content] : result["figures"].items()) {
      for (const json& value : content["values"]) {
        if (value["verdict"] == "out") {
          out.insert(paper + " " + figure + " " + value["name"].get<std::string>());
        }
      }
    }
  });
  if (HasFatalFailure()) {
    return;
  }
  EXPECT_EQ(shown, papers);
  EXPECT_EQ(out, kKnownOut);
  expect_file_holds(page, text);
}

}  // namespace
}  // namespace kvtier::test
