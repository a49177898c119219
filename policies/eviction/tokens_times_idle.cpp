// Tokens times idle time: score = tokens in the tier x time since the last use. The entry with the
// largest score keeps the leading half of its tokens; then the scores are compared again. From
// Pensieve (arXiv 2312.05516), as a rule for parts of entries. All scores grow with time, each at
// its own rate. So a kinetic tournament (Basch, Guibas and Hershberger, 1999) finds the largest: a
// tree of winners, each with the time at which it may be overtaken. A change costs O(log n). A
// selection costs O(1), plus O(log n) for each winner overtaken since the last one.
#include "policies/eviction/tokens_times_idle.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/histogram.hpp"

namespace kvtier {
namespace {

/// Finds the place with the largest tokens x (now - last use), of equal ones the lowest. Time must
/// not go back.
class Tournament {
 public:
  void set(std::uint32_t place, EntryId entry, std::int64_t tokens, SimTime last_used,
           SimTime now) {
    if (place >= leaves_) {
      grow(place, now);
    }
    players_[place] = {entry, tokens, last_used.ns};
    Match& leaf = matches_[leaves_ + place];
    leaf = {place, kNeverNs};
    climb(place, now);
  }
  void remove(std::uint32_t place, SimTime now) {
    matches_[leaves_ + place] = {};
    climb(place, now);
  }
  [[nodiscard]] bool contains(std::uint32_t place, EntryId entry) const {
    return place < leaves_ && matches_[leaves_ + place].winner != kNobody &&
           players_[place].entry == entry;
  }
  /// The winner at `now` and its tokens; kNoEntry if there is none.
  [[nodiscard]] std::pair<EntryId, Tokens> top(SimTime now) {
    if (leaves_ == 0) {
      return {kNoEntry, Tokens(0)};
    }
    refresh(1, now.ns);
    const std::uint32_t place = matches_[1].winner;
    return place == kNobody ? std::pair(kNoEntry, Tokens(0))
                            : std::pair(players_[place].entry, Tokens(players_[place].tokens));
  }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  static constexpr std::int64_t kNeverNs = INT64_MAX;

  struct Player {
    EntryId entry;
    std::int64_t tokens = 0;
    std::int64_t last_used_ns = 0;
    [[nodiscard]] Int128 score(std::int64_t now_ns) const {
      return static_cast<Int128>(tokens) * (now_ns - last_used_ns);
    }
  };
  struct Match {
    std::uint32_t winner = kNobody;
    /// Until this time, the winners of this match and of all matches below are valid.
    std::int64_t until_ns = kNeverNs;

    friend bool operator==(const Match&, const Match&) = default;
  };

  void grow(std::uint32_t place, SimTime now) {
    std::size_t leaves = std::max<std::size_t>(64, leaves_);
    while (leaves <= place) {
      leaves *= 2;
    }
    std::vector<Match> matches(2 * leaves);
    std::copy(matches_.begin() + static_cast<std::ptrdiff_t>(leaves_), matches_.end(),
              matches.begin() + static_cast<std::ptrdiff_t>(leaves));
    matches_.swap(matches);
    players_.resize(leaves);
    leaves_ = leaves;
    for (std::size_t match = leaves_ - 1; match > 0; --match) {
      play(match, now.ns);
    }
  }

  /// The player at the place has changed. If a match has the same winner as before, and that is
  /// another player, the matches above it stay as they are.
  void climb(std::uint32_t place, SimTime now) {
    for (std::size_t match = (leaves_ + place) / 2; match > 0; match /= 2) {
      const Match before = matches_[match];
      play(match, now.ns);
      if (matches_[match] == before && before.winner != place) {
        break;
      }
    }
  }

  void refresh(std::size_t match, std::int64_t now_ns) {
    if (matches_[match].until_ns > now_ns) {
      return;
    }
    refresh(2 * match, now_ns);
    refresh(2 * match + 1, now_ns);
    play(match, now_ns);
  }

  void play(std::size_t match, std::int64_t now_ns) {
    const Match& left = matches_[2 * match];
    const Match& right = matches_[2 * match + 1];
    Match& result = matches_[match];
    result.until_ns = std::min(left.until_ns, right.until_ns);
    if (left.winner == kNobody || right.winner == kNobody) {
      result.winner = left.winner == kNobody ? right.winner : left.winner;
      return;
    }
    const Player& a = players_[left.winner];
    const Player& b = players_[right.winner];
    const bool left_wins = a.score(now_ns) >= b.score(now_ns);
    result.winner = left_wins ? left.winner : right.winner;
    const Player& winner = left_wins ? a : b;
    const Player& loser = left_wins ? b : a;
    if (loser.tokens > winner.tokens) {
      // loser x (t - its last use) = winner x (t - its last use); the left one wins a draw.
      const Int128 difference = static_cast<Int128>(loser.tokens) * loser.last_used_ns -
                                static_cast<Int128>(winner.tokens) * winner.last_used_ns;
      const Int128 draw = difference / (loser.tokens - winner.tokens) + (left_wins ? 1 : 0);
      result.until_ns =
          static_cast<std::int64_t>(std::min(draw, static_cast<Int128>(result.until_ns)));
    }
  }

