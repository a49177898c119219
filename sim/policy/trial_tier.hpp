#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/policy.hpp"

namespace kvtier {

/// Computing n tokens takes n x n ns, loading them 100 x n ns.
[[nodiscard]] inline TierFacts trial_facts() {
  return {.recompute = [](Tokens tokens) { return SimDuration(tokens.value * tokens.value); },
          .load = [](Tokens tokens) { return SimDuration(100 * tokens.value); }};
}

/// A tier for tests of a policy. It makes the calls that the session store makes, and tests can
/// inspect and falsify it.
class TrialTier : public TierView {
 public:
  struct Resident {
    EntryView view;
    /// The entry is read or written.
    bool moving = false;
    /// A turn uses the entry.
    bool in_use = false;
    [[nodiscard]] bool offered() const { return !moving && !in_use; }
  };

  explicit TrialTier(const PolicyKind<EvictionPolicy>& kind,
                     const PolicyParameters& parameters = {})
      : policy_(kind.make(parameters)),
        sees_queue_(kind.knowledge == Knowledge::look_ahead),
        offers_(std::make_unique<Offers>(kind.parts_of_entries)) {
    policy_->on_start(trial_facts());
  }

  [[nodiscard]] bool sees_queue() const { return sees_queue_; }
  [[nodiscard]] const std::map<EntryId, Resident>& residents() const { return offers_->residents; }
  [[nodiscard]] bool holds(EntryId entry) const { return offers_->residents.contains(entry); }
  [[nodiscard]] bool offered(EntryId entry) const { return offers_->residents.at(entry).offered(); }
  [[nodiscard]] bool in_use(EntryId entry) const { return offers_->residents.at(entry).in_use; }
  /// Bytes of all offered entries.
  [[nodiscard]] Bytes offered_bytes() const { return offers_->available(); }

