#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "hw/device/open_device.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr const char* kNeeds =
    "; a CUDA device needs an NVIDIA GPU with its driver, the CUDA runtime and cuBLAS "
    "(cuda-cudart, libcublas), and a kvtier that was built with nvcc on the PATH";

std::string failure(const std::filesystem::path& module, int index) {
  try {
    (void)open_module_device(module, index, ElementType::bfloat16);
    return "opened";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

TEST(DeviceName, IsCpuOrACudaDevice) {
  EXPECT_EQ(parse_device_name("cpu").kind, "cpu");
  EXPECT_EQ(parse_device_name("cuda").kind, "cuda");
  EXPECT_EQ(parse_device_name("cuda").index, 0);
  EXPECT_EQ(parse_device_name("cuda:3").kind, "cuda");
  EXPECT_EQ(parse_device_name("cuda:3").index, 3);
}

TEST(DeviceName, RefusesEverythingElse) {
  for (const std::string text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "cpu:0"}) {
    try {
      (void)parse_device_name(text);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.what(),
                "--device: expected cpu, cpu:THREADS or cuda:N, got \"" + text + "\"");
    }
  }
}

TEST(OpenDevice, ReportsAMissingModule) {
  EXPECT_EQ(failure("/nowhere/kvtier_cuda.so", 1),
            std::string("cuda:1: this kvtier was built without CUDA") + kNeeds);
}

TEST(OpenDevice, RefusesAFileThatIsNoModule) {
  const std::string path = testing::TempDir() + "no_module.so";
  std::ofstream(path) << "text";
  const std::string message = failure(path, 0);
  EXPECT_TRUE(message.starts_with("cuda:0: the CUDA module cannot be loaded (")) << message;
  EXPECT_TRUE(message.ends_with(kNeeds)) << message;
  std::filesystem::remove(path);
}

TEST(OpenDevice, RefusesALibraryThatIsNoModule) {
  const std::string libc = "/lib/x86_64-linux-gnu/libm.so.6";
  if (!std::filesystem::exists(libc)) {
    GTEST_SKIP() << "no " << libc;
  }
  EXPECT_EQ(failure(libc, 0), libc + ": is no device module of this kvtier; build both together");
}

// Without a driver, cudaGetDeviceCount returns an error and leaves its argument unchanged.
TEST(OpenDevice, ReportsTheMissingDriver) {
  if (!std::filesystem::exists(cuda_module_path())) {
    GTEST_SKIP() << "built without CUDA";
  }
  if (std::filesystem::exists("/dev/nvidiactl")) {
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  const std::string message = failure(cuda_module_path(), 0);
  EXPECT_TRUE(message.starts_with("cuda:0: ")) << message;
  EXPECT_TRUE(message.ends_with(kNeeds)) << message;
  EXPECT_NE(message.find("cudaGetDeviceCount: cudaErrorInsufficientDriver"), std::string::npos)
      << message;
}

TEST(OpenDevice, OpensTheHost) { EXPECT_EQ(open_device({.kind = "cpu"})->info().kind, "cpu"); }

}  // namespace
}  // namespace kvtier
