#include "traces/multi_turn_generator.hpp"

#include <utility>

namespace kvtier {

MultiTurnGenerator::MultiTurnGenerator(const MultiTurnParameters& parameters, SharedStreams streams)
    : NamingGenerator(std::move(streams)), parameters_(parameters) {
  if (parameters.common_prefix_tokens > Tokens(0)) {
    common_ = {open(), parameters.common_prefix_tokens};
  }
}

bool MultiTurnGenerator::next(SessionSpec& session) {
  const MultiTurnParameters& p = parameters_;
  clear(session);
  session.id = generated_++;
  Context prompt{open(common_), common_.tokens + p.client_prefix_tokens};
  for (std::int64_t round = 0; round < p.rounds; ++round) {
    prompt.tokens += p.user_tokens;
    add_turn(session, prompt, round == 0 ? prompt.tokens : p.user_tokens, p.response_tokens);
    prompt.tokens += p.response_tokens;
  }
  return true;
}

}  // namespace kvtier
