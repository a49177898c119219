/// Random batches against attention in double, on either device, in either format, in any order.

#include <algorithm>
#include <cstdlib>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulation/module.hpp"
#include "tests/hw/device/device_checks.hpp"

namespace kvtier::emulation {
namespace {

/// KVTIER_TEST_FROM and KVTIER_TEST_CASES make the hunt longer.
int from_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

AttentionCase random_case(int number) {
  std::mt19937 engine(static_cast<unsigned>(number));
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(engine() % static_cast<unsigned>(most - least + 1));
  };
  const std::int64_t groups[] = {1, 1, 2, 3, 4, 8, 16};
  const std::int64_t kv_heads = draw(1, 3);
  AttentionCase c{.name = fmt::format("case {}", number),
                  .shape = {.query_heads = kv_heads * groups[draw(0, 6)],
                            .kv_heads = kv_heads,
                            .head_dim = 16 * draw(1, 16)},
                  .requests = {},
                  .rope_base = draw(0, 1) * 10000.0,
                  .float8 = draw(0, 3) == 0};
  const std::int64_t kind = draw(0, 3);  // decodes, prompts, both, with empty ones
  for (std::int64_t i = draw(1, kind == 0 ? 9 : 4); i > 0; --i) {
    const std::int64_t longest[] = {40, 40, 300, 300, 1000, 5000};
    const std::int64_t past = draw(0, longest[draw(0, 5)]);
    const std::int64_t added = kind == 0 || (kind > 1 && draw(0, 1) == 0) ? 1
                               : draw(0, 4) == 0                          ? draw(1, 150)
                                                                          : draw(1, 24);
    c.requests.emplace_back(kind == 3 && draw(0, 2) == 0 ? 0 : added, past + added);
  }
  c.shared = draw(0, 3) == 0 ? draw(1, 30) : 0;
  // New tokens are no other request's.
  for (const auto& [added, context] : c.requests) {
    c.shared = std::min(c.shared, context - added);
  }
  c.strided = draw(0, 1) == 1;
  return c;
}

TEST(Attention, RandomBatchesAgreeWithAttentionInDouble) {
  const Module module(KVTIER_EMULATION "/lib/kvtier/kvtier_cuda.so");
  std::map<std::pair<int, ElementType>, std::unique_ptr<Device>> devices;
  const int from = from_environment("KVTIER_TEST_FROM", 0);
  const int count = from_environment("KVTIER_TEST_CASES", 60);
  for (int number = from; number < from + count; ++number) {
    const AttentionCase c = random_case(number);
    const std::pair which(number % 2,
                          number / 2 % 2 == 0 ? ElementType::bfloat16 : ElementType::float16);
    module.schedule(static_cast<Schedule>(number / 4 % 3), static_cast<std::uint64_t>(number));
    auto& device = devices[which];
    if (device == nullptr) {
      device = module.open(which.first, which.second);
    }
    ASSERT_LE(attention_error(*device, c), 1) << c.name;
    ASSERT_EQ(module.fault(), "") << c.name;
  }
}

/// Runs random batches of heads of 128 in 16 bits and returns the products of warpgroups. A GPU of
/// one multiprocessor splits few contexts, so that items have many tiles of keys.
std::int64_t products_of_batches(int index) {
  const Module module(KVTIER_EMULATION "/lib/kvtier/kvtier_cuda.so");
  const std::int64_t before = module.counters().products;
  const int from = from_environment("KVTIER_TEST_FROM", 0);
  const int count = from_environment("KVTIER_TEST_CASES", 30);
  std::map<std::pair<ElementType, bool>, std::unique_ptr<Device>> devices;
  for (int number = from; number < from + count; ++number) {
    AttentionCase c = random_case(number);
    c.shape.head_dim = 128;
    c.float8 = false;
    module.schedule(static_cast<Schedule>(number / 2 % 3), static_cast<std::uint64_t>(number));
    const ElementType element = number % 2 == 0 ? ElementType::bfloat16 : ElementType::float16;
    const bool small = number / 2 % 2 == 0;
    auto& device = devices[{element, small}];
    if (device == nullptr) {
      ::setenv("KVTIER_EMULATED_PROCESSORS", small ? "1" : "132", 1);
      device = module.open(index, element);
      ::unsetenv("KVTIER_EMULATED_PROCESSORS");
    }
    EXPECT_LE(attention_error(*device, c), 1) << c.name;
    EXPECT_EQ(module.fault(), "") << c.name;
  }
  return module.counters().products - before;
}

TEST(Attention, RandomBatchesOfHeadsOf128UseWarpgroups) { EXPECT_GT(products_of_batches(0), 0); }

TEST(Attention, RandomBatchesOfHeadsOf128NeedNoWarpgroups) { EXPECT_EQ(products_of_batches(1), 0); }

// The prompt's 320 rows (2 heads of 160 tokens) lie in 3 tiles of 128, and 60 decodes are an item
// each, for 2 KV heads: 126 blocks. One block uploads the plan.
TEST(Attention, LaunchesOnlyBlocksThatHaveRows) {
  const Module module(KVTIER_EMULATION "/lib/kvtier/kvtier_cuda.so");
  const auto device = module.open(0, ElementType::bfloat16);
  AttentionCase c{.name = "a prompt beside decodes",
                  .shape = {.query_heads = 4, .kv_heads = 2, .head_dim = 16},
                  .requests = {{160, 160}},
                  .rope_base = 0};
  c.requests.insert(c.requests.end(), 60, {1, 20});
  const std::int64_t before = module.counters().blocks;
  EXPECT_LE(attention_error(*device, c), 1);
  EXPECT_EQ(module.counters().blocks - before, 126 + 1);
}

// One request on one KV head: 5,000 keys in parts of 256, padded to the 1,056 shares of 132
// multiprocessors and one for the request, and one for each of the 8 rows to merge. One block
// uploads the plan.
TEST(Attention, PadsDecodesToANumberThatContextsDoNotChange) {
  const Module module(KVTIER_EMULATION "/lib/kvtier/kvtier_cuda.so");
  const auto device = module.open(0, ElementType::float16);
  const auto blocks_of = [&](std::int64_t added, std::int64_t context) {
    const AttentionCase c{.name = "long",
                          .shape = {.query_heads = 8, .kv_heads = 1, .head_dim = 128},
                          .requests = {{added, context}},
                          .rope_base = 10000};
    const std::int64_t before = module.counters().blocks;
    EXPECT_LE(attention_error(*device, c), 1);
    return module.counters().blocks - before;
  };
  EXPECT_EQ(blocks_of(1, 5000), 1057 + 8 + 1);
  EXPECT_EQ(blocks_of(1, 20), 1057 + 8 + 1);
  // Two tokens are 16 rows, and are not padded: 20 parts, and 16 rows to merge.
  EXPECT_EQ(blocks_of(2, 5000), 20 + 16 + 1);
}

}  // namespace
}  // namespace kvtier::emulation
