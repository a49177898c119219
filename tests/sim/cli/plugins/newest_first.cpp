// The entry that came into the tier last leaves first. A library as `kvtier --plugin` takes them;
// O(log n) per decision.
#include <map>
#include <set>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/policy/plugin.hpp"

namespace {

using namespace kvtier;

class NewestFirst final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    arrivals_[entry.id] = ++arrived_;
    free_.insert({arrived_, entry.id});
  }
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId entry, SimTime) override {
    free_.erase({arrivals_.at(entry), entry});
    arrivals_.erase(entry);
  }
  void on_pin(EntryId entry) override { free_.erase({arrivals_.at(entry), entry}); }
  void on_unpin(EntryId entry) override { free_.insert({arrivals_.at(entry), entry}); }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    return free_.empty() ? std::nullopt : std::optional(Victim{free_.rbegin()->second, Tokens(0)});
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool pinned) {
      ++residents;
      const auto found = arrivals_.find(entry.id);
      KVTIER_ASSERT(found != arrivals_.end(), "every resident entry is known");
      KVTIER_ASSERT(free_.contains({found->second, entry.id}) != pinned, "what is pinned is known");
    });
    KVTIER_ASSERT(residents == arrivals_.size(), "no other entry is known");
  }

 private:
  std::map<EntryId, std::uint64_t> arrivals_;
  std::set<std::pair<std::uint64_t, EntryId>> free_;
  std::uint64_t arrived_ = 0;
};

void add_policies(PolicyRegistry& registry) {
  registry.eviction.push_back(
      {.name = "newest_first",
       .summary = "the entry that came into the tier last leaves first",
       .source = "a test",
       .knowledge = Knowledge::online,
       .parameters = {},
       .make = [](const PolicyParameters&) { return std::make_unique<NewestFirst>(); }});
}

}  // namespace

KVTIER_POLICY_PLUGIN(add_policies);
