#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/core/config.hpp"
#include "sim/core/rng.hpp"
#include "sim/core/units.hpp"
#include "traces/naming_generator.hpp"
#include "traces/popularity.hpp"

namespace kvtier {

/// Parameters of SharedPrefixGenerator. Groups and tokens are the defaults of SGLang's
/// bench_serving (generated-shared-prefix); users and popularities are our choices.
struct SharedPrefixParameters {
  std::int64_t groups = 64;
  std::int64_t users = 16;
  Tokens group_tokens{2048};
  Tokens user_tokens{256};
  Tokens question_tokens{128};
  Tokens response_tokens{256};
  double group_popularity_exponent = 1;
  double user_popularity_exponent = 0;
};

template <class V>
void describe(V& v, SharedPrefixParameters& c) {
  const auto tokens = between(1, 1e7);
  const auto exponent = between(0, 10);
  v.field("groups", c.groups, "Number of groups.", between(1, 1e6));
  v.field("users", c.users, "Number of users of each group.", between(1, 1e6));
  v.field("group_tokens", c.group_tokens,
          "Tokens of a group's prefix, with which all of its requests begin.", tokens);
  v.field("user_tokens", c.user_tokens,
          "Tokens after the group's prefix that all requests of a user share.", between(0, 1e7));
  v.field("question_tokens", c.question_tokens,
          "Tokens of the question, which no other request has.", tokens);
  v.field("response_tokens", c.response_tokens, "Tokens of a response.", tokens);
  v.field("group_popularity_exponent", c.group_popularity_exponent,
          "Zipf exponent of the groups' popularity: a request belongs to the group of rank k with "
          "a probability proportional to k^-exponent. 0: all groups are equally popular.",
          exponent);
  v.field("user_popularity_exponent", c.user_popularity_exponent,
          "Zipf exponent of the popularity of a group's users.", exponent);
}

/// Synthetic sessions of one request each, without end and without times. A request has the tokens
/// of its group, those of its user, and its question. Groups draw from the stream
/// "workload/prefix_groups", users from "workload/prefix_users". Holds about 48 bytes for each user
/// with a request, and one stream per request.
class SharedPrefixGenerator final : public NamingGenerator {
 public:
  SharedPrefixGenerator(const SharedPrefixParameters& parameters, std::uint64_t seed,
                        SharedStreams streams);

  bool next(SessionSpec& session) override;

 private:
  [[nodiscard]] Context prefix_of(std::int64_t group, std::int64_t user);

  SharedPrefixParameters parameters_;
  Popularity group_popularity_;
  Popularity user_popularity_;
  RandomStream groups_stream_;
  RandomStream users_stream_;
  /// By group; no stream before its first request.
  std::vector<StreamId> groups_;
  /// By group x users + user. Never iterated.
  std::unordered_map<std::int64_t, StreamId> users_;
  std::int64_t generated_ = 0;
};

}  // namespace kvtier
