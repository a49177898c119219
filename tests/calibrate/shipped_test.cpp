/// The profiles that come with the program.

#include <filesystem>

#include <gtest/gtest.h>

#include "hw/profile/profile.hpp"
#include "hw/profile/profile_hardware.hpp"

namespace kvtier::calibrate {
namespace {

TEST(ShippedProfiles, ReadStrictlyAndNameTheirOrigin) {
  int files = 0;
  int servers = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(KVTIER_SOURCE_DIR "/configs/profiles")) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    SCOPED_TRACE(entry.path().filename().string());
    const Profile profile = read_profile(entry.path());
    ++files;
    EXPECT_FALSE(profile.tables.empty());
    EXPECT_FALSE(profile.provenance.date.empty());
    EXPECT_FALSE(profile.provenance.libraries.empty());
    EXPECT_EQ(profile.provenance.command.find("/"), std::string::npos) << "a path of the machine";
    if (find_tables(profile, OperationId::copy_h2d).empty()) {
      continue;  // kernels of an engine
    }
    // Without a preset it is a whole server.
    ++servers;
    HardwareConfig hardware;
    Problems problems;
    read_value(hardware, described_hardware(profile), "", problems);
    check_hardware(hardware, "", problems);
    EXPECT_EQ(problems.lines(), std::vector<std::string>{});
  }
  EXPECT_GE(files, 1);
  EXPECT_GE(servers, 1);
}

}  // namespace
}  // namespace kvtier::calibrate
