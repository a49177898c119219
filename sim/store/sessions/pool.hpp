#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "sim/backend/backend.hpp"
#include "sim/core/assert.hpp"
#include "sim/policy/entry_heap.hpp"
#include "sim/policy/policy.hpp"
#include "sim/store/store_counters.hpp"
#include "sim/store/tier_config.hpp"

namespace kvtier {

/// Users of a pool's memory. Outside of HBM: stored KV only.
enum class Account : std::uint8_t {
  stored,           // KV of one session
  shared_prefixes,  // stored KV that several sessions begin with
  running,          // running requests
  read_buffer,      // layers loaded ahead of a turn
  write_buffer,     // KV of ended turns that is still to be moved
};
inline constexpr std::size_t kAccounts = 5;

/// One tier's memory: its accounts, the entries that may leave it (VictimSet), its policies, its
/// time to live and its counters.
///
/// HBM is one pool. Its accounts never take more than its capacity together (`charge` throws).
/// Stored KV (with shared prefixes), the read buffer and the write buffer have reserved sizes,
/// which running requests leave free. Only the write buffer may exceed its size: when a turn ends,
/// its KV moves from `running` to `write_buffer` at one instant, so the sum does not grow. Until
/// the excess is saved the GPUs wait, and `free_to_run` is smaller by it.
class Pool : public VictimSet {
 public:
  struct Setup {
    Medium medium = Medium::hbm;
    const PolicyRegistry* registry = nullptr;
    /// Null: nothing is stored here between turns.
    const TierConfig* tier = nullptr;
    /// Given to the eviction policy.
    TierFacts facts{};
    /// Outside of HBM stored KV may take all of the capacity.
    KvShares shares;
    /// Asked if there is an admission policy.
    std::function<EntryKey(EntryId)> key_of{};
  };
  explicit Pool(const Setup& setup);

  [[nodiscard]] Medium medium() const { return medium_; }
  [[nodiscard]] EvictionPolicy* policy() const { return policy_.get(); }
  [[nodiscard]] bool sees_queue() const { return sees_queue_; }
  [[nodiscard]] bool sees_future() const { return sees_future_; }
  [[nodiscard]] TierCounters& count() { return counters_; }
  [[nodiscard]] TierCounters counters(SimTime now) const;

  // Accounts.

  /// Capacity of all accounts together.
  [[nodiscard]] Bytes total_capacity() const { return shares_.capacity; }
  [[nodiscard]] Bytes total() const { return stored_ + others_; }
  [[nodiscard]] Bytes used(Account account) const {
    return account == Account::stored ? stored_ - used(Account::shared_prefixes)
                                      : used_[static_cast<std::size_t>(account)];
  }
  /// Capacity for stored KV, shared prefixes included.
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  [[nodiscard]] Bytes stored() const { return stored_; }
  [[nodiscard]] Bytes free() const { return capacity_ - stored_; }
  /// Once what leaves has left and what waits has its room.
  [[nodiscard]] Bytes free_to_come() const { return free() + leaving_ - promised_; }
  /// Running requests may take so much; less than nothing while the write buffer exceeds its size.
  [[nodiscard]] Bytes free_to_run() const {
    return for_running_ - used(Account::running) - write_buffer_excess();
  }
  [[nodiscard]] Bytes write_buffer_excess() const {
    return std::max(Bytes(0), used(Account::write_buffer) - shares_.write_buffer);
  }
  /// Not of stored KV.
  void charge(Account account, Bytes bytes) {
    const Bytes others = others_ + bytes;
    KVTIER_ASSERT(stored_ + others <= shares_.capacity,
                  "a pool's accounts take no more than its capacity");
    others_ = others;
    used_[static_cast<std::size_t>(account)] += bytes;
  }
  void charge_stored(Bytes bytes, SimTime now) {
    const Bytes stored = stored_ + bytes;
    // One comparison: as an unsigned number, less than nothing is more than any capacity.
    KVTIER_ASSERT(
        static_cast<std::uint64_t>(stored.value) <= static_cast<std::uint64_t>(capacity_.value),
        "a tier holds no more than its capacity");
    stored_ = stored;
    // Current charges count from now on: counters() adds stored bytes times time.
    counters_.occupancy_byte_ns -= static_cast<Int128>(bytes.value) * now.ns;
    counters_.occupancy_peak = std::max(counters_.occupancy_peak, stored);
  }
  /// So much of the stored KV more is that of a shared prefix.
  void note_shared(Bytes bytes) {
    used_[static_cast<std::size_t>(Account::shared_prefixes)] += bytes;
  }
  /// Stored KV that stays charged until the next tier has it.
  void leave(Bytes bytes) { leaving_ += bytes; }
  /// Room that waiting moves will take.
  void promise(Bytes bytes) { promised_ += bytes; }
  [[nodiscard]] Bytes promised() const { return promised_; }

