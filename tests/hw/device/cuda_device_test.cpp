/// The list of cases that every device has to pass, on a GPU, in both of its number formats.

#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "hw/device/open_device.hpp"
#include "sim/core/errors.hpp"
#include "tests/hw/device/decoder_reference.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier {
namespace {

/// One device for all tests, or why there is none.
struct Opened {
  explicit Opened(ElementType element) {
    try {
      device = open_device({.kind = "cuda", .index = 0, .element = element});
    } catch (const DeviceError& error) {
      missing = error.what();
    }
  }
  std::unique_ptr<Device> device;
  std::string missing;
};

Opened& opened(ElementType element) {
  static Opened bfloat16(ElementType::bfloat16);
  static Opened float16(ElementType::float16);
  return element == ElementType::float16 ? float16 : bfloat16;
}

std::string name_of(ElementType element) {
  return element == ElementType::float16 ? "Float16" : "Bfloat16";
}

class CudaChecks : public testing::TestWithParam<ElementType> {
 protected:
  void SetUp() override {
    if (opened(GetParam()).device == nullptr) {
      GTEST_SKIP() << opened(GetParam()).missing;
    }
  }
  Device& device() { return *opened(GetParam()).device; }
};
INSTANTIATE_TEST_SUITE_P(, CudaChecks, testing::Values(ElementType::bfloat16, ElementType::float16),
                         [](const auto& one) { return name_of(one.param); });

TEST_P(CudaChecks, SaysWhichNumbersItUses) {
  EXPECT_EQ(device().info().element_type, GetParam());
  EXPECT_EQ(device().info().element, Bytes(2));
}

TEST_P(CudaChecks, AttentionAgreesWithPlainAttentionInDouble) {
  for (const AttentionCase& c : attention_cases()) {
    EXPECT_LE(attention_error(device(), c), 1) << c.name;
  }
}

TEST_P(CudaChecks, RowFunctionsAreRightToTheLastPlaces) {
  for (const auto& [name, error] : row_errors(device())) {
    EXPECT_LE(error, 1) << name;
  }
}

TEST_P(CudaChecks, DecoderAgreesWithPlainLoopsInDouble) {
  for (const auto& [name, error] : decoder_errors(device())) {
    EXPECT_LE(error, 1) << name;
  }
}

TEST_P(CudaChecks, RowsMoveBetweenSlotsAndPackedMemory) {
  EXPECT_EQ(moved_rows_differ(device()), "");
}

TEST_P(CudaChecks, PiecesMoveWhole) { EXPECT_EQ(moved_pieces_differ(device()), ""); }

}  // namespace
}  // namespace kvtier
