#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "sim/core/assert.hpp"
#include "sim/policy/views.hpp"

namespace kvtier {

/// A waiting queue for tests of a policy. Tests set its content, and it counts look-ups of entries.
class TrialQueue final : public QueueView {
 public:
  explicit TrialQueue(std::uint64_t first = 0) { first_ = end_ = QueuePosition{first}; }

  /// A request joins the queue; kNoEntry means that it has no stored entry.
  QueuePosition push(EntryId entry) {
    waiting_[end_.value] = entry;
    return QueuePosition{end_.value++};
  }
  /// A request leaves, possibly not the first.
  void leave(QueuePosition position) {
    waiting_.erase(position.value);
    first_ = waiting_.empty() ? end_ : QueuePosition{waiting_.begin()->first};
  }

  [[nodiscard]] EntryId entry_at(QueuePosition position) const override {
    KVTIER_ASSERT(position >= first_ && position < end_,
                  "a policy looks at positions of the queue alone");
    ++looks_;
    const auto found = waiting_.find(position.value);
    return found == waiting_.end() ? kNoEntry : found->second;
  }
  [[nodiscard]] bool waiting_at(QueuePosition position) const override {
    return waiting_.contains(position.value);
  }
  [[nodiscard]] Placement placement_at(QueuePosition position) const override {
    const auto found = placements.find(entry_at(position));
    return found == placements.end() ? Placement::none : found->second;
  }
  [[nodiscard]] FoundTokens find(QueuePosition position) const override {
    const auto known = stored.find(position.value);
    return known == stored.end() ? FoundTokens{} : known->second;
  }
  [[nodiscard]] Tokens common_prefix(QueuePosition a, QueuePosition b) const override {
    const auto shared = common.find({a.value, b.value});
    return shared == common.end() ? Tokens(0) : shared->second;
  }
  [[nodiscard]] std::int64_t priority_at(QueuePosition position) const override {
    const auto found = priorities.find(position);
    return found == priorities.end() ? 0 : found->second;
  }
  [[nodiscard]] QueuePosition window_end() const override { return window.value_or(end_); }

  /// Placements of entries; others have no stored KV.
  std::map<EntryId, Placement> placements;
  /// Stored tokens by position, and common prefixes by a position and a later one.
  std::map<std::uint64_t, FoundTokens> stored;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Tokens> common;
  std::optional<QueuePosition> window;
  /// Priorities by position; others have 0.
  std::map<QueuePosition, std::int64_t> priorities;

  [[nodiscard]] std::int64_t looks() const { return looks_; }

 private:
  std::map<std::uint64_t, EntryId> waiting_;
  mutable std::int64_t looks_ = 0;
};

}  // namespace kvtier
