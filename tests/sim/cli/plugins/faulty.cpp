// Libraries that are refused, one for each fault.
#include <stdexcept>

#include "sim/policy/plugin.hpp"

namespace {

using namespace kvtier;

class Admission final : public AdmissionPolicy {
 public:
  void on_use(EntryKey) override {}
  [[nodiscard]] bool admits(EntryKey) const override { return true; }
  [[nodiscard]] bool replaces(EntryKey, EntryKey) const override { return true; }
};

[[maybe_unused]] PolicyKind<AdmissionPolicy> kind(const std::string& name,
                                                  const std::string& summary) {
  return {
      .name = name, .summary = summary, .source = "a test", .make = [](const PolicyParameters&) {
        return std::make_unique<Admission>();
      }};
}

void add_policies([[maybe_unused]] PolicyRegistry& registry) {
#if defined(FAULT_TAKEN)
  registry.admission.push_back(kind("second_hit", "the name of another"));
  registry.admission.push_back(kind("nameless", ""));
#elif defined(FAULT_THROWS)
  throw std::runtime_error("no licence");
#endif
}

}  // namespace

#if defined(FAULT_SYMBOL)
extern "C" void (*const another_symbol)(PolicyRegistry&);
extern "C" void (*const another_symbol)(PolicyRegistry&) = &add_policies;
#elif defined(FAULT_VERSION)
extern "C" const PolicyPlugin kvtier_policy_plugin;
extern "C" const PolicyPlugin kvtier_policy_plugin = {99, detail::policy_layout(), &add_policies};
#elif defined(FAULT_LAYOUT)
extern "C" const PolicyPlugin kvtier_policy_plugin;
extern "C" const PolicyPlugin kvtier_policy_plugin = {kPolicyInterfaceVersion, 0, &add_policies};
#else
KVTIER_POLICY_PLUGIN(add_policies);
#endif
