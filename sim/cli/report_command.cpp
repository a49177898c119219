#include "sim/cli/commands.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/program.hpp"
#include "sim/study/report/report.hpp"

namespace kvtier::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> results;
  std::string out;
};

int report_command(const ReportOptions& options) {
  check_chart_library(page_parts());
  check_outputs({{"--out", options.out}}, options.results);
  const Report report = read_report(options.results);
  TextOutput out(options.out);
  out.write(report_page(report, page_parts()));
  return 0;
}

}  // namespace

void add_report(Program& program) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = program.app.add_subcommand(
      "report", "Draw results as one page of charts and tables, which needs only a browser");
  command
      ->add_option("RESULT", options->results,
                   "JSON file of simulate, compare, plan, trace mrc, reproduce or validate, or the "
                   "folder of a sweep or plan")
      ->required();
  command->add_option("--out", options->out, "Write the page (HTML) to this file")->required();
  command->callback(
      [&program, options] { program.run = [options] { return report_command(*options); }; });
}

}  // namespace kvtier::cli
