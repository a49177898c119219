#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hw/profile/profile.hpp"
#include "sim/serving/config.hpp"
#include "sim/study/config/config_files.hpp"
#include "sim/study/config/overrides.hpp"
#include "sim/study/config/presets.hpp"

namespace kvtier {

/// The object in a config file, without its "$schema". Throws ConfigError, and as `read_text_file`
/// does.
[[nodiscard]] Json read_json_file(const std::filesystem::path& path);

/// A config inside another file or in no file.
struct InlineConfig {
  Json json;
  /// The file or option that messages name.
  std::string origin;
};

/// A config file and the command line's changes to it.
struct ConfigRequest {
  std::filesystem::path file;
  /// The config, if it is inside `file` or in no file. `file` then only gives the base folder.
  std::optional<InlineConfig> inline_config;
  std::vector<Override> overrides;
  /// The option that messages name for the overrides.
  std::string overrides_origin = "--set";
  std::optional<std::int64_t> seed;
  /// Replaces the whole of /system; `compare` sets it for each column.
  std::optional<std::string> system;
  /// Whether problems name the file or option that the value came from.
  bool name_origins = true;
  /// Files of earlier requests, which are not read again. Null: no earlier ones.
  std::shared_ptr<ConfigFiles> files{};
};

struct ResolvedConfig {
  RunConfig config;
  /// The folder at which relative paths of the workload start.
  std::filesystem::path base_dir;
  /// The files and folders that a run reads: the config, presets, profiles, traces, tokenizers.
  std::vector<std::string> files;
};

/// Reads and checks a run's config. The file overrides its presets, and the command line overrides
/// the file. Throws ConfigError with all problems of structure and meaning at once.
[[nodiscard]] ResolvedConfig resolve_config(const ConfigRequest& request,
                                            const ConfigDirectory& presets,
                                            const PolicyRegistry& registry);

/// A preset ("model", "hardware" or "system"), merged over the presets that it builds on. Throws
/// ConfigError.
[[nodiscard]] Json preset_json(const std::string& key, const std::string& name,
                               const ConfigDirectory& presets);

/// A model by its preset's name, or by the path of a model file or Hugging Face config.json. Throws
/// ConfigError. Messages about an unknown name begin with `option`.
[[nodiscard]] ModelConfig resolve_model(const std::string& name, const ConfigDirectory& presets,
                                        const std::string& option);
/// One server for a model. `hardware` is a value of /hardware in a run's config. Relative paths
/// start at the current folder. Throws ConfigError.
[[nodiscard]] HardwareConfig resolve_hardware(const Json& hardware, const ModelConfig& model,
                                              const ConfigDirectory& presets);
/// A profile by its name in configs/profiles or by its path. Throws ConfigError.
[[nodiscard]] std::shared_ptr<const Profile> resolve_profile(const std::string& name,
                                                             const ConfigDirectory& presets);

/// /workload and /seed of a config, for tools that need no hardware. Other keys may be missing.
struct ResolvedWorkload {
  WorkloadConfig config;
  std::int64_t seed = 1;
  std::filesystem::path base_dir;
  /// The config, and the files and folders that the workload reads.
  std::vector<std::string> files;
};
[[nodiscard]] ResolvedWorkload resolve_workload(const ConfigRequest& request);

/// The JSON Schema of a run's config ("run"), of one preset ("model", "hardware", "system") or of a
/// measured profile ("profile"). Throws ConfigError for another name.
[[nodiscard]] Json config_json_schema(const std::string& which);
/// The schema of a file of the kind `which`. `value` is the schema of its content.
[[nodiscard]] Json file_schema(const std::string& which, Json value);

}  // namespace kvtier
