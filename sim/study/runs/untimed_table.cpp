#include "sim/study/runs/untimed_table.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

std::string percent_at(const Json& json, const std::string& pointer) {
  const auto number = number_at(json, pointer);
  return number ? fmt::format("{:.2f}", 100 * *number) : "-";
}

struct HitRate {
  const char* label;
  /// The key in /metrics/hit_rate.
  const char* name;
};
constexpr HitRate kHitRates[] = {
    {"all turns", "all_turns"},   {"resumed turns", "resumed_turns"},
    {"history tokens", "tokens"}, {"requests with a hit", "requests_with_hits"},
    {"blocks", "blocks"},         {"prompt tokens", "prompt_tokens"}};
constexpr std::size_t kOfHistories = 3;
}  // namespace

std::string untimed_table(const Json& result) {
  std::vector<std::vector<std::string>> lines{{"hits, %", "total"}};
  // Only tiers with hits have a column.
  std::vector<std::pair<const char*, const char*>> tiers;
  const auto rate = [](const char* row, const char* part) {
    return fmt::format("/metrics/hit_rate/{}/{}", row, part);
  };
  for (const auto& tier : kTierNames) {
    if (std::ranges::any_of(kHitRates, [&](const HitRate& row) {
          return number_at(result, rate(row.name, tier.first)).value_or(0) > 0;
        })) {
      tiers.push_back(tier);
      lines[0].push_back(std::string("in ") + tier.second);
    }
  }
  const std::string bound = text_at(result, "/bound/name");
  const bool has_most = find_at(result, Json::json_pointer("/bound/upper_bound")) != nullptr;
  if (!bound.empty()) {
    lines[0].insert(lines[0].end(), {bound, "share of it"});
  }
  if (has_most) {
    lines[0].insert(lines[0].end(), {"upper bound", "share of it"});
  }
  const bool has_histories = number_at(result, "/metrics/resumed_turns").value_or(0) > 0;
  for (const HitRate& row : std::span(kHitRates).subspan(has_histories ? 0 : kOfHistories)) {
    const Json* found =
        find_at(result, Json::json_pointer(std::string("/metrics/hit_rate/") + row.name));
    if (found == nullptr) {
      continue;
    }
    // A rate without tiers is a number.
    const std::string total = rate(row.name, "total");
    std::vector<std::string> line{
        row.label,
        percent_at(result, found->is_number() ? total.substr(0, total.rfind('/')) : total)};
    for (const auto& [key, name] : tiers) {
      line.push_back(percent_at(result, rate(row.name, key)));
    }
    const auto bound_at = [&](const char* below, const char* what) {
      const std::string at = fmt::format("/bound/{}{}/{}", below, what, row.name);
      const Json* value = find_at(result, Json::json_pointer(at));
      return percent_at(result, value != nullptr && value->is_object() ? at + "/total" : at);
    };
    if (!bound.empty()) {
      line.insert(line.end(), {bound_at("", "hit_rate"), bound_at("", "share_reached")});
    }
    if (has_most) {
      line.insert(line.end(), {bound_at("upper_bound/", "hit_rate"),
                               bound_at("upper_bound/", "share_reached")});
    }
    lines.push_back(std::move(line));
  }
  const std::string text = align_columns(lines, 1);
  const Json* found = find_at(result, Json::json_pointer("/metrics/lost_hits"));
  const Json lost = found != nullptr ? *found : Json::object();
  std::vector<std::string> causes;
  for (const auto& [cause, number] : lost.items()) {
    if (number.is_number() && number > 0) {
      causes.push_back(fmt::format("{} {}", words_of(cause), json_text(number)));
    }
  }
  return text + (causes.empty() ? "" : "lost hits: " + detail::join(causes, ", ") + "\n");
}

}  // namespace kvtier
