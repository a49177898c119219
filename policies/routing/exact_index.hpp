#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/routing.hpp"
#include "sim/policy/stored_blocks.hpp"

namespace kvtier {

/// Base class of routers with an exact index of blocks, which follows block events.
class ExactIndexRouting : public RoutingPolicy {
 public:
  [[nodiscard]] RoutingNeeds needs() const override {
    return {.blocks = true, .block_events = true, .instances_max = BlockIndex::kInstancesMax};
  }
  void on_start(const RoutingFacts& facts) override {
    facts_ = facts;
    matched_.assign(static_cast<std::size_t>(facts.instances), 0);
  }
  void on_lost(InstanceId instance, SimTime) override { stored_.lose(instance); }
  void on_blocks_stored(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                        SimTime) override {
    stored_.store(instance, medium, blocks);
  }
  void on_blocks_removed(InstanceId instance, BlockMedium medium, std::span<const BlockHash> blocks,
                         SimTime) override {
    stored_.remove(instance, medium, blocks);
  }

 protected:
  [[nodiscard]] const RoutingFacts& facts() const { return facts_; }
  /// Matched blocks of the request's prefix, by instance number. Each instance may read the pool.
  [[nodiscard]] const std::vector<std::int64_t>& match(const RoutedRequest& request) {
    std::ranges::fill(matched_, 0);
    std::int64_t in_pool = 0;
    stored_.index().match(request.blocks, [&](InstanceId instance, std::int64_t blocks) {
      (instance.valid() ? matched_[instance.value] : in_pool) = blocks;
    });
    if (in_pool > 0) {
      for (std::int64_t& blocks : matched_) {
        blocks = std::max(blocks, in_pool);
      }
    }
    return matched_;
  }

 private:
  RoutingFacts facts_;
  StoredBlocks stored_;
  std::vector<std::int64_t> matched_;
};

}  // namespace kvtier
