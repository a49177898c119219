/// KV of models whose layers differ, as a server has room for it.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "policies/registry.hpp"
#include "sim/serving/config.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

using Lines = std::vector<std::string>;

/// Every second layer of 4 has a state of 4 x 8 x 4 B = 128 B.
RunConfig with_states() {
  RunConfig config = tiny_config();
  config.model.layers = 4;
  config.model.attention = {AttentionKind::state, AttentionKind::full};
  config.model.state = StateConfig{.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 8};
  return config;
}

TEST(LayeredModels, RunningRequestsHaveStatesBesideTheirTokens) {
  RunConfig config = with_states();
  const Bytes left = config.hardware.hbm.capacity - weight_bytes(config.model);
  config.serving.slots = 3;
  EXPECT_EQ(running_kv_capacity(config), left - Bytes(3 * 2 * 128));
  config.serving.kv_memory = Bytes(10'000'000);
  EXPECT_EQ(running_kv_capacity(config), Bytes(10'000'000 - 3 * 2 * 128));
}

TEST(LayeredModels, StatesAreStoredAtSomePositions) {
  RunConfig config = with_states();
  EXPECT_EQ(problems_of(config), Lines{});
  config.system.tiers.dram = tier();
  EXPECT_EQ(problems_of(config),
            Lines{"/model/resume_every: expected the distance of stored states, such as "
                  "\"4096tokens\": the model has state layers, and the system stores KV, got "
                  "\"none\""});
  config.model.resume_every = Tokens(10);
  EXPECT_EQ(problems_of(config), Lines{});
  // 128 B / 10 is 13 B, and key and value of 50 elements in 2 B.
  EXPECT_TRUE(has_unequal_layers(config));
  EXPECT_EQ(stored_layer_sizes(config),
            (std::vector<Bytes>{Bytes(13), Bytes(213), Bytes(226), Bytes(426)}));
  config.model.resume_every = Tokens(1001);
  EXPECT_EQ(problems_of(config), Lines{"/model/resume_every: expected at most the context window, "
                                       "1000tokens, got 1001tokens"});
}

TEST(LayeredModels, LayersOfOneKindAreEqual) {
  RunConfig config = tiny_config();
  EXPECT_FALSE(has_unequal_layers(config));
  config.model.attention = {AttentionKind::window, AttentionKind::full};
  config.model.window = Tokens(10);
  EXPECT_FALSE(has_unequal_layers(config));
  config.model.resume_every = Tokens(20);
  EXPECT_TRUE(has_unequal_layers(config));
}

TEST(LayeredModels, AProblemOfTheShapeHidesNoOther) {
  RunConfig config = tiny_config();
  config.model.attention = {AttentionKind::latent};
  config.model.window = Tokens(5);
  config.system.order.name = "first";
  config.hardware.gpus = 2;
  config.hardware.links.gpu.bandwidth = BytesPerSecond(0);
  config.hardware.dram->bandwidth = BytesPerSecond(1e9);
  const Lines lines = problems_of(config);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "/model/window: expected \"none\": /attention has no window layer");
  EXPECT_EQ(lines[1], "/model/latent: latent layers need it, got \"none\"");
  EXPECT_TRUE(lines[2].starts_with("/hardware/links/gpu/bandwidth: ")) << lines[2];
  EXPECT_TRUE(lines[3].starts_with("/system/order: expected one of ")) << lines[3];
}

}  // namespace
}  // namespace kvtier::test
