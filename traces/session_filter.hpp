#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Filter of the sessions of a generator or a trace; the defaults keep all sessions. Pensieve
/// (arXiv 2312.05516, section 6.1) keeps conversations of at least 5 turns and at most 2,048
/// tokens.
struct SessionFilter {
  std::int64_t turns_min = 1;
  std::optional<Tokens> context_max{};

  [[nodiscard]] bool passes(const SessionSpec& session) const;
  [[nodiscard]] bool passes_all() const { return turns_min <= 1 && !context_max; }
};

template <class V>
void describe(V& v, SessionFilter& c) {
  v.field("turns_min", c.turns_min, "Fewest turns of a session; other sessions are dropped.",
          between(1, 1e6));
  v.field("context_max", c.context_max,
          "Most tokens of a session in its shared prompt, messages and responses; other sessions "
          "are dropped.",
          positive());
}

/// The sessions of another source that pass a filter, renumbered from 0.
class FilteredSource final : public SessionSource {
 public:
  /// Most rejected sessions in a row before an error, because a generator never ends.
  static constexpr std::int64_t kRejectedMax = 1000000;

  /// `name` is for error messages.
  FilteredSource(const SessionFilter& filter, std::unique_ptr<SessionSource> sessions,
                 std::string name);

  /// Also throws ConfigError after kRejectedMax rejected sessions in a row.
  bool next(SessionSpec& session) override;
  /// Started sessions are not filtered.
  bool next_started(SessionSpec& session) override { return sessions_->next_started(session); }
  [[nodiscard]] Streams* streams() override { return sessions_->streams(); }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return sessions_->named_blocks();
  }

 private:
  SessionFilter filter_;
  std::unique_ptr<SessionSource> sessions_;
  std::string name_;
  std::int64_t passed_ = 0;
};

}  // namespace kvtier
