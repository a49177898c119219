// Greedy-Dual-Size-Frequency: an entry is worth its uses times the cost of a miss, for each byte
// that it takes, and the lowest worth leaves first. The worth of a victim becomes the base on which
// later uses add theirs, so that what is not used any more ages. Cherkasova, Improving WWW Proxies
// Performance with Greedy-Dual-Size-Frequency Caching Policy, 1998. O(log n) per decision.
//
// Adapted: the cost of a miss is the time that computing the entry's tokens takes. It grows faster
// than their bytes, so large entries are worth more; with a cost of 1 each, which the paper also
// has, small ones are. Uses are forgotten when an entry leaves as a victim; one that grows is worth
// what its new size says, on the base of its last use.
#include "policies/eviction/gdsf.hpp"

#include <algorithm>
#include <bit>

#include "sim/policy/entry_queues.hpp"

namespace kvtier {
namespace {

constexpr const char* kRecompute = "recompute";

class GdsfEviction final : public EvictionPolicy {
 public:
  explicit GdsfEviction(bool recompute) : recompute_(recompute) {}

  void on_start(const TierFacts& facts) override { facts_ = facts; }
  void on_insert(const EntryView& entry, SimTime) override {
    const Arrival arrival = queues_.arrive(entry);
    Worth& worth = queues_.mark(entry.id);
    if (arrival != Arrival::back) {
      worth.uses += 1;
      worth.base = base_;
    }
    set_value(worth, entry);
    queues_.enter(entry.id, 0, order(worth));
  }
  void on_hit(EntryId entry, SimTime) override {
    queues_.hit(entry);
    Worth& worth = queues_.mark(entry);
    worth.uses += 1;
    worth.base = base_;
    queues_.move(entry, 0, order(worth));
  }
  void on_resize(const EntryView& entry, SimTime) override {
    queues_.resize(entry);
    Worth& worth = queues_.mark(entry.id);
    set_value(worth, entry);
    queues_.move(entry.id, 0, order(worth));
  }
  void on_remove(EntryId entry, SimTime) override {
    if (queues_.remove(entry)) {
      const Worth& worth = queues_.mark(entry);
      base_ = std::max(base_, worth.base + worth.uses * worth.value);
    }
  }
  void on_pin(EntryId entry) override { queues_.pin(entry); }
  void on_unpin(EntryId entry) override { queues_.unpin(entry); }

  std::optional<Victim> select_victim(const EvictionContext&) override {
    return queues_.choose(queues_.front(0));
  }
  void check_invariants(const TierView& tier) const override { queues_.check(tier); }

 private:
  struct Worth {
    double uses = 0;
    double base = 0;
    /// Of one use, for each byte.
    double value = 0;
  };

  void set_value(Worth& worth, const EntryView& entry) const {
    const double cost = recompute_ ? facts_.recompute(entry.tokens).seconds() : 1;
    worth.value = cost / static_cast<double>(std::max<std::int64_t>(1, entry.bytes.value));
  }
  /// Of numbers that are not negative the bits are in the same order.
  [[nodiscard]] static std::uint64_t order(const Worth& worth) {
    return std::bit_cast<std::uint64_t>(worth.base + worth.uses * worth.value);
  }

  bool recompute_;
  TierFacts facts_;
  EntryQueues<Worth> queues_{1};
  /// The highest worth of a victim so far.
  double base_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> gdsf_eviction() {
  return {.name = "gdsf",
          .summary = "the lowest uses x cost of a miss / bytes leaves first, with ageing",
          .source = "Cherkasova (HP Laboratories, 1998); a miss costs its time to recompute",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kRecompute,
                          .documentation = "what a miss costs; 1: the time to recompute, 0: 1 each",
                          .unit = "flag (0 or 1)",
                          .minimum = 0,
                          .maximum = 1,
                          .default_value = 1}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<EvictionPolicy> {
            const auto recompute = parameters.find(kRecompute);
            return std::make_unique<GdsfEviction>(recompute == parameters.end() ||
                                                  recompute->second != 0);
          }};
}

}  // namespace kvtier
