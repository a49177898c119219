#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/traces/support.hpp"
#include "tests/traces/workload_config.hpp"
#include "traces/request_table.hpp"
#include "traces/trace_format.hpp"
#include "traces/workload.hpp"

/// Generators whose turns name their tokens.
namespace kvtier {
namespace {

using testing::config_error_of;
using testing::config_of;
using testing::read_all;
using testing::take;
using testing::TempDir;

const std::vector<std::string> kGenerators{"multi_turn", "shared_prefixes", "rag", "agents"};

/// Sub-agents are frequent, contexts short, and documents few, so that all happens soon.
WorkloadConfig busy(const std::string& generator, int sessions) {
  return config_of(fmt::format(
      R"({{"generator": "{}", "sessions": {}, "arrival_rate": "1/min",
          "multi_turn": {{"common_prefix_tokens": "100tokens"}},
          "shared_prefixes": {{"groups": 5, "users": 3}},
          "rag": {{"documents": 6, "documents_per_request": 3}},
          "agents": {{"prompts": 3, "message_tokens_max": "4000tokens", "summary_tokens": "500tokens",
                      "response_tokens_max": "1000tokens", "context_max": "30000tokens",
                      "subagents": {{"share": 0.05, "fork": "context"}}}}}})",
      generator, sessions));
}

std::string text_of(const std::vector<SessionSpec>& sessions) {
  std::string text;
  for (const SessionSpec& session : sessions) {
    text += testing::text_of({session});
    for (const TurnContent& content : session.contents) {
      text += fmt::format(" {}/{}", content.prompt.tokens.value, content.whole.tokens.value);
    }
    text += "\n";
  }
  return text;
}

/// The tokens that each pair of prompts shares.
std::vector<std::int64_t> shared(const Streams& streams, const std::vector<SessionSpec>& sessions) {
  std::vector<Context> contexts;
  for (const SessionSpec& session : sessions) {
    for (const TurnContent& content : session.contents) {
      contexts.push_back(content.prompt);
    }
  }
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < contexts.size(); i += 1 + contexts.size() / 300) {
    for (std::size_t j = 0; j < i; j += 1 + contexts.size() / 300) {
      tokens.push_back(common_tokens(streams, contexts[i], contexts[j]).value);
    }
  }
  return tokens;
}

TEST(NamingGenerators, ATurnIsNewBehindTheTurnBefore) {
  const TempDir dir;
  for (const std::string& generator : kGenerators) {
    SCOPED_TRACE(generator);
    const auto source = make_source(busy(generator, 200), 7, dir.path());
    ASSERT_NE(source->streams(), nullptr);
    for (const SessionSpec& session : read_all(*source)) {
      ASSERT_EQ(session.contents.size(), session.turns.size());
      ASSERT_EQ(session.shared_prompt.tokens, Tokens(0));
      for (std::size_t i = 0; i < session.turns.size(); ++i) {
        const Turn& turn = session.turns[i];
        const TurnContent& content = session.contents[i];
        ASSERT_GE(turn.user, Tokens(1));
        ASSERT_GE(turn.assistant, Tokens(1));
        ASSERT_EQ(content.whole.tokens, content.prompt.tokens + turn.assistant - Tokens(1));
        ASSERT_EQ(common_tokens(*source->streams(), content.prompt, content.whole),
                  content.prompt.tokens);
        Tokens known;
        if (i > 0) {
          const TurnContent& before = session.contents[i - 1];
          known =
              common_tokens(*source->streams(),
                            {before.whole.stream, before.whole.tokens + Tokens(1)}, content.prompt);
        }
        ASSERT_EQ(session.named_history(i), known) << "turn " << i;
      }
    }
  }
}

TEST(NamingGenerators, AreWrittenAndReadBack) {
  const TempDir dir;
  for (const std::string& generator : kGenerators) {
    SCOPED_TRACE(generator);
    const auto source = make_source(busy(generator, 200), 7, dir.path());
    const auto path = dir.path() / (generator + ".zst");
    TraceWriter writer(path, {.arrivals = true, .think_times = true}, source->streams());
    std::vector<SessionSpec> sessions = read_all(*source);
    for (const SessionSpec& session : sessions) {
      writer.write(session);
    }
    writer.commit();
    TraceReader reader(path);
    const std::vector<SessionSpec> again = read_all(reader);
    EXPECT_EQ(text_of(again), text_of(sessions));
    EXPECT_EQ(shared(*reader.streams(), again), shared(*source->streams(), sessions));
  }
}

