// The reader of results, and the page of them. An input is one file or, after a first line
// "sweep.json TEXT", the lines of a sweep beside the file that says of which.
#include "sim/study/report/report.hpp"

#include <filesystem>

#include "tests/fuzz/fuzz.hpp"

namespace kvtier::fuzz {

Words words() {
  Words all;
  for (const char* key :
       {"format",       "config",      "metrics",   "systems",      "results",   "axes",
        "points",       "labels",      "rows",      "metric",       "simulated", "measured",
        "trials",       "lock_step",   "equal",     "refused",      "error",     "problems",
        "point",        "replication", "seed",      "hit_rate",     "all_turns", "total",
        "ttft_seconds", "mean",        "p50",       "p99",          "workload",  "load",
        "version",      "bound",       "timing",    "cost_dollars", "capacity",  "curves",
        "figures",      "complete",    "validation"}) {
    all.keys.insert(key);
  }
  all.values = {"kvtier.result/1",    "kvtier.untimed/1",    "kvtier.compare/1",
                "kvtier.capacity/1",  "kvtier.plan/1",       "kvtier.miss_ratio_curve/1",
                "kvtier.reproduce/1", "kvtier.validation/1", "kvtier.validations/1",
                "kvtier.sweep/1"};
  return all;
}

void run_input(std::string_view input) {
  constexpr std::string_view kIdentity = "sweep.json ";
  std::string file;
  if (input.starts_with(kIdentity)) {
    const std::size_t end = std::min(input.find('\n'), input.size());
    std::filesystem::create_directory(scratch_folder() / "sweep");
    (void)write_scratch("sweep/sweep.json", input.substr(kIdentity.size(), end - kIdentity.size()));
    (void)write_scratch("sweep/results.jsonl", input.substr(std::min(end + 1, input.size())));
    file = scratch_folder() / "sweep";
  } else {
    file = write_scratch("result.json", input);
  }
  const Report report = read_report({file});
  (void)headline_tables(report);
  constexpr PageParts kParts{
      .style = "", .script = "", .chart_library = "Chart", .chart_licence = "<MIT>"};
  const std::string page = report_page(report, kParts);
  expect(page == report_page(report, kParts), "the same report gives another page");
}

}  // namespace kvtier::fuzz
