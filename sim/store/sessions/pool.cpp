#include "sim/store/sessions/pool.hpp"

namespace kvtier {
namespace {

/// A policy's view of its pool in a check.
class KnownEntries final : public TierView {
 public:
  using ForEach = std::function<void(const Pool::Visit&)>;
  KnownEntries(const Pool& pool, const ForEach& for_each) : pool_(pool), for_each_(for_each) {}
  void for_each_resident(
      const std::function<void(const EntryView&, bool offered)>& visit) const override {
    for_each_([&](const EntryView& view) { visit(view, pool_.offers(view.id)); });
  }

 private:
  const Pool& pool_;
  const ForEach& for_each_;
};

}  // namespace

Pool::Pool(const Setup& setup)
    : shares_(setup.shares),
      capacity_(shares_.stored.value > 0 ? shares_.stored : shares_.capacity),
      for_running_(shares_.capacity - shares_.stored - shares_.read_buffer - shares_.write_buffer),
      medium_(setup.medium),
      key_of_(setup.key_of) {
  if (setup.tier == nullptr) {
    return;
  }
  ttl_ = setup.tier->ttl;
  const auto& kind = known_policy(setup.registry->eviction, setup.tier->eviction.name);
  sees_queue_ = kind.knowledge == Knowledge::look_ahead;
  sees_future_ = kind.knowledge == Knowledge::oracle;
  policy_ = kind.make(setup.tier->eviction.parameters);
  policy_->on_start(setup.facts);
  if (const PolicyChoice& choice = setup.tier->admission; choice.name != kAlwaysAdmitted) {
    admission_ = known_policy(setup.registry->admission, choice.name).make(choice.parameters);
  }
}

TierCounters Pool::counters(SimTime now) const {
  TierCounters counters = counters_;
  counters.occupancy_byte_ns += static_cast<Int128>(stored().value) * now.ns;
  return counters;
}

void Pool::age(EntryId entry, std::optional<SimTime> last_used) {
  if (last_used.has_value() == by_age_.contains(entry)) {
    return;
  }
  if (last_used) {
    by_age_.insert(entry, static_cast<std::uint64_t>(last_used->ns));
  } else {
    by_age_.remove(entry);
  }
}

void Pool::refresh(EntryId entry, SimTime now) {
  if (by_age_.contains(entry)) {
    age(entry, std::nullopt);
    age(entry, now);
  }
}

EntryId Pool::next_expired(SimTime now) const {
  const bool any = ttl_ && !by_age_.empty() &&
                   expired(SimTime(static_cast<std::int64_t>(by_age_.top_key())), now);
  return any ? by_age_.top() : kNoEntry;
}

bool Pool::choose_for(EntryId newcomer, const RoomRequest& request, Bytes wanted) {
  if (request.demand == Demand::background) {
    wanted = std::min(wanted, available());  // a part of a free buffer is better than none
  }
  if (wanted > available() || available().value == 0) {
    return false;
  }
  newcomer_ = request.demand == Demand::prefetch ? kNoEntry : newcomer;
  return choose(request, wanted);
}

bool Pool::may_replace(EntryId victim) const {
  return !newcomer_.valid() || admission_->replaces(key_of_(newcomer_), key_of_(victim));
}

void Pool::check_invariants(const Sums& sums,
                            const std::function<void(const Visit&)>& for_each_known) const {
  for (std::size_t i = 0; i < kAccounts; ++i) {
    KVTIER_ASSERT(sums.used[i] == used(static_cast<Account>(i)),
                  "a pool's accounts are those of its entries");
  }
  KVTIER_ASSERT(total() <= shares_.capacity, "a pool's accounts take no more than its capacity");
  KVTIER_ASSERT(used(Account::read_buffer) <= shares_.read_buffer,
                "the read buffer is no larger than its size");
  KVTIER_ASSERT(sums.leaving == leaving_, "what leaves is counted");
  KVTIER_ASSERT(sums.offered == available(), "what is offered is counted");
  if (policy_ != nullptr) {
    policy_->check_invariants(KnownEntries(*this, for_each_known));
  }
}

}  // namespace kvtier
