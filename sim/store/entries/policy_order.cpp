#include "sim/store/entries/policy_order.hpp"

#include <algorithm>
#include <functional>

#include "sim/core/assert.hpp"

namespace kvtier {

PolicyOrder::PolicyOrder(const PoolRules& rules, Bytes bytes_per_token, const Streams& streams,
                         const PolicyRegistry& registry)
    : block_(rules.block),
      block_bytes_(bytes_per_token * rules.block.value),
      streams_(streams),
      leaves_in_part_(rules.unit == EvictionUnit::tail) {
  const auto& kind = known_policy(registry.eviction, rules.eviction);
  eviction_ = kind.make(rules.eviction_parameters);
  eviction_->on_start(rules.facts);
  keeps_parts_ = kind.parts_of_entries;
  if (kind.knowledge == Knowledge::look_ahead) {
    ahead_ = std::make_unique<LookAhead>();
  }
  if (filters_admission(rules)) {
    admission_ = known_policy(registry.admission, rules.admission).make(rules.admission_parameters);
  }
}

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
          .last_used = known.used,
          .queue_position = looks_ahead() ? first_waiting(entry) : kNotQueued};
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
  if (looks_ahead()) {
    ahead_->entries.insert(place(at));
  }
  return at;
}

std::uint32_t PolicyOrder::insert(EntryKey key, std::int64_t first_block, std::int64_t blocks,
                                  SimTime used) {
  const std::uint32_t at = make({.key = key,
                                 .first_block = first_block,
                                 .blocks = blocks,
                                 .inserted = now_,
                                 .used = used,
                                 .arrival = ++arrivals_});
  eviction_->on_insert(view(at), now_);
  tell_others_waiting(at);
  return at;
}

std::uint32_t PolicyOrder::insert_keyless() {
  // Streams have lower numbers.
  return insert(key_of(kNoStream, static_cast<std::int64_t>(++keyless_ % UINT32_MAX)), 0, 1);
}

void PolicyOrder::hit(std::uint32_t entry) {
  entries_[entry].used = now_;
  eviction_->on_hit(EntryId{entry}, now_);
}

void PolicyOrder::release(std::uint32_t entry) {
  entries_[entry].used = now_;
  eviction_->on_release(view(entry), now_);
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
  eviction_->on_split(view(entry), view(made), now_);
  tell_others_waiting(made);
  return made;
}

void PolicyOrder::resize(std::uint32_t entry, std::int64_t first_block, std::int64_t blocks) {
  offer(entry, false);
  const std::int64_t before = entries_[entry].first_block;
  const bool moves = looks_ahead() && before != first_block;
  if (moves) {
    ahead_->entries.erase(place(entry));
  }
  entries_[entry].first_block = first_block;
  entries_[entry].blocks = blocks;
  eviction_->on_resize(view(entry), now_);
  if (moves) {
    ahead_->entries.insert(place(entry));
    for (const auto& [position, end] : ahead_->waiting.in(place_of(entries_[entry].key).first)) {
      if ((end > before) != (end > first_block)) {
        tell_queue_change(entry, position, end > first_block);
      }
    }
  }
}

void PolicyOrder::remove(std::uint32_t entry) {
  offer(entry, false);
  if (looks_ahead()) {
    ahead_->entries.erase(place(entry));
  }
  entries_[entry] = {};
  free_.push(entry);
  eviction_->on_remove(EntryId{entry}, now_);
}

void PolicyOrder::offer_last(std::uint32_t entry, std::int64_t blocks) {
  entries_[entry].stay = entries_[entry].blocks - blocks;
  VictimSet::offer(EntryId{entry}, block_bytes_ * blocks);
}

// ---- The queue ----

QueuePosition PolicyOrder::first_waiting(std::uint32_t entry) const {
  const auto [stream, block, number] = place(entry);
  return ahead_->waiting.first(stream, block);
}

void PolicyOrder::tell_queue_change(std::uint32_t entry, QueuePosition position, bool waits) {
  eviction_->on_queue_change(EntryId{entry}, {position, waits, first_waiting(entry)});
}

void PolicyOrder::tell_others_waiting(std::uint32_t entry) {
  if (!looks_ahead()) {
    return;
  }
  const auto [stream, block, number] = place(entry);
  const QueuePosition first = first_waiting(entry);
  for (const auto& [position, end] : ahead_->waiting.in(stream)) {
    if (position != first && end > block) {
      tell_queue_change(entry, position, true);
    }
  }
}

