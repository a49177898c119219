// The folder that a sweep resumes from. Its state counts only where it is of the same sweep and
// whole, so the results of a resumed sweep are those of one run at once, whatever lies in the
// folder.
//
// An input is files one after the other, each after a line "== NAME". In these, a line "@identity"
// stands for the sweep's own identity, "@0" and "@1" for the whole lines of its runs, and "+TEXT"
// for TEXT with a checksum, if it is JSON.
#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "policies/registry.hpp"
#include "sim/core/file.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/runs/run_folder.hpp"
#include "sim/study/sweep/sweep_run.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvtier::fuzz {
namespace {

namespace fs = std::filesystem;

/// Two runs of one session, which take no time.
constexpr const char* kSweep = R"({
  "config": {
    "model": "llama2-7b", "hardware": "a100-40g", "system": "recompute",
    "workload": {"generator": "sharegpt", "sessions": 1, "arrival_rate": "1/s", "warmup_turns": 0},
    "seed": 1
  },
  "axes": [{"name": "rate", "key": "/workload/arrival_rate", "values": ["1/s", "2/s"]}],
  "columns": [{"name": "TTFT", "value": "/metrics/ttft_seconds/mean", "unit": "s"}]
})";

/// The sweep, and its results when it is run into an empty folder.
struct Whole {
  ConfigDirectory presets{KVTIER_CONFIG_DIR};
  PolicyRegistry registry = builtin_policies();
  Sweep sweep = load_sweep(write_scratch("sweep.json", kSweep));
  SweepPoints points{sweep, presets, registry};
  std::string identity = sweep_identity(sweep, points, Shard{}).dump();
  std::vector<std::string> lines;
  std::string csv;

  Whole() {
    SweepOptions options;
    options.out = scratch_folder() / "whole";
    for (const SweepRow& row : run_sweep(sweep, points, registry, options).rows) {
      lines.push_back(row.line);
    }
    csv = read_text_file(options.out / kSweepFolder.summary);
  }
};
const Whole& whole() {
  static const Whole once;
  return once;
}

std::string expanded(const std::string& line) {
  if (line == "@identity") {
    return whole().identity;
  }
  if (line == "@0" || line == "@1") {
    return whole().lines[line == "@0" ? 0 : 1];
  }
  if (line.starts_with("+")) {
    const Json json = Json::parse(line.substr(1), nullptr, false);
    return json.is_object() ? sealed_line(json) : line.substr(1);
  }
  return line;
}

void make_folder(const fs::path& folder, std::string_view input) {
  constexpr std::string_view kName = "== ";
  fs::remove_all(folder);
  fs::create_directory(folder);
  constexpr std::array<std::string_view, 4> kNames{"sweep.json", "results.jsonl",
                                                   "results.jsonl.partial", "results.csv"};
  std::ofstream file;
  std::istringstream text{std::string(input)};
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(kName)) {
      const std::string name = line.substr(kName.size());
      file.close();
      if (std::ranges::find(kNames, name) != kNames.end()) {
        file.open(folder / name, std::ios::binary | std::ios::trunc);
      }
    } else if (file.is_open()) {
      // The last line ends where the input does.
      file << expanded(line) << (text.eof() ? "" : "\n");
    }
  }
}

}  // namespace

Words words() {
  Words all;
  const auto add = [&](const auto& self, const Json& json) -> void {
    for (const auto& [key, value] : json.items()) {
      all.keys.insert(json.is_object() ? key : "error");
      if (value.is_structured()) {
        self(self, value);
      }
    }
  };
  add(add, Json::parse(whole().lines[0]));
  all.keys.insert({"error", "refused", "kind", "problems"});
  all.values = {"input", "device", "internal", "load exceeds capacity", "1/s", "2/s"};
  return all;
}

void run_input(std::string_view input) {
  const Whole& at_once = whole();
  const fs::path folder = scratch_folder() / "resumed";
  make_folder(folder, input);
  SweepOptions options;
  options.out = folder;
  options.resume = true;
  options.tell = [](const std::string& message) { expect(!message.empty(), "no message"); };
  // Whoever seals lines can make up results: then reading them is all that is tried.
  const bool is_made_up = input.find("+{") != std::string_view::npos ||
                          input.find("\"checksum\"") != std::string_view::npos;
  const SweepResult result = run_sweep(at_once.sweep, at_once.points, at_once.registry, options);
  (void)to_table(at_once.sweep, result);
  if (!is_made_up) {
    const std::string lines = read_text_file(folder / kRunLines);
    expect(lines == at_once.lines[0] + "\n" + at_once.lines[1] + "\n",
           "a resumed sweep has other results:\n" + lines);
    expect(read_text_file(folder / kSweepFolder.summary) == at_once.csv,
           "a resumed sweep has another table");
  }
  check_result(at_once.sweep, result);
}

}  // namespace kvtier::fuzz
