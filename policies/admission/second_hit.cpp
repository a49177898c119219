// Second hit: a session's KV comes in from its second turn on, so that conversations of one turn
// cost the tier neither room nor writes. The keys of the latest uses are remembered, those used
// once apart from those used again, which are admitted as long as they are. Content caches do this
// to spare their drives ("cache-on-second-hit"; Maggs and Sitaraman, Algorithmic Nuggets in Content
// Delivery, 2015). Adapted: turns are uses, and lists of keys stand for the Bloom filters. O(1) per
// decision.
#include "policies/admission/second_hit.hpp"

#include "sim/policy/ghost_list.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kRemembered = "remembered";
constexpr double kDefaultRemembered = 100'000;
/// The list's bytes count keys here.
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
  return {.name = "second_hit",
          .summary = "a session comes in from its second turn on",
          .source = "Maggs, Sitaraman (Computer Communication Review, 2015)",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kRemembered,
                          .documentation = "sessions remembered, of those used once and of others",
                          .unit = "sessions",
                          .minimum = 1,
                          .maximum = 1e12,
                          .default_value = kDefaultRemembered}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<AdmissionPolicy> {
            return std::make_unique<SecondHitAdmission>(Bytes(static_cast<std::int64_t>(
                parameter_or(parameters, kRemembered, kDefaultRemembered))));
          }};
}

}  // namespace kvtier
