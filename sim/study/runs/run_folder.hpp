#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"

namespace kvtier {

/// The kind of a folder of results: its name in messages, and its files beside results.jsonl.
struct RunFolderKind {
  const char* name;
  const char* identity;
  const char* summary;
};
/// A line for each run.
inline constexpr const char* kRunLines = "results.jsonl";
inline constexpr const char* kSweepFormat = "kvtier.sweep/1";
inline constexpr RunFolderKind kSweepFolder{"sweep", "sweep.json", "results.csv"};
inline constexpr RunFolderKind kPlanFolder{"plan", "plan.json", "plan-result.json"};

/// The text of a run's line, an object whose last key is a checksum of all that stands before it.
[[nodiscard]] std::string sealed_line(Json line);
/// The argument of sealed_line(); nullopt for any other text, such as a damaged line.
[[nodiscard]] std::optional<Json> unsealed_line(std::string_view text);

/// The folder of many runs' results while it is written. One process at a time.
class RunFolder {
 public:
  /// Makes the folder, or takes one that is empty of results or, to resume, has those of the same
  /// identity. Calls `tell` (if it is one) with a message about lines that are damaged. Throws
  /// ConfigError for another folder, DeviceError if it cannot be written.
  RunFolder(const RunFolderKind& kind, std::filesystem::path path, const Json& identity,
            bool resume, std::function<void(const std::string&)> tell = {});
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();

  /// A sealed line that was there and is whole.
  struct Kept {
    std::string text;
    Json json;
  };
  /// In the order in which they were written; a later one of the same run counts.
  [[nodiscard]] const std::vector<Kept>& kept() const { return kept_; }
  /// Tells that so many of `kept` are of no run of this folder, if they are any.
  void tell_of_strangers(std::int64_t lines) const;
  /// Adds a sealed line, which outlives this process from then on.
  void append(std::string_view line);
  /// Puts the results in place.
  void finish(std::string_view lines, std::string_view summary);

 private:
  [[nodiscard]] std::filesystem::path file(const char* name) const { return path_ / name; }
  void check_identity(const Json& identity) const;
  void open_partial();
  /// Puts the file's lines that are whole into `kept_` and tells which are not; returns where its
  /// last line ends.
  std::size_t keep_lines(const std::filesystem::path& path);

  RunFolderKind kind_;
  std::filesystem::path path_;
  std::function<void(const std::string&)> tell_;
  std::vector<Kept> kept_;
  int partial_ = -1;
};

}  // namespace kvtier
