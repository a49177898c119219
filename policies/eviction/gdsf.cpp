// Greedy-Dual-Size-Frequency: an entry is worth its uses times the cost of a miss, for each byte
// that it takes, and the lowest worth leaves first. The worth of a victim becomes the base on which
// later uses add theirs, so that what is not used any more ages. Cherkasova, Improving WWW Proxies
// Performance with Greedy-Dual-Size-Frequency Caching Policy, 1998. O(log n) per decision.
//
// Adapted: the cost of a miss is the time that computing the entry's tokens takes. It grows faster
// than their bytes, so large entries are worth more; with a cost of 1 each, which the paper also
// has, small ones are. A use counts when its turn begins and takes the base when it ends. An entry
// that grows is worth what its new size says, on the base of its last use.
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
  [[nodiscard]] double use_value(Tokens tokens) const override {
    return recompute_ ? facts().recompute(tokens).seconds() : 1;
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
                          .documentation = "what a miss costs; 1: the time to recompute, 0: 1 each",
                          .unit = "flag (0 or 1)",
                          .minimum = 0,
                          .maximum = 1,
                          .default_value = 1}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<EvictionPolicy> {
            return std::make_unique<GdsfEviction>(parameter_or(parameters, kRecompute, 1) != 0);
          }};
}

}  // namespace kvtier
