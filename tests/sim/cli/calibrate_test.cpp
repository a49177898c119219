/// `kvtier calibrate`: its messages.

#include <filesystem>

#include <gtest/gtest.h>
#include <sys/vfs.h>

#include "hw/device/open_device.hpp"
#include "hw/profile/profile.hpp"
#include "tests/sim/cli/program.hpp"

namespace kvtier::test {
namespace {

class Calibrate : public ProgramTest {
 protected:
  /// Expects exit code 3, one line on standard error that starts and ends so, and no file.
  void expect_device_failure(const std::vector<std::string>& arguments, const std::string& begin,
                             const std::string& end) const {
    const Outcome outcome = kvtier(arguments);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    const std::size_t line = outcome.err.find("kvtier: ");
    ASSERT_NE(line, std::string::npos) << outcome.err;
    const std::string message = outcome.err.substr(line);
    EXPECT_TRUE(message.starts_with("kvtier: " + begin)) << message;
    EXPECT_TRUE(message.ends_with(end + "\n")) << message;
    EXPECT_EQ(files(), std::vector<std::string>{});
  }
  void expect_bad(std::vector<std::string> arguments, const std::string& message) const {
    arguments.insert(arguments.begin(), "calibrate");
    const Outcome outcome = kvtier(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("kvtier: " + message + "\n"), std::string::npos) << outcome.err;
    EXPECT_EQ(files(), std::vector<std::string>{});
  }
};

TEST_F(Calibrate, RefusesAnUnknownDevice) {
  expect_bad({"--device", "gpu", "--out", "p.json"},
             "--device: expected cpu, cpu:THREADS or cuda:N, got \"gpu\"");
}

TEST_F(Calibrate, AsksForTheModelOfAGpu) {
  expect_bad({"--device", "cuda:0", "--out", "p.json"},
             "--model: a GPU's profile is for one model; name it, such as llama2-13b");
}

TEST_F(Calibrate, SuggestsTheModelThatWasMeant) {
  const Outcome outcome = kvtier({"calibrate", "--model", "llama2-13", "--out", "p.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("kvtier: --model: expected one of deepseek-v3, falcon-40b, "),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("got \"llama2-13\" (did you mean \"llama2-13b\"?)"), std::string::npos)
      << outcome.err;
}

TEST_F(Calibrate, RefusesAModelThatItsKernelCannotTake) {
  nlohmann::json model = nlohmann::json::parse(read_file(configs() / "models/kvtier-small.json"));
  model["head_dim"] = 40;
  write("odd.json", model.dump());
  const Outcome outcome = kvtier({"calibrate", "--model", "./odd.json", "--out", "p.json"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("kvtier: --model: kvtier-small has 8 query heads on 4 KV heads of "
                             "width 40; attention is measured for widths that are multiples of 16 "
                             "up to 256, and at most 16 query heads on a KV head\n"),
            std::string::npos)
      << outcome.err;
}

TEST_F(Calibrate, NeedsAPlaceForTheProfile) {
  expect_bad({}, "--out: name the profile to write, such as profile.json");
  expect_bad({"--out", "."}, "--out: expected a file, got the folder .");
  expect_bad({"--out", "-"}, "--out: expected a file, got standard output (-)");
}

TEST_F(Calibrate, IsQuickOrFull) {
  const Outcome outcome = kvtier({"calibrate", "--quick", "--full", "--out", "p.json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("--quick excludes --full"), std::string::npos) << outcome.err;
}

TEST_F(Calibrate, RefusesStorageThatIsNoFolder) {
  expect_bad({"--storage", "nowhere", "--out", "p.json"}, "nowhere: expected a folder on a drive");
}

TEST_F(Calibrate, RefusesStorageInMemory) {
  struct statfs system {};
  constexpr long kTmpfs = 0x01021994;
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != kTmpfs) {
    GTEST_SKIP() << "no tmpfs at /dev/shm";
  }
  expect_device_failure({"calibrate", "--storage", "/dev/shm", "--out", "p.json"},
                        "/dev/shm: is in memory (tmpfs)",
                        ": storage is measured in a folder on a drive");
}

TEST_F(Calibrate, RefusesStorageThatCannotBeWritten) {
  expect_device_failure({"calibrate", "--storage", "/proc", "--out", "p.json"},
                        "/proc: cannot write a test file: ", "");
}

TEST_F(Calibrate, NamesTheRequirementsOfAGpu) {
  if (std::filesystem::exists("/dev/nvidiactl")) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  expect_device_failure(
      {"calibrate", "--device", "cuda:0", "--model", "llama2-7b", "--out", "p.json"}, "cuda:0: ",
      "; a CUDA device needs an NVIDIA GPU with its driver, the CUDA runtime and cuBLAS "
      "(cuda-cudart, libcublas), and a kvtier that was built with nvcc on the PATH");
}

TEST_F(Calibrate, RefusesToResumeNothing) {
  expect_bad({"--resume", "--out", "p.json"},
             "--resume: neither p.json.partial nor p.json is there");
}

TEST_F(Calibrate, RefusesToResumeAnotherModelOnAnotherDevice) {
  Profile profile;
  profile.name = "other";
  profile.provenance = {.date = "2026-01-02T03:04:05Z", .command = "made up", .model = "other"};
  profile.device = {.name = "abacus",
                    .driver = "none",
                    .memory = Bytes(1),
                    .peak = FlopsPerSecond(1),
                    .memory_bandwidth = BytesPerSecond(1),
                    .limits_source = "made up"};
  write_profile(path("p.json.partial"), profile);
  const Outcome outcome = kvtier({"calibrate", "--resume", "--out", "p.json"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("kvtier: --resume: p.json.partial was measured with device abacus, "
                             "this run has "),
            std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("kvtier: --resume: p.json.partial was measured with model other, this "
                             "run has kvtier-small\n"),
            std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace kvtier::test
