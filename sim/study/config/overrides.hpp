#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"

/// Overrides of config keys, in files and on the command line.
namespace kvtier {

/// The value of parse_json_strictly(); nullopt if the text has a syntax error.
[[nodiscard]] std::optional<Json> parse_json_if_valid(std::string_view text,
                                                      const std::string& origin);

/// One `--set /json/pointer=VALUE`. VALUE is JSON; other text is a string.
struct Override {
  std::string pointer;
  Json value;
  /// The file or option that messages name. Empty: `ConfigRequest::overrides_origin`.
  std::string origin{};
};
/// Throws ConfigError for a text that is not POINTER=VALUE.
[[nodiscard]] Override parse_override(const std::string& text);

/// Adds a problem at `at` if `text` does not look like a JSON pointer.
void check_pointer(const std::string& text, const std::string& at, Problems& problems);

/// Overrides of a run's config, in order.
struct Overrides {
  std::vector<Override> list;
};
void read_config(Overrides& overrides, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const Overrides& overrides);
[[nodiscard]] Json config_schema(const Overrides& overrides);

/// Any JSON value, which its user reads later.
struct AnyJson {
  Json json = Json::object();
};
void read_config(AnyJson& any, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const AnyJson& any);
[[nodiscard]] Json config_schema(const AnyJson& any);

}  // namespace kvtier
