/// Cases that every device has to pass, on a GPU in both of its number formats, and on a second GPU
/// if there is one.

#include <map>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "hw/device/open_device.hpp"
#include "sim/core/errors.hpp"
#include "tests/hw/device/decoder_reference.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier {
namespace {

/// One device for all tests, or the reason for its absence.
struct Opened {
  explicit Opened(const DeviceName& name) {
    try {
      device = open_device(name);
    } catch (const DeviceError& error) {
      missing = error.what();
    }
  }
  std::unique_ptr<Device> device;
  std::string missing;
};

struct Which {
  int index;
  ElementType element;
};

Opened& opened(const Which& which) {
  static std::map<std::pair<int, ElementType>, Opened> all;
  const DeviceName name{.kind = "cuda", .index = which.index, .element = which.element};
  return all.try_emplace({which.index, which.element}, name).first->second;
}

class CudaChecks : public testing::TestWithParam<Which> {
 protected:
  void SetUp() override {
    if (opened(GetParam()).device == nullptr) {
      GTEST_SKIP() << opened(GetParam()).missing;
    }
  }
  Device& device() { return *opened(GetParam()).device; }
};
INSTANTIATE_TEST_SUITE_P(
    , CudaChecks,
    testing::Values(Which{0, ElementType::bfloat16}, Which{0, ElementType::float16},
                    Which{1, ElementType::bfloat16}, Which{1, ElementType::float16}),
    [](const auto& one) {
      const bool half = one.param.element == ElementType::float16;
      return (half ? "Float16On" : "Bfloat16On") + std::to_string(one.param.index);
    });

TEST_P(CudaChecks, ReportsItsElementType) {
  EXPECT_EQ(device().info().element_type, GetParam().element);
  EXPECT_EQ(device().info().element, Bytes(2));
}

TEST_P(CudaChecks, AttentionAgreesWithPlainAttentionInDouble) {
  for (const AttentionCase& c : attention_cases()) {
    EXPECT_LE(attention_error(device(), c), 1) << c.name;
  }
}

TEST_P(CudaChecks, AttentionTakesKeysAndValuesOf8Bits) {
  const std::set<std::string> few{"DecodeGrouped128", "Extend64Rope", "WidestHead", "OddHeadRope",
                                  "Mixed128Rope",     "LargestGroup", "Strided64"};
  for (AttentionCase c : attention_cases()) {
    c.float8 = true;
    if (few.contains(c.name)) {
      EXPECT_LE(attention_error(device(), c), 1) << c.name;
    }
  }
}

TEST_P(CudaChecks, RowFunctionsStayWithinTheErrorBound) {
  for (const auto& [name, error] : row_errors(device())) {
    EXPECT_LE(error, 1) << name;
  }
}

TEST_P(CudaChecks, DecoderAgreesWithPlainLoopsInDouble) {
  for (const auto& [name, error] : decoder_errors(device())) {
    EXPECT_LE(error, 1) << name;
  }
}

TEST_P(CudaChecks, RandomNumbersDependOnSeedAndIndexOnly) {
  EXPECT_LE(fill_error(device()), rounding(device()));
}

TEST_P(CudaChecks, RowsMoveBetweenSlotsAndPackedMemory) {
  EXPECT_EQ(moved_rows_differ(device()), "");
}

TEST_P(CudaChecks, PiecesMoveWhole) { EXPECT_EQ(moved_pieces_differ(device()), ""); }

TEST_P(CudaChecks, TwoStreamsAndTwoThreadsKeepTheirOrder) {
  EXPECT_EQ(streams_lose_order(device()), "");
}

TEST_P(CudaChecks, CapturedDecodeStepsComputeTheSame) {
  EXPECT_EQ(captured_steps_differ(device()), "");
}

}  // namespace
}  // namespace kvtier
