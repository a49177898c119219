#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "sim/core/config.hpp"
#include "sim/core/histogram.hpp"
#include "sim/core/units.hpp"
#include "traces/block_statistics.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Statistics of a workload, accumulated one session at a time in bounded memory, plus an id for
/// each distinct shared prompt, and 64 bytes for each group. A group (SessionSpec::group) is one
/// session with all turns of its parts, and with the tokens of its longest part. Means, shares and
/// sums are exact, quantiles within the histogram's 0.4 %. Tokens are those of the trace, before
/// messages are clamped or histories truncated. A session's shared prompt is part of its tokens and
/// of every turn's prompt.
class WorkloadStatistics {
 public:
  /// Also counts the blocks of sessions that name their tokens: the blocks of the trace, or else
  /// blocks of `block` tokens. They hold 32 bytes per request.
  void count_blocks(SessionSource& source, Tokens block = Tokens(16));
  void add(const SessionSpec& session);
  /// Adds all sessions of `other`.
  void merge(const WorkloadStatistics& other);

  [[nodiscard]] std::int64_t sessions() const {
    return turns_.count() + static_cast<std::int64_t>(groups_.size());
  }
  /// Sessions as they were added: each part of a group counts.
  [[nodiscard]] std::int64_t parts() const { return turns_.count() + parts_of_groups_; }
  [[nodiscard]] std::int64_t turns() const { return user_tokens_.count(); }
  [[nodiscard]] Histogram turns_per_session() const {
    return with_groups(turns_, [](const Group& group) { return group.turns; });
  }
  [[nodiscard]] const Histogram& user_tokens() const { return user_tokens_; }
  [[nodiscard]] const Histogram& assistant_tokens() const { return assistant_tokens_; }
  [[nodiscard]] Histogram session_tokens() const {
    return with_groups(session_tokens_, [](const Group& group) { return group.tokens; });
  }
  /// Think times of the turns after the first, in nanoseconds.
  [[nodiscard]] const Histogram& think_times_ns() const { return think_times_ns_; }
  [[nodiscard]] SimTime last_arrival() const { return last_arrival_; }

  /// Shares of all sessions, in [0, 1]; zero without sessions.
  [[nodiscard]] double multi_turn_share() const;
  [[nodiscard]] double over_2k_share() const;
  [[nodiscard]] double over_4k_share() const;
  /// Share of the tokens of all prompts (history and new) that an earlier turn of the session had:
  /// the savings of a KV cache without limits (AttentionStore, section 2.3).
  [[nodiscard]] double repeated_prompt_share() const { return share_of_prompts(history_tokens_); }

  [[nodiscard]] std::int64_t distinct_shared_prompts() const {
    return static_cast<std::int64_t>(shared_prompts_.size());
  }
  /// Sessions that begin with a shared prompt.
  [[nodiscard]] std::int64_t sessions_with_shared_prompt() const {
    return sessions_with_shared_prompt_;
  }
  [[nodiscard]] const std::optional<BlockStatistics>& blocks() const { return blocks_; }
  /// Share of the tokens of all prompts (history and new) that belong to a shared prompt.
  [[nodiscard]] double shared_prompt_share() const { return share_of_prompts(shared_tokens_); }

 private:
  struct Group {
    std::int64_t turns = 0;
    /// Tokens of the longest part.
    std::int64_t tokens = 0;
  };
  /// `values` of the sessions without groups, and `value` of each group.
  template <class Value>
  [[nodiscard]] Histogram with_groups(Histogram values, const Value& value) const {
    for (const auto& [number, group] : groups_) {
      values.add(value(group));
    }
    return values;
  }
  /// The share of `count` sessions without groups and all groups for which `counts` is true.
  template <class Counts>
  [[nodiscard]] double share_of_sessions(std::int64_t count, const Counts& counts) const;
  [[nodiscard]] double share_of_prompts(Int128 tokens) const;

  Histogram turns_;
  Histogram user_tokens_;
  Histogram assistant_tokens_;
  Histogram session_tokens_;
  Histogram think_times_ns_;
  std::int64_t multi_turn_sessions_ = 0;
  std::int64_t sessions_over_2k_ = 0;
  std::int64_t sessions_over_4k_ = 0;
  Int128 prompt_tokens_ = 0;
  Int128 history_tokens_ = 0;
  Int128 shared_tokens_ = 0;
  /// By number. The counts and histograms of sessions above are of sessions without groups.
  std::map<std::int64_t, Group> groups_;
  std::int64_t parts_of_groups_ = 0;
  std::set<std::int64_t> shared_prompts_;
  std::int64_t sessions_with_shared_prompt_ = 0;
  SimTime last_arrival_{};
  std::optional<BlockStatistics> blocks_;
};

/// Plain numbers; keys end in the unit. A distribution without values is null.
[[nodiscard]] Json to_json(const WorkloadStatistics& statistics);

/// {"mean", "p50", "p90", "p95", "p99", "max"} of values times `unit`; null without values. Whole
/// numbers stay whole with a unit of 1.
[[nodiscard]] Json distribution_report(const Histogram& values, double unit);

}  // namespace kvtier
