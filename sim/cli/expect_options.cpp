#include "sim/cli/expect_options.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "sim/cli/terminal.hpp"

namespace kvtier::cli {

void ExpectOptions::add_to(CLI::App& command, const std::string& about) {
  CLI::Option* expect = command.add_option(
      "--expect", file,
      fmt::format("Check a JSON file's expectations of {}; exit code 1 if one does not hold",
                  about));
  command
      .add_flag("--update-expect", update,
                "Write the values found into the file of --expect; tolerances and limits stay")
      ->needs(expect);
}

Expectations::Expectations(const ExpectOptions& options) : options_(options) {
  if (!options_.file.empty()) {
    json_ = parse_json_strictly(read_text_file(options_.file), options_.file);
    expectations_ = read_expectations(json_, options_.file);
  }
  if (options_.update) {
    updated_.emplace(options_.file);
  }
}

void Expectations::check(const std::function<FindValue()>& values) {
  if (options_.file.empty()) {
    return;
  }
  const FindValue find = values();
  failed_ = failed_expectations(find, expectations_, options_.file);
  if (!options_.update) {
    return;
  }
  json_ = updated_expectations(std::move(json_), find, expectations_);
  // An update keeps the limits, so they may still fail.
  failed_ = failed_expectations(find, read_expectations(json_, options_.file), options_.file);
}

int Expectations::finish() {
  if (updated_) {
    updated_->write(json_text(json_, 2) + "\n");
  }
  for (const std::string& problem : failed_) {
    tell(fmt::format("{}: {}", options_.file, problem));
  }
  return failed_.empty() ? 0 : 1;
}

}  // namespace kvtier::cli
