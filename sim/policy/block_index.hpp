#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/core/rng.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// Media as bits.
using MediaMask = std::uint8_t;
[[nodiscard]] constexpr MediaMask media_bit(BlockMedium medium) {
  return static_cast<MediaMask>(1U << static_cast<unsigned>(medium));
}

/// Index of the blocks that the instances of a group hold. The holders of a block are in the order
/// of their numbers.
///
/// Adding, removing and looking up a block is O(1). Finding an instance among h holders adds O(log
/// h), and inserting or erasing it O(h). walk() is O(1 + h) per block, up to the last block that
/// any instance continues. Memory: 24 bytes per slot of a table that is at most three quarters
/// full, and 8 bytes per holder of a block with several.
class BlockIndex {
 public:
  /// The largest group. This number itself stands for the pool that all instances share.
  static constexpr std::int64_t kInstancesMax = UINT16_MAX;

  struct Holder {
    std::uint16_t instance = 0;
    MediaMask media = 0;
    /// Belongs to the user of the index.
    std::uint32_t tag = 0;
  };

  [[nodiscard]] static constexpr std::uint16_t number_of(InstanceId instance) {
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(instance.value, UINT16_MAX));
  }
  [[nodiscard]] static constexpr InstanceId instance_of(std::uint16_t number) {
    return number == UINT16_MAX ? kNoInstance : InstanceId{number};
  }

  /// Number of blocks with a holder.
  [[nodiscard]] std::size_t blocks() const { return used_; }
  /// Number of pairs of a block and an instance.
  [[nodiscard]] std::size_t pairs() const { return pairs_; }

  [[nodiscard]] std::span<const Holder> holders(BlockHash block) const {
    const std::size_t at = find_slot(block);
    return slots_[at].taken ? holders_of(slots_[at]) : std::span<const Holder>();
  }
  /// Null if the instance does not hold the block. Valid until the next change.
  [[nodiscard]] Holder* find(BlockHash block, InstanceId instance) {
    const std::size_t at = find_slot(block);
    if (!slots_[at].taken) {
      return nullptr;
    }
    const std::span<Holder> all = holders_of(slots_[at]);
    const auto found = lower_bound(all, number_of(instance));
    return found != all.end() && found->instance == number_of(instance) ? &*found : nullptr;
  }

  /// The pair's holder. A new holder has no media.
  Holder& add(BlockHash block, InstanceId instance) {
    if ((used_ + 1) * 4 > slots_.size() * 3) [[unlikely]] {
      rehash();
    }
    Slot& slot = slots_[find_slot(block)];
    const Holder added{.instance = number_of(instance)};
    if (!slot.taken) {
      slot = {.block = block, .only = added, .taken = true};
      ++used_;
      ++pairs_;
      return slot.only;
    }
    const std::span<Holder> all = holders_of(slot);
    const auto place = lower_bound(all, added.instance);
    if (place != all.end() && place->instance == added.instance) {
      return *place;
    }
    ++pairs_;
    const auto offset = place - all.begin();
    if (slot.several == kNone) {
      spill(slot);
    }
    std::vector<Holder>& several = several_[slot.several];
    return *several.insert(several.begin() + offset, added);
  }

  /// Removes the pair. Returns whether it was there.
  bool erase(BlockHash block, InstanceId instance) {
    const std::size_t at = find_slot(block);
    Slot& slot = slots_[at];
    if (!slot.taken) {
      return false;
    }
    const std::span<Holder> all = holders_of(slot);
    const auto place = lower_bound(all, number_of(instance));
    if (place == all.end() || place->instance != number_of(instance)) {
      return false;
    }
    --pairs_;
    if (slot.several == kNone) {
      erase_slot(at);
      return true;
    }
    std::vector<Holder>& several = several_[slot.several];
    several.erase(several.begin() + (place - all.begin()));
    if (several.size() == 1) {
      slot.only = several.front();
      several.clear();
      free_.push_back(std::exchange(slot.several, kNone));
    }
    return true;
  }

  /// Removes all blocks of a lost instance. O(slots).
  void erase_all(InstanceId instance) {
    std::vector<BlockHash> held;
    for (const Slot& slot : slots_) {
      if (slot.taken && std::ranges::any_of(holders_of(slot), [&](const Holder& holder) {
            return holder.instance == number_of(instance);
          })) {
        held.push_back(slot.block);
      }
    }
    for (const BlockHash block : held) {
      erase(block, instance);
    }
  }

  /// Follows the blocks from the first on, for all instances that hold the first block. Calls
  /// `step(state, holder)` for each block and instance, with null if the instance does not hold the
  /// block. The instance goes on while `step` returns true. Then calls `end(instance, state)`, once
  /// for each instance. The pool is kNoInstance.
  template <class State, class Step, class End>
  void walk(std::span<const BlockHash> blocks, const Step& step, const End& end) const {
    std::vector<std::pair<std::uint16_t, State>> active;
    if (blocks.empty()) {
      return;
    }
    for (const Holder& holder : holders(blocks.front())) {
      active.emplace_back(holder.instance, State());
    }
    for (std::size_t i = 0; i < blocks.size() && !active.empty(); ++i) {
      const std::span<const Holder> all = holders(blocks[i]);
      // Few instances are looked up among many holders. Otherwise both lists are merged.
      const bool few = active.size() * 8 < all.size();
      auto place = all.begin();
      std::size_t kept = 0;
      for (auto& [instance, state] : active) {
        if (few) {
          place = lower_bound(all, instance);
        } else {
          while (place != all.end() && place->instance < instance) {
            ++place;
          }
        }
        const bool holds = place != all.end() && place->instance == instance;
        if (step(state, holds ? &*place : nullptr)) {
          active[kept++] = {instance, state};
        } else {
          end(instance_of(instance), state);
        }
      }
      active.resize(kept);
    }
    for (const auto& [instance, state] : active) {
      end(instance_of(instance), state);
    }
  }

  /// Calls visit(instance, count) for each instance that holds the first block; `count` blocks from
  /// the first on are there in any medium.
  template <class Visit>
  void match(std::span<const BlockHash> blocks, const Visit& visit) const {
    walk<std::int64_t>(
        blocks,
        [](std::int64_t& matched, const Holder* holder) {
          matched += holder != nullptr ? 1 : 0;
          return holder != nullptr;
        },
        visit);
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Slot {
    BlockHash block;
    Holder only;
    /// Index of the holders if there are several.
    std::uint32_t several = kNone;
    bool taken = false;
  };

  template <class Holders>
  [[nodiscard]] static typename Holders::iterator lower_bound(const Holders& all,
                                                              std::uint16_t instance) {
    return std::lower_bound(
        all.begin(), all.end(), instance,
        [](const Holder& holder, std::uint16_t number) { return holder.instance < number; });
  }
  [[nodiscard]] std::size_t home(BlockHash block) const {
    return random_bits_at(block.value, 0) & (slots_.size() - 1);
  }
  /// The block's slot, or the free one where it belongs.
  [[nodiscard]] std::size_t find_slot(BlockHash block) const {
    std::size_t at = home(block);
    while (slots_[at].taken && slots_[at].block != block) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }
  [[nodiscard]] std::span<Holder> holders_of(Slot& slot) {
    return slot.several == kNone ? std::span(&slot.only, 1) : std::span(several_[slot.several]);
  }
  [[nodiscard]] std::span<const Holder> holders_of(const Slot& slot) const {
    return slot.several == kNone ? std::span(&slot.only, 1) : std::span(several_[slot.several]);
  }
  void spill(Slot& slot) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(several_.size()));
      several_.emplace_back();
    }
    slot.several = free_.back();
    free_.pop_back();
    several_[slot.several].push_back(slot.only);
  }
  /// Frees a slot and closes the gap, so that no search stops at the gap.
  void erase_slot(std::size_t gap) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = (gap + 1) & mask; slots_[at].taken; at = (at + 1) & mask) {
      // A block may move back to the gap unless its home is behind the gap.
      if (((at - home(slots_[at].block)) & mask) >= ((at - gap) & mask)) {
        slots_[gap] = slots_[at];
        gap = at;
      }
    }
    slots_[gap].taken = false;
    --used_;
  }
  [[gnu::noinline]] void rehash() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.taken) {
        slots_[find_slot(slot.block)] = slot;
      }
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::vector<std::vector<Holder>> several_;
  std::vector<std::uint32_t> free_;
  std::size_t used_ = 0;
  std::size_t pairs_ = 0;
};

}  // namespace kvtier
