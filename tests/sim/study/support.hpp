#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policies/registry.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/study/config/resolve.hpp"

/// Runs of the configs that the project ships, with a few keys set.
namespace kvtier::test {

[[nodiscard]] std::filesystem::path source_dir();

/// The presets beside the sources.
[[nodiscard]] ConfigDirectory presets();

/// A config below `configs/` with `--set` texts over it, in order.
[[nodiscard]] ConfigRequest request(const std::string& config,
                                    const std::vector<std::string>& settings = {});
[[nodiscard]] RunConfig resolved(const std::string& config,
                                 const std::vector<std::string>& settings = {});

/// The number at a JSON pointer; throws if there is none.
[[nodiscard]] double number_at(const Json& json, const std::string& pointer);

/// Everything of a result but `config`, as text.
[[nodiscard]] std::string outcome(const Json& result);

/// Invariants of every result of a timed run, for any system (non-fatal failures).
void expect_result_invariants(const Json& result);

/// Keeps every finished turn in order of finishing.
class RequestList final : public RunObserver {
 public:
  void on_request(const RequestRecord& record) override { records.push_back(record); }
  std::vector<RequestRecord> records;
};

/// A folder of its own for one test, removed at the end.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();
  [[nodiscard]] std::filesystem::path path(const std::string& name) const { return path_ / name; }
  /// Writes a file and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace kvtier::test
