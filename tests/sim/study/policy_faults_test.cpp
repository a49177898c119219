/// Policies that break their contract end the run with an error that says so.

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/policy/policy.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

/// Its victims are numbers that no entry has.
class Invents final : public EvictionPolicy {
 public:
  explicit Invents(std::uint32_t victim) : victim_(victim) {}
  void on_insert(const EntryView&, SimTime) override {}
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId, SimTime) override {}
  void choose(const RoomRequest&, Victims& victims) override { victims.add(EntryId{victim_}); }
  void check_invariants(const TierView&) const override {}

 private:
  std::uint32_t victim_;
};

std::string problem_of(const RunConfig& config, std::uint32_t victim) {
  PolicyRegistry registry = builtin_policies();
  registry.eviction.push_back(
      {.name = "invents",
       .summary = "a fault",
       .source = "a test",
       .knowledge = Knowledge::online,
       .parts_of_entries = config.system.blocks.has_value(),
       .parameters = {},
       .make = [victim](const PolicyParameters&) { return std::make_unique<Invents>(victim); }});
  try {
    (void)simulate(config, registry);
  } catch (const InvariantError& error) {
    return error.what();
  }
  return "no problem";
}

/// Keeps a token of each victim, the last entry first.
class KeepsOne final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override { entries_.push_back(entry.id); }
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId entry, SimTime) override { std::erase(entries_, entry); }
  void choose(const RoomRequest&, Victims& victims) override {
    for (const EntryId entry : entries_) {
      if (victims.wants_more() && victims.offers(entry)) {
        static_cast<void>(victims.add(entry, Tokens(1)));
      }
    }
  }
  void check_invariants(const TierView&) const override {}

 private:
  std::vector<EntryId> entries_;
};

TEST(EvictionFault, APartOfAnEntryThatIsEvictedWholeEndsTheRun) {
  PolicyRegistry registry = builtin_policies();
  registry.eviction.push_back(
      {.name = "keeps_one",
       .summary = "a fault",
       .source = "a test",
       .knowledge = Knowledge::online,
       .parameters = {},
       .make = [](const PolicyParameters&) { return std::make_unique<KeepsOne>(); }});
  RunConfig config = resolved("examples/planner-70.json",
                              {"/system=attentionstore_lru", "/hardware/dram/capacity=16GiB",
                               "/workload/sessions=300", "/workload/warmup_turns=0"});
  config.system.tiers.dram->eviction.name = "keeps_one";
  try {
    (void)simulate(config, registry);
    ADD_FAILURE() << "a session was kept in part";
  } catch (const InvariantError& error) {
    EXPECT_NE(std::string(error.what()).find("a part of an entry that is evicted whole"),
              std::string::npos)
        << error.what();
  }
}

TEST(EvictionFault, AVictimThatIsNoEntryEndsTheRun) {
  for (const std::uint32_t victim : {1'000'000'000U, UINT32_MAX}) {
    for (const char* tier : {"hbm", "dram"}) {
      RunConfig config =
          resolved("examples/planner-70.json",
                   {"/system=pensieve", "/hardware/dram/capacity=4GiB", "/workload/sessions=300",
                    "/workload/warmup_turns=0", "/workload/arrival_rate=10/s"});
      if (std::string(tier) == "hbm") {
        config.system.tiers.hbm->eviction.name = "invents";
      } else {
        config.system.tiers.dram->eviction.name = "invents";
      }
      EXPECT_NE(problem_of(config, victim).find("a victim that was not offered"), std::string::npos)
          << tier << ": " << problem_of(config, victim);
    }
    RunConfig config = resolved("examples/planner-70.json",
                                {"/system=attentionstore_lru", "/hardware/dram/capacity=16GiB",
                                 "/workload/sessions=300", "/workload/warmup_turns=0"});
    config.system.tiers.dram->eviction.name = "invents";
    EXPECT_NE(problem_of(config, victim).find("a victim that was not offered"), std::string::npos)
        << problem_of(config, victim);
  }
}

}  // namespace
}  // namespace kvtier::test
