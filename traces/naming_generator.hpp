#pragma once

#include <memory>
#include <utility>

#include "sim/core/streams.hpp"
#include "sim/core/units.hpp"
#include "traces/session.hpp"

namespace kvtier {

/// The streams of one generator, or of all generators of a mix.
using SharedStreams = std::shared_ptr<Streams>;

/// Base class of generators whose turns name their tokens. An ended session keeps only its streams,
/// 24 bytes each.
class NamingGenerator : public SessionSource {
 public:
  [[nodiscard]] Streams* streams() final { return streams_.get(); }

 protected:
  explicit NamingGenerator(SharedStreams streams) : streams_(std::move(streams)) {}

  [[nodiscard]] StreamId open(const Context& parent = {}) {
    return parent.stream.valid() ? streams_->open(parent.stream, parent.tokens) : streams_->open();
  }
  /// Resets `session` to one without turns.
  static void clear(SessionSpec& session) {
    session.arrival = SimTime();
    session.shared_prompt = SharedPrompt();
    session.turns.clear();
    session.contents.clear();
  }
  /// Adds a turn whose prompt and response are the first tokens of one stream. `fresh` tokens of
  /// the prompt are not part of the session's previous turn.
  static void add_turn(SessionSpec& session, const Context& prompt, Tokens fresh, Tokens response,
                       SimDuration think = {}) {
    session.turns.push_back({.user = fresh, .assistant = response, .think = think});
    session.contents.push_back(
        {.prompt = prompt, .whole = {prompt.stream, prompt.tokens + response - Tokens(1)}});
  }

 private:
  SharedStreams streams_;
};

}  // namespace kvtier