TEST(NamingGenerators, SameSeedSameSessionsHoweverMany) {
  const TempDir dir;
  for (const std::string& generator : kGenerators) {
    SCOPED_TRACE(generator);
    const auto drawn = [&](int sessions, std::uint64_t seed) {
      return text_of(read_all(*make_source(busy(generator, sessions), seed, dir.path())));
    };
    const std::string few = drawn(50, 7);
    EXPECT_EQ(drawn(50, 7), few);
    EXPECT_EQ(drawn(120, 7).substr(0, few.size()), few);
    EXPECT_NE(drawn(50, 8), few);
  }
}

TEST(NamingGenerators, AreSyntheticAndSayThatTheyNameTokens) {
  for (const std::string& generator : kGenerators) {
    EXPECT_TRUE(is_synthetic(busy(generator, 1)));
    EXPECT_TRUE(generates_names(busy(generator, 1)));
  }
  EXPECT_FALSE(
      generates_names(config_of(R"({"generator":"sharegpt","sessions":1,"arrival_rate":"1/s"})")));
}

TEST(NamingGenerators, SayWhatDoesNotFitTogether) {
  const TempDir dir;
  const auto problems = [&](const std::string& rest) {
    return config_error_of(dir, [&] {
      static_cast<void>(config_of(R"({"generator":"agents","sessions":1,)" + rest));
    });
  };
  EXPECT_EQ(problems(R"("arrival_rate":"1/s","think_time":{"model":"constant"}})"),
            "/workload/think_time: not used: agents have think times of their own");
  EXPECT_EQ(problems(R"("request_rate":"1/s"})"),
            "/workload/request_rate: agents start further sessions, whose turns it would count; "
            "expected an arrival_rate");
  EXPECT_EQ(problems(R"("request_rate":"1/s","agents":{"subagents":{"share":0}}})"),
            "no ConfigError");
  EXPECT_EQ(problems(R"("arrival_rate":"1/s","agents":{"context_max":"20000tokens"}})"),
            "/workload/agents/context_max: expected at least 117820tokens (a prompt, a summary, a "
            "message and a response, each of the most tokens), got 20000tokens");
  EXPECT_EQ(problems(R"("arrival_rate":"1/s","agents":{"prompt_tokens_min":"16000tokens"}})"),
            "/workload/agents/prompt_tokens_min: 16000 is more than prompt_tokens_max, which is "
            "15900");
  EXPECT_EQ(problems(R"("arrival_rate":"1/s","rag":{"documents":2,"documents_per_request":3}})"),
            "/workload/rag/documents_per_request: 3 is more than documents, which is 2");
}

// ---- multi_turn ----

TEST(MultiTurnGenerator, HasEqualRoundsBehindTheCommonPrefix) {
  const auto streams = std::make_shared<Streams>();
  MultiTurnGenerator generator({.rounds = 3,
                                .common_prefix_tokens = Tokens(100),
                                .client_prefix_tokens = Tokens(7),
                                .user_tokens = Tokens(20),
                                .response_tokens = Tokens(5)},
                               streams);
  const std::vector<SessionSpec> sessions = take(generator, 2);
  // 100 + 7 + 20, then 25 more each round.
  EXPECT_EQ(text_of(sessions),
            "0@0: 127/5 20/5 20/5\n 127/131 152/156 177/181\n"
            "1@0: 127/5 20/5 20/5\n 127/131 152/156 177/181\n");
  EXPECT_EQ(common_tokens(*streams, sessions[0].contents[2].prompt, sessions[1].contents[0].prompt),
            Tokens(100));
  // The prefix and one for each client.
  EXPECT_EQ(streams->size(), 3U);
}

TEST(MultiTurnGenerator, ClientsShareNothingWithoutACommonPrefix) {
  const auto streams = std::make_shared<Streams>();
  MultiTurnGenerator generator({}, streams);
  const std::vector<SessionSpec> sessions = take(generator, 2);
  EXPECT_EQ(common_tokens(*streams, sessions[0].contents[0].prompt, sessions[1].contents[0].prompt),
            Tokens(0));
  EXPECT_EQ(streams->size(), 2U);
}

// ---- shared_prefixes ----