  // Entries that may leave.

  /// Offers an entry that frees so many bytes. It may also expire, by its last use.
  void offer(EntryId entry, Bytes bytes, SimTime last_used) {
    VictimSet::offer(entry, bytes);
    if (ttl_) [[unlikely]] {
      age(entry, bytes.value > 0 ? std::optional(last_used) : std::nullopt);
    }
  }
  void withdraw(EntryId entry) {
    VictimSet::withdraw(entry);
    if (ttl_) [[unlikely]] {
      age(entry, std::nullopt);
    }
  }
  /// The entry was used now, be it offered or not.
  void use(EntryId entry, SimTime now) {
    if (ttl_) [[unlikely]] {
      refresh(entry, now);
    }
  }
  [[nodiscard]] bool expired(SimTime last_used, SimTime now) const {
    return ttl_ && last_used < now - *ttl_;
  }
  /// An offered entry that has expired; kNoEntry if there is none.
  [[nodiscard]] EntryId next_expired(SimTime now) const;
  /// Asks the policy for victims that free so many bytes. False: no set does, and nothing leaves.
  /// The caller removes the victims.
  [[nodiscard]] bool choose(const RoomRequest& request, Bytes wanted) {
    return VictimSet::choose(*policy_, request, wanted);
  }
  /// The same for what the newcomer, if there is one, lacks of free_to_come(). The admission policy
  /// may refuse it. In the background what there is has to do.
  [[nodiscard]] bool choose_for(EntryId newcomer, const RoomRequest& request, Bytes wanted);

  // Admission.

  [[nodiscard]] bool filters() const { return admission_ != nullptr; }
  void tell_admission(EntryKey key) {
    if (filters()) {
      admission_->on_use(key);
    }
  }
  [[nodiscard]] bool admits(EntryKey key) const { return !filters() || admission_->admits(key); }

  /// Sums over the pool's entries.
  struct Sums {
    std::array<Bytes, kAccounts> used{};
    Bytes leaving;
    Bytes offered;
    [[nodiscard]] Bytes& operator[](Account account) {
      return used[static_cast<std::size_t>(account)];
    }
  };
  using Visit = std::function<void(const EntryView&)>;
  /// Throws InvariantError unless that is what the pool has, and the policy agrees with the entries
  /// that `for_each_known` visits.
  void check_invariants(const Sums& sums,
                        const std::function<void(const Visit&)>& for_each_known) const;

 protected:
  /// The admission policy is asked whether the newcomer may replace each victim.
  [[nodiscard]] bool may_leave(EntryId victim, Tokens) override {
    return !filters() || may_replace(victim);
  }

 private:
  void refresh(EntryId entry, SimTime now);
  /// Notes when an entry was last used, unless that is noted, or forgets it.
  void age(EntryId entry, std::optional<SimTime> last_used);
  [[nodiscard, gnu::noinline]] bool may_replace(EntryId victim) const;

  KvShares shares_;
  /// The most that stored KV may take.
  Bytes capacity_;
  /// Stored KV, shared prefixes included.
  Bytes stored_;
  /// Bytes without a reserved share.
  Bytes for_running_;
  /// All but stored KV.
  Bytes others_;
  /// Bytes of all accounts but the first.
  std::array<Bytes, kAccounts> used_{};
  Bytes leaving_;
  Bytes promised_;
  TierCounters counters_;
  std::unique_ptr<EvictionPolicy> policy_;
  /// Null: everything is admitted.
  std::unique_ptr<AdmissionPolicy> admission_;
  std::optional<SimDuration> ttl_;
  /// Offered entries by last use; only with a time to live.
  EntryHeap by_age_;
  bool sees_queue_ = false;
  bool sees_future_ = false;
  Medium medium_;
  std::function<EntryKey(EntryId)> key_of_;
  /// That victims are chosen for, if the admission policy is to be asked.
  EntryId newcomer_ = kNoEntry;
};

}  // namespace kvtier
