#include "sim/study/expect.hpp"

#include <cmath>

#include <fmt/format.h>

namespace kvtier {
namespace {

struct Expectation {
  std::optional<double> minimum;
  std::optional<double> maximum;
  std::optional<Json> value;
  double tolerance = 0;
};

std::optional<Expectation> read_expectation(const Json& json, const std::string& pointer,
                                            Problems& problems) {
  const std::string wanted =
      "expected {\"min\": .., \"max\": ..} or {\"value\": .., \"tolerance\": ..}, got ";
  if (!json.is_object() || json.empty()) {
    problems.add(pointer, wanted + quote_json(json));
    return std::nullopt;
  }
  Expectation expectation;
  for (const auto& [key, value] : json.items()) {
    if (key == "value") {
      expectation.value = value;
    } else if (value.is_number() && key == "min") {
      expectation.minimum = value.get<double>();
    } else if (value.is_number() && key == "max") {
      expectation.maximum = value.get<double>();
    } else if (value.is_number() && key == "tolerance") {
      expectation.tolerance = value.get<double>();
    } else {
      problems.add(pointer + "/" + escape_pointer(key), wanted + quote_json(json));
      return std::nullopt;
    }
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
                                 found.dump());
    }
    return found == *expectation.value
               ? ""
               : fmt::format("expected {}, got {}", expectation.value->dump(), quote_json(found));
  }
  if (!found.is_number()) {
    return "expected a number, got " + quote_json(found);
  }
  const double number = found.get<double>();
  if (expectation.minimum && number < *expectation.minimum) {
    return fmt::format("expected at least {}, got {}", *expectation.minimum, found.dump());
  }
  if (expectation.maximum && number > *expectation.maximum) {
    return fmt::format("expected at most {}, got {}", *expectation.maximum, found.dump());
  }
  return "";
}

}  // namespace

std::vector<std::string> failed_expectations(const Json& result, const Json& expectations,
                                             const std::string& origin) {
  Problems problems;
  problems.set_origin("", origin);
  if (!expectations.is_object() || expectations.empty()) {
    problems.add("", "expected an object from JSON pointers to expectations, got " +
                         quote_json(expectations));
  }
  problems.throw_if_any();
  std::vector<std::string> failed;
  for (const auto& [pointer, json] : expectations.items()) {
    const std::string key = "/" + escape_pointer(pointer);
    const auto expectation = read_expectation(json, key, problems);
    if (!expectation) {
      continue;
    }
    if (pointer.empty() || pointer.front() != '/') {
      problems.add(key, "expected a JSON pointer, which starts with /");
      continue;
    }
    Json::json_pointer at;
    try {
      at = Json::json_pointer(pointer);
    } catch (const Json::parse_error&) {
      problems.add(key, "expected a JSON pointer, in which ~ is written ~0 and / in a key ~1");
      continue;
    }
    if (!result.contains(at)) {
      problems.add(key, "the result has no such value");
      continue;
    }
    const std::string complaint = check(*expectation, result.at(at));
    if (!complaint.empty()) {
      failed.push_back(pointer + ": " + complaint);
    }
  }
  problems.throw_if_any();
  return failed;
}

}  // namespace kvtier