TEST(SharedPrefixGenerator, RequestsShareTheirGroupsAndTheirUsersTokens) {
  const auto streams = std::make_shared<Streams>();
  constexpr int kRequests = 600;
  SharedPrefixGenerator generator({.groups = 4,
                                   .users = 3,
                                   .group_tokens = Tokens(100),
                                   .user_tokens = Tokens(30),
                                   .question_tokens = Tokens(7),
                                   .response_tokens = Tokens(5)},
                                  1, streams);
  const std::vector<SessionSpec> sessions = take(generator, kRequests);
  std::map<std::int64_t, std::int64_t> pairs;
  for (int i = 0; i < kRequests; ++i) {
    const SessionSpec& session = sessions[static_cast<std::size_t>(i)];
    ASSERT_EQ(text_of({session}), fmt::format("{}@0: 137/5\n 137/141\n", i));
    for (int j = 0; j < i; ++j) {
      ++pairs[common_tokens(*streams, session.contents[0].prompt,
                            sessions[static_cast<std::size_t>(j)].contents[0].prompt)
                  .value];
    }
  }
  // Two requests are of one group with a probability of the sum of squared shares, 0.48^2 + 0.24^2
  // + 0.16^2 + 0.12^2 = 0.328, and then of one user with one of a third.
  ASSERT_EQ(pairs.size(), 3U);
  const double all = kRequests * (kRequests - 1) / 2.0;
  EXPECT_NEAR(static_cast<double>(pairs.at(0)) / all, 0.672, 0.03);
  EXPECT_NEAR(static_cast<double>(pairs.at(100)) / all, 0.219, 0.03);
  EXPECT_NEAR(static_cast<double>(pairs.at(130)) / all, 0.109, 0.02);
  EXPECT_EQ(streams->size(), 4U + 12U + kRequests);
}

TEST(SharedPrefixGenerator, UsersMayHaveNoTokensOfTheirOwn) {
  const auto streams = std::make_shared<Streams>();
  SharedPrefixGenerator generator({.groups = 1, .users = 1000, .user_tokens = Tokens(0)}, 1,
                                  streams);
  const std::vector<SessionSpec> sessions = take(generator, 5);
  EXPECT_EQ(common_tokens(*streams, sessions[1].contents[0].prompt, sessions[4].contents[0].prompt),
            Tokens(2048));
  EXPECT_EQ(streams->size(), 6U);
}

// ---- rag ----

/// Documents of 10 tokens behind 4 of instructions, and a question of 3.
RagParameters small_documents(std::int64_t documents, std::int64_t per_request,
                              DocumentOrder order) {
  return {.documents = documents,
          .popularity_exponent = 0,
          .documents_per_request = per_request,
          .order = order,
          .instruction_tokens = Tokens(4),
          .document_tokens_median = 10,
          .document_tokens_sigma = 0,
          .question_tokens = Tokens(3),
          .response_tokens = Tokens(2)};
}

/// Shares of the pairs of requests that have so many tokens in common.
std::map<std::int64_t, double> pairs_of(const RagParameters& parameters, int requests) {
  const auto streams = std::make_shared<Streams>();
  RagGenerator generator(parameters, 1, streams);
  const std::vector<SessionSpec> sessions = take(generator, requests);
  std::map<std::int64_t, double> pairs;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      pairs[common_tokens(*streams, sessions[i].contents[0].prompt, sessions[j].contents[0].prompt)
                .value] += 2.0 / (requests * (requests - 1.0));
    }
  }
  return pairs;
}

TEST(RagGenerator, SharesDocumentsAsFarAsTheirOrderIsTheSame) {
  // Two of three documents, all alike: the first is the same in a third of the pairs, and then the
  // second in a half of those.
  const auto drawn = pairs_of(small_documents(3, 2, DocumentOrder::drawn), 600);
  ASSERT_EQ(drawn.size(), 3U);
  EXPECT_NEAR(drawn.at(4), 2 / 3.0, 0.02);
  EXPECT_NEAR(drawn.at(14), 1 / 6.0, 0.02);
  EXPECT_NEAR(drawn.at(24), 1 / 6.0, 0.02);
  // Sorted there are 01, 02 and 12: the same one in a third of the pairs, 01 and 02 in 2/9.
  const auto sorted = pairs_of(small_documents(3, 2, DocumentOrder::sorted), 600);
  ASSERT_EQ(sorted.size(), 3U);
  EXPECT_NEAR(sorted.at(4), 4 / 9.0, 0.02);
  EXPECT_NEAR(sorted.at(14), 2 / 9.0, 0.02);
  EXPECT_NEAR(sorted.at(24), 1 / 3.0, 0.02);
}

