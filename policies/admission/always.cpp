// Always: every entry may enter the tier, and the eviction policy makes room. All simulated papers
// do this. O(1) per decision.
#include "policies/admission/always.hpp"

namespace kvtier {
namespace {

class AlwaysAdmission final : public AdmissionPolicy {
 public:
  void on_use(EntryKey) override {}
  [[nodiscard]] bool admits(EntryKey) const override { return true; }
  [[nodiscard]] bool replaces(EntryKey, EntryKey) const override { return true; }
};

}  // namespace

PolicyKind<AdmissionPolicy> always_admission() {
  return {.name = "always",
          .summary = "every entry enters the tier",
          .source = "AttentionStore (arXiv 2403.19708) and others, which have no filter",
          .knowledge = Knowledge::online,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<AlwaysAdmission>(); }};
}

}  // namespace kvtier
