#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/streams.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// Tokens of the common prefix of two contexts.
[[nodiscard]] Tokens common_tokens(const Streams& streams, Context a, Context b);

/// Tokens of a prompt that belong to the session's previous turn, with its response if the trace
/// names it. The last token of the response counts, although `whole` ends before it because it has
/// no KV.
[[nodiscard]] Tokens known_tokens(const Streams& streams, const TurnContent& before,
                                  const TurnContent& turn);

/// Requests that name their blocks, held until all are known. Each becomes a session of one turn,
/// or the requests of a conversation become the turns of one session. Holds 56 bytes per request.
class RequestTable {
 public:
  struct Request {
    SimTime arrival;
    /// Time from the previous response of the session to this request.
    SimDuration think;
    Context prompt;
    Tokens output;
    /// Number of the session, by first appearance.
    std::uint32_t session = 0;
    /// SessionSpec::group.
    std::int32_t group = SessionSpec::kNoGroup;
  };
  /// The meaning of Turn::think in a session of several requests.
  enum class Gaps { arrivals, think_times };

  /// Keeps a reference to `streams`.
  explicit RequestTable(const Streams& streams) : streams_(streams) {}

  void add(const Request& request) { requests_.push_back(request); }
  [[nodiscard]] bool empty() const { return requests_.empty(); }
  /// Called after the last `add`: each request is a session, in order of time; equal times in the
  /// order of `add`.
  void order_alone();
  /// Called after the last `add`: groups requests into sessions in order of their first requests,
  /// with the requests in order of time. `block`: tokens of a block.
  void order_sessions(Gaps gaps, Tokens block);

  /// The next session, in order of arrival. If the next prompt of a session continues this prompt's
  /// full blocks and has room for the response, the response's tokens are those of the next prompt.
  bool next(SessionSpec& session);

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  void fill(SessionSpec& session, const Range& range) const;

  const Streams& streams_;
  std::vector<Request> requests_;
  /// Ranges of requests by session; empty if each request is a session.
  std::vector<Range> sessions_;
  Gaps gaps_ = Gaps::arrivals;
  Tokens block_;
  std::size_t next_ = 0;
};

}  // namespace kvtier
