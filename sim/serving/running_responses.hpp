#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/serving/length_predictor.hpp"
#include "sim/serving/requests.hpp"

/// Answers of a batcher whose running requests each know the iteration at which they finish
/// (RunningView).
namespace kvtier {

/// Mean time per output token of the running requests, as far as it was known at `until`; nullopt
/// before any of them has a second token.
template <class Running>
[[nodiscard]] std::optional<SimDuration> mean_tpot(const Requests& requests,
                                                   const std::vector<Running>& running,
                                                   std::int64_t iteration, SimTime until) {
  SimDuration time;
  std::int64_t tokens = 0;
  for (const Running& one : running) {
    const RequestRecord& r = requests.request(one.slot);
    tokens += r.output.value - 1 - (one.finish_iteration - iteration);
    time += until - r.first_token;
  }
  return tokens > 0 ? std::optional(time / tokens) : std::nullopt;
}

/// Tells a backend with bytes whose tokens it computes next, and one that wants it the tokens that
/// each of them reads: `context(running)`.
template <class Running, class Context>
[[gnu::noinline]] void tell_running(Backend& backend, const Requests& requests,
                                    const std::vector<Running>& running, const Context& context) {
  if (backend.has_bytes()) {
    std::vector<EntryKey> keys;
    for (const Running& one : running) {
      keys.push_back(requests.key(one.slot));
    }
    backend.decode_next(keys);
  }
  if (backend.wants_contexts()) {
    std::vector<Tokens> contexts;
    for (const Running& one : running) {
      contexts.push_back(context(one));
    }
    backend.decode_contexts(contexts);
  }
}

/// Visits the first token's time and the predicted length of each. `predicted(slot)` is where the
/// prediction is kept; zero: not asked yet.
template <class Running, class Predicted>
void visit_running(const Requests& requests, const std::vector<Running>& running,
                   const LengthPredictor& predictor, const Predicted& predicted,
                   const std::function<void(SimTime, Tokens)>& visit) {
  for (const Running& one : running) {
    const RequestRecord& r = requests.request(one.slot);
    Tokens& length = predicted(one.slot);
    if (length.value == 0) {
      length = predictor.predict(r.session, r.turn, r.output);
    }
    visit(r.first_token, length);
  }
}

}  // namespace kvtier
