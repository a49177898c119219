#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/config.hpp"

/// Keys of a config and what they are set to, in files and on the command line.
namespace kvtier {

/// The value of parse_json_strictly(); nullopt if the text has a syntax error.
[[nodiscard]] std::optional<Json> parse_json_if_valid(std::string_view text,
                                                      const std::string& origin);

/// One `--set /json/pointer=VALUE`. The value is JSON, or else a string as it stands.
struct Override {
  std::string pointer;
  Json value;
  /// Its origin, for messages. Empty: the origin of all overrides of the request.
  std::string origin{};
};
/// Throws ConfigError for text that is no pointer and value.
[[nodiscard]] Override parse_override(const std::string& text);

/// Adds a problem at `at` if `text` does not look like a JSON pointer.
void check_pointer(const std::string& text, const std::string& at, Problems& problems);

/// Keys of a run's config and what they are set to, in order.
struct Overrides {
  std::vector<Override> list;
};
void read_config(Overrides& overrides, const Json& json, const std::string& pointer,
                 Problems& problems);
[[nodiscard]] Json write_config(const Overrides& overrides);
[[nodiscard]] Json config_schema(const Overrides& overrides);

/// Any JSON value; read later, by what it is for.
struct AnyJson {
  Json json = Json::object();
};
void read_config(AnyJson& any, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const AnyJson& any);
[[nodiscard]] Json config_schema(const AnyJson& any);

}  // namespace kvtier
