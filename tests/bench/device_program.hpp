#pragma once

#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier::bench {

/// The exit code of a program that runs `work` on a device: 2 for a wrong config, 3 for a failure,
/// with its text on standard error.
template <class Work>
int exit_code_of(const char* program, const Work& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
    return 3;
  }
  return 0;
}

}  // namespace kvtier::bench
