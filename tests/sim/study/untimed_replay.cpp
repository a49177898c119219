#include "tests/sim/study/untimed_replay.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/model/model.hpp"
#include "sim/replay/untimed.hpp"

namespace kvtier::test {

Bytes entry_size(const RunConfig& config) { return kv_bytes_per_token(config.model) * kWindow; }

RunConfig one_tier(Placement place, const std::string& eviction, std::int64_t entries,
                   std::int64_t seed) {
  RunConfig config =
      resolved("examples/planner-70.json",
               {"/system=attentionstore_lru", "/model/layers=8", "/model/kv_heads=8",
                fmt::format("/model/context_window={}tokens", kWindow), "/workload/sessions=1500",
                "/workload/warmup_turns=0", "/workload/sharegpt/message_cap=500tokens",
                "/serving/kv_reservation=context_window", fmt::format("/seed={}", seed)});
  const Bytes entry = entry_size(config);
  TierConfig tier;
  tier.eviction.name = eviction;
  config.system.tiers = {};
  (place == Placement::dram ? config.system.tiers.dram : config.system.tiers.ssd) = tier;
  config.hardware.dram->capacity = entry * entries;
  config.hardware.ssd->capacity = entry * entries;
  return config;
}

Replay replay(const RunConfig& config) {
  RequestList list;
  RunOptions options;
  options.observer = &list;
  Replay replay;
  replay.result = simulate_untimed(config, builtin_policies(), options);
  for (const RequestRecord& r : list.records) {
    replay.accesses.push_back({r.session, r.turn, r.arrived, r.resumed()});
    EXPECT_EQ(r.truncated.value, 0) << "the models need whole histories";
    EXPECT_TRUE(r.found.reused.value == 0 || r.found.reused == r.history) << "whole or nothing";
    replay.hits.push_back(r.full_hit());
    replay.media.push_back(r.found.medium);
  }
  return replay;
}

}  // namespace kvtier::test
