#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/replay/untimed.hpp"
#include "sim/serving/result.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

// A prefill takes 1 ms for each token without KV, a decode iteration 10 ms; a stored token moves in
// 1 ms.
namespace kvtier::test {
namespace {

RunConfig with_dram(RunConfig config = tiny_config()) {
  config.system.tiers.dram = tier();
  return config;
}

ScriptedRun run_of(const RunConfig& config, std::vector<SessionSpec> sessions) {
  return {config, kPerToken, kIteration, std::move(sessions)};
}

TEST(SharedPrompts, AreTheHistoryOfAFirstTurnWhichComputesThemInFull) {
  ScriptedRun run =
      run_of(with_dram(), {session_of_prompt(0, 7, 20, {turn(10, 5), turn(3, 2, 100)})});
  run.run();
  const RequestRecord& first = run.request(0, 0);
  EXPECT_EQ(first.history, Tokens(20));
  EXPECT_EQ(first.shared, Tokens(20));
  EXPECT_EQ(first.shared_prompt, 7);
  EXPECT_TRUE(first.resumed());
  EXPECT_EQ(first.found.reused, Tokens(0));
  EXPECT_EQ(first.found.cause, LossCause::not_stored);
  // 20 + 10 tokens, then 4 iterations.
  EXPECT_EQ(first.first_token, at_ms(30));
  EXPECT_EQ(first.finished, at_ms(70));
  // 20 + 15 tokens are stored; they load in 7 ms a layer, and 3 tokens compute in 0.6.
  const RequestRecord& second = run.request(0, 1);
  EXPECT_EQ(second.history, Tokens(35));
  EXPECT_EQ(second.shared, Tokens(20));
  EXPECT_EQ(second.found.reused, Tokens(35));
  EXPECT_EQ(second.first_token - second.admitted, SimDuration(35600000));

  const TurnMetrics& turns = run.instance.turns();
  EXPECT_EQ(turns.resumed_turns, 2);
  EXPECT_EQ(turns.history_tokens, Tokens(20 + 35));
  const Json rates = hits_report(turns, {}, {})["hit_rate"];
  EXPECT_DOUBLE_EQ(rates["all_turns"]["total"], 1.0 / 2);
  EXPECT_DOUBLE_EQ(rates["resumed_turns"]["total"], 1.0 / 2);
  EXPECT_DOUBLE_EQ(rates["tokens"]["total"], 35.0 / 55);
  EXPECT_EQ(hits_report(turns, {}, {})["lost_hits"]["not_stored"], 1);
  EXPECT_EQ(hits_report(turns, {}, {})["lost_hits"]["capacity"], 0);
}

TEST(SharedPrompts, LeaveNothingBehindForTheNextSessionInASlot) {
  ScriptedRun run =
      run_of(with_dram(), {session_of_prompt(0, 7, 20, {turn(10, 1)}), session(1000, {turn(4, 1)}),
                           session_of_prompt(2000, 7, 20, {turn(10, 1)})});
  run.run();
  EXPECT_EQ(run.request(1, 0).history, Tokens(0));
  EXPECT_EQ(run.request(1, 0).shared_prompt, -1);
  EXPECT_EQ(run.request(1, 0).first_token, at_ms(1004));
  EXPECT_EQ(run.request(2, 0).found.cause, LossCause::not_stored);
}

/// A prompt of 20 tokens, then turns of 30 + 20 and 30 + 20 in a window of 100.
ScriptedRun overflowing(const RunConfig& config) {
  return run_of(config, {session_of_prompt(0, 7, 20, {turn(30, 20), turn(30, 20, 1000)})});
}

TEST(SharedPrompts, AreKeptWhenTheWindowOverflows) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  ScriptedRun half = overflowing(config);
  half.run();
  // 70 + 50 > 100, so half of 70 goes, behind the prompt.
  EXPECT_EQ(half.request(0, 1).truncated, Tokens(35));
  EXPECT_EQ(half.request(0, 1).history, Tokens(35));
  EXPECT_EQ(half.request(0, 1).found.reused, Tokens(35));

