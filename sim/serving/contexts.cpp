#include "sim/serving/contexts.hpp"

namespace kvtier {

TurnTokens turn_tokens(const SessionSpec& session, std::size_t turn, Tokens history, Tokens cut) {
  return {.shared_prompt = session.shared_prompt,
          .named = session.contents.empty() ? TurnContent{} : session.contents[turn],
          .first = turn == 0,
          .history = history,
          .input = session.turns[turn].user,
          .output = session.turns[turn].assistant,
          .cut = cut};
}

StreamId Contexts::open(const SharedPrompt& shared) {
  if (shared.tokens.value == 0) {
    return streams_.open();
  }
  StreamId& prompt = prompts_[shared.id];
  if (!prompt.valid()) {
    prompt = streams_.open();
  }
  return streams_.open(prompt, shared.tokens);
}

TurnContent Contexts::of(SessionSlot slot, const TurnTokens& turn) {
  if (slot >= of_session_.size()) {
    of_session_.resize(static_cast<std::size_t>(slot) + 1);
  }
  const Tokens kept_response = turn.output - Tokens(1);
  if (named_) {
    TurnContent content = turn.named;
    for (Context* context : {&content.prompt, &content.whole}) {
      if (context->stream.valid()) {
        context->stream = streams_.stream_at(context->stream, context->tokens);
      }
    }
    if (!content.whole.stream.valid()) {
      const Context& prompt = content.prompt;
      content.whole = {streams_.open(prompt.stream, prompt.tokens), prompt.tokens + kept_response};
      of_session_[slot] = content.whole.stream;
    }
    return content;
  }
  StreamId& stream = of_session_[slot];
  const bool begins = turn.first || (turn.cut.value > 0 && !goes_on_);
  if (begins && !turn.first) {
    ended_.push_back(stream);
  }
  if (begins) {
    stream = open(turn.shared_prompt);
  }
  const Tokens prompt = turn.history + turn.input;
  return {{stream, prompt}, {stream, prompt + kept_response}};
}

void Contexts::end_turn(SessionSlot slot, bool is_last) {
  if ((named_ || is_last) && of_session_[slot].valid()) {
    ended_.push_back(std::exchange(of_session_[slot], kNoStream));
  }
}

}  // namespace kvtier
