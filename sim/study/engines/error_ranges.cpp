#include "sim/study/engines/error_ranges.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/core/fingerprint.hpp"
#include "sim/core/statistics.hpp"
#include "sim/serving/model_error.hpp"

namespace kvtier {
namespace {

constexpr double kLow = 0.1;
constexpr double kHigh = 0.9;
/// Sources of the published runs. They have no cached tokens.
constexpr std::size_t kSources = 3;
constexpr const char* kMixed = "mixed";

/// The logarithm of measured by predicted TPOT of a run.
struct Row {
  const PredictedRun* run = nullptr;
  double error = 0;
  double weight = 1;
};

double weighted_quantile(std::vector<std::pair<double, double>>& values, double share) {
  std::ranges::sort(values);
  double all = 0;
  for (const auto& [value, weight] : values) {
    all += weight;
  }
  double sum = 0;
  for (const auto& [value, weight] : values) {
    sum += weight;
    if (sum >= share * all) {
      return value;
    }
  }
  return 0;
}

/// Quantile regression: the logarithm for each source whose sum over shares has the least pinball
/// loss, by exact descent in one coordinate after the other.
std::array<double, kSources> regression(const std::vector<Row>& rows, double quantile) {
  constexpr int kMostRounds = 100;
  constexpr double kConverged = 1e-6;
  constexpr double kLeastShare = 0.02;
  std::array<double, kSources> result{};
  for (int round = 0; round < kMostRounds; ++round) {
    double moved = 0;
    for (std::size_t source = 0; source < kSources; ++source) {
      std::vector<std::pair<double, double>> values;
      for (const Row& row : rows) {
        const std::array<double, kTimeSourceNames.size()>& shares = row.run->times.shares.all;
        if (shares[source] < kLeastShare) {
          continue;
        }
        double rest = row.error;
        for (std::size_t other = 0; other < kSources; ++other) {
          rest -= other == source ? 0 : shares[other] * result[other];
        }
        values.emplace_back(rest / shares[source], row.weight * shares[source]);
      }
      const double next = weighted_quantile(values, quantile);
      moved = std::max(moved, std::abs(next - result[source]));
      result[source] = next;
    }
    if (moved < kConverged) {
      break;
    }
  }
  return result;
}

std::vector<Row> rows_of(const EngineTimes& times, bool has_experts, bool fitting) {
  std::vector<Row> rows;
  for (const std::vector<PredictedRun>* runs :
       {&times.runs, &times.by_sibling, &times.by_roofline}) {
    for (const PredictedRun& one : *runs) {
      if (one.not_expressed.empty() && one.has_experts == has_experts &&
          is_fitting_half(one.run.id) == fitting) {
        rows.push_back({&one, std::log(one.run.tpot_seconds / one.tpot_seconds), 1});
      }
    }
  }
  return rows;
}

void add_ranges(const EngineTimes& times, bool has_experts, std::vector<ClassRange>& ranges) {
  std::vector<Row> fitting = rows_of(times, has_experts, true);
  std::map<std::string, double> count;
  for (const Row& row : fitting) {
    count[class_of(row.run->times.shares)] += 1;
  }
  for (Row& row : fitting) {
    const std::string source = class_of(row.run->times.shares);
    row.weight = (source == kMixed ? 2 : 1) / count.at(source);
  }
  const std::array<double, kSources> low = regression(fitting, kLow);
  const std::array<double, kSources> high = regression(fitting, kHigh);
  const std::vector<Row> others = rows_of(times, has_experts, false);
  const auto add = [&](ClassRange range) {
    std::vector<double> widths;
    std::int64_t within = 0;
    for (const Row& row : others) {
      if (class_of(row.run->times.shares) == range.source) {
        const ErrorRange own = error_range(row.run->times);
        const double factor = std::exp(row.error);
        within += own.low <= factor && factor <= own.high ? 1 : 0;
        widths.push_back(own.high - own.low);
      }
    }
    if (!widths.empty()) {
      range.rows = std::ssize(widths);
      range.coverage = static_cast<double>(within) / static_cast<double>(range.rows);
      range.median_width = median(std::move(widths));
      ranges.push_back(std::move(range));
    }
  };
  for (std::size_t i = 0; i < kSources; ++i) {
    TimeOrigin pure{.shares = {}, .gpu = {}, .relative = {}, .has_experts = has_experts};
    pure.shares.all[i] = 1;
    add({.source = kTimeSourceNames[i],
         .has_experts = has_experts,
         .used = error_range(pure),
         .fitted = {.low = std::exp(low[i]), .high = std::exp(high[i])}});
  }
  add({.source = kMixed, .has_experts = has_experts});
}

}  // namespace

bool is_fitting_half(const std::string& id) {
  return fingerprint(id).back() % 2 == 0;  // a hexadecimal digit
}

std::vector<ClassRange> ranges_of(const EngineTimes& times) {
  std::vector<ClassRange> ranges;
  add_ranges(times, false, ranges);
  add_ranges(times, true, ranges);
  return ranges;
}

Json to_json(const std::vector<ClassRange>& ranges) {
  Json list = Json::array();
  for (const ClassRange& one : ranges) {
    Json json{{"source", one.source},
              {"experts", one.has_experts},
              {"rows", one.rows},
              {"coverage", one.coverage},
              {"median_width", one.median_width}};
    if (one.source != kMixed) {
      json["used"] = range_json(one.used);
      json["fitted"] = range_json(one.fitted);
    }
    list.push_back(std::move(json));
  }
  return list;
}

std::string to_text(const std::vector<ClassRange>& ranges) {
  constexpr double kPercent = 100;
  std::string text =
      "80 % ranges of TPOT, as factors on the prediction; coverage of runs they are not fitted "
      "to\n";
  text += fmt::format("{:<10} {:<8} {:>13} {:>13} {:>5} {:>10} {:>13}\n", "times", "models",
                      "range", "best fit", "runs", "coverage %", "median width");
  const auto cell = [](const ClassRange& one, const ErrorRange& range) {
    return one.source == kMixed ? std::string("-")
                                : fmt::format("{:.2f} to {:.2f}", range.low, range.high);
  };
  for (const ClassRange& one : ranges) {
    text += fmt::format("{:<10} {:<8} {:>13} {:>13} {:>5} {:>10.1f} {:>13.2f}\n", one.source,
                        one.has_experts ? "experts" : "dense", cell(one, one.used),
                        cell(one, one.fitted), one.rows, kPercent * one.coverage, one.median_width);
  }
  return text;
}

}  // namespace kvtier