  config.serving.truncation_ratio = 1;
  ScriptedRun all = overflowing(config);
  all.run();
  EXPECT_EQ(all.request(0, 1).truncated, Tokens(50));
  EXPECT_EQ(all.request(0, 1).history, Tokens(20));
  EXPECT_TRUE(all.request(0, 1).full_hit());
}

TEST(SharedPrompts, StayWhenOtherKeptTokensHaveToGo) {
  RunConfig config = with_dram(tiny_config(Tokens(100)));
  config.serving.keep_first_tokens = Tokens(60);
  ScriptedRun run = overflowing(config);
  run.run();
  // 10 tokens behind the first 60, then 40 more: 20 + 50 fit.
  EXPECT_EQ(run.request(0, 1).truncated, Tokens(50));
  EXPECT_EQ(run.request(0, 1).history, Tokens(20));
  EXPECT_EQ(run.request(0, 1).found.reused, Tokens(20)) << "no more is stored than is left";
}

TEST(SharedPrompts, LeaveTheRestOfTheWindowToTurns) {
  ScriptedRun run = run_of(tiny_config(Tokens(100)), {session_of_prompt(0, 7, 40, {turn(80, 50)}),
                                                      session_of_prompt(1, 8, 98, {turn(80, 50)})});
  run.run();
  // Half of 60, and what is left; of 2 one each.
  EXPECT_EQ(run.request(0, 0).input, Tokens(30));
  EXPECT_EQ(run.request(0, 0).output, Tokens(30));
  EXPECT_EQ(run.request(1, 0).input, Tokens(1));
  EXPECT_EQ(run.request(1, 0).output, Tokens(1));
}

std::vector<std::string> problems_of(const RunConfig& config, std::vector<SessionSpec> sessions) {
  ScriptedRun run = run_of(config, std::move(sessions));
  try {
    run.run();
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(SharedPrompts, AreNamedIfTheyLeaveNoRoom) {
  RunConfig config = tiny_config(Tokens(100));
  const std::vector<SessionSpec> sessions{
      session(0, {turn(1, 1)}),
      session_of_prompt(1, 7, 99, {turn(80, 50)}),
      session_of_prompt(2, 8, 40, {turn(1, 1), turn(60, 1)}),
      session_of_prompt(3, 9, 5000, {turn(1, 1)}),
  };
  const std::string first =
      "/workload: session 1: expected a shared prompt of at most 98 tokens (2 less than the "
      "context "
      "window), got 99";
  const std::string second =
      "/workload: session 3: expected a shared prompt of at most 98 tokens (2 less than the "
      "context "
      "window), got 5000";
  // Turns are clamped.
  EXPECT_EQ(problems_of(config, sessions), (std::vector<std::string>{first, second}));
  config.serving.long_turn = LongTurn::error;
  EXPECT_EQ(
      problems_of(config, sessions),
      (std::vector<std::string>{
          first,
          "/workload: session 2 turn 1: expected at most 60 tokens (the context window less "
          "the shared prompt), got 61",
          second, "/serving/long_turn: \"clamp\" would shorten such turns to the context window"}));
}

TEST(SharedPrompts, AreCountedBeyondTheFirstIfTheyLeaveNoRoom) {
  RunConfig config = tiny_config(Tokens(100));
  std::vector<SessionSpec> sessions(23, session_of_prompt(0, 7, 99, {turn(1, 1)}));
  std::vector<std::string> lines = problems_of(config, sessions);
  ASSERT_EQ(lines.size(), 21U);
  EXPECT_EQ(lines[20], "/workload: and 3 more shared prompts of that length");
  sessions.push_back(session(0, {turn(101, 1)}));
  config.serving.long_turn = LongTurn::error;
  lines = problems_of(config, sessions);
  ASSERT_EQ(lines.size(), 22U);
  EXPECT_EQ(lines[20], "/workload: and 4 more of both");
}

/// Three turns of 10 + 20 tokens behind a prompt of 50.
RunConfig generated() {
  RunConfig config = with_dram();
  config.workload.generator = Generator::shared_prompts;
  config.workload.sessions = 1;
  config.workload.shared_prompts = {
      .prompts = 1, .tokens_min = Tokens(50), .tokens_max = Tokens(50)};
  config.workload.sharegpt.single_turn_fraction = 0;
  config.workload.sharegpt.turns_median = 3;
  config.workload.sharegpt.turns_sigma = 0;
  config.workload.sharegpt.session_scale_sigma = 0;
  config.workload.sharegpt.user_tokens_median = 10;
  config.workload.sharegpt.user_tokens_sigma = 0;
  config.workload.sharegpt.assistant_tokens_median = 20;
  config.workload.sharegpt.assistant_tokens_sigma = 0;
  return config;
}

TEST(SharedPrompts, AreTheSameHistoryWithoutAClock) {
  Recorder recorder;
  RunOptions options;
  options.observer = &recorder;
  const Json result = simulate_untimed(generated(), builtin_policies(), options);
  ASSERT_EQ(recorder.requests.size(), 3U);
  EXPECT_EQ(recorder.requests[0].history, Tokens(50));
  EXPECT_EQ(recorder.requests[0].shared, Tokens(50));
  EXPECT_EQ(recorder.requests[0].shared_prompt, 0);
  EXPECT_EQ(recorder.requests[0].found.cause, LossCause::not_stored);
  EXPECT_EQ(recorder.requests[2].history, Tokens(50 + 30 + 30));
  EXPECT_EQ(recorder.requests[2].found.reused, Tokens(50 + 30 + 30));
  EXPECT_DOUBLE_EQ(result["metrics"]["hit_rate"]["resumed_turns"]["total"], 2.0 / 3);
  EXPECT_EQ(result["workload"]["synthetic"], true);
}

TEST(SharedPrompts, AreKeptWithoutAClockToo) {
  RunConfig config = generated();
  config.model.context_window = Tokens(100);
  Recorder recorder;
  RunOptions options;
  options.observer = &recorder;
  static_cast<void>(simulate_untimed(config, builtin_policies(), options));
  ASSERT_EQ(recorder.requests.size(), 3U);
  // 80 + 30 > 100: 30 are left to drop behind the prompt, half of 80 would be more.
  EXPECT_EQ(recorder.requests[1].history, Tokens(50));
  EXPECT_EQ(recorder.requests[1].truncated, Tokens(30));
  EXPECT_EQ(recorder.requests[1].found.reused, Tokens(50));
}

TEST(SharedPrompts, AreInTheResultIfThereAreSome) {
  const Json workload = simulate(generated(), builtin_policies())["workload"];
  EXPECT_EQ(workload["synthetic"], true);
  EXPECT_EQ(workload["shared_prompts"]["distinct"], 1);
  RunConfig plain = generated();
  plain.workload.generator = Generator::sharegpt;
  const Json other = simulate(plain, builtin_policies())["workload"];
  EXPECT_FALSE(other.contains("synthetic"));
  EXPECT_FALSE(other.contains("shared_prompts"));
}

// ---- Sessions that share them ----

RunConfig sharing(std::int64_t hbm_tokens) {
  RunConfig config = tiny_config();
  config.serving.slots = 4;
  config.system.sharing = Sharing::prompts;
  HbmTierConfig hbm;
  static_cast<TierConfig&>(hbm) = tier();
  hbm.capacity = kv(hbm_tokens);
  config.system.tiers.hbm = hbm;
  return config;
}

/// The first session computes 20 + 10 tokens; the second, at 1 s, finds the prompt and computes its
/// own 10; the third has another prompt. HBM then holds 20 + 11, 11 and 20 + 11 tokens.
TEST(SharedPrompts, AreComputedByTheFirstSessionAndFoundByTheNext) {
  ScriptedRun run = run_of(sharing(200), {session_of_prompt(0, 7, 20, {turn(10, 1)}),
                                          session_of_prompt(1000, 7, 20, {turn(10, 1)}),
                                          session_of_prompt(2000, 8, 20, {turn(10, 1)})});
  run.run();
  EXPECT_EQ(run.request(0, 0).found.cause, LossCause::not_stored);
  EXPECT_EQ(run.request(0, 0).first_token, at_ms(30));
  EXPECT_TRUE(run.request(1, 0).full_hit());
  EXPECT_EQ(run.request(1, 0).found.medium, Medium::hbm);
  EXPECT_EQ(run.request(1, 0).first_token, at_ms(1010));
  EXPECT_EQ(run.request(2, 0).found.cause, LossCause::not_stored);
  EXPECT_EQ(run.request(2, 0).first_token, at_ms(2030));
  EXPECT_EQ(run.instance.batcher().counters(0).occupancy_peak, kv(31 + 11 + 31));
}

/// 100 tokens fit in HBM beside the tier of 50. The first session's 30 + 10 + 20 run there, with
/// the prompt of 30 in the tier; so the second's 10 + 60 fit too, which 30 + 10 + 60 would not.
TEST(SharedPrompts, LeaveTheirRoomToOtherRunningRequests) {
  RunConfig config = sharing(50);
  config.serving.kv_memory = kv(50 + 100);
  config.system.save.write_buffer = Bytes(0);
  config.model.context_window = Tokens(100);
  const auto admitted = [&](Sharing with) {
    config.system.sharing = with;
    ScriptedRun run = run_of(config, {session_of_prompt(0, 7, 30, {turn(10, 20)}),
                                      session_of_prompt(41, 7, 30, {turn(10, 60)})});
    run.run();
    return run.request(1, 0).admitted;
  };
  // The first prefill ends at 40 ms; iterations of 10 ms follow.
  EXPECT_EQ(admitted(Sharing::prompts), at_ms(50));
  EXPECT_EQ(admitted(Sharing::none), at_ms(40 + 19 * 10)) << "after the first has ended";
}

/// The session's own history overflows. The prompt stays for others.
TEST(SharedPrompts, StayStoredWhenASessionsHistoryIsCut) {
  RunConfig config = sharing(200);
  config.model.context_window = Tokens(100);
  ScriptedRun run = overflowing(config);
  run.run();
  EXPECT_EQ(run.request(0, 1).truncated, Tokens(35));
  EXPECT_EQ(run.request(0, 1).history, Tokens(35));
  EXPECT_TRUE(run.request(0, 1).full_hit());
  config.system.positions = KeyPositions::embedded;
  ScriptedRun embedded = overflowing(config);
  embedded.run();
  EXPECT_EQ(embedded.request(0, 1).found.reused, Tokens(20)) << "the prompt's positions stay";
  EXPECT_EQ(embedded.request(0, 1).found.cause, LossCause::overflow);
}

TEST(SharedPrompts, AreFoundByOtherSessionsWithoutAClockToo) {
  RunConfig config = generated();
  config.workload.sessions = 2;
  config.system = sharing(1000).system;
  Recorder recorder;
  RunOptions options;
  options.observer = &recorder;
  static_cast<void>(simulate_untimed(config, builtin_policies(), options));
  ASSERT_EQ(recorder.requests.size(), 6U);
  int missed = 0;
  for (const RequestRecord& r : recorder.requests) {
    missed += r.full_hit() ? 0 : 1;
  }
  EXPECT_EQ(missed, 1) << "the very first turn";
}

/// The prompt of 30 goes to DRAM when the second session's 40 tokens need room in HBM, and on to
/// the SSD when they follow. The fourth session loads it from there, 6 ms a layer, and the fifth
/// layer computes its 10 tokens in 2 ms.
TEST(SharedPrompts, AreLoadedFromTheSsdBehindDram) {
  RunConfig config = sharing(50);
  config.system.tiers.dram = tier();
  config.system.tiers.ssd = tier();
  config.hardware.dram->capacity = kv(60);
  ScriptedRun run =
      run_of(config, {session_of_prompt(0, 7, 30, {turn(10, 1)}), session(1000, {turn(39, 1)}),
                      session(2000, {turn(49, 1)}), session_of_prompt(5000, 7, 30, {turn(10, 1)})});
  run.run();
  const RequestRecord& r = run.request(3, 0);
  EXPECT_TRUE(r.full_hit());
  EXPECT_EQ(r.found.medium, Medium::ssd);
  EXPECT_EQ(r.found.there(), Tokens(30));
  EXPECT_EQ(r.first_token, at_ms(5032));
}

TEST(SharedPrompts, AreSharedOnlyWhereTheyCanBe) {
  const auto problems_of_config = [](const RunConfig& config) {
    Problems problems;
    check_run_config(config, builtin_policies(), problems);
    return problems.lines();
  };
  using Lines = std::vector<std::string>;
  RunConfig config = sharing(100);
  EXPECT_EQ(problems_of_config(config), Lines{});
  config.system.load.buffers = 3;
  EXPECT_EQ(problems_of_config(config),
            Lines{"/system/load/buffers: with /system/sharing expected 0"});
  config.system.load.buffers = 0;
  config.serving.kv_reservation = Reservation::context_window;
  config.model.context_window = Tokens(50);
  EXPECT_EQ(problems_of_config(config),
            Lines{"/serving/kv_reservation: with /system/sharing expected exact: a prompt and what "
                  "follows it share one window"});
  config.serving.kv_reservation = Reservation::exact;
  config.system.tiers.dram = tier();
  config.system.tiers.ssd = tier();
  EXPECT_EQ(problems_of_config(config), Lines{});
  config.system.tiers.hbm.reset();
  EXPECT_EQ(
      problems_of_config(config),
      Lines{"/system/sharing: expected \"none\": prompts are shared in the tier in HBM, which "
            "the system has not"});
}

TEST(Truncation, LeavesTheKeptTokensAndThoseAfterTheCut) {
  // Tokens 5 .. 16 go.
  EXPECT_EQ(cut(12, 5).left_of(Tokens(30)), Tokens(18));
  EXPECT_EQ(cut(12, 5).left_of(Tokens(18)), Tokens(6));
  EXPECT_EQ(cut(12, 5).left_of(Tokens(17)), Tokens(5));
  EXPECT_EQ(cut(12, 5).left_of(Tokens(6)), Tokens(5));
  EXPECT_EQ(cut(12, 5).left_of(Tokens(3)), Tokens(3));
  EXPECT_EQ(cut(12).left_of(Tokens(12)), Tokens(0));
  EXPECT_EQ(cut(0, 5).left_of(Tokens(9)), Tokens(9));
}

}  // namespace
}  // namespace kvtier::test
