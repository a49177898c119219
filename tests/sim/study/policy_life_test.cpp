/// Policies with counters of their own, in whole runs: their counts equal those of the run's
/// records.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/replay/untimed.hpp"
#include "tests/sim/study/support.hpp"
#include "tests/sim/study/untimed_replay.hpp"

namespace kvtier::test {
namespace {

/// Hits since they came in, by session.
using Counts = std::map<std::int64_t, std::int64_t>;

/// The fewest hits since it came in leave first, of equal ones the lowest number: a textbook
/// frequency policy that sees turns only through its calls.
class CountingEviction final : public EvictionPolicy {
 public:
  explicit CountingEviction(Counts& counts) : counts_(counts) {}

  void on_insert(const EntryView& entry, SimTime) override {
    keys_[entry.id] = static_cast<std::int64_t>(entry.key.value);
    counts_[keys_[entry.id]] = 0;
  }
  void on_hit(EntryId entry, SimTime) override { ++counts_[keys_.at(entry)]; }
  void on_remove(EntryId entry, SimTime) override {
    counts_.erase(keys_.at(entry));
    keys_.erase(entry);
  }
  void choose(const RoomRequest&, Victims& victims) override {
    while (victims.wants_more()) {
      EntryId least = kNoEntry;
      for (const auto& [entry, key] : keys_) {
        if (victims.offers(entry) &&
            (!least.valid() || counts_.at(key) < counts_.at(keys_.at(least)))) {
          least = entry;
        }
      }
      if (!least.valid()) {
        return;
      }
      victims.add(least);
    }
  }
  void check_invariants(const TierView&) const override {}

 private:
  Counts& counts_;
  std::map<EntryId, std::int64_t> keys_;
};

PolicyRegistry with_counting(Counts& counts) {
  PolicyRegistry registry = builtin_policies();
  registry.eviction.push_back({.name = "counting",
                               .summary = "the fewest hits leave first",
                               .source = "a test",
                               .make = [&counts](const PolicyParameters&) {
                                 return std::make_unique<CountingEviction>(counts);
                               }});
  return registry;
}

/// A machine with room for all; sessions whose turns come long after their saves.
RunConfig roomy(const std::string& system, const std::string& tier) {
  std::vector<std::string> settings{"/system=" + system,
                                    "/workload/sessions=60",
                                    "/workload/warmup_turns=0",
                                    "/workload/think_time/mean=200s",
                                    "/workload/think_time/model=constant",
                                    "/hardware/dram/capacity=8TiB"};
  RunConfig config = resolved("examples/planner-70.json", settings);
  TiersConfig& tiers = config.system.tiers;
  (tier == "hbm"   ? static_cast<TierConfig&>(*tiers.hbm)
   : tier == "ssd" ? *tiers.ssd
                   : *tiers.dram)
      .eviction.name = "counting";
  return config;
}

void expect_counts(const RunConfig& config, const std::string& what) {
  Counts counts;
  RequestList list;
  RunOptions options;
  options.observer = &list;
  static_cast<void>(simulate(config, with_counting(counts), options));
  Counts expected;
  std::int64_t most = 0;
  for (const RequestRecord& r : list.records) {
    std::int64_t& hits = expected[r.session];
    hits += r.found.reused.value > 0 ? 1 : 0;
    most = std::max(most, hits);
  }
  EXPECT_EQ(counts, expected) << what;
  EXPECT_GT(most, 5) << what;
}

TEST(CountingPolicy, ReachesTheNumberOfHits) {
  RunConfig dram = roomy("attentionstore_lru", "dram");
  dram.system.tiers.ssd.reset();
  expect_counts(dram, "DRAM");
  dram.system.tiers.dram->inclusive = true;
  expect_counts(dram, "inclusive DRAM");
  RunConfig ssd = roomy("attentionstore_lru", "ssd");
  ssd.hardware.ssd->capacity = ssd.hardware.dram->capacity;
  ssd.system.tiers.dram.reset();
  expect_counts(ssd, "SSD");
}

TEST(CountingPolicy, DiffersFromLruIfUsesDiffer) {
  Counts counts;
  const RunConfig lru = one_tier(Placement::dram, "lru", 40);
  const RunConfig counting = one_tier(Placement::dram, "counting", 40);
  EXPECT_NE(simulate_untimed(lru, builtin_policies(), {})["metrics"],
            simulate_untimed(counting, with_counting(counts), {})["metrics"]);
}

}  // namespace
}  // namespace kvtier::test
