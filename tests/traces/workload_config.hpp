#pragma once

#include <string>

#include "traces/workload.hpp"

namespace kvtier::testing {

/// Reads a config as a file would be read; problems of keys and across keys are thrown together.
inline WorkloadConfig config_of(const std::string& json) {
  WorkloadConfig config;
  Problems problems;
  read_value(config, parse_json_strictly(json, "test.json"), "/workload", problems);
  check(config, "/workload", problems);
  problems.throw_if_any();
  return config;
}

}  // namespace kvtier::testing
