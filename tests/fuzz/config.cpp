// A run's config: what can be resolved is printed, and the printed config reads back to the same
// bytes.
#include "policies/registry.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/config/resolve.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvtier::fuzz {
namespace {

constexpr const char* kOrigin = "config.json";

std::string print(const Json& json) {
  static const ConfigDirectory presets(KVTIER_CONFIG_DIR);
  static const PolicyRegistry registry = builtin_policies();
  ConfigRequest request;
  request.file = scratch_folder() / kOrigin;
  request.inline_config = InlineConfig{json, kOrigin};
  return write_value(resolve_config(request, presets, registry).config).dump(2);
}

}  // namespace

Words words() {
  Words all;
  for (const char* which : {"run", "model", "hardware", "system"}) {
    add_schema(config_json_schema(which), all);
  }
  const ConfigDirectory presets(KVTIER_CONFIG_DIR);
  for (const char* kind : {"models", "hardware", "systems"}) {
    for (const std::string& name : presets.names(kind)) {
      all.values.insert(name);
    }
  }
  all.keys.insert("preset");
  return all;
}

void run_input(std::string_view input) {
  static const Json whole = Json::parse(R"({
    "model": "llama2-7b", "hardware": "h200", "system": "attentionstore",
    "workload": {"generator": "sharegpt", "sessions": 10, "arrival_rate": "1/s"}})");
  const Json json = parse_json_strictly(input, kOrigin);
  if (!json.is_object()) {
    return;  // refused as a file is read
  }
  const std::string printed =
      print(without_faults(json, whole, [](const Json& config) { (void)print(config); }));
  std::string again;
  try {
    again = print(parse_json_strictly(printed, kOrigin));
  } catch (const ConfigError& error) {
    fail(std::string("a printed config is refused: ") + error.what() + "\n" + printed);
  }
  expect(again == printed, "a printed config reads back as another:\n" + printed + "\n" + again);
}

}  // namespace kvtier::fuzz
