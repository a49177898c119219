#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/core/config.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/streams.hpp"

namespace kvtier {

/// Makes streams for named tokens. Requests share a stream up to their first different token.
class NamedTokens {
 public:
  explicit NamedTokens(Streams& streams) : streams_(streams) {}

  /// Token ids of pieces `[stream, tokens]` or `[stream, first, tokens]`.
  [[nodiscard]] std::vector<std::int64_t> of(const Json& pieces) {
    std::vector<std::int64_t> tokens;
    for (const Json& piece : pieces) {
      const bool has_first = piece.size() == 3;
      const std::int64_t number =
          names_.try_emplace(piece.at(0).get<std::string>(), names_.size()).first->second;
      const std::int64_t first = has_first ? piece.at(1).get<std::int64_t>() : 0;
      const auto count = piece.at(has_first ? 2 : 1).get<std::int64_t>();
      if (first < 0 || count < 0 || first + count > kStreamTokens) {
        throw ConfigError(
            fmt::format("expected at most {} tokens, got {}", kStreamTokens, quote_json(piece)));
      }
      for (std::int64_t i = 0; i < count; ++i) {
        tokens.push_back(number * kStreamTokens + first + i);
      }
    }
    return tokens;
  }

  /// A stream with exactly these first tokens.
  [[nodiscard]] StreamId stream(const std::vector<std::int64_t>& tokens, const std::string& salt) {
    std::size_t shared = 0;
    StreamId nearest = kNoStream;
    for (const Known& known : known_) {
      const std::size_t common = static_cast<std::size_t>(
          std::ranges::mismatch(known.tokens, tokens).in2 - tokens.begin());
      if (known.salt == salt && common > shared) {
        shared = common;
        nearest = known.stream;
      }
    }
    const Tokens fork(static_cast<std::int64_t>(shared));
    StreamId stream = shared == 0 ? kNoStream : streams_.stream_at(nearest, fork);
    if (shared < tokens.size()) {
      stream = streams_.open(stream, fork);
      known_.push_back({tokens, salt, stream});
    }
    return stream;
  }

  /// All streams, the newest first.
  [[nodiscard]] std::vector<StreamId> streams() const {
    std::vector<StreamId> all;
    for (auto known = known_.rbegin(); known != known_.rend(); ++known) {
      all.push_back(known->stream);
    }
    return all;
  }

 private:
  static constexpr std::int64_t kStreamTokens = 1 << 24;

  struct Known {
    std::vector<std::int64_t> tokens;
    std::string salt;
    StreamId stream;
  };

  Streams& streams_;
  std::map<std::string, std::int64_t> names_;
  std::vector<Known> known_;
};

}  // namespace kvtier