  std::size_t leaves_ = 0;
  std::vector<Player> players_;
  /// A heap-shaped tree: the children of m are 2m and 2m + 1, the leaves begin at leaves_.
  std::vector<Match> matches_;
};

class TokensTimesIdleEviction final : public EvictionPolicy {
 public:
  void on_insert(const EntryView& entry, SimTime now) override {
    if (entry.id.value >= entries_.size()) {
      entries_.resize(static_cast<std::size_t>(entry.id.value) + 1);
    }
    KVTIER_ASSERT(!entries_[entry.id.value].resident, "an entry is inserted once");
    entries_[entry.id.value] = {.place = entry.place,
                                .tokens = entry.tokens,
                                .last_used = entry.last_used,
                                .resident = true};
    ++residents_;
    enter(entry.id, now);
  }
  void on_hit(EntryId id, SimTime now) override {
    if (Entry& entry = entries_[id.value]; !entry.in_use) {
      entry.in_use = true;
      tournament_.remove(entry.place, now);
    }
  }
  void on_release(const EntryView& view, SimTime now) override {
    Entry& entry = entries_[view.id.value];
    KVTIER_ASSERT(entry.in_use || entry.place == view.place, "only turns change places");
    entry.place = view.place;
    entry.in_use = false;
    entry.tokens = view.tokens;
    entry.last_used = view.last_used;
    enter(view.id, now);
  }
  void on_resize(const EntryView& view, SimTime now) override {
    Entry& entry = entries_[view.id.value];
    if (entry.tokens == view.tokens && entry.last_used == view.last_used) {
      return;  // a victim that was chosen with these tokens
    }
    entry.tokens = view.tokens;
    entry.last_used = view.last_used;
    if (!entry.in_use) {
      enter(view.id, now);
    }
  }
  void on_remove(EntryId id, SimTime now) override {
    Entry& entry = entries_[id.value];
    if (tournament_.contains(entry.place, id)) {
      tournament_.remove(entry.place, now);
    }
    entry.resident = false;
    --residents_;
  }

  void choose(const RoomRequest& request, Victims& victims) override {
    const SimTime now = request.now;
    while (victims.wants_more()) {
      const auto [id, tokens] = tournament_.top(now);
      if (!id.valid()) {
        break;
      }
      Entry& entry = entries_[id.value];
      if (!victims.offers(id)) {
        passed_.push_back(id);
        tournament_.remove(entry.place, now);
        continue;
      }
      shrunk_.emplace_back(id, entry.tokens);
      entry.tokens = victims.add(id, Tokens(tokens.value / 2));
      entry.tokens.value > 0 ? enter(id, now) : tournament_.remove(entry.place, now);
    }
    for (; !passed_.empty(); passed_.pop_back()) {
      enter(passed_.back(), now);
    }
    for (; !victims.complete() && !shrunk_.empty(); shrunk_.pop_back()) {
      entries_[shrunk_.back().first.value].tokens = shrunk_.back().second;
      enter(shrunk_.back().first, now);
    }
    shrunk_.clear();
  }

  void check_invariants(const TierView& tier) const override {
    std::size_t residents = 0;
    tier.for_each_resident([&](const EntryView& view, bool offered) {
      ++residents;
      KVTIER_ASSERT(view.id.value < entries_.size() && entries_[view.id.value].resident,
                    "tokens_times_idle knows every resident entry");
      const Entry& entry = entries_[view.id.value];
      // The view of an entry that is not offered may be newer than the policy's data.
      KVTIER_ASSERT(!offered || (entry.tokens == view.tokens && entry.last_used <= view.last_used),
                    "tokens_times_idle knows sizes and times");
      KVTIER_ASSERT(
          !(offered && entry.in_use) && tournament_.contains(entry.place, view.id) != entry.in_use,
          "tokens_times_idle may choose every offered entry");
    });
    KVTIER_ASSERT(residents == residents_, "tokens_times_idle knows nothing but resident entries");
  }

 private:
  struct Entry {
    std::uint32_t place = 0;
    Tokens tokens;
    SimTime last_used;
    bool resident = false;
    /// Between on_hit and on_release. Another entry may have its place meanwhile.
    bool in_use = false;
  };

  void enter(EntryId id, SimTime now) {
    const Entry& entry = entries_[id.value];
    tournament_.set(entry.place, id, entry.tokens.value, entry.last_used, now);
  }

  std::vector<Entry> entries_;
  std::size_t residents_ = 0;
  Tournament tournament_;
  /// Scratch of a choice: entries that are not offered, and victims with their tokens before.
  std::vector<EntryId> passed_;
  std::vector<std::pair<EntryId, Tokens>> shrunk_;
};

}  // namespace

PolicyKind<EvictionPolicy> tokens_times_idle_eviction() {
  return {
      .name = "tokens_times_idle",
      .summary = "the entry with the most tokens x idle time loses the trailing half of them",
      .source = "Pensieve (arXiv 2312.05516)",
      .knowledge = Knowledge::online,
      .parts_of_entries = true,
      .parameters = {},
      .make = [](const PolicyParameters&) { return std::make_unique<TokensTimesIdleEviction>(); }};
}

}  // namespace kvtier
