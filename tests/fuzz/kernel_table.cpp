// Tables of kernel times that were measured elsewhere. What can be imported is a profile that reads
// back, and whose fit can be judged and shown.
//
// An input is a line with a map of columns in JSON, or "standard", and the table.
#include <algorithm>

#include "calibrate/from_table.hpp"
#include "sim/study/config/resolve.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvtier::fuzz {

Words words() {
  Words all;
  calibrate::ColumnMap map;
  add_schema(value_schema(map), all);
  all.values.insert({"op", "new_tokens", "past_tokens", "batch", "context", "tensor_parallel",
                     "seconds", "s", "ms", "us"});
  return all;
}

void run_input(std::string_view input) {
  static const ConfigDirectory presets(KVTIER_CONFIG_DIR);
  static const ModelConfig model = resolve_model("kvtier-small", presets, "model");
  static const HardwareConfig hardware = resolve_hardware("a100-80g", model, presets);
  const std::size_t end = std::min(input.find('\n'), input.size());
  const std::string_view first = input.substr(0, end);
  const calibrate::ColumnMap columns =
      first == "standard" ? calibrate::standard_columns()
                          : calibrate::read_columns(write_scratch("columns.json", first));
  const std::filesystem::path table =
      write_scratch("table.csv", input.substr(std::min(end + 1, input.size())));
  calibrate::Imported imported =
      calibrate::import_tables({{table, columns}}, &model, hardware, {.name = "table"});
  imported.profile.provenance.date = "2025-01-02";
  imported.profile.provenance.command = "fuzz";
  Problems problems;
  check_profile(imported.profile, problems);
  problems.throw_if_any();
  const std::string text = profile_text(imported.profile);
  try {
    expect(read_profile(write_scratch("profile.json", text)) == imported.profile,
           "an imported profile reads back as another:\n" + text);
  } catch (const ConfigError& error) {
    fail(std::string("an imported profile is refused: ") + error.what() + "\n" + text);
  }
  const auto rows = calibrate::judge_fit(imported.profile, &model, hardware, 1);
  (void)calibrate::to_text(imported, rows, hardware);
}

}  // namespace kvtier::fuzz
