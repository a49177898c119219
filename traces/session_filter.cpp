#include "traces/session_filter.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {

bool SessionFilter::passes(const SessionSpec& session) const {
  if (static_cast<std::int64_t>(session.turns.size()) < turns_min) {
    return false;
  }
  if (!context_max) {
    return true;
  }
  Tokens context = session.shared_prompt.tokens;
  for (std::size_t i = 0; i < session.turns.size(); ++i) {
    const Turn& turn = session.turns[i];
    context = session.contents.empty()
                  ? context + turn.user + turn.assistant
                  : std::max(context, session.contents[i].prompt.tokens + turn.assistant);
  }
  return context <= *context_max;
}

FilteredSource::FilteredSource(const SessionFilter& filter, std::unique_ptr<SessionSource> sessions,
                               std::string name)
    : filter_(filter), sessions_(std::move(sessions)), name_(std::move(name)) {}

bool FilteredSource::next(SessionSpec& session) {
  for (std::int64_t rejected = 0; rejected < kRejectedMax; ++rejected) {
    if (!sessions_->next(session)) {
      return false;
    }
    if (filter_.passes(session)) {
      session.id = passed_++;
      return true;
    }
  }
  throw ConfigError(fmt::format("/workload/filter: {}: none of {} sessions in a row passes", name_,
                                kRejectedMax));
}

}  // namespace kvtier
