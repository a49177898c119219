/// The first lines of a page, and groups of runs that may share an axis.

#include <algorithm>

#include <fmt/format.h>

#include "sim/study/report/report_draw.hpp"
#include "sim/study/runs/run_length.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

using charts::mean_at;
using charts::Number;
using charts::varied_at;
using charts::varied_unit;

/// Members of /workload that set the amount of load, not its kind.
constexpr const char* kLoad[] = {"arrival_rate", "request_rate", "speed_up",
                                 "sessions",     "warmup_turns", "measure"};

const Json* config_of(const ReportRun& run) {
  return find_at(run.results.front(), Json::json_pointer("/config"));
}

/// A run and one of its numbers.
using Ranked = std::pair<const ReportRun*, double>;

/// Costs within this factor are not ranked.
constexpr double kAboutEqual = 1.01;

/// " with RUN" for one of several runs.
std::string name_among(const std::vector<const ReportRun*>& runs, const ReportRun& run) {
  return runs.size() > 1 ? " with " + run.label : "";
}

/// The lowest and the highest number of the runs that are long enough and within capacity.
std::optional<std::pair<Ranked, Ranked>> range_of(const std::vector<const ReportRun*>& runs,
                                                  const char* pointer) {
  std::vector<Ranked> all;
  for (const ReportRun* run : runs) {
    const Number number = mean_at(*run, pointer);
    if (number && !is_overloaded(*run) && !is_too_short(*run)) {
      all.emplace_back(run, *number);
    }
  }
  if (all.empty()) {
    return std::nullopt;
  }
  const auto by_number = [](const Ranked& a, const Ranked& b) { return a.second < b.second; };
  const auto [lowest, highest] = std::minmax_element(all.begin(), all.end(), by_number);
  return std::pair(*lowest, *highest);
}

/// "71.0 % of the prompt tokens are found in a cache with attentionstore, and 0.0 % with
/// recompute."
std::string hit_sentence(const std::vector<const ReportRun*>& runs) {
  const auto range = range_of(runs, "/metrics/hit_rate/prompt_tokens/total");
  if (!range) {
    return "";
  }
  constexpr const char* kWhat = "of the prompt tokens are found in a cache";
  const auto& [lowest, highest] = *range;
  return lowest.first == highest.first
             ? fmt::format("{:.1f} % {}{}.", 100 * highest.second, kWhat,
                           name_among(runs, *highest.first))
             : fmt::format("{:.1f} % {} with {}, and {:.1f} % with {}.", 100 * highest.second,
                           kWhat, highest.first->label, 100 * lowest.second, lowest.first->label);
}

/// A bound of a capacity by the errors of times.
Number bound_of(const Json& error, const std::string& bound) {
  const Number rate = number_at(error, "/capacity_per_second/" + bound);
  return rate ? rate : number_at(error, "/capacity/" + bound);
}

std::string ttft_sentence(const std::vector<const ReportRun*>& runs) {
  const auto range = range_of(runs, "/metrics/ttft_seconds/mean");
  if (!range) {
    return "";
  }
  const auto& [lowest, highest] = *range;
  const Number p99 = mean_at(*lowest.first, "/metrics/ttft_seconds/p99");
  const std::string tail = p99 ? fmt::format(" (p99 {:.3g} s)", *p99) : "";
  return lowest.first == highest.first
             ? fmt::format("The first token comes after {:.3g} s on average{}{}.", lowest.second,
                           tail, name_among(runs, *lowest.first))
             : fmt::format(
                   "The first token comes after {:.3g} s on average{} with {}, and after "
                   "{:.3g} s with {}.",
                   lowest.second, tail, lowest.first->label, highest.second, highest.first->label);
}

std::string cost_sentence(const std::vector<const ReportRun*>& runs) {
  constexpr std::pair<const char*, const char*> kCosts[] = {
      {"/metrics/dollars_per_million_output_tokens/rented", "per million output tokens"},
      {"/dollars_per_hour", "an hour"}};
  for (const auto& [pointer, what] : kCosts) {
    if (const auto range = range_of(runs, pointer)) {
      const ReportRun& run = *range->first.first;
      const std::string cause = describe_bottleneck(run.results);
      const std::string binds = cause == "-" ? ""
                                : cause == "none"
                                    ? " Its requests hardly wait for anything."
                                    : fmt::format(" Its main cause of waiting is {}.", cause);
      const double lowest = range->first.second;
      const double highest = range->second.second;
      if (range->first.first != range->second.first && highest <= kAboutEqual * lowest) {
        return fmt::format("Costs are about equal: ${:.2f} to ${:.2f} {}.", lowest, highest, what);
      }
      return range->first.first == range->second.first
                 ? fmt::format("{} ${:.2f} {}.{}",
                               runs.size() > 1 ? run.label + " costs" : "It costs", lowest, what,
                               binds)
                 : fmt::format("The cheapest is {}, at ${:.2f} {}.{}", run.label, lowest, what,
                               binds);
    }
  }
  return "";
}

