/// Every paper that can be reproduced: its bands hold, and configs/papers/README.md shows what the
/// program prints.

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

TEST_F(Reproduction, IsInsideItsBands) {
  int papers = 0;
  std::set<std::string> out;
  for (const auto& folder : fs::directory_iterator(configs() / "papers")) {
    if (!fs::exists(folder.path() / "reproduction.json")) {
      continue;
    }
    ++papers;
    const std::string paper = folder.path().filename().string();
    const Outcome outcome = kvtier({"reproduce", paper, "--json", "-"});
    ASSERT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.err;
    const json result = json::parse(outcome.out);
    EXPECT_EQ(outcome.code, result["values_out_of_band"] == 0 ? 0 : 1);
    EXPECT_GT(result["values_in_band"], 0);
    for (const auto& [figure, content] : result["figures"].items()) {
      for (const json& value : content["values"]) {
        if (value["verdict"] == "out") {
          out.insert(paper + " " + figure + " " + value["name"].get<std::string>());
        }
      }
    }
  }
  EXPECT_GT(papers, 0);
  EXPECT_EQ(out, kKnownOut);
}

TEST_F(Reproduction, IsShownAsTheProgramPrintsIt) {
  const fs::path page = configs() / "papers" / "README.md";
  std::string text = read_file(page);
  const int outputs =
      replace_outputs(text, [this](const std::string& command, std::string& output) {
        std::vector<std::string> arguments = split_words(command);
        ASSERT_EQ(arguments.front(), "kvtier");
        arguments.erase(arguments.begin());
        const Outcome outcome = kvtier(arguments);
        ASSERT_TRUE(outcome.code == 0 || outcome.code == 1) << outcome.err;
        output = outcome.out;
      });
  if (HasFatalFailure()) {
    return;
  }
  EXPECT_GT(outputs, 0);
  expect_file_holds(page, text);
}

}  // namespace
}  // namespace kvtier::test
