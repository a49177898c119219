#pragma once

#include <cstdint>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"
#include "traces/naming_generator.hpp"

namespace kvtier {

/// Parameters of MultiTurnGenerator, as in benchmarks of inference engines. The numbers are our
/// choices.
struct MultiTurnParameters {
  std::int64_t rounds = 5;
  Tokens common_prefix_tokens{};
  Tokens client_prefix_tokens{};
  Tokens user_tokens{512};
  Tokens response_tokens{64};
};

template <class V>
void describe(V& v, MultiTurnParameters& c) {
  const auto tokens = between(1, 1e7);
  const auto prefix = between(0, 1e7);
  v.field("rounds", c.rounds, "Turns of every client.", between(1, 1e6));
  v.field("common_prefix_tokens", c.common_prefix_tokens,
          "Tokens of a prefix that all clients share.", prefix);
  v.field("client_prefix_tokens", c.client_prefix_tokens,
          "Additional tokens of a client's first round, after the common prefix.", prefix);
  v.field("user_tokens", c.user_tokens, "New tokens of each round.", tokens);
  v.field("response_tokens", c.response_tokens, "Tokens of each response.", tokens);
}

/// Synthetic clients, as in multi-turn benchmarks of inference engines: each is a session of
/// `rounds` turns with equal token counts. The prompt of round r (from 1) has common prefix +
/// client prefix + (r - 1) x (user + response) + user tokens. A client is one stream. Nothing is
/// drawn.
class MultiTurnGenerator final : public NamingGenerator {
 public:
  MultiTurnGenerator(const MultiTurnParameters& parameters, SharedStreams streams);

  bool next(SessionSpec& session) override;

 private:
  MultiTurnParameters parameters_;
  /// No stream without a common prefix.
  Context common_;
  std::int64_t generated_ = 0;
};

}  // namespace kvtier
