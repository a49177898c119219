#pragma once

#include <cstdlib>
#include <filesystem>

namespace kvtier {

/// The samples of tests/data.
[[nodiscard]] inline std::filesystem::path sample_data() {
  return std::filesystem::path(KVTIER_SOURCE_DIR) / "tests/data";
}

/// Traces, and what engines find in them: the samples, or the folder that the environment names in
/// KVTIER_TEST_DATA.
[[nodiscard]] inline std::filesystem::path oracle_data() {
  const char* folder = std::getenv("KVTIER_TEST_DATA");
  return folder != nullptr ? std::filesystem::path(folder) : sample_data();
}

}  // namespace kvtier
