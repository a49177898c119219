#include "sim/store/decisions.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "hw/profile/profile_timing.hpp"
#include "policies/registry.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/instance.hpp"
#include "sim/serving/simulate.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/study/config/resolve.hpp"

// The decision log of blocks tells all: replayed, it gives the blocks of each tier, and its sums
// are the counters. random_stores.cpp compares the same after each call of stores with random
// rules.
namespace kvtier {
namespace {

ConfigDirectory presets() { return ConfigDirectory(KVTIER_SOURCE_DIR "/configs"); }

/// The system on a server with all media.
RunConfig config_of(const std::string& system, const std::vector<std::string>& settings) {
  ConfigRequest request;
  request.file = KVTIER_SOURCE_DIR "/configs/examples/planner-70.json";
  request.overrides = {
      parse_override(R"(/hardware/cxl={"capacity": "16GiB", "price": "0$/h/GiB", "bandwidth": )"
                     R"({"read": "10GB/s", "write": "10GB/s", "both": "10GB/s"}})"),
      parse_override("/system=" + system)};
  for (const std::string& setting : settings) {
    request.overrides.push_back(parse_override(setting));
  }
  return resolve_config(request, presets(), builtin_policies()).config;
}

/// Small tiers, slow drives and a short workload.
std::vector<std::string> random_settings(std::mt19937_64& random) {
  const auto one_of = [&](const std::vector<std::string>& values) {
    return values[random() % values.size()];
  };
  return {"/model=" + one_of({"llama2-13b", "llama3-8b"}),
          "/hardware/dram/capacity=" + one_of({"2GiB", "8GiB", "24GiB"}),
          "/hardware/ssd/capacity=" + one_of({"3GiB", "30GiB"}),
          "/hardware/ssd/bandwidth/write=" + one_of({"0.02GB/s", "2GB/s"}),
          "/workload/sessions=" + one_of({"6", "12", "24"}),
          "/workload/arrival_rate=" + one_of({"0.1/s", "1/s", "4/s"}),
          "/workload/warmup_turns=0",
          "/serving/kv_memory=" + one_of({"12GiB", "24GiB"}),
          fmt::format("/seed={}", random() % 1000 + 1)};
}

class Replay final : public DecisionObserver {
 public:
  struct Tier {
    /// Copies of each block, by stream and first token.
    std::map<std::pair<std::uint32_t, std::int64_t>, int> copies;
    std::map<DecisionKind, std::int64_t> blocks;

    [[nodiscard]] std::int64_t sum(std::initializer_list<DecisionKind> kinds) const {
      std::int64_t all = 0;
      for (const DecisionKind kind : kinds) {
        all += blocks.contains(kind) ? blocks.at(kind) : 0;
      }
      return all;
    }
    [[nodiscard]] PoolCounters counters() const {
      using enum DecisionKind;
      return {.inserted = sum({insert, promote, prefetch}),
              .evicted = sum({evict, demote}),
              .demoted = sum({demote}),
              .promoted = sum({promote, prefetch}),
              .skipped = sum({skip})};
    }
    [[nodiscard]] std::int64_t resident() const {
      std::int64_t all = 0;
      for (const auto& [block, count] : copies) {
        all += count;
      }
      return all;
    }
    void shift(const BlockDecision& cut) {
      std::map<std::pair<std::uint32_t, std::int64_t>, int> after;
      for (const auto& [key, count] : copies) {
        const bool shifts = key.first == cut.stream && key.second >= cut.begin.value;
        after[{key.first, key.second - (shifts ? cut.tokens.value : 0)}] = count;
      }
      copies = std::move(after);
    }
    /// Blocks by their place in a stream, one for each copy, sorted.
    [[nodiscard]] std::vector<std::int64_t> places(Tokens block) const {
      std::vector<std::int64_t> all;
      for (const auto& [key, count] : copies) {
        all.insert(all.end(), static_cast<std::size_t>(count), key.second / block.value);
      }
      std::sort(all.begin(), all.end());
      return all;
    }
  };
  std::map<Medium, Tier> tiers;
  std::int64_t lines = 0;

