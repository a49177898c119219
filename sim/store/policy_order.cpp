#include "sim/store/policy_order.hpp"

#include <algorithm>
#include <functional>

#include "sim/core/assert.hpp"

namespace kvtier {

EntryPolicies::EntryPolicies(const PoolRules& rules, const PolicyRegistry& registry) {
  const auto& kind = known_policy(registry.eviction, rules.eviction);
  eviction = kind.make(rules.eviction_parameters);
  eviction->on_start(rules.facts);
  keeps_parts = kind.parts_of_entries;
  if (filters_admission(rules)) {
    admission = known_policy(registry.admission, rules.admission).make(rules.admission_parameters);
  }
}

PolicyOrder::PolicyOrder(const PoolRules& rules, Bytes bytes_per_token,
                         const PolicyRegistry& registry)
    : block_(rules.block),
      block_bytes_(bytes_per_token * rules.block.value),
      policies_(rules, registry) {}

EntryView PolicyOrder::view(std::uint32_t entry) const {
  const Entry& known = entries_[entry];
  return {.id = EntryId{entry},
          .key = known.key,
          .place = entry,
          .tokens = block_ * known.blocks,
          .depth = block_ * known.first_block,
          .bytes = block_bytes_ * known.blocks,
          .first_inserted = known.inserted,
          .session_began = known.inserted,
          .last_used = known.used};
}

std::uint32_t PolicyOrder::make(const Entry& entry) {
  auto at = static_cast<std::uint32_t>(entries_.size());
  if (free_.empty()) {
    entries_.push_back(entry);
  } else {
    at = free_.top();
    free_.pop();
    entries_[at] = entry;
  }
  return at;
}

std::uint32_t PolicyOrder::insert(EntryKey key, std::int64_t first_block, std::int64_t blocks) {
  const std::uint32_t at = make({.key = key,
                                 .first_block = first_block,
                                 .blocks = blocks,
                                 .inserted = now_,
                                 .used = now_,
                                 .arrival = ++arrivals_});
  policies_.eviction->on_insert(view(at), now_);
  return at;
}

std::uint32_t PolicyOrder::insert_keyless(std::int64_t blocks) {
  // Streams have lower numbers.
  return insert(key_of(kNoStream, static_cast<std::int64_t>(++keyless_ % UINT32_MAX)), 0, blocks);
}

void PolicyOrder::hit(std::uint32_t entry) {
  entries_[entry].used = now_;
  policies_.eviction->on_hit(EntryId{entry}, now_);
}

void PolicyOrder::release(std::uint32_t entry) {
  entries_[entry].used = now_;
  policies_.eviction->on_release(view(entry), now_);
}

std::uint32_t PolicyOrder::split(std::uint32_t entry, EntryKey key, std::int64_t first_blocks) {
  const bool may_leave = is_offered(entry);
  Entry tail = entries_[entry];
  tail.key = key;
  tail.first_block += first_blocks;
  tail.blocks -= first_blocks;
  entries_[entry].blocks = first_blocks;
  const std::uint32_t made = make(tail);
  offer(entry, may_leave);
  policies_.eviction->on_split(view(entry), view(made), now_);
  return made;
}

void PolicyOrder::remove(std::uint32_t entry) {
  offer(entry, false);
  entries_[entry] = {};
  free_.push(entry);
  policies_.eviction->on_remove(EntryId{entry}, now_);
}

void PolicyOrder::offer(std::uint32_t entry, bool may_leave) {
  VictimSet::offer(EntryId{entry}, may_leave ? block_bytes_ * entries_[entry].blocks : Bytes(0));
}

bool PolicyOrder::choose(std::int64_t blocks, Demand demand, const EntryKey* newcomer) {
  chosen_.clear();
  const Bytes wanted = block_bytes_ * blocks;
  newcomer_ = newcomer;
  if (wanted > available() ||
      !VictimSet::choose(*policies_.eviction, {.now = now_, .demand = demand}, wanted)) {
    return false;
  }
  for (const Victim& victim : victims()) {
    chosen_.push_back(victim.entry.value);
  }
  return true;
}

void PolicyOrder::choose_oldest(std::int64_t blocks) {
  std::vector<std::uint32_t> offered;
  for (std::uint32_t at = 0; at < entries_.size(); ++at) {
    if (is_offered(at)) {
      offered.push_back(at);
    }
  }
  std::sort(offered.begin(), offered.end(), [&](std::uint32_t a, std::uint32_t b) {
    return entries_[a].arrival < entries_[b].arrival;
  });
  chosen_.clear();
  for (std::size_t i = 0; i < offered.size() && blocks > 0; ++i) {
    blocks -= entries_[offered[i]].blocks;
    chosen_.push_back(offered[i]);
  }
}

bool PolicyOrder::may_leave(EntryId victim, Tokens) {
  return policies_.admission == nullptr || newcomer_ == nullptr ||
         policies_.admission->replaces(*newcomer_, entries_[victim.value].key);
}

void PolicyOrder::check_invariants() const {
  class Known final : public TierView {
   public:
    explicit Known(const PolicyOrder& order) : order_(order) {}
    void for_each_resident(
        const std::function<void(const EntryView&, bool offered)>& visit) const override {
      for (std::uint32_t at = 0; at < order_.entries_.size(); ++at) {
        if (order_.entries_[at].blocks > 0) {
          visit(order_.view(at), order_.is_offered(at));
        }
      }
    }

   private:
    const PolicyOrder& order_;
  };
  policies_.eviction->check_invariants(Known(*this));
}

}  // namespace kvtier
