#include "traces/request_table.hpp"

#include <algorithm>
#include <tuple>

namespace kvtier {

Tokens common_tokens(const Streams& streams, Context a, Context b) {
  while (a.stream != b.stream) {
    // The stream that begins later is not an ancestor of the other.
    Context& later = streams.first_of(a.stream) > streams.first_of(b.stream) ? a : b;
    later.tokens = std::min(later.tokens, Tokens(streams.first_of(later.stream)));
    later.stream = streams.parent(later.stream);
    if (!later.stream.valid()) {
      return Tokens(0);
    }
  }
  return std::min(a.tokens, b.tokens);
}

Tokens known_tokens(const Streams& streams, const TurnContent& before, const TurnContent& turn) {
  return before.whole.stream.valid() ? common_tokens(streams, before.whole, turn.prompt) + Tokens(1)
                                     : common_tokens(streams, before.prompt, turn.prompt);
}

void RequestTable::order_alone() {
  std::stable_sort(requests_.begin(), requests_.end(),
                   [](const Request& a, const Request& b) { return a.arrival < b.arrival; });
}

void RequestTable::order_sessions(Gaps gaps, Tokens block) {
  gaps_ = gaps;
  block_ = block;
  std::stable_sort(requests_.begin(), requests_.end(), [](const Request& a, const Request& b) {
    return std::tie(a.session, a.arrival) < std::tie(b.session, b.arrival);
  });
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (i == 0 || requests_[i].session != requests_[i - 1].session) {
      sessions_.push_back({i, i});
    }
    ++sessions_.back().end;
  }
  std::stable_sort(sessions_.begin(), sessions_.end(), [&](const Range& a, const Range& b) {
    return requests_[a.begin].arrival < requests_[b.begin].arrival;
  });
}

bool RequestTable::next(SessionSpec& session) {
  if (next_ == (sessions_.empty() ? requests_.size() : sessions_.size())) {
    return false;
  }
  fill(session, sessions_.empty() ? Range{next_, next_ + 1} : sessions_[next_]);
  ++next_;
  return true;
}

void RequestTable::fill(SessionSpec& session, const Range& range) const {
  session.arrival = requests_[range.begin].arrival;
  session.group = requests_[range.begin].group;
  session.turns.clear();
  session.contents.clear();
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const Request& request = requests_[i];
    Turn turn{request.prompt.tokens, request.output, SimDuration()};
    if (i > range.begin) {
      const Request& before = requests_[i - 1];
      turn.think = gaps_ == Gaps::arrivals ? request.arrival - before.arrival : request.think;
      const Tokens known = common_tokens(streams_, before.prompt, request.prompt);
      const Tokens ended = before.prompt.tokens + before.output;
      if (known.value >= before.prompt.tokens.value / block_.value * block_.value &&
          request.prompt.tokens >= ended) {
        session.contents.back().whole.tokens = ended - Tokens(1);
      }
    }
    session.turns.push_back(turn);
    session.contents.push_back({.prompt = request.prompt});
  }
  // If a prompt continues the previous turn, its stream has the tokens of that turn, too.
  for (std::size_t i = session.contents.size() - 1; i-- > 0;) {
    TurnContent& content = session.contents[i];
    if (content.whole.tokens.value > 0) {
      content.prompt.stream = content.whole.stream = session.contents[i + 1].prompt.stream;
    }
  }
  for (std::size_t i = 1; i < session.turns.size(); ++i) {
    const Tokens prompt = session.contents[i].prompt.tokens;
    session.turns[i].user = std::max(
        Tokens(1), prompt - known_tokens(streams_, session.contents[i - 1], session.contents[i]));
  }
}

}  // namespace kvtier
