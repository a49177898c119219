// Scheduler-aware eviction: entries with no waiting request leave first, in LRU order. Then entries
// whose request waits leave, from the tail of the queue to its head, because the head runs next. An
// entry never leaves for a newcomer that runs after it: then the newcomer stays out. AttentionStore
// (arXiv 2403.19708), section 3.3.2. O(log n) per victim.
//
// The paper's eviction window is (C_mem + C_disk) / S_kv requests. By default the whole queue is
// seen: requests beyond the paper's window are nearer the tail, so the order is the same. With a
// given window, entries of requests beyond it count as idle and leave in LRU order. A window of 0
// is LRU.
#include "policies/eviction/scheduler_aware.hpp"

#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"
#include "sim/policy/entry_list.hpp"
#include "sim/policy/grow.hpp"
#include "sim/policy/position_queue.hpp"

namespace kvtier {
namespace {

constexpr const char* kWindow = "window";

class SchedulerAwareEviction final : public EvictionPolicy {
 public:
  explicit SchedulerAwareEviction(std::optional<std::uint64_t> window) : window_(window) {}

  void on_insert(const EntryView& entry, SimTime) override {
    if (entry.id.value >= states_.size()) [[unlikely]] {
      grow(states_, static_cast<std::size_t>(entry.id.value) + 1);
    }
    State& state = states_[entry.id.value];
    state = {.position = entry.queue_position, .place = Place::idle};
    if (entry.queue_position != kNotQueued && !window_) {
      state.place = Place::waiting;
      waiting_.insert(entry.id, state.position);
      return;
    }
    idle_.push_back(entry.id);
    if (entry.queue_position != kNotQueued) {
      unseen_.insert(entry.id, entry.queue_position.value);
    }
  }
  void on_hit(EntryId entry, SimTime) override {
    State& state = states_[entry.value];
    if (state.place == Place::idle && state.position == kNotQueued) {
      state.place = Place::in_use;
      idle_.remove(entry);
    }
  }
  void on_release(const EntryView& entry, SimTime) override {
    State& state = states_[entry.id.value];
    if (state.place == Place::in_use) {
      state.place = Place::idle;
      idle_.push_back(entry.id);
    } else if (state.place == Place::idle) {
      idle_.move_to_back(entry.id);
    }
  }
  void on_remove(EntryId entry, SimTime) override {
    State& state = states_[entry.value];
    if (state.place == Place::idle) {
      forget_unseen(entry, state);
      idle_.remove(entry);
    } else if (state.place == Place::waiting) {
      waiting_.remove(entry);
    }
    state = State{};
  }
  void on_queue_change(EntryId entry, const QueueChange& change) override {
    const QueuePosition position = change.first;
    if (entry.value >= states_.size()) {
      return;
    }
    State& state = states_[entry.value];
    switch (state.place) {
      case Place::absent:
        return;
      case Place::in_use:
        state.place = Place::idle;
        idle_.push_back(entry);
        break;
      case Place::idle:
        forget_unseen(entry, state);
        break;
      case Place::waiting:
        waiting_.remove(entry);
        state.place = Place::idle;  // at the recently used end
        idle_.push_back(entry);
        break;
    }
    state.position = position;
    if (position == kNotQueued) {
      return;
    }
    if (window_) {
      unseen_.insert(entry, position.value);
    } else {
      see(entry, state);
    }
  }

