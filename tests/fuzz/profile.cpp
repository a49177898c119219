// A measured profile: what can be read is written, and reads back as the same profile. Its server's
// description is made of it, with and without a size of KV.
#include "hw/profile/profile.hpp"

#include "hw/profile/profile_hardware.hpp"
#include "sim/study/config/resolve.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvtier::fuzz {

Words words() {
  Words all;
  add_schema(config_json_schema("profile"), all);
  for (const ProfileOperation& operation : profile_operations()) {
    all.values.insert(operation.axes.begin(), operation.axes.end());
    all.keys.insert(operation.shape.begin(), operation.shape.end());
    all.values.insert(operation.variants.begin(), operation.variants.end());
  }
  all.values.insert({kEvent, kHandOver, kTransfer, kCopyEngine});
  return all;
}

void run_input(std::string_view input) {
  const std::filesystem::path file = write_scratch("profile.json", input);
  const Json json = without_faults(read_json_file(file), Json::object(), [&file](const Json& part) {
    (void)profile_from_json(part, file.string());
  });
  const Profile profile = profile_from_json(json, file.string());
  const std::string text = profile_text(profile);
  try {
    const Profile again = read_profile(write_scratch("printed.json", text));
    expect(again == profile, "a written profile reads back as another:\n" + text);
    expect(profile_text(again) == text, "a profile read back is written otherwise:\n" + text);
  } catch (const ConfigError& error) {
    fail(std::string("a written profile is refused: ") + error.what() + "\n" + text);
  }
  (void)described_hardware(profile);
  (void)measured_hardware(profile, Bytes(4096));
}

}  // namespace kvtier::fuzz