void PolicyOrder::tell_path(std::span<const Stretch> path, QueuePosition position, bool waits) {
  for (const Stretch& stretch : path) {
    for (auto at = ahead_->entries.lower_bound({stretch.stream, 0, 0}); at != ahead_->entries.end();
         ++at) {
      const auto [stream, block, entry] = *at;
      if (stream != stretch.stream || block >= stretch.end) {
        break;
      }
      tell_queue_change(entry, position, waits);
    }
  }
}

void PolicyOrder::begin_waiting(const Context& prompt, QueuePosition position) {
  std::vector<Stretch>& path = ahead_->path;
  streams_.path(prompt.stream, prompt.tokens.value / block_.value, block_.value, path);
  ahead_->waiting.add(position, path);
  tell_path(path, position, true);
}

void PolicyOrder::end_waiting(QueuePosition position) {
  const WaitingRequests::Path path = ahead_->waiting.remove(position);
  tell_path({path.data(), path.size()}, position, false);
}

// ---- Victims ----

bool PolicyOrder::choose(std::int64_t blocks, Demand demand, const EntryKey* newcomer,
                         const Stays* stays) {
  chosen_.clear();
  const Bytes wanted = block_bytes_ * blocks;
  newcomer_ = newcomer;
  demand_ = demand;
  stays_ = stays;
  if (wanted > available()) {
    return false;
  }
  RoomRequest request{.now = now_, .demand = demand};
  if (looks_ahead() && ahead_->queue != nullptr) {
    request.queue_first = ahead_->queue->first();
    request.window_end = ahead_->queue->window_end();
    if (newcomer != nullptr) {
      const auto [stream, block] = place_of(*newcomer);
      request.incoming = ahead_->waiting.first(stream, block);
    }
  }
  if (!VictimSet::choose(*eviction_, request, wanted)) {
    return false;
  }
  for (const Victim& victim : victims()) {
    chosen_.push_back({victim.entry.value, victim.keep.value / block_.value});
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
    const Entry& entry = entries_[offered[i]];
    const std::int64_t may_leave = entry.blocks - entry.stay;
    const std::int64_t leave = leaves_in_part_ ? std::min(blocks, may_leave) : may_leave;
    blocks -= leave;
    chosen_.push_back({offered[i], entry.blocks - leave});
  }
}

bool PolicyOrder::may_leave(EntryId victim, Tokens) {
  if (stays_ != nullptr && (*stays_)(victim.value)) {
    return false;
  }
  return admission_ == nullptr || newcomer_ == nullptr ||
         admission_->replaces(*newcomer_, entries_[victim.value].key);
}

Tokens PolicyOrder::rounded(EntryId victim, Tokens keep) const {
  const Entry& entry = entries_[victim.value];
  if (!leaves_in_part_) {
    return block_ * entry.stay;
  }
  KVTIER_ASSERT(keeps_parts_ && keep < block_ * entry.blocks,
                "a victim keeps a part of itself if its policy says so");
  const std::int64_t kept = std::max(entry.stay, keep.value / block_.value);
  return demand_ == Demand::background ? std::max(block_ * kept, spared_of_missing(victim))
                                       : block_ * kept;
}

Tokens PolicyOrder::spared(EntryId victim) const {
  const bool leaves_all = !leaves_in_part_ || (keeps_parts_ && demand_ != Demand::background);
  return leaves_all ? block_ * entries_[victim.value].stay : spared_of_missing(victim);
}

Tokens PolicyOrder::spared_of_missing(EntryId victim) const {
  const Entry& entry = entries_[victim.value];
  const std::int64_t may_leave = offered_[victim.value].value / block_bytes_.value;
  const std::int64_t missing = (missing_.value + block_bytes_.value - 1) / block_bytes_.value;
  return block_ * (entry.stay + may_leave - std::min(may_leave, missing));
}

Bytes PolicyOrder::bytes_of(EntryId victim, Tokens tokens) const {
  return block_bytes_ * (tokens.value / block_.value - entries_[victim.value].stay);
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
  eviction_->check_invariants(Known(*this));
}

}  // namespace kvtier
