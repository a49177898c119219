/// A plan's result: the cheapest configuration of each system that meets the SLO, and the
/// capacities around the cheapest one.

#include <fmt/format.h>

#include "sim/study/report/report_draw.hpp"
#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

using charts::list_at;
using charts::Number;
using charts::object_at;
using charts::text_of;

/// The trial with this index in the plan's JSON; null if there is none.
const Json* trial_at(const Json& plan, const Json& number) {
  const Json& trials = list_at(plan, "/trials");
  return number.is_number_unsigned() && number.get<std::size_t>() < trials.size()
             ? &trials[number.get<std::size_t>()]
             : nullptr;
}
const Json* trial_at(const Json& plan, const Json& of, const char* pointer) {
  const Json* number = find_at(of, Json::json_pointer(pointer));
  return number != nullptr ? trial_at(plan, *number) : nullptr;
}

std::string labels_of(const Json& trial) {
  std::vector<std::string> labels;
  for (const auto& [axis, label] : object_at(trial, "/axes").items()) {
    // "-": the axis does not change the trial's configuration.
    if (label.is_string() && label != "-") {
      labels.push_back(fmt::format("{} {}", axis, label.get<std::string>()));
    }
  }
  return detail::join(labels, ", ");
}

std::vector<std::string> slo_of(const Json& plan) {
  std::vector<std::string> slo;
  if (const Json* trial = trial_at(plan, Json(0U))) {
    for (const Json& condition : list_at(*trial, "/conditions")) {
      slo.push_back(text_at(condition, "/condition"));
    }
  }
  return slo;
}

std::vector<std::string> header(const Json& plan, const char* first) {
  std::vector<std::string> cells{first, "$ per hour"};
  for (const std::string& condition : slo_of(plan)) {
    cells.push_back(condition);
  }
  cells.insert(cells.end(), {"hit rate %", "drive life, years"});
  return cells;
}

/// Adds the cells after the first one, in the order of header().
void add_cells(const Json& trial, std::vector<std::string>& row) {
  const Number dollars = number_at(trial, "/dollars_per_hour");
  row.push_back(dollars ? fmt::format("{:.3f}", *dollars) : "-");
  for (const Json& condition : list_at(trial, "/conditions")) {
    const Json* holds = find_at(condition, Json::json_pointer("/holds"));
    row.push_back(text_of(number_at(condition, "/value/mean")) +
                  (holds != nullptr && *holds == true ? "" : " (missed)"));
  }
  row.push_back(text_of(charts::shown(charts::kPercent, number_at(trial, "/hit_rate"))));
  row.push_back(text_of(number_at(trial, "/drive_life_years")));
}

}  // namespace

std::vector<std::string> describe_plan(const Json& plan) {
  const std::string slo = detail::join(slo_of(plan), ", ");
  const Json* cheapest = trial_at(plan, plan, "/cheapest");
  std::vector<std::string> orders;
  for (const Json& order : list_at(plan, "/orders")) {
    if (order.is_string()) {
      orders.push_back(order.get<std::string>());
    }
  }
  if (cheapest == nullptr) {
    const std::string binding = text_at(plan, "/binding");
    orders.insert(orders.begin(),
                  fmt::format("No configuration meets the SLO ({}){}.", slo,
                              binding.empty() ? "" : "; the binding condition is " + binding));
    return orders;
  }
  const Number dollars = number_at(*cheapest, "/dollars_per_hour");
  std::string drives;
  if (const Number life = number_at(*cheapest, "/drive_life_years")) {
    const Number replacement = number_at(*cheapest, "/replacement_dollars_per_hour");
    drives = fmt::format(
        "; its drives last {} years{}", text_of(life),
        !replacement       ? ", and their price by the hour has no replacement"
        : *replacement > 0 ? fmt::format(", and their replacement is ${:.2f} of that", *replacement)
                           : "");
  }
  std::vector<std::string> sentences{fmt::format(
      "The cheapest configuration that meets the SLO ({}) costs ${} an hour: {}{}.", slo,
      dollars ? fmt::format("{:.2f}", *dollars) : "-", labels_of(*cheapest), drives)};
  const Number low = number_at(plan, "/dollars_per_hour/low");
  const Number high = number_at(plan, "/dollars_per_hour/high");
  if (low && high && *low < *high) {
    sentences.push_back(
        fmt::format("With the shortest and the longest times of their 80 % ranges the cheapest "
                    "costs ${:.2f} and ${:.2f}.",
                    *low, *high));
  }
  sentences.insert(sentences.end(), orders.begin(), orders.end());
  std::vector<std::string> knees;
  for (const auto& [axis, curve] : object_at(plan, "/capacities").items()) {
    if (const Json* trial = trial_at(plan, curve, "/knee")) {
      knees.push_back(
          fmt::format("{} of {}", text_at(*trial, "/axes/" + escape_pointer(axis)), axis));
    }
  }
  if (!knees.empty()) {
    sentences.push_back(fmt::format("More than {} improves little.", detail::join(knees, " and ")));
  }
  for (const Json& system : list_at(plan, "/systems")) {
    const std::string why = text_at(system, "/excluded_by/0");
    if (!why.empty() && trial_at(plan, system, "/trial") != nullptr) {
      sentences.push_back(fmt::format("{}: {}.", text_at(system, "/name"), why));
    }
  }
  return sentences;
}

namespace charts {

void plan_answers(const Entry& entry, const Report& report, ReportSection& section) {
  for (const ReportDocument& document : report.plans) {
    const Json& plan = document.json;
    ReportChart answer{fmt::format(fmt::runtime(entry.title), document.label),
                       describe_plan(plan).front()};
    answer.table.header = header(plan, "system");
    answer.table.header.insert(answer.table.header.end(), {"configuration", "excluded as"});
    for (const Json& system : list_at(plan, "/systems")) {
      std::vector<std::string> row{text_at(system, "/name")};
      if (const Json* trial = trial_at(plan, system, "/trial")) {
        add_cells(*trial, row);
        row.push_back(labels_of(*trial));
      }
      row.resize(answer.table.header.size() - 1, "-");
      row.push_back(text_at(system, "/excluded_by/0"));
      answer.table.rows.push_back(std::move(row));
    }
    if (!answer.table.rows.empty()) {
      section.charts.push_back(std::move(answer));
    }
    for (const auto& [axis, curve] : object_at(plan, "/capacities").items()) {
      ReportChart around{fmt::format("{}: {}, all else as in the cheapest", document.label, axis),
                         entry.note};
      around.table.header = header(plan, axis.c_str());
      around.table.header.emplace_back("");
      for (const Json& number : list_at(curve, "/trials")) {
        if (const Json* trial = trial_at(plan, number)) {
          std::vector<std::string> row{text_at(*trial, "/axes/" + escape_pointer(axis))};
          add_cells(*trial, row);
          row.resize(around.table.header.size() - 1, "-");
          row.emplace_back(trial_at(plan, curve, "/knee") == trial ? "knee" : "");
          around.table.rows.push_back(std::move(row));
        }
      }
      if (!around.table.rows.empty()) {
        section.charts.push_back(std::move(around));
      }
    }
  }
}

}  // namespace charts
}  // namespace kvtier
