#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "sim/core/rng.hpp"
#include "sim/policy/trial_tier.hpp"

namespace kvtier {

/// Drives one or several equal tiers through a random, reproducible sequence of all operations.
class RandomDriver {
 public:
  struct Selection {
    Bytes wanted;
    Demand demand = Demand::save;
    QueuePosition incoming = kNotQueued;
    QueuePosition queue_first = kNotQueued;
  };

  RandomDriver(std::uint64_t seed, bool with_queue)
      : stream_(seed, "random driver"), with_queue_(with_queue), first_inserted_(kEntries) {}

  /// Performs one operation on every tier. For a selection, `on_selection` gets the sets that the
  /// tiers choose. Then the first tier's set leaves all tiers.
  template <class F>
  void step(const std::vector<TrialTier*>& tiers, F on_selection) {
    TrialTier& model = *tiers.front();
    const EntryId entry{static_cast<std::uint32_t>(stream_.index(kEntries))};
    const bool here = model.holds(entry);
    const bool offered = here && model.offered(entry);
    const bool in_use = here && model.in_use(entry);
    // The tier is filled and drained in turn, so that it also runs out of victims.
    ++steps_;
    const bool draining = is_draining();
    switch (stream_.index(with_queue_ ? 10 : 7)) {
      case 0:
      case 1:
        if (!here && (!draining || stream_.index(8) == 0)) {
          // Half of the entries come back from another tier and keep their first insertion time.
          if (!first_inserted_[entry.value] || stream_.index(2) == 0) {
            first_inserted_[entry.value] = ++inserted_;
          }
          each(tiers, [&](TrialTier& tier) {
            tier.insert(entry, *first_inserted_[entry.value], position_of(entry));
          });
        }
        break;
      case 2:
        if (here) {
          const bool takes_room = offered && stream_.index(2) == 0;
          each(tiers,
               [&](TrialTier& tier) { takes_room ? tier.begin_turn(entry) : tier.hit(entry); });
        }
        break;
      case 3:
        if (in_use) {
          end_turn(tiers, entry);
        } else if (here) {
          each(tiers,
               [&](TrialTier& tier) { offered ? tier.begin_move(entry) : tier.end_move(entry); });
        }
        break;
      case 4:
        if (offered && stream_.index(4) == 0) {
          each(tiers, [&](TrialTier& tier) { tier.remove(entry); });
        }
        break;
      case 5:
        if (here && !in_use) {
          const Tokens tokens(1 + stream_.index(4'096));
          each(tiers, [&](TrialTier& tier) { tier.resize(entry, tokens); });
        }
        break;
      case 6:
        if (draining || stream_.index(2) == 0) {
          select(tiers, on_selection);
        }
        break;
      case 7:
      case 8:
        if (position_of(entry) == kNotQueued) {
          waiting_[QueuePosition{next_position_}] = entry;
          move(tiers, entry, QueuePosition{next_position_++});
        }
        break;
      default:
        // Mostly the first request leaves, sometimes another one.
        if (!waiting_.empty()) {
          auto leaving = waiting_.begin();
          if (stream_.index(5) == 0) {
            std::advance(leaving, stream_.index(static_cast<std::int64_t>(waiting_.size())));
          }
          const EntryId left = leaving->second;
          waiting_.erase(leaving);
          move(tiers, left, kNotQueued);
        }
        break;
    }
  }

 private:
  static constexpr std::int64_t kEntries = 40;

  [[nodiscard]] bool is_draining() const { return steps_ / 300 % 2 == 1; }

  template <class F>
  void each(const std::vector<TrialTier*>& tiers, F act) {
    for (TrialTier* tier : tiers) {
      act(*tier);
    }
  }

  /// Most entries come back from their turns, with the same size or larger.
  void end_turn(const std::vector<TrialTier*>& tiers, EntryId entry) {
    const bool comes_back = stream_.index(8) != 0;
    const Tokens tokens = tiers.front()->residents().at(entry).view.tokens;
    const Tokens grown = tokens + Tokens(stream_.index(2) * stream_.index(4'096));
    each(tiers,
         [&](TrialTier& tier) { comes_back ? tier.end_turn(entry, grown) : tier.lose(entry); });
  }

  [[nodiscard]] QueuePosition position_of(EntryId entry) const {
    for (const auto& [position, other] : waiting_) {
      if (other == entry) {
        return position;
      }
    }
    return kNotQueued;
  }

  [[nodiscard]] QueuePosition queue_first() const {
    return waiting_.empty() ? QueuePosition{next_position_} : waiting_.begin()->first;
  }

  void move(const std::vector<TrialTier*>& tiers, EntryId entry, QueuePosition position) {
    each(tiers, [&](TrialTier& tier) {
      tier.change_queue(entry, position);
      tier.set_queue_first(queue_first());
      tier.set_window_end(QueuePosition{queue_first().value + 8});
    });
  }

  template <class F>
  void select(const std::vector<TrialTier*>& tiers, F on_selection) {
    Selection selection{.queue_first = queue_first()};
    selection.demand = std::vector{Demand::save, Demand::prefetch, Demand::demotion,
                                   Demand::background}[static_cast<std::size_t>(stream_.index(4))];
    // A prefetch or a demotion is for an entry, whose request may wait.
    if (selection.demand == Demand::prefetch || selection.demand == Demand::demotion) {
      const EntryId newcomer{static_cast<std::uint32_t>(stream_.index(kEntries))};
      selection.incoming = position_of(newcomer);
    }
    // Mostly one victim or a few, sometimes more than the tier holds.
    selection.wanted = Bytes(1 + stream_.index(8) * stream_.index(2) * 500'000);
    std::vector<std::vector<Victim>> sets;
    each(tiers, [&](TrialTier& tier) {
      const bool leaves = &tier == tiers.front();
      sets.push_back(leaves ? tier.choose(selection.wanted, selection.demand, selection.incoming)
                            : tier.peek(selection.wanted, selection.demand, selection.incoming));
    });
    on_selection(selection, sets);
    each(tiers, [&](TrialTier& tier) { tier.remove(sets.front()); });
  }

  RandomStream stream_;
  bool with_queue_;
  std::vector<std::optional<std::int64_t>> first_inserted_;
  std::int64_t inserted_ = 0;
  std::int64_t steps_ = 0;
  std::uint64_t next_position_ = 0;
  std::map<QueuePosition, EntryId> waiting_;
};

}  // namespace kvtier
