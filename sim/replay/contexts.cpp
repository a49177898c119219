#include "sim/replay/contexts.hpp"

namespace kvtier {

StreamId Contexts::open(const SessionSpec& session) {
  const SharedPrompt& shared = session.shared_prompt;
  if (shared.tokens.value == 0) {
    return streams_.open();
  }
  StreamId& prompt = prompts_[shared.id];
  if (!prompt.valid()) {
    prompt = streams_.open();
  }
  return streams_.open(prompt, shared.tokens);
}

TurnContent Contexts::of(SessionSlot slot, const SessionSpec& session, std::size_t turn,
                         Tokens history, Tokens cut) {
  const Tokens kept_response = session.turns[turn].assistant - Tokens(1);
  if (named_) {
    TurnContent content = session.contents[turn];
    if (!content.whole.stream.valid()) {
      const Context& prompt = content.prompt;
      content.whole = {streams_.open(prompt.stream, prompt.tokens), prompt.tokens + kept_response};
      ended_.push_back(content.whole.stream);
    }
    return content;
  }
  if (slot >= of_session_.size()) {
    of_session_.resize(static_cast<std::size_t>(slot) + 1);
  }
  StreamId& stream = of_session_[slot];
  if (turn > 0 && cut.value > 0) {
    ended_.push_back(stream);
  }
  if (turn == 0 || cut.value > 0) {
    stream = open(session);
  }
  const Tokens prompt = history + session.turns[turn].user;
  return {{stream, prompt}, {stream, prompt + kept_response}};
}

void Contexts::end(SessionSlot slot) {
  if (!named_) {
    ended_.push_back(std::exchange(of_session_[slot], kNoStream));
  }
}

}  // namespace kvtier
