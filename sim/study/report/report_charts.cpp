#include "sim/study/report/report_draw.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace charts {
namespace {

/// A value for each tier, from an object with a number for each tier.
std::vector<Value> by_tier(const std::string& pointer) {
  std::vector<Value> values;
  for (const auto& [tier, name] : kTierNames) {
    values.push_back({name, pointer + "/" + tier, tier});
  }
  return values;
}

std::vector<Value> statistics(const std::string& pointer) {
  return {{"mean s", pointer + "/mean", "mean"},
          {"p50 s", pointer + "/p50", "p50"},
          {"p90 s", pointer + "/p90", "p90"},
          {"p95 s", pointer + "/p95", "p95"},
          {"p99 s", pointer + "/p99", "p99"}};
}

const std::string kHitRates = "/metrics/hit_rate/all_turns";
constexpr const char* kRangeNote =
    "The bar begins at p50, changes its shade at p90 and ends at p99; the diamond is the mean.";

/// The sections of a page, in order.
std::vector<Section> sections() {
  return {
      {"plan",
       "Cheapest that meets the SLO",
       "No input is a plan: kvtier plan --json writes one.",
       {{.draw = plan_answers,
         .title = "{}: the cheapest of each system",
         .note = "Knee: the capacity from which on more of it improves little. Conditions that are "
                 "not met are marked."}}},
      {"hit-rate",
       "Hit rate by tier",
       "No input splits hits by tier: results of simulate, compare and sweep do.",
       {{.draw = bars_of_runs,
         .title = "Hit rate, by the tier in which the KV cache was found",
         .note = "A turn hits if the KV of its whole history is in some tier when it is admitted. "
                 "One block may be missing. First turns have no history and count as misses.",
         .values = by_tier(kHitRates),
         .unit = kPercent,
         .x_title = "% of all turns",
         .options = {{"x", {{"max", 100.0}}}}},
        {.draw = prompt_hits,
         .title = "Hit rates of requests, blocks and prompt tokens, %",
         .note = "A request hits if some of its tokens are found. Ceiling: the hit rate of a cache "
                 "without limit on the same requests. Bound: no eviction policy finds more "
                 "blocks at the run's capacity (Belady, without a clock); --bound computes it.",
         .unit = kPercent}}},
      {"capacity",
       "Hit rate over capacity",
       "No two runs differ in one tier's capacity alone. Give results at several capacities, a "
       "sweep with an axis of sizes, or what kvtier trace mrc --json writes.",
       {{.draw = over_capacity,
         .title = "Hit rate over the capacity of {}",
         .note = "Each line's runs differ in this capacity alone.",
         .values = {{"total", kHitRates + "/total", ""}},
         .unit = kPercent,
         .x_title = "capacity of {}",
         .y_title = "hit rate, % of all turns"},
        {.draw = over_capacity,
         .title = "Hit rate of prompt tokens over the capacity of {}",
         .note = "Each line's runs differ in this capacity alone.",
         .values = {{"total", "/metrics/hit_rate/prompt_tokens/total", ""}},
         .unit = kPercent,
         .x_title = "capacity of {}",
         .y_title = "hit rate, % of prompt tokens"},
        {.draw = reuse_curves,
         .title = "Hit rate of one LRU tier at every capacity",
         .note = "From the reuse distances of an untimed replay.",
         .unit = kPercent,
         .x_title = "capacity of the tier",
         .y_title = "hit rate, % of all turns"},
        {.draw = over_capacity,
         .title = "{1}: hits by tier over {0}",
         .values = by_tier(kHitRates),
         .unit = kPercent,
         .x_title = "capacity of {}",
         .y_title = "hit rate, % of all turns",
         .options = {{"stacked", true}}}}},
      {"ttft",
       "Time to first token",
       "No input has the distribution of TTFT: timed results of simulate, compare and sweep do.",
       {{.draw = bars_of_runs,
         .title = "TTFT with queueing: from the arrival of a turn to its first token",
         .note = kRangeNote,
         .drawing = "ranges",
         .values = statistics("/metrics/ttft_seconds"),
         .x_title = "seconds",
         .scale = "log",
         .overload_note =
             " *: the load exceeds capacity, and the numbers depend on the length of the run."},
        {.draw = bars_of_runs,
         .title = "TTFT without queueing: from the admission of a turn to its first token",
         .note = kRangeNote,
         .drawing = "ranges",
         .values = statistics("/metrics/ttft_seconds_without_queueing"),
         .x_title = "seconds",
         .scale = "log"}}},
      {"cost",
       "Cost against time to first token",
       "Two timed runs at least make a front: give several results, a comparison, a sweep or a "
       "plan.",
       {{.draw = front,
         .title = "Rent of GPUs and used tiers against mean TTFT",
         .note = "Nothing within capacity is both cheaper and faster than a run on the front. Runs "
                 "that "
                 "are too short to tell are not on it.",
         .values = {{"$ per hour", "/dollars_per_hour", ""},
                    {"TTFT mean s", "/metrics/ttft_seconds/mean", ""}},
         .x_title = "rent, $ per hour",
         .y_title = "mean TTFT with queueing, seconds",
         .scale = "log"}}},
      {"lost",
       "Lost hits by cause",
       "No input counts lost hits: results of simulate, compare and sweep do.",
       {{.draw = bars_of_runs,
         .title = "Turns with a history that was not all found",
         .note = "Why the KV cache, or a part of it, was in no tier.",
         .unit = kPercent,
         .x_title = "% of the turns that have a history",
         .keys_of = "/metrics/lost_hits",
         .none_of_keys = "No hit was lost: every turn that has a history found all of it.",
         .share_of = "/metrics/resumed_turns"}}},
      {"gpu",
       "GPU time",
       "No input has GPU time: timed results of simulate, compare and sweep do.",
       {{.draw = bars_of_runs,
         .title = "GPU time by activity",
         .note = "The measured part of the run, over all GPUs.",
         .values = {{"prefill", "/metrics/gpu_seconds/prefill", ""},
                    {"decode", "/metrics/gpu_seconds/decode", ""},
                    {"waiting for loads", "/metrics/gpu_seconds/exposed_load", ""},
                    {"waiting for saves", "/metrics/gpu_seconds/exposed_save", ""}},
         .unit = kHours,
         .x_title = "GPU hours"}}},
      {"occupancy",
       "Tier occupancy over time",
       "No input has samples of what the tiers hold: kvtier simulate --occupancy --json adds them "
       "to a result.",
       {{.draw = lines_of_samples,
         .title = "KV stored in {}",
         .note = "Means between one sample and the next.",
         .values = by_tier("/occupancy/bytes"),
         .unit = kGibibytes,
         .x_title = "simulated time, hours",
         .y_title = "GiB stored",
         .columns = {"run", "hours", "GiB"},
         .options = {{"smooth", true}},
         .times = "/occupancy/seconds"}}},
      {"instances",
       "Instances over time",
       "No input is a run of a cluster (/cluster).",
       {{.draw = lines_of_instances,
         .title = "{}: requests on each instance",
         .note = "Means of intervals, each drawn at its end. Lines that part show uneven load.",
         .x_title = "simulated time, seconds",
         .y_title = "requests",
         .columns = {"instance", "seconds", "requests"},
         .times = "requests"},
        {.draw = lines_of_instances,
         .title = "{}: prompt tokens found on each instance",
         .note = "Requests that end in an interval, drawn at its end.",
         .unit = kPercent,
         .x_title = "simulated time, seconds",
         .y_title = "prompt tokens found, %",
         .columns = {"instance", "seconds", "found, %"},
         .times = "hit_rate"}}},
      {"load",
       "Objective over load",
       "No input is a search for the highest load: kvtier simulate --find-capacity --json writes "
       "one.",
       {{.draw = over_load,
         .title = "{}: each condition's value over its bound",
         .note = "Up to 1 a condition is met (from 1 on where it asks for at least).",
         .y_title = "value / bound",
         .options = {{"marks", Json::array({{{"name", "bound"}, {"at", 1}}})}}}}},
      {"paper",
       "Beside a paper's figures",
       "No input has a paper's values: kvtier reproduce --json writes them.",
       {{.draw = paper_tables,
         .title = "{}: {} ({})",
         .note = "{} in their band, {} out. {}",
         .columns = {"value", "figure", "unit", "paper", "kvtier", "largest - smallest", "band",
                     "verdict", "why"}}}},
      {"validation",
       "Simulated beside measured",
       "No input has times of a device beside simulated ones: kvtier validate --json writes them.",
       {{.draw = beside,
         .title = "{}: {}",
         .note = "The third bar goes from the lowest to the highest of the measured runs; "
                 "\"measured\" is their median.",
         .drawing = "beside",
         .values = {{"simulated", "/simulated", "simulated"},
                    {"measured", "/measured", "measured"},
                    {"lowest", "/measured_lowest", "lowest"},
                    {"highest", "/measured_highest", "highest"}},
         .columns = {"error", "band", "verdict"}}}},
  };
}

}  // namespace
}  // namespace charts

