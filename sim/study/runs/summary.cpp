#include "sim/study/runs/summary.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/serving/result.hpp"

namespace kvtier {
namespace {

constexpr double kMillis = 1000;
constexpr double kPercent = 100;

constexpr const char* kBound = "/bound/hit_rate/all_turns";
constexpr const char* kBlockBound = "/bound/hit_rate/blocks";
constexpr const char* kBlocks = "/config/system/blocks";
constexpr const char* kResumed = "/metrics/resumed_turns";
constexpr const char* kIdeal = "/metrics/hit_rate/ideal";

constexpr ResultRow kRows[] = {
    {"turns measured", "/metrics/turns", 1, "{:.0f}"},
    {"requests/s, nominal", "/load/requests_per_second/nominal", 1, "{:.3f}"},
    {"requests/s, measured", "/load/requests_per_second/measured", 1, "{:.3f}"},
    {"hit rate, all turns %", "/metrics/hit_rate/all_turns/total", 100, "{:.1f}", kResumed},
    {"hit rate, resumed turns %", "/metrics/hit_rate/resumed_turns/total", 100, "{:.1f}", kResumed},
    {"hit rate, history tokens %", "/metrics/hit_rate/tokens/total", 100, "{:.1f}", kResumed},
    {"requests with a hit %", "/metrics/hit_rate/requests_with_hits", 100, "{:.1f}"},
    {"hit rate, blocks %", "/metrics/hit_rate/blocks/total", 100, "{:.1f}", kBlocks},
    {"hit rate, prompt tokens %", "/metrics/hit_rate/prompt_tokens/total", 100, "{:.1f}"},
    {"  of which in HBM %", "/metrics/hit_rate/prompt_tokens/hbm", 100, "{:.1f}",
     "/config/system/tiers/hbm"},
    {"  of which in DRAM %", "/metrics/hit_rate/prompt_tokens/dram", 100, "{:.1f}",
     "/config/system/tiers/dram"},
    {"  of which in CXL %", "/metrics/hit_rate/prompt_tokens/cxl", 100, "{:.1f}",
     "/config/system/tiers/cxl"},
    {"  of which in SSD %", "/metrics/hit_rate/prompt_tokens/ssd", 100, "{:.1f}",
     "/config/system/tiers/ssd"},
    {"  cache without limit %", "/metrics/hit_rate/ideal/prompt_tokens", 100, "{:.1f}", kIdeal},
    {"preemptions", "/metrics/preemptions", 1, "{:.0f}", kBlocks},
    {"TTFT mean s", "/metrics/ttft_seconds/mean", 1, "{:.3f}"},
    {"TTFT p90 s", "/metrics/ttft_seconds/p90", 1, "{:.3f}"},
    {"TTFT p95 s", "/metrics/ttft_seconds/p95", 1, "{:.3f}"},
    {"TTFT without queueing, mean ms", "/metrics/ttft_seconds_without_queueing/mean", kMillis,
     "{:.1f}"},
    {"TTFT without queueing, p90 ms", "/metrics/ttft_seconds_without_queueing/p90", kMillis,
     "{:.1f}"},
    {"TPOT mean ms", "/metrics/tpot_seconds/mean", kMillis, "{:.1f}"},
    {"prompt tokens served/s", "/metrics/prompt_tokens_served_per_second", 1, "{:.0f}"},
    {"  of which computed/s", "/metrics/computed_tokens_per_second", 1, "{:.0f}"},
    {"output throughput, tokens/s", "/metrics/output_throughput_tokens_per_second", 1, "{:.0f}"},
    {"GPU seconds per request", "/metrics/gpu_seconds_per_request/total", 1, "{:.3f}"},
    {"  prefill", "/metrics/gpu_seconds_per_request/prefill", 1, "{:.3f}"},
    {"  decode", "/metrics/gpu_seconds_per_request/decode", 1, "{:.3f}"},
    {"  waiting for loads", "/metrics/gpu_seconds_per_request/exposed_load", 1, "{:.3f}"},
    {"  waiting for saves", "/metrics/gpu_seconds_per_request/exposed_save", 1, "{:.3f}"},
    {"$ per million output tokens", "/metrics/dollars_per_million_output_tokens/rented", 1,
     "{:.2f}"},
    {"  for the GPUs' busy time", "/metrics/dollars_per_million_output_tokens/busy", 1, "{:.2f}"},
    {"slots in use %", "/load/slots_in_use_fraction", 100, "{:.1f}"},
    {"HBM for KV in use %", "/load/kv_memory_in_use_fraction", 100, "{:.1f}"},
    {"HBM for KV, tokens", "/load/kv/tokens_in_hbm", 1, "{:.0f}"},
    {"GPUs busy %", "/load/gpu_busy_fraction", 100, "{:.1f}"},
    {"untimed hit rate, blocks %", "/bound/untimed_hit_rate/blocks/total", 100, "{:.1f}",
     kBlockBound},
    {"  Belady %", "/bound/hit_rate/blocks", 100, "{:.1f}", kBlockBound},
    {"untimed hit rate, all turns %", "/bound/untimed_hit_rate/all_turns/total", 100, "{:.1f}",
     kBound},
    {"  Belady, greedy %", "/bound/hit_rate/all_turns/total", 100, "{:.1f}", kBound},
    {"  upper bound of all policies %", "/bound/upper_bound/hit_rate/all_turns", 100, "{:.1f}",
     kBound},
    {"  share of it reached %", "/bound/upper_bound/share_reached/all_turns", 100, "{:.1f}",
     kBound},
};

/// Names of causes of waiting: in results, and in tables.
struct CauseLabel {
  const char* name;
  const char* label;
};
constexpr CauseLabel kCauses[] = {{"batch_slots", "batch slots"},
                                  {"hbm_for_kv", "HBM for KV"},
                                  {"gpu_compute", "GPU compute"},
                                  {"host_link", "host link"},
                                  {"host_memory", "host memory"},
                                  {"cxl_memory", "CXL memory"},
                                  {"drive", "drive"},
                                  {"write_buffer", "write buffer"}};

/// The text at a pointer; empty if it is missing or "none".
std::string text_or_none(const Json& config, const char* pointer) {
  const std::string found = text_at(config, pointer);
  return found == "none" ? "" : found;
}

/// "2 x A100"; empty if the config lacks it.
std::string gpus_of(const Json& config) {
  const auto gpus = number_at(config, "/hardware/gpus");
  const std::string name = text_or_none(config, "/hardware/gpu/name");
  return gpus && !name.empty() ? fmt::format("{:g} x {}", *gpus, name) : "";
}

/// "mix of chat, agents"; empty for other workloads.
std::string mix_of(const Json& config) {
  const Json* mix = find_at(config, Json::json_pointer("/workload/mix"));
  std::vector<std::string> names;
  if (mix != nullptr && mix->is_array()) {
    for (const Json& member : *mix) {
      names.push_back(text_at(member, "/name"));
    }
  }
  return names.empty() ? "" : fmt::format("mix of {}", fmt::join(names, ", "));
}

/// Whether some instances of a cluster differ from the others.
bool has_groups(const Json& config) {
  const Json* groups = find_at(config, Json::json_pointer("/cluster/groups"));
  return groups != nullptr && !groups->empty();
}

std::string setting(const Json& config) {
  std::string text = text_at(config, "/model/name") + " on " + gpus_of(config);
  for (const auto& [tier, name] : kTierNames) {
    // HBM is part of the GPU.
    const std::string capacity =
        name == std::string_view("HBM")
            ? ""
            : text_or_none(config, fmt::format("/hardware/{}/capacity", tier).c_str());
    text += capacity.empty() ? "" : fmt::format(", {} {}", capacity, name);
  }
  const auto cluster = config.find("cluster");
  return cluster == config.end()
             ? text
             : fmt::format("{} instances behind {}, {} {}",
                           (*cluster)["instances"].get<std::int64_t>(),
                           (*cluster)["router"].is_string()
                               ? (*cluster)["router"].get<std::string>()
                               : (*cluster)["router"]["policy"].get<std::string>(),
                           has_groups(config) ? "some differ from" : "each", text);
}

std::string workload_line(const Json& result) {
  const Json& config = result["config"];
  const std::string trace = text_or_none(config, "/workload/trace");
  std::string source = mix_of(config);
  if (source.empty()) {
    source = !trace.empty() ? "trace " + trace
                            : "generator " + text_at(config, "/workload/generator") +
                                  (result["workload"].contains("synthetic") ? " (synthetic)" : "");
  }
  return fmt::format("{}: {} sessions, {} turns", source,
                     result["workload"]["sessions"].get<std::int64_t>(),
                     result["workload"]["turns"].get<std::int64_t>());
}

}  // namespace

std::string words_of(std::string key) {
  std::ranges::replace(key, '_', ' ');
  return key;
}

const Json* find_at(const Json& json, const Json::json_pointer& at) {
  try {
    return json.contains(at) ? &json.at(at) : nullptr;
  } catch (const Json::exception&) {
    return nullptr;
  }
}

std::optional<double> number_at(const Json& result, const std::string& pointer) {
  const Json* value = find_at(result, Json::json_pointer(pointer));
  return value != nullptr && value->is_number() ? std::optional(value->get<double>())
                                                : std::nullopt;
}

std::optional<std::vector<double>> numbers_at(const std::vector<Json>& results,
                                              const std::string& pointer) {
  std::vector<double> numbers;
  for (const Json& result : results) {
    const auto number = number_at(result, pointer);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<Summary> summarize(const std::vector<Json>& results, const std::string& pointer) {
  KVTIER_ASSERT(!results.empty(), "a summary has results");
  const auto numbers = numbers_at(results, pointer);
  if (!numbers) {
    return std::nullopt;
  }
  double sum = 0;
  for (const double number : *numbers) {
    sum += number;
  }
  const auto [least, most] = std::minmax_element(numbers->begin(), numbers->end());
  return Summary{sum / static_cast<double>(numbers->size()), *most - *least};
}

std::string text_at(const Json& result, const std::string& pointer) {
  const Json* value = find_at(result, Json::json_pointer(pointer));
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

std::span<const ResultRow> result_rows() { return kRows; }

bool exceeds_capacity(const Json& result) {
  return text_at(result, "/load/verdict") == kLoadExceedsCapacity;
}

bool is_too_short(const Json& result) { return text_at(result, "/load/verdict") == kRunTooShort; }

bool ever_exceeds_capacity(const Json& result) {
  return exceeds_capacity(result) ||
         text_at(result, "/load/verdict") == kLoadExceedsCapacityAtTimes;
}

std::string describe_verdict(const Json& result) {
  const std::string verdict = text_at(result, "/load/verdict");
  const auto share = number_at(result, "/load/overloaded_fraction");
  return verdict == kLoadExceedsCapacityAtTimes && share
             ? fmt::format("{} {:.0f} % of the time", kLoadExceedsCapacity, *share * kPercent)
             : verdict;
}

std::string describe_bottleneck(const std::vector<Json>& results) {
  const std::string name = text_at(results.front(), "/load/bottleneck/name");
  const auto share = summarize(results, "/load/bottleneck/share");
  if (name.empty() || !share) {
    return "-";
  }
  const bool same = std::all_of(results.begin(), results.end(), [&](const Json& result) {
    return text_at(result, "/load/bottleneck/name") == name;
  });
  if (!same) {
    return "differs between runs";
  }
  const auto label = std::find_if(std::begin(kCauses), std::end(kCauses),
                                  [&](const CauseLabel& cause) { return name == cause.name; });
  return label == std::end(kCauses)
             ? name
             : fmt::format("{} {:.0f} %", label->label, share->mean * kPercent);
}

std::string tiers_without_evictions(const Json& result, bool full) {
  const Json* tiers = find_at(result, Json::json_pointer("/metrics/tiers"));
  if (tiers == nullptr) {
    return "";
  }
  std::vector<std::string> names;
  for (const auto& [name, tier] : tiers->items()) {
    const Json* filling = find_at(tier, Json::json_pointer("/filling"));
    const bool refuses =
        number_at(tier, "/evictions") == 0.0 && number_at(tier, "/refused_blocks").value_or(0) > 0;
    if (full ? refuses : filling != nullptr && *filling == true && !refuses) {
      names.push_back(name);
    }
  }
  return detail::join(names, " and ");
}

std::vector<std::string> describe_filling(
    const std::vector<std::pair<std::string, const Json*>>& runs) {
  std::map<std::string, std::vector<std::string>> names_by_tiers;
  for (const auto& [name, result] : runs) {
    if (const std::string filling = tiers_without_evictions(*result, false); !filling.empty()) {
      names_by_tiers[filling].push_back(name);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [tiers, names] : names_by_tiers) {
    lines.push_back(
        fmt::format("{}: still filling in the measured part, and nothing is evicted: a longer run "
                    "may hit less ({}).",
                    tiers, detail::join(names, ", ")));
  }
  return lines;
}

std::string describe_load_waits(const std::string& system, const std::vector<Json>& results) {
  constexpr double kNotable = 0.05;
  const std::string waits = "/load/gpu_load_wait_fraction/";
  const auto total = summarize(results, waits + "total");
  if (!total || total->mean <= kNotable) {
    return "";
  }
  std::string over;
  for (const CauseLabel& cause : kCauses) {
    const auto share = summarize(results, waits + cause.name);
    if (share && share->mean > 0) {
      over += fmt::format("{}{} {:.1f} %", over.empty() ? "" : ", ", cause.label,
                          share->mean * kPercent);
    }
  }
  return fmt::format("{}: GPUs wait for loads {:.1f} % of the time ({}).\n", system,
                     total->mean * kPercent, over);
}

std::string describe_confidence(const Json& result) {
  struct Line {
    const char* label;
    const char* name;
    double factor;
    const char* format;
  };
  constexpr Line kLines[] = {
      {"hit rate, all turns %", "hit_rate_all_turns", kPercent, "{:.1f} to {:.1f}"},
      {"hit rate, history tokens %", "hit_rate_tokens", kPercent, "{:.1f} to {:.1f}"},
      {"TTFT mean s", "ttft_seconds", 1, "{:.3f} to {:.3f}"},
      {"TTFT p50 s", "ttft_seconds_p50", 1, "{:.3f} to {:.3f}"},
      {"TTFT p90 s", "ttft_seconds_p90", 1, "{:.3f} to {:.3f}"},
      {"TTFT p95 s", "ttft_seconds_p95", 1, "{:.3f} to {:.3f}"},
      {"TTFT p99 s", "ttft_seconds_p99", 1, "{:.3f} to {:.3f}"},
      {"queueing mean s", "queueing_seconds", 1, "{:.3f} to {:.3f}"}};
  const Json& confidence = result["metrics"]["confidence"];
  if (confidence.contains("missing_because")) {
    return fmt::format("no intervals: {}\n", confidence["missing_because"].get<std::string>());
  }
  std::string text = fmt::format("{:.0f} % intervals of the steady state\n",
                                 confidence["level"].get<double>() * kPercent);
  for (const Line& line : kLines) {
    if (!confidence.contains(line.name)) {
      continue;
    }
    const Json& interval = confidence[line.name];
    text += fmt::format(
        "{:<28}{}\n", line.label,
        fmt::format(fmt::runtime(line.format), interval["low"].get<double>() * line.factor,
                    interval["high"].get<double>() * line.factor));
  }
  return text;
}

std::string align_columns(const std::vector<std::vector<std::string>>& lines, std::size_t left) {
  std::vector<std::size_t> widths(lines.front().size(), 0);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], line[i].size());
    }
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::size_t width = i < widths.size() ? widths[i] : 0;
      row += (i > 0 ? "  " : "") + (i < left ? fmt::format("{:<{}}", line[i], width)
                                             : fmt::format("{:>{}}", line[i], width));
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string describe_run(const Json& result) {
  return setting(result["config"]) + "\n" + workload_line(result) + "\n";
}

Json run_setting(const Json& config) {
  const auto instances = number_at(config, "/cluster/instances");
  const std::string gpus = gpus_of(config);
  const std::string trace = text_or_none(config, "/workload/trace");
  const std::string mix = mix_of(config);
  // "20/min" is "20 sessions/min".
  const auto load = [&](const char* pointer, const char* what) {
    const std::string rate = text_or_none(config, pointer);
    const std::size_t unit = std::min(rate.find('/'), rate.size());
    return rate.empty() ? "" : rate.substr(0, unit) + what + rate.substr(unit);
  };
  const std::string sessions = load("/workload/arrival_rate", " sessions");
  return Json{{"model", text_or_none(config, "/model/name")},
              {"server", gpus.empty() || !instances
                             ? gpus
                             : fmt::format("{:g} instances of {}{}", *instances, gpus,
                                           has_groups(config) ? " and others" : "")},
              {"workload", !mix.empty()     ? mix
                           : !trace.empty() ? trace
                                            : text_or_none(config, "/workload/generator")},
              {"load", sessions.empty() ? load("/workload/request_rate", " requests") : sessions}};
}

Json common_setting(const std::vector<Json>& settings) {
  constexpr std::pair<const char*, const char*> kParts[] = {
      {"model", "models"}, {"server", "servers"}, {"workload", "workloads"}, {"load", "loads"}};
  Json common = Json::object();
  for (const auto& [part, many] : kParts) {
    std::set<std::string> names;
    for (const Json& setting : settings) {
      names.insert(text_at(setting, std::string("/") + part));
    }
    names.erase("");
    common[part] = names.empty()       ? ""
                   : names.size() == 1 ? *names.begin()
                                       : fmt::format("{} {}", names.size(), many);
  }
  return common;
}

}  // namespace kvtier
