#include "traces/statistics.hpp"

#include <algorithm>

namespace kvtier {
namespace {

constexpr std::int64_t k2K = 2048;
constexpr std::int64_t k4K = 4096;

}  // namespace

Json distribution_report(const Histogram& values, double unit) {
  if (values.count() == 0) {
    return nullptr;
  }
  const auto scaled = [&](std::int64_t value) {
    return unit == 1 ? Json(value) : Json(static_cast<double>(value) * unit);
  };
  return Json{{"mean", values.mean() * unit},         {"p50", scaled(values.quantile(0.5))},
              {"p90", scaled(values.quantile(0.9))},  {"p95", scaled(values.quantile(0.95))},
              {"p99", scaled(values.quantile(0.99))}, {"max", scaled(values.maximum())}};
}

void WorkloadStatistics::count_blocks(SessionSource& source, Tokens block) {
  if (source.streams() != nullptr) {
    blocks_.emplace(*source.streams(), source.named_blocks().value_or(NamedBlocks{.block = block}));
  }
}

void WorkloadStatistics::add(const SessionSpec& session) {
  const std::int64_t shared = session.shared_prompt.tokens.value;
  if (shared > 0) {
    shared_prompts_.insert(session.shared_prompt.id);
    ++sessions_with_shared_prompt_;
    shared_tokens_ += static_cast<Int128>(shared) * std::ssize(session.turns);
  }
  std::int64_t history = shared;
  bool first = true;
  for (std::size_t i = 0; i < session.turns.size(); ++i) {
    const Turn& turn = session.turns[i];
    if (!session.contents.empty()) {
      history = session.named_history(i).value;
    }
    user_tokens_.add(turn.user.value);
    assistant_tokens_.add(turn.assistant.value);
    if (!first) {
      think_times_ns_.add(turn.think.ns);
    }
    // A shared prompt is history of the first turn, but no earlier turn of the session had it.
    history_tokens_ += first ? 0 : history;
    first = false;
    prompt_tokens_ += history + turn.user.value;
    history += turn.user.value + turn.assistant.value;
  }
  if (session.group != SessionSpec::kNoGroup) {
    ++parts_of_groups_;
    Group& group = groups_[session.group];
    group.turns += std::ssize(session.turns);
    group.tokens = std::max(group.tokens, history);
  } else {
    turns_.add(std::ssize(session.turns));
    session_tokens_.add(history);
    multi_turn_sessions_ += session.turns.size() > 1 ? 1 : 0;
    sessions_over_2k_ += history > k2K ? 1 : 0;
    sessions_over_4k_ += history > k4K ? 1 : 0;
  }
  last_arrival_ = std::max(last_arrival_, session.arrival);
  if (blocks_) {
    blocks_->add(session);
  }
}

void WorkloadStatistics::merge(const WorkloadStatistics& other) {
  turns_.merge(other.turns_);
  parts_of_groups_ += other.parts_of_groups_;
  user_tokens_.merge(other.user_tokens_);
  assistant_tokens_.merge(other.assistant_tokens_);
  session_tokens_.merge(other.session_tokens_);
  think_times_ns_.merge(other.think_times_ns_);
  multi_turn_sessions_ += other.multi_turn_sessions_;
  sessions_over_2k_ += other.sessions_over_2k_;
  sessions_over_4k_ += other.sessions_over_4k_;
  for (const auto& [number, group] : other.groups_) {
    Group& own = groups_[number];
    own.turns += group.turns;
    own.tokens = std::max(own.tokens, group.tokens);
  }
  prompt_tokens_ += other.prompt_tokens_;
  history_tokens_ += other.history_tokens_;
  shared_tokens_ += other.shared_tokens_;
  shared_prompts_.insert(other.shared_prompts_.begin(), other.shared_prompts_.end());
  sessions_with_shared_prompt_ += other.sessions_with_shared_prompt_;
  last_arrival_ = std::max(last_arrival_, other.last_arrival_);
  if (blocks_) {
    blocks_->merge(*other.blocks_);
  }
}

template <class Counts>
double WorkloadStatistics::share_of_sessions(std::int64_t count, const Counts& counts) const {
  for (const auto& [number, group] : groups_) {
    count += counts(group) ? 1 : 0;
  }
  return sessions() == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(sessions());
}

double WorkloadStatistics::multi_turn_share() const {
  return share_of_sessions(multi_turn_sessions_,
                           [](const Group& group) { return group.turns > 1; });
}
double WorkloadStatistics::over_2k_share() const {
  return share_of_sessions(sessions_over_2k_,
                           [](const Group& group) { return group.tokens > k2K; });
}
double WorkloadStatistics::over_4k_share() const {
  return share_of_sessions(sessions_over_4k_,
                           [](const Group& group) { return group.tokens > k4K; });
}

double WorkloadStatistics::share_of_prompts(Int128 tokens) const {
  return prompt_tokens_ == 0 ? 0.0
                             : static_cast<double>(tokens) / static_cast<double>(prompt_tokens_);
}

Json to_json(const WorkloadStatistics& s) {
  Json json{{"sessions", s.sessions()},
            {"turns", s.turns()},
            {"multi_turn_sessions_fraction", s.multi_turn_share()},
            {"sessions_over_2048_tokens_fraction", s.over_2k_share()},
            {"sessions_over_4096_tokens_fraction", s.over_4k_share()},
            {"repeated_prompt_tokens_fraction", s.repeated_prompt_share()},
            {"user_tokens_total", static_cast<std::int64_t>(s.user_tokens().sum())},
            {"assistant_tokens_total", static_cast<std::int64_t>(s.assistant_tokens().sum())},
            {"turns_per_session", distribution_report(s.turns_per_session(), 1)},
            {"session_tokens", distribution_report(s.session_tokens(), 1)},
            {"user_tokens", distribution_report(s.user_tokens(), 1)},
            {"assistant_tokens", distribution_report(s.assistant_tokens(), 1)},
            {"think_time_seconds", distribution_report(s.think_times_ns(), 1e-9)},
            {"last_arrival_seconds", s.last_arrival().seconds()}};
  if (s.sessions_with_shared_prompt() > 0) {
    json["shared_prompts"] = Json{{"distinct", s.distinct_shared_prompts()},
                                  {"sessions", s.sessions_with_shared_prompt()},
                                  {"prompt_tokens_fraction", s.shared_prompt_share()}};
  }
  if (s.blocks()) {
    json["blocks"] = s.blocks()->report();
  }
  return json;
}

}  // namespace kvtier
