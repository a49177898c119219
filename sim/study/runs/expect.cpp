#include "sim/study/runs/expect.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "sim/study/runs/summary.hpp"

namespace kvtier {
namespace {

/// Pointers of other versions, by their beginnings, and those that replace them. The first one that
/// fits counts.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"/metrics/blocks/hit_rate/tokens", "/metrics/hit_rate/prompt_tokens"},
    {"/metrics/blocks/hit_rate/turns", "/metrics/hit_rate/requests_with_hits"},
    {"/metrics/blocks/hit_rate/blocks", "/metrics/hit_rate/blocks/total"},
    {"/metrics/blocks/ideal_hit_rate/tokens", "/metrics/hit_rate/ideal/prompt_tokens"},
    {"/metrics/blocks/ideal_hit_rate/turns", "/metrics/hit_rate/ideal/requests_with_hits"},
    {"/metrics/blocks/ideal_hit_rate/blocks", "/metrics/hit_rate/ideal/blocks"},
    {"/metrics/blocks/turns_with_hits", "/metrics/requests_with_hits"},
    {"/metrics/blocks/hit_blocks", "/metrics/hit_blocks/total"},
    {"/metrics/blocks/", "/metrics/"},
    {"/metrics/ideal_hit_rate/tokens", "/metrics/hit_rate/ideal/prompt_tokens"},
    {"/metrics/ideal_hit_rate/turns", "/metrics/hit_rate/ideal/requests_with_hits"},
    {"/metrics/ideal_hit_rate/blocks", "/metrics/hit_rate/ideal/blocks"},
    {"/metrics/hit_rate/turns", "/metrics/hit_rate/requests_with_hits"},
    {"/metrics/turns_with_hits", "/metrics/requests_with_hits"}};

constexpr const char* kWanted =
    "expected a value, {\"min\": .., \"max\": ..} or {\"value\": .., \"tolerance\": .., "
    "\"relative\": "
    "..}, got ";

std::string key_of(const std::string& pointer) { return "/" + escape_pointer(pointer); }

void check_pointer_text(const std::string& pointer, Problems& problems) {
  if (pointer.empty() || pointer.front() != '/') {
    problems.add(key_of(pointer), "expected a JSON pointer, which starts with /");
    return;
  }
  try {
    (void)Json::json_pointer(pointer);
  } catch (const Json::parse_error&) {
    problems.add(key_of(pointer),
                 "expected a JSON pointer, in which ~ is written ~0 and / in a key ~1");
  }
}

/// Reads the expectation of the value at `pointer`. Adds its errors to `problems`.
Expectation read_expectation(const std::string& pointer, const Json& json, Problems& problems) {
  const std::string key = key_of(pointer);
  Expectation expectation;
  expectation.pointer = pointer;
  if (!json.is_object()) {
    expectation.value = json;
    return expectation;
  }
  if (json.empty()) {
    problems.add(key, kWanted + quote_json(json));
    return expectation;
  }
  std::optional<double> tolerance;
  std::optional<double> relative;
  for (const auto& [name, value] : json.items()) {
    std::optional<double>* const number = name == "min"         ? &expectation.minimum
                                          : name == "max"       ? &expectation.maximum
                                          : name == "tolerance" ? &tolerance
                                          : name == "relative"  ? &relative
                                                                : nullptr;
    const std::string at = key + "/" + escape_pointer(name);
    if (name == "value") {
      expectation.value = value;
    } else if (number == nullptr) {
      problems.add(at, kWanted + quote_json(json));
    } else if (!value.is_number()) {
      problems.add(at, "expected a number, got " + quote_json(value));
    } else {
      *number = value.get<double>();
    }
  }
  const auto check_width = [&](const char* name, const std::optional<double>& width) {
    if (width && *width < 0) {
      problems.add(key + "/" + name, fmt::format("expected a number >= 0, got {}", *width));
    }
  };
  check_width("tolerance", tolerance);
  check_width("relative", relative);
  const bool has_limits = json.contains("min") || json.contains("max");
  const bool has_width = json.contains("tolerance") || json.contains("relative");
  const bool is_number = expectation.value && expectation.value->is_number();
  if (has_limits && (expectation.value || has_width)) {
    problems.add(key, kWanted + quote_json(json));
  } else if (has_width && !is_number) {
    problems.add(key, "a tolerance needs a number as value");
  } else if (expectation.minimum && expectation.maximum &&
             *expectation.minimum > *expectation.maximum) {
    problems.add(key, fmt::format("no number is at least {} and at most {}", *expectation.minimum,
                                  *expectation.maximum));
  }
  if (is_number) {
    expectation.tolerance = std::max(
        tolerance.value_or(0), relative.value_or(0) * std::abs(expectation.value->get<double>()));
  }
  return expectation;
}

std::string check(const Expectation& expectation, const Json& found) {
  if (expectation.value) {
    if (expectation.value->is_number() && found.is_number()) {
      const double wanted = expectation.value->get<double>();
      const bool holds = std::abs(found.get<double>() - wanted) <= expectation.tolerance;
      return holds ? ""
                   : fmt::format("expected {} +- {}, got {}", wanted, expectation.tolerance,
                                 quote_json(found));
    }
    return found == *expectation.value
               ? ""
               : fmt::format("expected {}, got {}", quote_json(*expectation.value),
                             quote_json(found));
  }
  if (!found.is_number()) {
    return "expected a number, got " + quote_json(found);
  }
  const double number = found.get<double>();
  if (expectation.minimum && number < *expectation.minimum) {
    return fmt::format("expected at least {}, got {}", *expectation.minimum, quote_json(found));
  }
  if (expectation.maximum && number > *expectation.maximum) {
    return fmt::format("expected at most {}, got {}", *expectation.maximum, quote_json(found));
  }
  return "";
}

}  // namespace

