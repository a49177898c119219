#pragma once

#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/units.hpp"
#include "sim/policy/grow.hpp"
#include "sim/policy/ids.hpp"

namespace kvtier {

/// An entry that must shrink, and the tokens that it keeps (0: all of it leaves).
struct Victim {
  EntryId entry;
  Tokens keep;
  /// Bytes for which the entry was offered.
  Bytes offered;
};

/// The set of victims while a policy chooses it. The tier offers entries; the policy adds entries
/// until the set frees the wanted room. The set leaves in the order in which it was chosen, or
/// nothing leaves.
class Victims {
 public:
  virtual ~Victims() = default;
  /// The entry is resident, does not move, is not used by a running request, and not all of it is
  /// in the set.
  [[nodiscard]] bool offers(EntryId entry) const {
    return entry.value < offered_.size() && offered_[entry.value].value > 0;
  }
  /// False once the set is complete or refused.
  [[nodiscard]] bool wants_more() const { return missing_.value > 0 && !refused_; }
  /// The tier refused the last victim, and the set with it.
  [[nodiscard]] bool refused() const { return refused_; }
  /// The set frees the wanted room, so it will leave.
  [[nodiscard]] bool complete() const { return missing_.value <= 0 && !refused_; }
  /// Adds an offered entry without its first `keep` tokens. Returns the tokens that it keeps: the
  /// tier may round to whole blocks, and spare tokens of the last victim. The rest is offered again
  /// if it frees memory. The tier's admission policy may refuse the victim, and so the set.
  virtual Tokens add(EntryId entry, Tokens keep) = 0;
  Tokens add(EntryId entry) { return add(entry, Tokens(0)); }

 protected:
  /// By entry: the bytes that all of it frees; zero if it is not offered.
  std::vector<Bytes> offered_;
  Bytes missing_;
  bool refused_ = false;
};

class EvictionPolicy;
struct RoomRequest;

/// The entries that a tier offers to its policy, and the sets that the policy chooses.
class VictimSet : public Victims {
 public:
  /// Offers an entry that frees so many bytes. Zero withdraws it.
  void offer(EntryId entry, Bytes bytes) {
    if (entry.value >= offered_.size()) [[unlikely]] {
      grow(offered_, static_cast<std::size_t>(entry.value) + 1);
    }
    available_ += bytes - offered_[entry.value];
    offered_[entry.value] = bytes;
  }
  void withdraw(EntryId entry) {
    if (offers(entry)) {
      available_ -= offered_[entry.value];
      offered_[entry.value] = Bytes(0);
    }
  }
  /// Bytes of all offered entries.
  [[nodiscard]] Bytes available() const { return available_; }

  /// Asks the policy (or anything with its `choose`) for a set that frees `wanted` bytes. Returns
  /// whether there is one. The caller then removes the victims in order. Victims are no longer
  /// offered.
  template <class Policy>
  [[nodiscard]] bool choose(Policy& policy, const RoomRequest& request, Bytes wanted) {
    missing_ = wanted;
    refused_ = false;
    victims_.clear();
    policy.choose(request, *this);
    if (complete()) {
      return true;
    }
    for (auto it = victims_.rbegin(); it != victims_.rend(); ++it) {
      offer(it->entry, it->offered);
    }
    return false;
  }
  [[nodiscard]] const std::vector<Victim>& victims() const { return victims_; }

  Tokens add(EntryId entry, Tokens keep) final {
    if (!offers(entry)) [[unlikely]] {
      reject(entry);
    }
    KVTIER_ASSERT(wants_more(), "a policy adds no victim to a set that wants no more");
    if (!may_leave(entry, keep)) {
      refused_ = true;
      return keep;
    }
    const Tokens kept = keep.value != 0 ? rounded(entry, keep) : spared(entry);
    Bytes& offered = offered_[entry.value];
    const Bytes left = kept.value > 0 ? bytes_of(entry, kept) : Bytes(0);
    victims_.push_back({entry, kept, offered});
    missing_ -= offered - left;
    const Bytes still_offered = left < offered ? left : Bytes(0);
    available_ -= offered - still_offered;
    offered = still_offered;
    return kept;
  }
  using Victims::add;

 private:
  /// The policy added an entry that is not offered: throws.
  [[noreturn]] virtual void reject(EntryId) const {
    throw InvariantError("a policy chose a victim that was not offered");
  }
  /// Whether the victim may leave, except `keep` tokens. If not, nothing leaves.
  [[nodiscard]] virtual bool may_leave(EntryId, Tokens) { return true; }
  /// The tokens that an entry keeps if the policy keeps `keep` > 0. Throws if the tier evicts whole
  /// entries, or if the entry has at most `keep` tokens.
  [[nodiscard]] virtual Tokens rounded(EntryId, Tokens) const {
    throw InvariantError("a policy kept a part of an entry that is evicted whole");
  }
  /// The tokens that an entry keeps although the policy keeps none.
  [[nodiscard]] virtual Tokens spared(EntryId) const { return Tokens(0); }
  /// Bytes that an entry with so many tokens frees.
  [[nodiscard]] virtual Bytes bytes_of(EntryId, Tokens) const { return Bytes(0); }

  Bytes available_;
  std::vector<Victim> victims_;
};

}  // namespace kvtier
