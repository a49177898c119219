// S3-FIFO: three queues without reordering on use. A new entry enters the small queue. At the end
// of the small queue, it moves to the main queue if it was used more than once. Otherwise it
// leaves, and its key is kept for a while. An entry whose key is kept enters the main queue. At the
// end of the main queue, used entries go round again. Yang, Zhang, Qiu, Yue and Rashmi, FIFO Queues
// Are All You Need for Cache Eviction, 2023. O(log n) per decision, amortised: each round needs a
// use.
//
// Adapted: queues are in bytes, and the small queue is a share of the resident bytes. Kept keys
// stand for as many bytes as the main queue may have. An entry keeps its place while its turn runs
// and when it grows. The queue that gives up an entry is chosen again after each move to the main
// queue; the paper's small queue goes on until one of its own entries leaves.
#include "policies/eviction/s3fifo.hpp"

#include <algorithm>

#include "sim/policy/entry_queues.hpp"
#include "sim/policy/ghost_list.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kSmallShare = "small_share";
constexpr double kDefaultSmallShare = 0.1;

class S3FifoEviction final : public QueuedEviction<std::uint8_t> {
 public:
  explicit S3FifoEviction(double share) : QueuedEviction(2), share_(share) {}

  void on_insert(const EntryView& entry, SimTime) override {
    queues_.arrive(entry);
    queues_.enter(entry.id, left_.remove(entry.key) ? kMain : kSmall, ++clock_);
  }
  void on_hit(EntryId entry, SimTime) override {
    queues_.hit(entry);
    std::uint8_t& uses = queues_.mark(entry);
    uses = std::min(static_cast<std::uint8_t>(uses + 1), kMostUses);
  }
  void on_remove(EntryId entry, SimTime) override {
    const auto& row = queues_.row(entry);
    const Bytes held = queues_.bytes();
    if (queues_.remove(entry) && row.queue == kSmall) {
      left_.push(row.key, row.bytes);
      left_.trim(Bytes(static_cast<std::int64_t>((1 - share_) * static_cast<double>(held.value))));
    }
  }

  void choose(const RoomRequest&, Victims& victims) override {
    Choice choice(queues_, victims);
    while (choice.wants_more()) {
      const EntryId small = choice.front(kSmall);
      const EntryId main = choice.front(kMain);
      if (small.valid() && (small_is_full() || !main.valid())) {
        if (queues_.mark(small) <= 1) {
          choice.add(small);
        } else {
          queues_.mark(small) = 0;
          queues_.move(small, kMain, ++clock_);
        }
      } else if (!main.valid()) {
        return;
      } else if (queues_.mark(main) > 0) {
        --queues_.mark(main);
        queues_.move(main, kMain, ++clock_);
      } else {
        choice.add(main);
      }
    }
  }

 private:
  static constexpr std::size_t kSmall = 0;
  static constexpr std::size_t kMain = 1;
  static constexpr std::uint8_t kMostUses = 3;

  [[nodiscard]] bool small_is_full() const {
    return static_cast<double>(queues_.bytes(kSmall).value) >=
           share_ * static_cast<double>(queues_.bytes().value);
  }

  double share_;
  /// Keys of entries that left the small queue.
  GhostList left_;
  std::uint64_t clock_ = 0;
};

}  // namespace

PolicyKind<EvictionPolicy> s3fifo_eviction() {
  return {
      .name = "s3fifo",
      .summary = "entries used twice move from a small FIFO queue to the main one, others leave",
      .source = "Yang, Zhang, Qiu, Yue, Rashmi (SOSP 2023); queues in bytes",
      .knowledge = Knowledge::online,
      .parameters = {{.name = kSmallShare,
                      .documentation = "share of the resident bytes that the small queue may have",
                      .unit = "share",
                      .minimum = 0,
                      .maximum = 1,
                      .default_value = kDefaultSmallShare}},
      .make = [](const PolicyParameters& parameters) -> std::unique_ptr<EvictionPolicy> {
        return std::make_unique<S3FifoEviction>(
            parameter_or(parameters, kSmallShare, kDefaultSmallShare));
      }};
}

}  // namespace kvtier
