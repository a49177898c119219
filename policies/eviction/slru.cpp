// Segmented LRU: new entries are in the probation segment, and used entries in the protected
// segment. Victims are the least recently used entries of probation. The protected segment has at
// most a share of the bytes. Beyond that, its least recently used entries go back to probation, as
// its most recent. Karedla, Love and Wherry, Caching Strategies to Improve Disk System Performance,
// 1994. Adapted: segments are in bytes, and shares are of the resident bytes. The protected segment
// is cut when room is needed, so that entries may grow in between. O(log n) per decision,
// amortised: each way back needs a use.
#include "policies/eviction/slru.hpp"

#include "sim/policy/entry_queues.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kProtectedShare = "protected_share";
constexpr double kDefaultShare = 0.8;

class SlruEviction final : public QueuedEviction<NoMark> {
 public:
  explicit SlruEviction(double share) : QueuedEviction(2), share_(share) {}

  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, kProbation, ++clock_);
  }
  void on_release(const EntryView& entry, SimTime) override {
    queues_.release(entry, kProtected, ++clock_);
  }

  void choose(const RoomRequest&, Victims& victims) override {
    Choice choice(queues_, victims);
    while (choice.wants_more()) {
      const double limit = share_ * static_cast<double>(queues_.bytes().value);
      while (static_cast<double>(queues_.bytes(kProtected).value) > limit &&
             choice.front(kProtected).valid()) {
        queues_.move(choice.front(kProtected), kProbation, ++clock_);
      }
      EntryId victim = choice.front(kProbation);
      if (!victim.valid()) {
        victim = choice.front(kProtected);
      }
      if (!victim.valid()) {
        return;
      }
      choice.add(victim);
    }
  }

 private:
  static constexpr std::size_t kProbation = 0;
  static constexpr std::size_t kProtected = 1;
  double share_;
  std::uint64_t clock_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> slru_eviction() {
  return {.name = "slru",
          .summary = "entries not used since insertion leave first (LRU), used ones are protected",
          .source = "Karedla, Love, Wherry (IEEE Computer, 1994); segments in bytes",
          .knowledge = Knowledge::online,
          .parameters = {{.name = kProtectedShare,
                          .documentation =
                              "share of the resident bytes that the protected segment may have",
                          .unit = "share",
                          .minimum = 0,
                          .maximum = 1,
                          .default_value = kDefaultShare}},
          .make = [](const PolicyParameters& parameters) -> std::unique_ptr<EvictionPolicy> {
            return std::make_unique<SlruEviction>(
                parameter_or(parameters, kProtectedShare, kDefaultShare));
          }};
}

}  // namespace kvtier