  void on_decision(const Decision&) override { FAIL() << "no entry of a session"; }
  void on_use(EntryKey, SimTime) override {}
  void on_block_decision(const BlockDecision& d) override {
    EXPECT_GE(d.time, now_) << "time goes back";
    now_ = d.time;
    ++lines;
    Tier& tier = tiers[d.tier];
    tier.blocks[d.kind] += d.blocks;
    if (d.kind == DecisionKind::skip) {
      return;
    }
    if (d.kind == DecisionKind::shift) {
      tier.shift(d);
      return;
    }
    const bool comes = d.kind == DecisionKind::insert || d.kind == DecisionKind::promote ||
                       d.kind == DecisionKind::prefetch;
    const std::int64_t size = d.tokens.value / d.blocks;
    for (std::int64_t i = 0; i < d.blocks; ++i) {
      const std::pair block{d.stream, d.begin.value + i * size};
      int& copies = tier.copies[block];
      copies += comes ? 1 : -1;
      ASSERT_GE(copies, 0) << to_string(d.kind) << " of a block that is not there";
      if (copies == 0) {
        tier.copies.erase(block);
      }
    }
  }

 private:
  SimTime now_;
};

template <class Test>
void for_each_system_of_blocks(Test test) {
  int systems = 0;
  std::mt19937_64 random(1);
  for (const std::string& system : presets().names("systems")) {
    if (!config_of(system, {}).system.blocks) {
      continue;
    }
    ++systems;
    for (int i = 0; i < 6; ++i) {
      SCOPED_TRACE(fmt::format("{}, config {}", system, i));
      test(config_of(system, random_settings(random)));
    }
  }
  EXPECT_GE(systems, 10);
}

TEST(BlockDecisions, GiveTheBlocksOfEachTierInATimedRun) {
  std::int64_t lines = 0;
  const PolicyRegistry registry = builtin_policies();
  for_each_system_of_blocks([&](const RunConfig& config) {
    const auto timing = make_timing(config.model, config.hardware, config.system.positions,
                                    config.serving.slots, config.system.engine);
    SimulatedBackend backend(config.hardware, config.model.layers, *timing,
                             DecodeStepping::closed_form);
    const auto source = make_source(config.workload, static_cast<std::uint64_t>(config.seed), {});
    Replay log;
    Instance instance({.config = &config,
                       .registry = &registry,
                       .backend = &backend,
                       .sessions = source.get(),
                       .decisions = &log});
    instance.run();
    lines += log.lines;
    const Store& store = *instance.batcher().block_store();
    const StoreRules rules = timed_store_rules(config);
    for (std::size_t i = 0; i < rules.pools.size(); ++i) {
      const Replay::Tier& tier = log.tiers[medium_of(rules.pools[i].name)];
      EXPECT_EQ(tier.counters(), store.counters(i)) << rules.pools[i].name;
      EXPECT_EQ(tier.resident(), store.resident_blocks(i)) << rules.pools[i].name;
      std::vector<std::int64_t> places;
      for (const Stretch& block : store.contents(i)) {
        places.push_back(block.begin);
      }
      std::sort(places.begin(), places.end());
      EXPECT_EQ(tier.places(rules.pools[i].block), places) << rules.pools[i].name;
    }
  });
  EXPECT_GT(lines, 10'000);
}

TEST(BlockDecisions, HaveTheCountersOfAnUntimedReplay) {
  const PolicyRegistry registry = builtin_policies();
  for_each_system_of_blocks([&](const RunConfig& config) {
    Replay log;
    RunOptions options;
    options.decisions = &log;
    const Json result = simulate_untimed(config, registry, options);
    for (const auto& [name, json] : result["metrics"]["tiers"].items()) {
      const Replay::Tier& tier = log.tiers[medium_of(name)];
      const PoolCounters sums = tier.counters();
      EXPECT_EQ(sums.inserted, json["inserted_blocks"]) << name;
      EXPECT_EQ(sums.evicted, json["evicted_blocks"]) << name;
      EXPECT_EQ(sums.demoted, json["demoted_blocks"]) << name;
      EXPECT_EQ(sums.skipped, json["skipped_blocks"]) << name;
      EXPECT_EQ(tier.resident(), json["resident_blocks"]) << name;
    }
    options.decisions = nullptr;
    EXPECT_EQ(result, simulate_untimed(config, registry, options)) << "a log changes nothing";
  });
}

}  // namespace
}  // namespace kvtier
