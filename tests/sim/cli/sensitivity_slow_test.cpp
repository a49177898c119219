/// docs/papers.md has the program's table of variations, one assumption at a time.

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/cli/documents.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

namespace fs = std::filesystem;

class Sensitivity : public ProgramTest {};

TEST_F(Sensitivity, IsShownAsTheProgramPrintsIt) {
  const fs::path folder = configs() / "papers" / "attentionstore";
  const auto paper = nlohmann::json::parse(read_file(folder / "reproduction.json"));
  for (const auto& variation : paper["sensitivity"]["variations"]) {
    if (variation.contains("needs") &&
        !fs::exists(folder / variation["needs"].get<std::string>())) {
      GTEST_SKIP() << "a column would be left out: there is no " << variation["needs"];
    }
  }
  const Outcome outcome = kvtier({"reproduce", "attentionstore", "--sensitivity"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const fs::path page = fs::path(KVTIER_SOURCE_DIR) / "docs/papers.md";
  std::string text = read_file(page);
  const Part part = marked_part(text, "sensitivity");
  text.replace(part.begin, part.text.size(), "```text\n" + outcome.out + "```\n");
  expect_file_holds(page, text);
}

}  // namespace
}  // namespace kvtier::test
