#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/study/runs/recorders.hpp"
#include "sim/study/validate/validate.hpp"
#include "tests/sim/study/support.hpp"

// The table of configs/systems/README.md says which preset has which feature. Each cell is the
// outcome of a run, or the message of its refusal.
namespace kvtier::test {
namespace {

struct Cell {
  std::string text = "yes";
  /// For another text than "yes".
  std::string reason;
};

/// A short workload. Sessions share nothing.
RunConfig config_of(const std::string& file, const std::string& system,
                    const std::vector<std::string>& hbm, const std::vector<std::string>& more) {
  std::vector<std::string> settings{
      R"(/hardware/cxl={"capacity": "4GiB", "price": "0$/h/GiB", "bandwidth": {"read": "10GB/s", "write": "10GB/s", "both": "10GB/s"}})",
      "/system=" + system, "/workload/warmup_turns=0"};
  const TiersConfig tiers = resolved("examples/planner-70.json", settings).system.tiers;
  settings.insert(settings.end(), more.begin(), more.end());
  if (tiers.hbm && tiers.hbm->capacity) {
    settings.insert(settings.end(), hbm.begin(), hbm.end());
  }
  return resolved(file, settings);
}

struct Simulated {
  Json result;
  double end_seconds = 0;

  [[nodiscard]] const Json& tiers() const { return result["metrics"]["tiers"]; }
  [[nodiscard]] std::string last_tier() const {
    return tiers().empty() ? "" : std::prev(tiers().end()).key();
  }
};

/// All tiers are too small for the workload.
Simulated run_of(const std::string& system, std::vector<std::string> more = {},
                 DecisionObserver* decisions = nullptr) {
  more.insert(more.end(), {"/model/context_window=2048tokens", "/hardware/dram/capacity=3GiB",
                           "/hardware/ssd/capacity=8GiB", "/system/save/write_buffer=1GiB",
                           "/serving/kv_memory=4GiB", "/serving/knowledge=look_ahead",
                           "/workload/sessions=20", "/workload/arrival_rate=1/s",
                           "/workload/think_time/mean=5s", "/workload/measure=all"});
  RequestList requests;
  Json result =
      simulate(config_of("examples/planner-70.json", system,
                         {"/system/tiers/hbm/capacity=4GiB", "/serving/kv_memory=12GiB"}, more),
               builtin_policies(), {.observer = &requests, .decisions = decisions});
  return {std::move(result), requests.records.back().finished.seconds()};
}

/// Each tier takes policies of the registry, and one of them changes the result.
Cell policies(const std::string& system, const Simulated& own) {
  Cell cell;
  for (const auto& [tier, counters] : own.tiers().items()) {
    bool differs = false;
    for (const char* choice : {"eviction=s3fifo", "eviction=sieve", "admission=second_hit"}) {
      try {
        const Simulated run = run_of(system, {fmt::format("/system/tiers/{}/{}", tier, choice)});
        differs = differs || run.result["metrics"] != own.result["metrics"];
      } catch (const ConfigError& refusal) {
        const std::string text = refusal.what();
        cell = {"in part", text.substr(text.find("/system/tiers"))};
      }
    }
    EXPECT_TRUE(differs) << tier;
  }
  return cell;
}

/// The log has each insertion and eviction that the result counts.
Cell decisions(const Simulated& run, const std::filesystem::path& log) {
  std::map<std::string, std::int64_t> counted;
  std::istringstream lines(read_text_file(log));
  for (std::string text; std::getline(lines, text);) {
    const Json line = parse_json_strictly(text, log.string());
    if (line["time_seconds"].get<double>() > run.end_seconds) {
      continue;
    }
    const auto tier = line["tier"].get<std::string>();
    const auto kind = line["decision"].get<std::string>();
    const auto blocks = line.value("blocks", std::int64_t{0});
    // A session leaves each tier but the last by "demote". "evict" follows if the next tier does
    // not take it.
    const bool leaves = blocks > 0 ? kind == "evict" || kind == "demote"
                                   : kind == (tier == run.last_tier() ? "evict" : "demote");
    const bool comes =
        kind == "insert" || (blocks > 0 && (kind == "promote" || kind == "prefetch"));
    counted[tier + (comes ? " in" : leaves ? " out" : "")] += std::max<std::int64_t>(blocks, 1);
  }
  EXPECT_FALSE(counted.empty());
  for (const auto& [tier, counters] : run.tiers().items()) {
    if (counted[tier + " in"] != counters["insertions"] ||
        counted[tier + " out"] != counters["evictions"]) {
      return {"in part",
              "HBM: the log has parts when their copy begins, results when they leave. DRAM: the "
              "log has the first part of a session, results have all"};
    }
  }
  return {};
}

/// A lock-step run with a tiny model moves each byte as decided.
Cell device(const std::string& system, bool has_moves) {
  const RunConfig config = config_of(
      "validation/cpu.json", system,
      {"/system/tiers/hbm/capacity=2MiB", "/serving/kv_memory=9MiB",
       "/system/tiers/hbm/free_buffer=0B"},
      {"/model/context_window=512tokens", "/hardware/cxl/capacity=3MiB",
       "/hardware/dram/capacity=3MiB", "/hardware/ssd/capacity=8MiB",
       "/system/save/write_buffer=1MiB", "/serving/kv_memory=4MiB", "/workload/sessions=6",
       "/workload/sharegpt/turns_max=4", "/workload/sharegpt/message_cap=120tokens",
       "/workload/sharegpt/assistant_tokens_median=6", "/workload/arrival_rate=4/s",
       "/workload/think_time/mean=200ms"});
  ValidateOptions options;
  options.device.index = 1;
  options.storage = source_dir().string();
  try {
    const LockStep run = validate_in_lock_step(config, builtin_policies(), options);
    EXPECT_TRUE(run.equal);
    EXPECT_EQ(run.moved, run.verified);
    EXPECT_EQ(run.moves > 0, has_moves);
    return {};
  } catch (const ConfigError& refusal) {
    return {"-", fmt::format("{}", fmt::join(refusal.problems(), "; "))};
  }
}

/// KV is found in the slowest tier when it has arrived there. At 10 MB/s, requests find little of
/// it or wait for the writes. found_is_read_test.cpp compares what is found with what is written.
Cell moves(const std::string& system, const Simulated& own) {
  const std::string tier = own.last_tier();
  if (tier == "hbm") {
    return {"-", "no tier is behind HBM"};
  }
  const std::string link = tier == "dram" ? "links/pcie/to_host" : tier + "/bandwidth/write";
  const Simulated slow = run_of(system, {"/hardware/" + link + "=0.01GB/s"});
  EXPECT_LE(number_at(slow.tiers()[tier], "/written_bytes"), 0.01e9 * slow.end_seconds + 1);
  const double read = number_at(own.tiers()[tier], "/read_bytes");
  EXPECT_GT(read, 0);
  EXPECT_TRUE(number_at(slow.tiers()[tier], "/read_bytes") < read / 10 ||
              slow.end_seconds > 3 * own.end_seconds);
  return {};
}

TEST(Presets, HaveTheFeaturesOfTheTable) {
  std::string table = "| preset | policies | decisions | device | moves |\n|---|---|---|---|---|\n";
  std::map<std::string, std::set<std::string>> reasons;
  const TempDir folder;
  for (const std::string& system : presets().names("systems")) {
    SCOPED_TRACE(system);
    const std::filesystem::path log = folder.path(system + ".jsonl");
    DecisionRecorder recorder(log.string());
    const Simulated own = run_of(system, {}, &recorder);
    recorder.commit();
    table += "| `" + system + "` |";
    const bool has_tier =
        std::ranges::any_of(own.tiers(), [](const Json& tier) { return tier["insertions"] > 0; });
    const Cell no_tier{"-", "no tier keeps KV"};
    for (const auto& [feature, cell] : std::array<std::pair<const char*, Cell>, 4>{
             {{"policies", has_tier ? policies(system, own) : no_tier},
              {"decisions", has_tier ? decisions(own, log) : no_tier},
              {"device", device(system, has_tier && own.last_tier() != "hbm")},
              {"moves", has_tier ? moves(system, own) : no_tier}}}) {
      table += " " + cell.text + " |";
      if (!cell.reason.empty()) {
        reasons[(has_tier ? std::string(feature) + ": " : "") + cell.reason].insert("`" + system +
                                                                                    "`");
      }
    }
    table += "\n";
  }
  table += "\n";
  for (const auto& [reason, systems] : reasons) {
    table += fmt::format("* {} ({})\n", reason, fmt::join(systems, ", "));
  }
  const std::string page = (source_dir() / "configs/systems/README.md").string();
  std::string text = read_text_file(page);
  const std::string begin = "<!-- begin: features -->\n";
  const std::size_t from = text.find(begin) + begin.size();
  const std::size_t length = text.find("<!-- end: features -->\n") - from;
  const char* update = std::getenv("KVTIER_UPDATE_DOCS");
  if (update != nullptr && std::string(update) == "1") {
    write_text_output(page, text.replace(from, length, table));
    return;
  }
  EXPECT_EQ(text.substr(from, length), table)
      << "KVTIER_UPDATE_DOCS=1 writes the table to " << page;
}

}  // namespace
}  // namespace kvtier::test