std::vector<Expectation> read_expectations(const Json& json, const std::string& origin) {
  Problems problems;
  problems.set_origin("", origin);
  if (!json.is_object() || json.empty()) {
    problems.add("",
                 "expected an object from JSON pointers to expectations, got " + quote_json(json));
  }
  problems.throw_if_any();
  std::vector<Expectation> expectations;
  for (const auto& [pointer, expectation] : json.items()) {
    check_pointer_text(pointer, problems);
    expectations.push_back(read_expectation(pointer, expectation, problems));
  }
  problems.throw_if_any();
  return expectations;
}

std::string renamed_pointer(const std::string& pointer) {
  for (const auto& [old, current] : kRenamed) {
    if (const std::size_t at = pointer.find(old); at != std::string::npos) {
      return std::string(pointer).replace(at, old.size(), current);
    }
  }
  return "";
}

FindValue values_of(Json result) {
  return [result = std::move(result)](const std::string& pointer) {
    const Json* value = find_at(result, Json::json_pointer(pointer));
    return value != nullptr ? std::optional(*value) : std::nullopt;
  };
}

FindValue values_of(NamedResults results) {
  return [results = std::move(results)](const std::string& pointer) -> std::optional<Json> {
    // read_expectations() only accepts pointers with a first name.
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    Json::json_pointer name(pointer.substr(0, end));
    const auto named = results.find(name.back());
    if (named == results.end()) {
      return std::nullopt;
    }
    const std::string rest = pointer.substr(end);
    Json found = Json::array();
    for (const Json& result : named->second) {
      const Json* value = find_at(result, Json::json_pointer(rest));
      if (value == nullptr) {
        return std::nullopt;
      }
      found.push_back(*value);
    }
    if (std::ranges::all_of(found, [&found](const Json& value) { return value == found[0]; })) {
      return found[0];
    }
    const auto mean = summarize(named->second, rest);
    return mean ? Json(mean->mean) : found;
  };
}

std::vector<std::string> failed_expectations(const FindValue& find,
                                             const std::vector<Expectation>& expectations,
                                             const std::string& origin) {
  Problems problems;
  problems.set_origin("", origin);
  std::vector<std::string> failed;
  for (const Expectation& expectation : expectations) {
    const std::optional<Json> value = find(expectation.pointer);
    if (!value) {
      const std::string renamed = renamed_pointer(expectation.pointer);
      problems.add(expectation.pointer,
                   fmt::format("the result has no such value{}",
                               renamed.empty() ? "" : fmt::format(" (write {})", renamed)));
      continue;
    }
    const std::string complaint = check(expectation, *value);
    if (!complaint.empty()) {
      failed.push_back(expectation.pointer + ": " + complaint);
    }
  }
  problems.throw_if_any();
  return failed;
}

Json updated_expectations(Json file, const FindValue& find,
                          const std::vector<Expectation>& expectations) {
  for (const Expectation& expectation : expectations) {
    if (expectation.value) {
      Json& old = file[expectation.pointer];
      (old.is_object() ? old["value"] : old) = *find(expectation.pointer);
    }
  }
  return file;
}

}  // namespace kvtier