/// "2 of 3 runs are too short to tell, and these sentences leave them out. lru: the measured part
/// lasts ..."
std::string short_sentence(const std::vector<ReportRun>& runs) {
  std::vector<const ReportRun*> shorts;
  for (const ReportRun& run : runs) {
    if (is_too_short(run)) {
      shorts.push_back(&run);
    }
  }
  if (shorts.empty()) {
    return "";
  }
  const ReportRun& first = *shorts.front();
  const auto result = std::find_if(first.results.begin(), first.results.end(),
                                   [](const Json& one) { return is_too_short(one); });
  // Lines of a sweep have no config.
  const Json* const workload = find_at(*result, Json::json_pointer("/config/workload"));
  std::string why = describe_too_short(*result, workload != nullptr ? *workload : Json());
  why += why.empty() ? "" : ".";
  if (runs.size() == 1) {
    return "The run is too short to tell" + (why.empty() ? "." : ": " + why);
  }
  why = why.empty() ? "" : fmt::format(" {}: {}", first.label, why);
  return shorts.size() == runs.size()
             ? fmt::format("All {} runs are too short to tell which is better.{}", runs.size(), why)
             : fmt::format(
                   "{} of {} runs are too short to tell, and these sentences leave them out.{}",
                   shorts.size(), runs.size(), why);
}

}  // namespace

std::string page_line(const Report& report) {
  std::vector<Json> settings;
  for (const ReportRun& run : report.runs) {
    const Json* config = config_of(run);
    settings.push_back(config != nullptr ? run_setting(*config) : report.inputs[run.input].setting);
  }
  std::vector<std::string> parts;
  const Json common = common_setting(settings);
  for (const auto& [part, text] : common.items()) {
    parts.push_back(text.get<std::string>());
  }
  std::erase(parts, "");
  return detail::join(parts, "; ");
}

std::vector<std::string> page_sentences(const Report& report) {
  std::vector<std::string> sentences;
  for (const ReportDocument& plan : report.plans) {
    const std::vector<std::string> answer = describe_plan(plan.json);
    sentences.insert(sentences.end(), answer.begin(), answer.end());
  }
  for (const ReportDocument& search : report.searches) {
    const Number rate = varied_at(search.json, "capacity");
    const Json* const error = find_at(search.json, Json::json_pointer("/model_error"));
    const Number low = error != nullptr ? bound_of(*error, "low") : Number();
    const Number high = error != nullptr ? bound_of(*error, "high") : Number();
    const std::string range =
        low && high
            ? fmt::format(", and {:.4g} to {:.4g} by the errors of times (80 %)", *low, *high)
            : "";
    sentences.push_back(
        rate ? fmt::format("{}: the SLO is met up to {:.4g} ({}){}.", search.label, *rate,
                           varied_unit(search.json), range)
             : fmt::format("{}: no rate that was tried meets the SLO.", search.label));
  }
  // A plan's runs are only steps of its search. Different models and workloads are not compared.
  if (report.plans.empty()) {
    if (!report.runs.empty() &&
        std::all_of(report.runs.begin(), report.runs.end(), is_overloaded)) {
      sentences.emplace_back("The load exceeds capacity in every run, so none has a steady state.");
    }
    const std::vector<ReportSetting> settings = by_setting(report);
    for (const ReportSetting& setting : settings) {
      const std::string hits = hit_sentence(setting.runs);
      if (settings.size() > 1) {
        sentences.push_back(hits.empty() ? "" : setting.name + ": " + hits);
      } else {
        sentences.insert(sentences.end(),
                         {hits, ttft_sentence(setting.runs), cost_sentence(setting.runs)});
      }
    }
  }
  std::erase(sentences, "");
  constexpr std::size_t kMost = 3;
  sentences.resize(std::min(kMost, sentences.size()));
  if (const std::string shorts = short_sentence(report.runs); !shorts.empty()) {
    sentences.insert(sentences.begin(), shorts);
  }
  return sentences;
}

std::vector<ReportSetting> by_setting(const Report& report) {
  std::vector<std::string> keys;
  std::vector<ReportSetting> settings;
  for (const ReportRun& run : report.runs) {
    std::string key;
    std::string name;
    if (const Json* config = config_of(run)) {
      Json workload = config->value("workload", Json::object());
      for (const char* load : kLoad) {
        if (workload.is_object()) {
          workload.erase(load);
        }
      }
      key = text_at(*config, "/model/name") + "\n" + json_text(workload);
      const Json setting = run_setting(*config);
      name = text_at(setting, "/model") + ", " + text_at(setting, "/workload");
    } else {
      // The results of a sweep or a plan have no model, but an axis may name it.
      key = std::to_string(run.input);
      name = report.inputs[run.input].label;
      for (const auto& [axis, label] : run.axes) {
        std::string words = axis;
        std::transform(words.begin(), words.end(), words.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (words == "model" || words == "workload") {
          key += "\n" + label;
          name += ", " + label;
        }
      }
    }
    const auto found = std::find(keys.begin(), keys.end(), key);
    const auto at = static_cast<std::size_t>(found - keys.begin());
    if (found == keys.end()) {
      keys.push_back(key);
      settings.push_back({name, {}});
    }
    settings[at].runs.push_back(&run);
  }
  return settings;
}

}  // namespace kvtier
