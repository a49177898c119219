#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "sim/policy/block_index.hpp"
#include "sim/policy/sent_blocks.hpp"

namespace kvtier {

/// The blocks that instances hold according to events: an exact index, unless it has bounds. A
/// bound on blocks forgets the block that was least recently stored or looked up. A bound on
/// holders forgets the instance that stored the block least recently. O(1) per event beside the
/// index; O(h) to forget one of h instances. A bound on blocks doubles the memory.
class StoredBlocks {
 public:
  struct Bounds {
    std::int64_t blocks = std::numeric_limits<std::int64_t>::max();
    std::int64_t holders = std::numeric_limits<std::int64_t>::max();
  };

  StoredBlocks() : StoredBlocks(Bounds{}) {}
  explicit StoredBlocks(Bounds bounds) : bounds_(bounds) {}

  [[nodiscard]] const BlockIndex& index() const { return index_; }

  void store(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks) {
    for (const BlockHash block : blocks) {
      BlockIndex::Holder& holder = index_.add(block, instance);
      holder.media |= media_bit(medium);
      holder.tag = ++stores_;
      if (is_bounded()) {
        keys_.touch(kKeys, block, SimTime());
        bound(block);
      }
    }
  }
  void remove(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks) {
    for (const BlockHash block : blocks) {
      BlockIndex::Holder* const holder = index_.find(block, instance);
      if (holder != nullptr) {
        holder->media &= static_cast<MediaMask>(~media_bit(medium));
        if (holder->media == 0) {
          index_.erase(block, instance);
          if (is_bounded() && index_.holders(block).empty()) {
            keys_.remove(kKeys, block);
          }
        }
      }
    }
  }
  void lose(InstanceId instance) { index_.erase_all(instance); }
  /// Marks the known blocks at the start of `blocks` as used. Does nothing without bounds.
  void look_up(std::span<const BlockHash> blocks) {
    for (const BlockHash block : blocks) {
      if (!is_bounded() || index_.holders(block).empty()) {
        return;
      }
      keys_.touch(kKeys, block, SimTime());
    }
  }

 private:
  static constexpr InstanceId kKeys{0};

  [[nodiscard]] bool is_bounded() const {
    return bounds_.blocks != std::numeric_limits<std::int64_t>::max() ||
           bounds_.holders != std::numeric_limits<std::int64_t>::max();
  }
  void bound(BlockHash stored) {
    const std::span<const BlockIndex::Holder> holders = index_.holders(stored);
    if (std::ssize(holders) > bounds_.holders) {
      std::uint16_t oldest = 0;
      std::uint32_t age_max = 0;
      for (const BlockIndex::Holder& holder : holders) {
        // Age in stores; the counter may wrap around.
        if (const std::uint32_t age = stores_ - holder.tag; age > age_max) {
          age_max = age;
          oldest = holder.instance;
        }
      }
      index_.erase(stored, BlockIndex::instance_of(oldest));
    }
    while (keys_.size(kKeys) > bounds_.blocks) {
      const BlockHash oldest = keys_.oldest(kKeys);
      keys_.trim(kKeys, keys_.size(kKeys) - 1);
      while (!index_.holders(oldest).empty()) {
        index_.erase(oldest, BlockIndex::instance_of(index_.holders(oldest).front().instance));
      }
    }
  }

  Bounds bounds_;
  BlockIndex index_;
  /// All blocks in order of use, under one instance. Some have no holder after an instance was
  /// lost.
  SentBlocks keys_{1};
  std::uint32_t stores_ = 0;
};

}  // namespace kvtier
