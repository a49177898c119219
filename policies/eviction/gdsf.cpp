// Greedy-Dual-Size-Frequency: worth = base + uses x cost of a miss / bytes, and the lowest worth
// leaves first. The worth of a victim becomes the base of later uses, so that unused entries age.
// Cherkasova, Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy,
// 1998. O(log n) per decision.
//
// Adapted: the cost of a miss is the time to compute the entry's tokens behind the tokens before
// them. It grows faster than their bytes, so large entries, and entries deep in a context, are
// worth more. With a cost of 1 each, which the paper also has, small entries are worth more. A use
// counts when its turn begins and takes the base when it ends. If an entry grows, its worth follows
// its new size, on the base of its last use.
#include "policies/eviction/gdsf.hpp"

#include "sim/policy/greedy_dual.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kRecompute = "recompute";

class GdsfEviction final : public GreedyDual {
 public:
  explicit GdsfEviction(bool recompute) : GreedyDual(true), recompute_(recompute) {}

 private:
  [[nodiscard]] double use_value(const EntryView& entry) const override {
    return recompute_ ? recompute(entry).seconds() : 1;
  }

  bool recompute_;
};

}  // namespace

PolicyKind<EvictionPolicy> gdsf_eviction() {
  return {.name = "gdsf",
          .summary = "the lowest uses x cost of a miss / bytes leaves first, with ageing",
          .source = "Cherkasova (HP Laboratories, 1998); a miss costs its time to recompute",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kRecompute,
                          .documentation = "cost of a miss; 1: the time to recompute, 0: 1 each",
                          .unit = "flag (0 or 1)",
                          .minimum = 0,
                          .maximum = 1,
                          .default_value = 1}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<EvictionPolicy> {
            return std::make_unique<GdsfEviction>(parameter_or(parameters, kRecompute, 1) != 0);
          }};
}

}  // namespace kvtier
