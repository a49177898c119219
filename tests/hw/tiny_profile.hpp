#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hw/profile/profile.hpp"
#include "tests/hw/tiny_model.hpp"

/// A profile of the tiny model whose times are easy to work out.
namespace kvtier::test {

inline ProfileCell cell(std::vector<std::int64_t> at, double seconds) {
  return {.at = std::move(at),
          .p25_seconds = seconds,
          .median_seconds = seconds,
          .p75_seconds = seconds,
          .n = 1};
}

/// Adds a table without a shape.
inline void add_table(Profile& profile, OperationId operation, std::string variant,
                      std::vector<ProfileCell> cells) {
  profile.tables.push_back({.operation = operation,
                            .variant = std::move(variant),
                            .method = {},
                            .cache = CacheState::cold,
                            .shape = {},
                            .axes = profile_operation(operation).axes,
                            .cells = std::move(cells),
                            .left_out = {}});
}

inline ProfileTable matrix_table(const std::string& name, std::int64_t n, std::int64_t k,
                                 const std::map<std::int64_t, double>& seconds) {
  ProfileTable table{.operation = OperationId::gemm, .variant = name};
  table.shape = {{"n", n}, {"k", k}, {"element_bytes", 2}};
  table.axes = {"tokens"};
  for (const auto& [tokens, time] : seconds) {
    table.cells.push_back(cell({tokens}, time));
  }
  return table;
}

/// qkv takes 1 s for 1 token, 2 s for 4 and 8 s for 16; every other matrix 1 s for any number of
/// tokens. Attention of n new tokens after P takes n + P/8 s (n of 1, 4; P of 0, 8, 32), and of a
/// batch of B (1, 4) with c tokens each (8, 32) B x c / 8 s. The limits are far below all that.
inline Profile tiny_profile() {
  Profile profile;
  profile.name = "tiny-profile";
  profile.provenance = {.date = "2026-01-02T03:04:05Z", .command = "made up"};
  profile.device = {.name = "abacus",
                    .driver = "none",
                    .memory = Bytes(std::int64_t{1} << 30),
                    .peak = FlopsPerSecond(1e6),
                    .memory_bandwidth = BytesPerSecond(1e6),
                    .limits_source = "made up"};
  profile.tables.push_back(matrix_table("qkv", 8, 4, {{1, 1}, {4, 2}, {16, 8}}));
  profile.tables.push_back(matrix_table("attention_output", 4, 4, {{1, 1}, {16, 1}}));
  profile.tables.push_back(matrix_table("mlp_down", 4, 8, {{1, 1}, {16, 1}}));
  profile.tables.push_back(matrix_table("lm_head", 10, 4, {{1, 1}, {16, 1}}));
  const std::map<std::string, std::int64_t> shape{
      {"attention_heads", 2}, {"kv_heads", 1}, {"head_dim", 2}, {"element_bytes", 2}};
  ProfileTable extend{.operation = OperationId::prefill_attention, .variant = "random_slots"};
  extend.shape = shape;
  extend.axes = {"new_tokens", "past_tokens"};
  for (const std::int64_t added : {1, 4}) {
    for (const std::int64_t past : {0, 8, 32}) {
      extend.cells.push_back(
          cell({added, past}, static_cast<double>(added) + static_cast<double>(past) / 8));
    }
  }
  profile.tables.push_back(extend);
  ProfileTable decode{.operation = OperationId::decode_attention, .variant = "random_slots"};
  decode.shape = shape;
  decode.axes = {"batch", "context"};
  for (const std::int64_t batch : {1, 4}) {
    for (const std::int64_t context : {8, 32}) {
      decode.cells.push_back(cell({batch, context}, static_cast<double>(batch * context) / 8));
    }
  }
  profile.tables.push_back(decode);
  return profile;
}

}  // namespace kvtier::test
