// The entry that came into the tier last leaves first. A library as `kvtier --plugin` takes them;
// O(log n) per decision.
#include <map>

#include "sim/core/assert.hpp"
#include "sim/policy/plugin.hpp"

namespace {

using namespace kvtier;

class NewestFirst final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    arrivals_[entry.id] = ++arrived_;
    entries_[arrived_] = entry.id;
  }
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId entry, SimTime) override {
    entries_.erase(arrivals_.at(entry));
    arrivals_.erase(entry);
  }

  void choose(const RoomRequest&, Victims& victims) override {
    for (auto it = entries_.rbegin(); it != entries_.rend() && victims.wants_more(); ++it) {
      if (victims.offers(it->second)) {
        victims.add(it->second);
      }
    }
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& entry, bool) {
      ++residents;
      KVTIER_ASSERT(arrivals_.contains(entry.id), "every resident entry is known");
    });
    KVTIER_ASSERT(residents == arrivals_.size(), "no other entry is known");
  }

 private:
  std::map<EntryId, std::uint64_t> arrivals_;
  std::map<std::uint64_t, EntryId> entries_;
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
