#include "traces/shared_prefix_generator.hpp"

#include <utility>

namespace kvtier {

SharedPrefixGenerator::SharedPrefixGenerator(const SharedPrefixParameters& parameters,
                                             std::uint64_t seed, SharedStreams streams)
    : NamingGenerator(std::move(streams)),
      parameters_(parameters),
      group_popularity_(parameters.groups, parameters.group_popularity_exponent),
      user_popularity_(parameters.users, parameters.user_popularity_exponent),
      groups_stream_(seed, "workload/prefix_groups"),
      users_stream_(seed, "workload/prefix_users"),
      groups_(static_cast<std::size_t>(parameters.groups)) {}

Context SharedPrefixGenerator::prefix_of(std::int64_t group, std::int64_t user) {
  StreamId& of_group = groups_[static_cast<std::size_t>(group)];
  if (!of_group.valid()) {
    of_group = open();
  }
  const Context begin{of_group, parameters_.group_tokens};
  if (parameters_.user_tokens.value == 0) {
    return begin;
  }
  StreamId& of_user = users_[group * parameters_.users + user];
  if (!of_user.valid()) {
    of_user = open(begin);
  }
  return {of_user, begin.tokens + parameters_.user_tokens};
}

bool SharedPrefixGenerator::next(SessionSpec& session) {
  const std::int64_t group = group_popularity_.draw(groups_stream_);
  const std::int64_t user = user_popularity_.draw(users_stream_);
  const Context prefix = prefix_of(group, user);
  clear(session);
  session.id = generated_++;
  const Context prompt{open(prefix), prefix.tokens + parameters_.question_tokens};
  add_turn(session, prompt, prompt.tokens, parameters_.response_tokens);
  return true;
}

}  // namespace kvtier