TEST(RagGenerator, IsExactWithoutSpread) {
  const auto streams = std::make_shared<Streams>();
  RagGenerator generator(small_documents(9, 4, DocumentOrder::drawn), 1, streams);
  EXPECT_EQ(text_of(take(generator, 2)), "0@0: 47/2\n 47/48\n1@0: 47/2\n 47/48\n");
  // The instructions, and one for each request: two streams are enough for any number of documents.
  EXPECT_EQ(streams->size(), 3U);
}

TEST(RagGenerator, DrawsDifferentDocumentsAlthoughOneHasAllPopularity) {
  const auto streams = std::make_shared<Streams>();
  RagParameters parameters = small_documents(40, 40, DocumentOrder::sorted);
  parameters.popularity_exponent = 10;
  RagGenerator generator(parameters, 1, streams);
  const std::vector<SessionSpec> sessions = take(generator, 2);
  // All of the documents, in one order.
  EXPECT_EQ(common_tokens(*streams, sessions[0].contents[0].prompt, sessions[1].contents[0].prompt),
            Tokens(404));
}

TEST(RagGenerator, ThreePercentOfTheDocumentsTakeSixtyPercentOfTheRequests) {
  const auto streams = std::make_shared<Streams>();
  RagParameters parameters;
  parameters.documents_per_request = 1;
  parameters.instruction_tokens = Tokens(0);
  RagGenerator generator(parameters, 1, streams);
  std::map<std::uint32_t, std::int64_t> requests;
  constexpr int kRequests = 60000;
  for (const SessionSpec& session : take(generator, kRequests)) {
    // A document's stream is that of its first request.
    const StreamId parent = streams->parent(session.contents[0].prompt.stream);
    ++requests[parent.valid() ? parent.value : session.contents[0].prompt.stream.value];
  }
  std::multiset<std::int64_t, std::greater<>> counts;
  for (const auto& [stream, count] : requests) {
    counts.insert(count);
  }
  std::int64_t of_most = 0;
  int documents = 0;
  for (const std::int64_t count : counts) {
    of_most += documents++ < 300 ? count : 0;
  }
  // The 300 that were drawn most often are slightly more than the 300 of the highest probability.
  EXPECT_NEAR(static_cast<double>(of_most) / kRequests, 0.6, 0.02);
}

// ---- agents ----

double quantile(std::vector<double>& values, double q) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<std::size_t>(q * static_cast<double>(values.size() - 1)));
}

TEST(AgentGenerator, HasTheQuantilesOfItsTraces) {
  const auto streams = std::make_shared<Streams>();
  AgentGenerator generator({}, 1, streams);
  std::vector<double> requests;
  std::vector<double> first;
  std::vector<double> fresh;
  std::vector<double> responses;
  std::vector<double> times;
  std::vector<double> compacted;
  std::map<std::uint32_t, double> prompts;
  std::int64_t subagents = 0;
  SessionSpec session;
  constexpr int kSessions = 4000;
  for (int i = 0; i < kSessions; ++i) {
    ASSERT_TRUE(generator.next(session));
    requests.push_back(static_cast<double>(session.turns.size()));
    const StreamId prompt = streams->parent(session.contents[0].prompt.stream);
    const std::int64_t prompt_tokens = streams->first_of(session.contents[0].prompt.stream);
    ASSERT_TRUE(11900 <= prompt_tokens && prompt_tokens <= 15900);
    prompts[prompt.value] += 1.0 / kSessions;
    first.push_back(static_cast<double>(session.turns[0].user.value - prompt_tokens));
    for (std::size_t k = 0; k < session.turns.size(); ++k) {
      const Turn& turn = session.turns[k];
      ASSERT_LE(session.contents[k].prompt.tokens + turn.assistant, Tokens(155000));
      responses.push_back(static_cast<double>(turn.assistant.value));
      if (k == 0) {
        EXPECT_EQ(turn.think, SimDuration());
      } else if (session.named_history(k).value == prompt_tokens) {
        compacted.push_back(static_cast<double>(turn.user.value));
        ASSERT_GT(session.contents[k - 1].prompt.tokens, Tokens(155000 - 65536 - 2 * 16384));
      } else {
        fresh.push_back(static_cast<double>(turn.user.value));
        times.push_back(turn.think.seconds());
      }
    }
    while (generator.next_started(session)) {
      ++subagents;
    }
  }
  EXPECT_NEAR(quantile(requests, 0.5), 45, 3);
  EXPECT_NEAR(quantile(requests, 0.9), 184, 20);
  EXPECT_NEAR(quantile(first, 0.5), 4000, 300);
  // Median of 86.5 % tool results and 13.5 % texts.
  EXPECT_NEAR(quantile(fresh, 0.5), 276, 15);
  EXPECT_NEAR(quantile(responses, 0.5), 216, 5);
  EXPECT_NEAR(quantile(responses, 0.9), 885, 30);
  EXPECT_GE(quantile(compacted, 0), 20001);
  EXPECT_LT(quantile(compacted, 0.5), 26000);
  // As many of the tool times are under their median as over it, and 7 % of the think times.
  EXPECT_NEAR(quantile(times, 0.5), 11.8, 0.8);
  double most = 0;
  for (const auto& [prompt, share] : prompts) {
    most = std::max(most, share);
  }
  EXPECT_EQ(prompts.size(), 83U);
  EXPECT_NEAR(most, 0.117, 0.02);
  EXPECT_NEAR(static_cast<double>(subagents) / static_cast<double>(responses.size()), 0.0013,
              0.0003);
}

