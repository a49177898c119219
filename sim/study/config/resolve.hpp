#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hw/profile/profile.hpp"
#include "sim/serving/config.hpp"
#include "sim/study/config/overrides.hpp"
#include "sim/study/config/presets.hpp"

namespace kvtier {

/// The object in a config file, without its "$schema". Throws as read_text_file does, and
/// ConfigError.
[[nodiscard]] Json read_json_file(const std::filesystem::path& path);

/// A config that stands in another file.
struct InlineConfig {
  Json json;
  /// Its file or option, for messages.
  std::string origin;
};

/// A config file and what the command line adds to it.
struct ConfigRequest {
  std::filesystem::path file;
  /// The config, if it stands in `file` instead of being it.
  std::optional<InlineConfig> inline_config;
  std::vector<Override> overrides;
  /// The option that gave the overrides, for messages.
  std::string overrides_origin = "--set";
  std::optional<std::int64_t> seed;
  /// Replaces the whole of /system; `compare` sets it for each column.
  std::optional<std::string> system;
  /// Whether problems name the file or option that the value came from.
  bool name_origins = true;
};

struct ResolvedConfig {
  RunConfig config;
  /// The folder at which relative paths of the workload start.
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

/// The JSON Schema of a run's config ("run"), of one preset ("model", "hardware", "system") or of a
/// measured profile ("profile"). Throws ConfigError for another name.
[[nodiscard]] Json config_json_schema(const std::string& which);
/// The schema of a whole file of the kind `which`, from that of its value.
[[nodiscard]] Json file_schema(const std::string& which, Json value);

}  // namespace kvtier
