/// configs/papers/README.md: what changing one assumption at a time does, as the program prints it.

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
  const Outcome outcome = kvtier({"reproduce", "attentionstore", "--sensitivity"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  if (outcome.out.find("[left out: ") != std::string::npos) {
    GTEST_SKIP() << "a variation is left out, since its data is not installed:\n" << outcome.out;
  }
  const fs::path page = configs() / "papers" / "README.md";
  std::string text = read_file(page);
  const Part part = marked_part(text, "sensitivity");
  text.replace(part.begin, part.text.size(), "```text\n" + outcome.out + "```\n");
  expect_file_holds(page, text);
}

}  // namespace
}  // namespace kvtier::test
