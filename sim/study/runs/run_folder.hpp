#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// The kind of a folder of results: its name in messages, and its files beside results.jsonl.
struct RunFolderKind {
  const char* name;
  const char* identity;
  const char* summary;
};
/// The file with a line for each run.
inline constexpr const char* kRunLines = "results.jsonl";
inline constexpr const char* kSweepFormat = "kvtier.sweep/1";
inline constexpr RunFolderKind kSweepFolder{"sweep", "sweep.json", "results.csv"};
inline constexpr RunFolderKind kPlanFolder{"plan", "plan.json", "plan-result.json"};

/// The text of a run's line: an object whose last key is a checksum of the rest.
[[nodiscard]] std::string sealed_line(Json line);
/// The argument of sealed_line(); nullopt for any other text, such as a damaged line.
[[nodiscard]] std::optional<Json> unsealed_line(std::string_view text);

/// The folder of the results of many runs, which one process at a time may write.
class RunFolder {
 public:
  /// Creates the folder, or opens one without results. With `resume`, it also opens one with
  /// results of the same identity. Calls `tell` with a message about damaged lines. Throws
  /// ConfigError for another folder, and DeviceError if it cannot be written.
  RunFolder(const RunFolderKind& kind, std::filesystem::path path, const Json& identity,
            bool resume, std::function<void(const std::string&)> tell = {});
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  /// Hands over the undamaged lines of earlier processes, in the order of writing. Of several lines
  /// of one run, the last one counts.
  [[nodiscard]] std::vector<std::string> take_kept() { return std::move(kept_); }
  /// Calls `tell` if some kept lines belong to no run of this folder. `lines` is their number.
  void tell_of_strangers(std::int64_t lines) const;
  /// Writes a sealed line, which a killed process does not lose.
  void append(std::string_view line);
  /// Writes the complete results and removes the partial ones.
  void finish(const std::vector<std::string_view>& lines, std::string_view summary);

 private:
  [[nodiscard]] std::filesystem::path file(const char* name) const { return path_ / name; }
  void check_identity(const Json& identity) const;
  void open_partial();
  /// Adds the file's undamaged lines to `kept_` and tells of the others. Returns the end of its
  /// last complete line.
  std::size_t keep_lines(const std::filesystem::path& path);

  RunFolderKind kind_;
  std::filesystem::path path_;
  std::function<void(const std::string&)> tell_;
  std::vector<std::string> kept_;
  int partial_ = -1;
};

}  // namespace kvtier