std::vector<ReportSection> make_sections(const Report& report) {
  std::vector<ReportSection> all;
  // Runs of different models or workloads never share an axis. So each setting becomes a report of
  // its own, and so do documents without runs. A single setting needs no copies.
  const std::vector<ReportSetting> settings = by_setting(report);
  std::vector<std::pair<std::string, Report>> parts;
  if (settings.size() > 1) {
    Report documents = report;
    documents.runs.clear();
    for (const ReportSetting& setting : settings) {
      Report& part = parts.emplace_back(" (" + setting.name + ")", Report{}).second;
      part.inputs = report.inputs;
      for (const ReportRun* run : setting.runs) {
        part.runs.push_back(*run);
      }
    }
    parts.emplace_back("", std::move(documents));
  }
  for (const charts::Section& from : charts::sections()) {
    ReportSection section{from.id, from.title, {}, ""};
    for (const charts::Entry& entry : from.entries) {
      if (parts.empty()) {
        entry.draw(entry, report, section);
      }
      for (const auto& [suffix, part] : parts) {
        const std::size_t before = section.charts.size();
        entry.draw(entry, part, section);
        for (std::size_t i = before; i < section.charts.size(); ++i) {
          section.charts[i].title += suffix;
        }
      }
    }
    if (section.charts.empty() && section.missing.empty()) {
      section.missing = from.missing;
    }
    all.push_back(std::move(section));
  }
  return all;
}

}  // namespace kvtier
