#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/sim/engine/support.hpp"

// Sessions whose turns other servers have part of. A prefill takes 1 ms for each token without KV,
// a decode iteration 10 ms; a stored token moves in 1 ms.
namespace kvtier::test {
namespace {

constexpr SimDuration kPerToken = kMillisecond;
constexpr SimDuration kIteration{10000000};

/// A config of the first of two servers, whose draws are 0 where `here` is: turn by turn, session
/// by session.
RunConfig routed(const std::vector<bool>& here, RunConfig config = tiny_config()) {
  config.replicas = {.count = 2, .routing = Routing::random};
  config.system.tiers.dram = tier();
  for (config.seed = 1;; ++config.seed) {
    RandomStream draws(static_cast<std::uint64_t>(config.seed), "replicas/routing");
    bool fits = true;
    for (const bool wanted : here) {
      fits = (draws.index(2) == 0) == wanted && fits;
    }
    if (fits) {
      return config;
    }
  }
}

struct RoutedRun : ScriptedRun {
  RoutedRun(const RunConfig& routed_config, std::vector<SessionSpec> sessions)
      : ScriptedRun(routed_config, kPerToken, kIteration, std::move(sessions)) {
    run();
  }
  [[nodiscard]] std::int64_t lost(LossCause cause) const {
    return instance.turns().lost_hits[static_cast<std::size_t>(cause)];
  }
};

TEST(TurnRouting, AReturningTurnFindsWhatWasServedHere) {
  const RoutedRun run(routed({true, false, true}),
                      {session(0, {turn(10, 5), turn(20, 3, 100), turn(4, 2, 200)})});
  ASSERT_EQ(run.recorder.requests.size(), 2U);
  // 10 tokens and 4 iterations: 10 + 40 ms.
  EXPECT_EQ(run.request(0, 0).finished, at_ms(50));
  // The second turn comes at 150 ms and takes 50 ms like the first; 200 ms later comes the third.
  const RequestRecord& r = run.request(0, 2);
  EXPECT_EQ(r.arrived, at_ms(400));
  // 15 tokens of the first turn and 23 of the second.
  EXPECT_EQ(r.history, Tokens(38));
  EXPECT_EQ(r.found.reused, Tokens(15));
  EXPECT_EQ(r.found.medium, Medium::dram);
  EXPECT_TRUE(r.was_elsewhere);
  // A layer's 15 tokens load in 3 ms, then 23 + 4 tokens compute, slower than the rest loads.
  EXPECT_EQ(r.prefill_compute, for_ms(27));
  EXPECT_EQ(r.first_token, at_ms(430));
  EXPECT_EQ(r.finished, at_ms(440));
  EXPECT_EQ(run.instance.turns().partial_turns, 1);
  EXPECT_EQ(run.lost(LossCause::served_elsewhere), 1);
  const ResponseTimes& times = *run.instance.response_times();
  EXPECT_EQ(times.served, 2);
  EXPECT_DOUBLE_EQ(times.served_seconds, 0.050 + 0.040);
  EXPECT_EQ(times.assumed, 1);
  EXPECT_DOUBLE_EQ(times.assumed_seconds, 0.050);
}

TEST(TurnRouting, ATurnInARowFindsAll) {
  const RoutedRun run(routed({false, true, true}),
                      {session(0, {turn(10, 5), turn(20, 3, 100), turn(4, 2, 200)})});
  // Nothing has finished here yet: the first turn is taken to need no time.
  EXPECT_EQ(run.request(0, 1).arrived, at_ms(100));
  EXPECT_EQ(run.request(0, 1).history, Tokens(15));
  EXPECT_EQ(run.request(0, 1).found.reused, Tokens(0));
  EXPECT_EQ(run.request(0, 2).history, Tokens(38));
  EXPECT_TRUE(run.request(0, 2).full_hit());
  EXPECT_FALSE(run.request(0, 2).was_elsewhere);
  EXPECT_EQ(run.lost(LossCause::served_elsewhere), 1);
}

TEST(TurnRouting, TakesTheResponseTimeOfTheTurnThatFinishedLast) {
  // The second session's turn ends at 1,010 ms, before the first session's second turn arrives.
  const RoutedRun run(routed({true, false, true, true}),
                      {session(0, {turn(10, 5), turn(20, 3, 2000), turn(4, 2, 200)}),
                       session(1000, {turn(10, 1)})});
  // 50 + 2,000 + 10 + 200 ms
  EXPECT_EQ(run.request(0, 2).arrived, at_ms(2260));
}

TEST(TurnRouting, SessionsThatComeNoMoreEnd) {
  RoutedRun run(routed({true, false, false, false, false, true}),
                {session(0, {turn(10, 5), turn(20, 3, 100), turn(4, 2, 200)}),
                 session(10, {turn(10, 5), turn(20, 3, 100)}), session(20, {turn(5, 5)})});
  EXPECT_EQ(run.recorder.requests.size(), 2U);
  EXPECT_EQ(run.instance.finished_turns(), 2);
  EXPECT_EQ(run.instance.workload().turns(), 6);
  EXPECT_EQ(run.instance.measured().to, run.request(2, 0).finished);
}

TEST(TurnRouting, LoggedTurnsKeepTheirTimes) {
  RunConfig config = tiny_config();
  config.workload.think_time.model = ThinkTimeModel::logged;
  const std::vector<SessionSpec> sessions{
      session(0, {turn(10, 5), turn(20, 3, 70), turn(4, 2, 30), turn(4, 2, 300)})};
  const RoutedRun run(routed({true, false, true, true}, config), sessions);
  // Due at 0, 70, 100 and 400 ms; the second takes 50 ms, so the third comes at 120 ms.
  EXPECT_EQ(run.request(0, 2).arrived, at_ms(120));
  EXPECT_EQ(run.request(0, 3).arrived, at_ms(400));
}

/// 60 tokens here. Then 50 elsewhere, before which the older half of the 60 goes, since 110 exceed
/// the window of 100; then a turn here, whose history is 30 + 50.
std::vector<SessionSpec> cut_elsewhere() {
  return {session(0, {turn(30, 30), turn(30, 20, 100), turn(5, 5, 100)})};
}

TEST(TurnRouting, ACutElsewhereCutsWhatIsStoredHere) {
  const RoutedRun run(routed({true, false, true}, tiny_config(Tokens(100))), cut_elsewhere());
  const RequestRecord& r = run.request(0, 2);
  EXPECT_EQ(r.history, Tokens(80));
  EXPECT_EQ(r.truncated, Tokens(0)) << "not by this turn";
  EXPECT_EQ(r.found.reused, Tokens(30));
  EXPECT_EQ(run.instance.turns().truncated_turns, 0);
}

TEST(TurnRouting, ACutElsewhereMakesEmbeddedPositionsInvalid) {
  RunConfig config = tiny_config(Tokens(100));
  config.system.positions = KeyPositions::embedded;
  const RoutedRun run(routed({true, false, true}, config), cut_elsewhere());
  const RequestRecord& r = run.request(0, 2);
  EXPECT_EQ(r.history, Tokens(80));
  EXPECT_EQ(r.found.reused, Tokens(0));
  EXPECT_EQ(run.lost(LossCause::served_elsewhere), 1);
}

TEST(TurnRouting, AddsUpCutsOnBothSides) {
  // 60 here, 30 of them left at the second turn; 80 before the third (elsewhere, 40 tokens), which
  // cuts 40 of them: nothing is left of what is here. At the fourth, 80 + 10 tokens fit.
  const RoutedRun run(
      routed({true, false, false, true}, tiny_config(Tokens(100))),
      {session(0, {turn(30, 30), turn(30, 20, 100), turn(20, 20, 100), turn(5, 5, 100)})});
  EXPECT_EQ(run.request(0, 3).history, Tokens(80));
  EXPECT_EQ(run.request(0, 3).found.reused, Tokens(0));

  // The first 20 tokens are kept: 20 + 10 of the 60 after the second turn, 20 after the third.
  RunConfig keeps = tiny_config(Tokens(100));
  keeps.serving.keep_first_tokens = Tokens(20);
  const RoutedRun kept(
      routed({true, false, false, true}, keeps),
      {session(0, {turn(30, 30), turn(30, 20, 100), turn(20, 20, 100), turn(5, 5, 100)})});
  EXPECT_EQ(kept.request(0, 3).history, Tokens(80));
  EXPECT_EQ(kept.request(0, 3).found.reused, Tokens(20));
}

TEST(TurnRouting, ASharedPromptIsFoundBySessionsThatBeganElsewhere) {
  RunConfig config = tiny_config();
  config.system.sharing = Sharing::prompts;
  config.system.tiers.hbm.emplace();
  static_cast<TierConfig&>(*config.system.tiers.hbm) = tier();
  config.system.tiers.hbm->capacity = Bytes(1000000);
  RunConfig both = routed({true, false, true}, config);
  both.system.tiers.dram.reset();
  const RoutedRun run(both, {session_of_prompt(0, 7, 50, {turn(10, 5)}),
                             session_of_prompt(500, 7, 50, {turn(10, 5), turn(20, 3, 100)})});
  const RequestRecord& r = run.request(1, 1);
  EXPECT_EQ(r.history, Tokens(65));
  EXPECT_EQ(r.found.reused, Tokens(50));
  EXPECT_EQ(run.lost(LossCause::served_elsewhere), 1);
}

TEST(Truncations, AddUp) {
  // Of the first 100 tokens of a history: 10 kept, then 20 gone, then 30 more.
  const Truncation both = cut(20, 10).then(cut(30, 10));
  for (std::int64_t tokens = 0; tokens <= 100; ++tokens) {
    EXPECT_EQ(both.left_of(Tokens(tokens)),
              cut(30, 10).left_of(cut(20, 10).left_of(Tokens(tokens))))
        << tokens;
  }
  // A cut that leaves 5 tokens of 100, though 10 were to be kept; then 200 tokens come and 50 go.
  const Truncation rest = cut(95, 5).then(cut(50, 10));
  for (std::int64_t tokens = 0; tokens <= 100; ++tokens) {
    EXPECT_EQ(rest.left_of(Tokens(tokens)), cut(50, 10).left_of(cut(95, 5).left_of(Tokens(tokens))))
        << tokens;
  }
}

}  // namespace
}  // namespace kvtier::test
