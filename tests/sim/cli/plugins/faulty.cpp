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

#if defined(FAULT_BUGS)
/// Throws, or chooses an entry that is not offered.
class Eviction final : public EvictionPolicy {
 public:
  explicit Eviction(bool throws) : throws_(throws) {}
  void on_insert(const EntryView&, SimTime) override {}
  void on_hit(EntryId, SimTime) override {}
  void on_remove(EntryId, SimTime) override {}
  void choose(const RoomRequest&, Victims& victims) override {
    if (throws_) {
      throw std::runtime_error("no idea");
    }
    victims.add(EntryId{4'000'000});
  }
  void check_invariants(const TierView&) const override {}

 private:
  bool throws_;
};

/// Chooses an entry that no tier has.
class Prefetch final : public PrefetchPolicy {
 public:
  std::optional<Fetch> next_fetch(const PrefetchContext&) override {
    return Fetch{EntryId{4'000'000}};
  }
};

/// Chooses a position at which no request waits.
class Order final : public OrderPolicy {
 public:
  QueuePosition next(const QueueView& queue) override { return queue.end(); }
};

/// Chooses an instance that is not there.
class Routing final : public RoutingPolicy {
 public:
  InstanceId choose(const RoutedRequest&, const RoutingView&) override { return InstanceId{9}; }
};

template <class Policy, class Interface, class... Arguments>
void add(std::vector<PolicyKind<Interface>>& kinds, const std::string& name, Arguments... given) {
  kinds.push_back({.name = name,
                   .summary = "has a bug",
                   .source = "a test",
                   .knowledge = Knowledge::look_ahead,
                   .parameters = {},
                   .make = [given...](const PolicyParameters&) -> std::unique_ptr<Interface> {
                     return std::make_unique<Policy>(given...);
                   }});
}
#endif

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
#elif defined(FAULT_BUGS)
  add<Eviction>(registry.eviction, "throwing", true);
  add<Eviction>(registry.eviction, "inventing", false);
  add<Prefetch>(registry.prefetch, "guessing");
  add<Order>(registry.order, "late");
  add<Routing>(registry.routing, "lost");
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
#elif defined(FAULT_NULL)
extern "C" const PolicyPlugin kvtier_policy_plugin;
extern "C" const PolicyPlugin kvtier_policy_plugin = {kPolicyInterfaceVersion,
                                                      detail::policy_layout(), nullptr};
#else
KVTIER_POLICY_PLUGIN(add_policies);
#endif