  /// `first_inserted` is a time from 0. All other times are the number of calls so far. A session
  /// begins at the first insertion of its entry here.
  void insert(EntryId entry, std::int64_t first_inserted, QueuePosition position = kNotQueued) {
    KVTIER_ASSERT(!holds(entry), "an entry is inserted once");
    const SimTime now = tick();
    const SimTime began = began_.try_emplace(entry, SimTime(first_inserted)).first->second;
    Resident& resident = offers_->residents[entry];
    resident.view = {.id = entry,
                     .key = EntryKey{entry.value + std::uint64_t{1'000}},
                     .place = entry.value,
                     .tokens = Tokens(100),
                     .bytes = bytes_of_tokens(Tokens(100)),
                     .first_inserted = SimTime(first_inserted),
                     .session_began = began,
                     .last_used = now,
                     .queue_position = sees_queue_ ? position : kNotQueued};
    offer(entry);
    policy_->on_insert(resident.view, now);
  }
  /// Inserts an entry for the first time.
  void insert(EntryId entry) { insert(entry, now_); }
  /// Inserts an entry with so many tokens, of 1 kB each.
  void insert(EntryId entry, Tokens tokens) {
    insert(entry);
    resize(entry, tokens);
  }

  /// A turn finds the entry in a tier that keeps its copy, or while another turn uses it.
  void hit(EntryId entry) {
    Resident& resident = offers_->residents.at(entry);
    const SimTime now = tick();
    policy_->on_hit(entry, now);
    if (!resident.in_use) {
      resident.view.last_used = now;
      policy_->on_release(resident.view, now);
    }
  }
  /// A turn finds the entry and takes its room.
  void begin_turn(EntryId entry) {
    KVTIER_ASSERT(offered(entry), "a turn takes what does not move");
    offers_->residents.at(entry).in_use = true;
    offer(entry);
    policy_->on_hit(entry, tick());
  }
  /// The turn ends, and the entry comes back.
  void end_turn(EntryId entry, Tokens tokens) {
    Resident& resident = offers_->residents.at(entry);
    KVTIER_ASSERT(resident.in_use, "only a turn that has begun ends");
    resident.in_use = false;
    resident.view.last_used = tick();
    set_tokens(resident.view, tokens);
    offer(entry);
    policy_->on_release(resident.view, resident.view.last_used);
  }
  void take_turn(EntryId entry) {
    begin_turn(entry);
    end_turn(entry, offers_->residents.at(entry).view.tokens);
  }
  /// The entry does not come back from its turn.
  void lose(EntryId entry) {
    offers_->residents.at(entry).in_use = false;
    remove(entry);
  }
  void resize(EntryId entry, Tokens tokens) {
    EntryView& view = offers_->residents.at(entry).view;
    set_tokens(view, tokens);
    offer(entry);
    policy_->on_resize(view, tick());
  }
  /// Splits the entry after `tokens` tokens; `tail` is a new entry in the same state.
  void split(EntryId entry, EntryId tail, Tokens tokens) {
    KVTIER_ASSERT(!holds(tail), "an entry is inserted once");
    Resident& whole = offers_->residents.at(entry);
    Resident& part = offers_->residents[tail] = whole;
    part.view.id = tail;
    part.view.key = EntryKey{tail.value + std::uint64_t{1'000}};
    part.view.place = tail.value;
    part.view.queue_position = kNotQueued;
    set_tokens(part.view, whole.view.tokens - tokens);
    set_tokens(whole.view, tokens);
    part.view.depth += tokens;
    offer(entry);
    offer(tail);
    policy_->on_split(whole.view, part.view, tick());
  }
  void set_next_use(EntryId entry, SimTime next_use) {
    offers_->residents.at(entry).view.next_use = next_use;
    policy_->on_next_use(entry, next_use);
  }
  /// A read or write of the entry begins; the policy is not told.
  void begin_move(EntryId entry) { set_moving(entry, true); }
  void end_move(EntryId entry) { set_moving(entry, false); }
  void remove(EntryId entry) {
    KVTIER_ASSERT(holds(entry) && offered(entry), "what is removed does not move");
    offers_->residents.erase(entry);
    offers_->offer(entry, Bytes(0));
    policy_->on_remove(entry, tick());
  }
  /// May be called for absent entries, too; the policy is not told of those.
  void change_queue(EntryId entry, QueuePosition position) {
    if (sees_queue_ && holds(entry)) {
      QueuePosition& waits_at = offers_->residents.at(entry).view.queue_position;
      const bool waits = position != kNotQueued;
      const QueueChange change{
          .position = waits ? position : waits_at, .waits = waits, .first = position};
      waits_at = position;
      policy_->on_queue_change(entry, change);
    }
  }
  void set_queue_first(QueuePosition first) { queue_first_ = first; }
  void set_window_end(QueuePosition end) { window_end_ = end; }
  [[nodiscard]] SimTime now() const { return SimTime(now_); }
  void wait(std::int64_t calls) { now_ += calls; }

  /// The set that frees `wanted` bytes, which is not removed yet. Empty if nothing should leave.
  [[nodiscard]] std::vector<Victim> choose(Bytes wanted, Demand demand = Demand::save,
                                           QueuePosition incoming = kNotQueued) {
    return choose(wanted, {.now = SimTime(now_),
                           .demand = demand,
                           .incoming = sees_queue_ ? incoming : kNotQueued,
                           .queue_first = sees_queue_ ? queue_first_ : kNotQueued,
                           .window_end = sees_queue_ ? window_end_ : kNotQueued});
  }
  /// The same for a policy with oracle knowledge.
  [[nodiscard]] std::vector<Victim> choose_for(Bytes bytes, SimTime next_use) {
    const EntryView newcomer{.bytes = bytes, .next_use = next_use};
    return choose(bytes, {.now = SimTime(now_), .newcomer = &newcomer});
  }
  /// The set that would leave. Nothing changes, because the tier refuses the last victim.
  [[nodiscard]] std::vector<Victim> peek(Bytes wanted, Demand demand = Demand::save,
                                         QueuePosition incoming = kNotQueued) {
    offers_->peeked.emplace();
    const std::vector<Victim> none = choose(wanted, demand, incoming);
    KVTIER_ASSERT(none.empty(), "a refused set does not leave");
    const std::vector<Victim> victims = *std::exchange(offers_->peeked, std::nullopt);
    return offers_->refused() ? victims : std::vector<Victim>{};
  }
  /// The first victim that would leave.
  [[nodiscard]] std::optional<Victim> select(Demand demand = Demand::save,
                                             QueuePosition incoming = kNotQueued) {
    const std::vector<Victim> victims = peek(Bytes(1), demand, incoming);
    return victims.empty() ? std::nullopt : std::optional(victims.front());
  }
  /// Removes the chosen victims.
  void remove(const std::vector<Victim>& victims) {
    for (const Victim& victim : victims) {
      victim.keep.value == 0 ? remove(victim.entry) : resize(victim.entry, victim.keep);
    }
  }
  /// Asks for more than the tier holds: nothing leaves.
  void choose_in_vain() {
    KVTIER_ASSERT(choose(offers_->available() + Bytes(1)).empty(), "no set is worth that");
  }
  /// Asks for a byte until an entry leaves; kNoEntry if none does.
  EntryId evict(Demand demand = Demand::save, QueuePosition incoming = kNotQueued) {
    while (true) {
      const std::vector<Victim> victims = choose(Bytes(1), demand, incoming);
      remove(victims);
      if (victims.empty() || victims.back().keep.value == 0) {
        return victims.empty() ? kNoEntry : victims.back().entry;
      }
    }
  }
  /// Evicts until no entry leaves any more. Returns entry numbers in the order of eviction.
  std::vector<std::uint32_t> evict_all(Demand demand = Demand::save,
                                       QueuePosition incoming = kNotQueued) {
    std::vector<std::uint32_t> order;
    for (EntryId entry = evict(demand, incoming); entry.valid(); entry = evict(demand, incoming)) {
      order.push_back(entry.value);
    }
    return order;
  }

  void check() const { policy_->check_invariants(*this); }
  void check_against(const TierView& other) const { policy_->check_invariants(other); }

  void for_each_resident(
      const std::function<void(const EntryView&, bool offered)>& visit) const override {
    for (const auto& [entry, resident] : offers_->residents) {
      visit(resident.view, resident.offered());
    }
  }

 private:
  SimTime tick() { return SimTime(++now_); }
  static void set_tokens(EntryView& view, Tokens tokens) {
    view.tokens = tokens;
    view.bytes = bytes_of_tokens(tokens);
  }

  class Offers final : public VictimSet {
   public:
    explicit Offers(bool in_parts) : in_parts_(in_parts) {}

    std::map<EntryId, Resident> residents;
    /// Victims of the set during a call of `peek`.
    std::optional<std::vector<Victim>> peeked;

   private:
    [[nodiscard]] bool may_leave(EntryId entry, Tokens keep) override {
      if (peeked) {
        peeked->push_back({entry, keep, offered_[entry.value]});
        return missing_ > offered_[entry.value] - bytes_of(entry, keep);
      }
      return true;
    }
    [[noreturn]] void reject(EntryId entry) const override {
      throw InvariantError("entry " + std::to_string(entry.value) + " is chosen but not " +
                           (residents.contains(entry) ? "offered" : "here"));
    }
    [[nodiscard]] Tokens rounded(EntryId entry, Tokens keep) const override {
      if (!in_parts_) {
        throw InvariantError("entry " + std::to_string(entry.value) +
                             " keeps a part, but parts_of_entries is not declared");
      }
      const Tokens tokens = residents.at(entry).view.tokens;
      if (keep < Tokens(0) || keep >= tokens) {
        throw InvariantError(std::to_string(keep.value) + " of the " +
                             std::to_string(tokens.value) + " tokens of a victim are kept");
      }
      return keep;
    }
    [[nodiscard]] Bytes bytes_of(EntryId, Tokens tokens) const override {
      return bytes_of_tokens(tokens);
    }

    bool in_parts_;
  };

  std::vector<Victim> choose(Bytes wanted, const RoomRequest& request) {
    return offers_->choose(*policy_, request, wanted) ? offers_->victims() : std::vector<Victim>{};
  }
  void set_moving(EntryId entry, bool moving) {
    KVTIER_ASSERT(offers_->residents.at(entry).moving != moving, "one move at a time");
    offers_->residents.at(entry).moving = moving;
    offer(entry);
  }
  void offer(EntryId entry) {
    const Resident& resident = offers_->residents.at(entry);
    offers_->offer(entry, resident.offered() ? resident.view.bytes : Bytes(0));
  }
  [[nodiscard]] static Bytes bytes_of_tokens(Tokens tokens) { return Bytes(tokens.value * 1'000); }

  std::unique_ptr<EvictionPolicy> policy_;
  bool sees_queue_;
  std::unique_ptr<Offers> offers_;
  std::map<EntryId, SimTime> began_;
  QueuePosition queue_first_{0};
  QueuePosition window_end_{0};
  std::int64_t now_ = 0;
};

/// A view of a tier's content that a test can falsify.
class FalseView final : public TierView {
 public:
  explicit FalseView(const TrialTier& tier) : residents(tier.residents()) {}

  void for_each_resident(
      const std::function<void(const EntryView&, bool offered)>& visit) const override {
    for (const auto& [entry, resident] : residents) {
      visit(resident.view, resident.offered());
    }
  }

  std::map<EntryId, TrialTier::Resident> residents;
};

}  // namespace kvtier
