// CaR's score (University of Connecticut): an entry gains 1 when a request for it enters the
// scheduler's window and 1 when the request is sent to the GPUs, and loses 2 when decode ends. The
// smallest score leaves first. Entries in use are not offered, so the score of an offered entry is
// the number of its requests in the window. The order of equal scores is our choice: entries
// without a request in the window leave in LRU order, others from the tail of the window. An entry
// never leaves for a fetch or a demotion that runs after it, because it would have to come back at
// once. O(log n) per decision, amortised: each request enters the window once.
#include "policies/eviction/window_score.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"
#include "sim/policy/entry_list.hpp"

namespace kvtier {
namespace {

class WindowScoreEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime) override {
    if (entry.id.value >= states_.size()) {
      states_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    states_[entry.id.value] = State{.place = Place::unscored};
    unscored_.push_back(entry.id);
    if (entry.queue_position != kNotQueued) {
      on_queue_change(
          entry.id,
          {.position = entry.queue_position, .waits = true, .first = entry.queue_position});
    }
  }
  void on_hit(EntryId, SimTime) override {}
  void on_release(const EntryView& entry, SimTime) override {
    if (states_[entry.id.value].place == Place::unscored) {
      unscored_.move_to_back(entry.id);
    }
  }
  void on_remove(EntryId entry, SimTime) override {
    forget_waiting(entry);
    leave_place(entry);
    states_[entry.value] = State{};
  }

  void on_queue_change(EntryId entry, const QueueChange& change) override {
    State& state = states_[entry.value];
    const bool in_window = change.position < window_end_;
    state.first = change.first;
    if (change.waits) {
      in_window ? ++state.score : ++state.waiting;
      if (!in_window) {
        waiting_.emplace(change.position, entry);
      }
    } else if (waiting_.erase({change.position, entry}) > 0) {
      --state.waiting;
    } else {
      KVTIER_ASSERT(state.score > 0, "a request in the window has given its entry a score");
      --state.score;
    }
    place(entry);
  }

  void choose(const RoomRequest& request, Victims& victims) override {
    move_window(request.window_end);
    add_front(unscored_, victims);
    if (victims.wants_more()) {
      choose_scored(request, victims);
    }
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t unscored = 0;
    std::size_t scored = 0;
    std::size_t waiting = 0;
    tier.for_each_resident([&](const EntryView& entry, bool) {
      KVTIER_ASSERT(entry.id.value < states_.size(), "window_score knows every resident entry");
      const State& state = states_[entry.id.value];
      KVTIER_ASSERT(state.place != Place::absent, "window_score knows every resident entry");
      KVTIER_ASSERT(state.first == entry.queue_position,
                    "window_score knows where each entry's first request waits");
      KVTIER_ASSERT((state.score + state.waiting > 0) == (entry.queue_position != kNotQueued),
                    "window_score counts the requests that wait");
      KVTIER_ASSERT((state.place == Place::unscored) == (state.score == 0),
                    "an entry with a score is not in LRU order");
      waiting += state.waiting;
      unscored += state.place == Place::unscored ? 1 : 0;
      scored += state.place == Place::scored ? 1 : 0;
    });
    KVTIER_ASSERT(waiting == waiting_.size(), "window_score knows each request beyond the window");
    KVTIER_ASSERT(unscored == unscored_.size() && scored == scored_.size(),
                  "window_score lists nothing but resident entries");
  }

 private:
  using Waiting = std::pair<QueuePosition, EntryId>;
  enum class Place : std::uint8_t {
    absent,    // not in the tier
    unscored,  // in the list
    scored,    // in the heap
  };
  struct State {
    Place place = Place::absent;
    /// Waiting requests in the window (score) and behind it.
    std::uint32_t score = 0;
    std::uint32_t waiting = 0;
    QueuePosition first = kNotQueued;
  };

  /// Chooses from the lowest score on. Entries passed on the way are put back; on_remove takes
  /// those that leave.
  void choose_scored(const RoomRequest& request, Victims& victims) {
    const bool newcomer_may_stay_out =
        request.demand == Demand::prefetch || request.demand == Demand::demotion;
    while (victims.wants_more() && !scored_.empty()) {
      const EntryId lowest = scored_.top();
      if (victims.offers(lowest)) {
        if (newcomer_may_stay_out && request.incoming > states_[lowest.value].first) {
          break;
        }
        victims.add(lowest);
      }
      scored_.remove(lowest);
      passed_.push_back(lowest);
    }
    for (; !passed_.empty(); passed_.pop_back()) {
      scored_.insert(passed_.back(), key(states_[passed_.back().value]));
    }
  }

  void move_window(QueuePosition end) {
    if (end == kNotQueued || end <= window_end_) {
      return;
    }
    window_end_ = end;
    while (!waiting_.empty() && waiting_.begin()->first < end) {
      const EntryId entry = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      --states_[entry.value].waiting;
      ++states_[entry.value].score;
      place(entry);
    }
  }

  void leave_place(EntryId entry) {
    const Place place = states_[entry.value].place;
    if (place == Place::unscored) {
      unscored_.remove(entry);
    } else if (place == Place::scored) {
      scored_.remove(entry);
    }
  }

  /// Puts the entry where its score and first request belong.
  void place(EntryId entry) {
    State& state = states_[entry.value];
    if (state.place == Place::unscored && state.score == 0) {
      return;
    }
    leave_place(entry);
    state.place = state.score == 0 ? Place::unscored : Place::scored;
    state.score == 0 ? unscored_.push_back(entry) : scored_.insert(entry, key(state));
  }

  /// The smallest score is on top, and of equal ones the entry that is needed last.
  [[nodiscard]] static std::uint64_t key(const State& state) {
    constexpr unsigned kPositionBits = 44;
    constexpr std::uint64_t kPositions = std::uint64_t{1} << kPositionBits;
    constexpr std::uint64_t kMostScore = (std::uint64_t{1} << (64 - kPositionBits)) - 1;
    return std::min<std::uint64_t>(state.score, kMostScore) << kPositionBits |
           (kPositions - 1 - state.first.value % kPositions);
  }

  void forget_waiting(EntryId entry) {
    const State& state = states_[entry.value];
    if (state.waiting == 0) {
      return;
    }
    if (state.waiting == 1 && state.score == 0) {
      waiting_.erase({state.first, entry});
      return;
    }
    // Rare case: several requests wait for the entry.
    std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.second == entry; });
  }

  /// Entries with score 0, from the least to the most recently used.
  EntryList unscored_;
  EntryHeap scored_;
  /// Requests behind the window, for entries of this tier. One request may wait for two entries:
  /// its session's and a shared prompt's.
  std::set<Waiting> waiting_;
  QueuePosition window_end_{0};
  std::vector<State> states_;
  /// Scratch of a choice.
  std::vector<EntryId> passed_;
};

}  // namespace

PolicyKind<EvictionPolicy> window_score_eviction() {
  return {.name = "window_score",
          .summary = "entries with the fewest requests in the scheduler's window leave first",
          .source = "CaR (University of Connecticut)",
          .knowledge = Knowledge::look_ahead,
          .parameters = {},
          .make = [](const PolicyParameters&) { return std::make_unique<WindowScoreEviction>(); }};
}

}  // namespace kvtier
