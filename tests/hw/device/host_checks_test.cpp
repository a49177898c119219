/// The list of cases that every device has to pass, on the host.

#include <gtest/gtest.h>

#include "hw/device/cpu_device.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier {
namespace {

Device& host() {
  static const std::unique_ptr<Device> device = make_cpu_device(3);
  return *device;
}

class HostAttention : public testing::TestWithParam<AttentionCase> {};
INSTANTIATE_TEST_SUITE_P(, HostAttention, testing::ValuesIn(attention_cases()),
                         [](const auto& one) { return one.param.name; });

TEST_P(HostAttention, AgreesWithPlainAttentionInDouble) {
  EXPECT_LE(attention_error(host(), GetParam()), 1);
}

TEST(HostChecks, AttentionNoticesMistakes) {
  const AttentionCase c{.name = "mistaken",
                        .shape = {.query_heads = 4, .kv_heads = 2, .head_dim = 64},
                        .requests = {{1, 130}, {20, 90}},
                        .rope_base = 10000};
  EXPECT_LE(attention_error(host(), c), 1);
  EXPECT_GT(attention_error(host(), c, Mistake::swapped_slots), 100);
  EXPECT_GT(attention_error(host(), c, Mistake::late_positions), 100);
  EXPECT_GT(attention_error(host(), c, Mistake::sees_next_token), 100);
}

TEST(HostChecks, RowFunctionsStayWithinTheErrorBound) {
  for (const auto& [name, error] : row_errors(host())) {
    EXPECT_LE(error, 1) << name;
  }
}

TEST(HostChecks, RandomNumbersDependOnSeedAndIndexOnly) { EXPECT_LE(fill_error(host()), 1e-7); }

TEST(HostChecks, RowsMoveBetweenSlotsAndPackedMemory) { EXPECT_EQ(moved_rows_differ(host()), ""); }

TEST(HostChecks, PiecesMoveWhole) { EXPECT_EQ(moved_pieces_differ(host()), ""); }

TEST(HostChecks, TwoStreamsAndTwoThreadsKeepTheirOrder) {
  EXPECT_EQ(streams_lose_order(host()), "");
}

}  // namespace
}  // namespace kvtier
