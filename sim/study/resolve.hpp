#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hw/profile.hpp"
#include "sim/engine/config.hpp"
#include "sim/study/presets.hpp"

namespace kvtier {

/// What parse_json_strictly() makes of the text; nullopt where it has an error of syntax.
[[nodiscard]] std::optional<Json> parse_json_if_valid(std::string_view text,
                                                      const std::string& origin);

/// One `--set /json/pointer=VALUE`. The value is JSON, or else a string as it stands.
struct Override {
  std::string pointer;
  Json value;
  /// Where it comes from, for messages; empty: where all overrides of the request come from.
  std::string origin{};
};
/// Throws ConfigError for text that is no pointer and value.
[[nodiscard]] Override parse_override(const std::string& text);

/// The object in a config file, without its "$schema". Throws as read_text_file does, and
/// ConfigError.
[[nodiscard]] Json read_json_file(const std::filesystem::path& path);

/// A config that stands in another file.
struct InlineConfig {
  Json json;
  /// Where it stands, for messages.
  std::string origin;
};

/// A config file and what the command line adds to it.
struct ConfigRequest {
  std::filesystem::path file;
  /// The config, if it stands in `file` instead of being it.
  std::optional<InlineConfig> inline_config;
  std::vector<Override> overrides;
  /// Where the overrides come from, for messages.
  std::string overrides_origin = "--set";
  std::optional<std::int64_t> seed;
  /// Replaces the whole of /system; `compare` sets it for each column.
  std::optional<std::string> system;
  /// Whether problems name the file or option that the value came from.
  bool name_origins = true;
};

struct ResolvedConfig {
  RunConfig config;
  /// Where relative paths of the workload start.
  std::filesystem::path base_dir;
};

/// Reads a run's config: presets are looked up and overridden by the file, the file by the command
/// line (architecture.md). Throws ConfigError with every problem of structure and meaning at once.
[[nodiscard]] ResolvedConfig resolve_config(const ConfigRequest& request,
                                            const ConfigDirectory& presets,
                                            const PolicyRegistry& registry);

/// A preset ("model", "hardware" or "system") with the presets below it that it builds on. Throws
/// ConfigError.
[[nodiscard]] Json preset_json(const std::string& key, const std::string& name,
                               const ConfigDirectory& presets);

/// A model alone: a preset's name, or the path of a model file or of a Hugging Face config.json.
/// Throws ConfigError; a name that is none is reported at `option`.
[[nodiscard]] ModelConfig resolve_model(const std::string& name, const ConfigDirectory& presets,
                                        const std::string& option);
/// One server for a model, as the value of /hardware in a run's config; relative paths start here.
/// Throws ConfigError.
[[nodiscard]] HardwareConfig resolve_hardware(const Json& hardware, const ModelConfig& model,
                                              const ConfigDirectory& presets);
/// A profile by its name in configs/profiles or by its path. Throws ConfigError.
[[nodiscard]] std::shared_ptr<const Profile> resolve_profile(const std::string& name,
                                                             const ConfigDirectory& presets);

/// Reads /workload and /seed alone, for tools that need no machine; the file may lack everything
/// else.
struct ResolvedWorkload {
  WorkloadConfig config;
  std::int64_t seed = 1;
  std::filesystem::path base_dir;
};
[[nodiscard]] ResolvedWorkload resolve_workload(const ConfigRequest& request);

/// The JSON Schema of a run's config ("run"), of one preset ("model", "hardware", "system"), of a
/// measured profile ("profile"), of a sweep ("sweep") or of a plan ("plan"). Throws ConfigError for
/// another name.
[[nodiscard]] Json config_json_schema(const std::string& which);

}  // namespace kvtier