TEST(AgentGenerator, SubagentsBeginAfterTheirCallersAndForkAsAsked) {
  const TempDir dir;
  for (const SubagentFork fork :
       {SubagentFork::own_prompt, SubagentFork::shared_prompt, SubagentFork::context}) {
    AgentParameters parameters;
    parameters.subagents.share = 0.2;
    parameters.subagents.fork = fork;
    parameters.subagents.task_tokens = {.median = 77, .sigma = 0};
    const auto streams = std::make_shared<Streams>();
    AgentGenerator generator(parameters, 3, streams);
    SessionSpec caller;
    SessionSpec subagent;
    SessionSpec first;
    int count = 0;
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(generator.next(caller));
      SimTime least;
      while (generator.next_started(subagent)) {
        first = count == 0 ? subagent : first;
        ++count;
        // Each of the requests so far takes 9 s, and the pauses before them.
        EXPECT_GE(subagent.arrival, least + SimDuration(9'000'000'000));
        least = subagent.arrival;
        const Context prompt = subagent.contents[0].prompt;
        const Tokens begin = prompt.tokens - Tokens(77);
        Tokens common;
        for (const TurnContent& content : caller.contents) {
          common = std::max(common, common_tokens(*streams, content.prompt, prompt));
        }
        if (fork == SubagentFork::own_prompt) {
          EXPECT_EQ(begin, Tokens(9984));
          EXPECT_EQ(common, Tokens(0));
          if (count > 1) {
            EXPECT_EQ(common_tokens(*streams, first.contents[0].prompt, prompt), begin);
          }
        } else if (fork == SubagentFork::shared_prompt) {
          EXPECT_EQ(common, begin);
        } else if (common < begin) {  // its caller did not go on behind that response
          EXPECT_GE(common, Tokens(11900));
        }
      }
    }
    EXPECT_GT(count, 100);
  }
}

TEST(AgentGenerator, SubagentsAreSessionsInOrderOfArrival) {
  const TempDir dir;
  const auto source = make_source(busy("agents", 400), 7, dir.path());
  SimTime last;
  std::int64_t id = 0;
  std::set<std::int64_t> of_callers;
  Arrivals arrivals(ArrivalModel::poisson, PerSecond(1.0 / 60), 1, 7);
  for (int i = 0; i < 400; ++i) {
    of_callers.insert(arrivals.next().ns);
  }
  int callers = 0;
  for (const SessionSpec& session : read_all(*source)) {
    EXPECT_EQ(session.id, id++);
    EXPECT_GE(session.arrival, last);
    last = session.arrival;
    callers += of_callers.contains(session.arrival.ns) ? 1 : 0;
  }
  EXPECT_EQ(id, 400);
  EXPECT_GT(callers, 50);
  EXPECT_LT(callers, 350);
}

}  // namespace
}  // namespace kvtier
