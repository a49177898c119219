#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/streams.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// How long the beginning is that two contexts share.
[[nodiscard]] Tokens common_tokens(const Streams& streams, Context a, Context b);

/// How many of a prompt's tokens are those of the session's turn before, of its response if that is
/// named. The response's last token, which has no KV, is behind the whole.
[[nodiscard]] Tokens known_tokens(const Streams& streams, const TurnContent& before,
                                  const TurnContent& turn);

/// Requests that name their blocks, held until all are known: each becomes a session of one turn,
/// or those of a conversation become the turns of one session. Holds 56 bytes a request.
class RequestTable {
 public:
  struct Request {
    SimTime arrival;
    /// From the response of the session's request before to this one.
    SimDuration think;
    Context prompt;
    Tokens output;
    /// Sessions have numbers in the order in which they are met.
    std::uint32_t session = 0;
  };
  /// The meaning of Turn::think in a gathered session.
  enum class Gaps { arrivals, think_times };

  /// `streams` outlives this.
  explicit RequestTable(const Streams& streams) : streams_(streams) {}

  void add(const Request& request) { requests_.push_back(request); }
  [[nodiscard]] bool empty() const { return requests_.empty(); }
  /// After the last request: one by one in order of time, equal times in the order of `add`.
  void order_alone();
  /// The same for sessions, by their first request, and inside of them. `block`: how many tokens a
  /// block has.
  void order_sessions(Gaps gaps, Tokens block);

  /// The next session, in order of arrival. Where the next prompt of a session has room for the
  /// response behind this one's full blocks, the response's tokens are those there.
  bool next(SessionSpec& session);

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  void fill(SessionSpec& session, const Range& range) const;

  const Streams& streams_;
  std::vector<Request> requests_;
  /// Requests of each gathered session. Empty if each request is a session.
  std::vector<Range> sessions_;
  Gaps gaps_ = Gaps::arrivals;
  Tokens block_;
  std::size_t next_ = 0;
};

}  // namespace kvtier
