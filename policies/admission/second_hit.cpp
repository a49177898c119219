// Second hit: a session's KV enters the tier from its second turn on. So sessions of one turn take
// neither room nor writes. Two lists remember the latest keys: keys used once, and keys used again,
// which are admitted. Content caches do this to spare their drives ("cache-on-second-hit"; Maggs
// and Sitaraman, Algorithmic Nuggets in Content Delivery, 2015). Adapted: turns are uses, and lists
// of keys stand for the Bloom filters. O(1) per decision.
#include "policies/admission/second_hit.hpp"

#include "sim/policy/ghost_list.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kRemembered = "remembered";
constexpr double kDefaultRemembered = 100'000;
/// The lists count keys instead of bytes.
constexpr Bytes kOneKey(1);

class SecondHitAdmission final : public AdmissionPolicy {
 public:
  explicit SecondHitAdmission(Bytes remembered) : remembered_(remembered) {}

  void on_use(EntryKey key) override {
    const bool again = once_.remove(key) || again_.contains(key);
    GhostList& list = again ? again_ : once_;
    list.push(key, kOneKey);
    list.trim(remembered_);
  }
  [[nodiscard]] bool admits(EntryKey key) const override { return again_.contains(key); }
  [[nodiscard]] bool replaces(EntryKey, EntryKey) const override { return true; }

 private:
  Bytes remembered_;
  GhostList once_;
  GhostList again_;
};

}  // namespace

PolicyKind<AdmissionPolicy> second_hit_admission() {
  return {
      .name = "second_hit",
      .summary = "a session enters the tier from its second turn on",
      .source = "Maggs, Sitaraman (Computer Communication Review, 2015)",
      .knowledge = Knowledge::online,
      .parameters = {{.name = kRemembered,
                      .documentation = "remembered sessions in each list: used once, used again",
                      .unit = "sessions",
                      .minimum = 1,
                      .maximum = 1e12,
                      .default_value = kDefaultRemembered}},
      .make = [](const PolicyParameters& parameters) -> std::unique_ptr<AdmissionPolicy> {
        return std::make_unique<SecondHitAdmission>(Bytes(
            static_cast<std::int64_t>(parameter_or(parameters, kRemembered, kDefaultRemembered))));
      }};
}

}  // namespace kvtier
