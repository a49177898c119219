#pragma once

#include <cstdint>
#include <vector>

#include "sim/policy/block_index.hpp"

namespace kvtier {

/// An approximate index of the blocks that instances hold: the blocks of the prompts sent to them.
/// It does not know of evictions. Each instance's blocks are in order of their last touch. O(1) per
/// touched or forgotten block beside the index; 24 bytes per pair.
class SentBlocks {
 public:
  explicit SentBlocks(std::int64_t instances)
      : nodes_(static_cast<std::size_t>(instances)), sizes_(static_cast<std::size_t>(instances)) {
    KVTIER_ASSERT(instances <= BlockIndex::kInstancesMax, "the group fits the index");
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].previous = nodes_[i].next = i;
    }
  }

  [[nodiscard]] const BlockIndex& index() const { return index_; }
  [[nodiscard]] std::int64_t size(InstanceId instance) const { return sizes_[instance.value]; }
  /// Last touch of a pair in the index.
  [[nodiscard]] SimTime touched(const BlockIndex::Holder& holder) const {
    return nodes_[holder.tag].at;
  }

  /// The least recently touched block; the instance must have one.
  [[nodiscard]] BlockHash oldest(InstanceId instance) const {
    return nodes_[nodes_[instance.value].next].block;
  }

  /// Makes the block the instance's most recently touched one.
  void touch(InstanceId instance, BlockHash block, SimTime now) {
    BlockIndex::Holder& holder = index_.add(block, instance);
    if (holder.media == 0) {
      holder.media = media_bit(BlockMedium::gpu);
      holder.tag = new_node(block);
      ++sizes_[instance.value];
    } else {
      unlink(holder.tag);
    }
    nodes_[holder.tag].at = now;
    link_before(instance.value, holder.tag);
  }
  /// Forgets the instance's oldest blocks until at most `most` are left.
  void trim(InstanceId instance, std::int64_t most) {
    while (sizes_[instance.value] > most) {
      forget(instance, nodes_[instance.value].next);
    }
  }
  /// Forgets blocks last touched before this time. O(instances + forgotten blocks).
  void expire(SimTime before) {
    for (std::uint32_t i = 0; i < sizes_.size(); ++i) {
      while (nodes_[i].next != i && nodes_[nodes_[i].next].at < before) {
        forget(InstanceId{i}, nodes_[i].next);
      }
    }
  }
  void remove(InstanceId instance, BlockHash block) {
    if (const BlockIndex::Holder* const holder = index_.find(block, instance); holder != nullptr) {
      forget(instance, holder->tag);
    }
  }
  void lose(InstanceId instance) { trim(instance, 0); }

 private:
  /// The first nodes are the ends of the instances' lists.
  struct Node {
    BlockHash block;
    SimTime at;
    std::uint32_t previous = 0;
    std::uint32_t next = 0;
  };

  std::uint32_t new_node(BlockHash block) {
    if (free_.empty()) {
      nodes_.emplace_back().block = block;
      return static_cast<std::uint32_t>(nodes_.size() - 1);
    }
    const std::uint32_t node = free_.back();
    free_.pop_back();
    nodes_[node].block = block;
    return node;
  }
  void unlink(std::uint32_t node) {
    nodes_[nodes_[node].previous].next = nodes_[node].next;
    nodes_[nodes_[node].next].previous = nodes_[node].previous;
  }
  void link_before(std::uint32_t end, std::uint32_t node) {
    nodes_[node].previous = nodes_[end].previous;
    nodes_[node].next = end;
    nodes_[nodes_[end].previous].next = node;
    nodes_[end].previous = node;
  }
  void forget(InstanceId instance, std::uint32_t node) {
    unlink(node);
    index_.erase(nodes_[node].block, instance);
    free_.push_back(node);
    --sizes_[instance.value];
  }

  BlockIndex index_;
  std::vector<Node> nodes_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::uint32_t> free_;
};

}  // namespace kvtier