  void choose(const RoomRequest& request, Victims& victims) override {
    see_window(request.queue_first);
    add_front(idle_, victims);
    if (victims.wants_more()) {
      choose_waiting(request, victims);
    }
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t idle = 0;
    std::size_t choosable = 0;
    tier.for_each_resident([&](const EntryView& entry, bool offered) {
      KVTIER_ASSERT(entry.id.value < states_.size(), "scheduler_aware knows every resident entry");
      const State& state = states_[entry.id.value];
      KVTIER_ASSERT(state.place != Place::absent, "scheduler_aware knows every resident entry");
      KVTIER_ASSERT(!offered || state.place == Place::idle || state.place == Place::waiting,
                    "scheduler_aware may choose every offered entry");
      KVTIER_ASSERT(state.position == entry.queue_position,
                    "scheduler_aware knows where each request waits");
      KVTIER_ASSERT(idle_.contains(entry.id) == (state.place == Place::idle),
                    "an entry is idle or its request is seen");
      KVTIER_ASSERT(waiting_.contains(entry.id) == (state.place == Place::waiting),
                    "seen entries may be chosen");
      idle += state.place == Place::idle ? 1 : 0;
      choosable += state.place == Place::waiting ? 1 : 0;
    });
    KVTIER_ASSERT(choosable == waiting_.size(),
                  "scheduler_aware holds nothing but resident entries");
    KVTIER_ASSERT(idle == idle_.size(), "scheduler_aware lists nothing but resident entries");
  }

 private:
  enum class Place : std::uint8_t {
    absent,   // not in the tier
    idle,     // in the list: no request waits, or only beyond the window
    in_use,   // a turn uses it, and no request waits: not in the list until on_release
    waiting,  // its request is seen: in `waiting_`
  };
  struct State {
    QueuePosition position = kNotQueued;
    Place place = Place::absent;
  };

  /// Forgets an idle entry whose request no longer waits.
  void forget_unseen(EntryId entry, const State& state) {
    if (state.position != kNotQueued) {
      unseen_.remove(entry);
    }
  }

  void see(EntryId entry, State& state) {
    idle_.remove(entry);
    state.place = Place::waiting;
    waiting_.insert(entry, state.position);
  }

  /// Chooses from the tail of the queue to its head. Entries passed on the way are put back;
  /// on_remove takes those that leave.
  void choose_waiting(const RoomRequest& request, Victims& victims) {
    const bool newcomer_may_stay_out =
        request.demand == Demand::prefetch || request.demand == Demand::demotion;
    while (!waiting_.empty()) {
      const EntryId last = waiting_.top();
      if (victims.offers(last)) {
        if (newcomer_may_stay_out && request.incoming > states_[last.value].position) {
          break;
        }
        victims.add(last);
        if (!victims.wants_more()) {
          break;
        }
      }
      waiting_.remove(last);
      passed_.push_back(last);
    }
    for (; !passed_.empty(); passed_.pop_back()) {
      waiting_.insert(passed_.back(), states_[passed_.back().value].position);
    }
  }

  void see_window(QueuePosition first) {
    if (!window_ || first == kNotQueued) {
      return;
    }
    while (!unseen_.empty() && unseen_.top_key() < first.value + *window_) {
      const EntryId entry = unseen_.top();
      unseen_.remove(entry);
      see(entry, states_[entry.value]);
    }
  }

  std::optional<std::uint64_t> window_;
  /// No waiting request, or one beyond the window; least recently used first.
  EntryList idle_;
  /// Request inside the window; the last in the queue on top.
  PositionQueue waiting_;
  /// Request not (yet) inside a given window; the first in the queue on top.
  EntryHeap unseen_;
  std::vector<State> states_;
  /// Scratch of a choice.
  std::vector<EntryId> passed_;
};

}  // namespace

PolicyKind<EvictionPolicy> scheduler_aware_eviction() {
  return {
      .name = "scheduler_aware",
      .summary =
          "entries without a waiting request leave first (LRU), then from the tail of the queue",
      .source = "AttentionStore (arXiv 2403.19708), section 3.3.2",
      .knowledge = Knowledge::look_ahead,
      .parameters =
          {{.name = kWindow,
            .documentation =
                "requests at the head of the queue that are seen; auto: all, 0: none (LRU)",
            .unit = "requests",
            .minimum = 0,
            .maximum = 1e12,
            .default_value = std::nullopt}},
      .make = [](const PolicyParameters& parameters) -> std::unique_ptr<EvictionPolicy> {
        const auto window = parameters.find(kWindow);
        return std::make_unique<SchedulerAwareEviction>(
            window == parameters.end() ? std::nullopt
                                       : std::optional(static_cast<std::uint64_t>(window->second)));
      }};
}

}  // namespace kvtier
