#include <string>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"
#include "sim/serving/simulate.hpp"
#include "tests/sim/serving/support.hpp"

// /system/load/wait of prefill_first. A prefill takes 1 ms for each token without KV, a decode
// iteration 10 ms; a stored token moves in 1 ms.
namespace kvtier::test {
namespace {

RunConfig waiting(LoadWait wait) {
  RunConfig config = tiny_config();
  config.serving.slots = 2;
  config.system.tiers.dram = tier();
  config.system.load.wait = wait;
  return config;
}

TEST(LoadWait, OthersDecodeWhileARequestWaitsForItsLoad) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(waiting(LoadWait::request), kMillisecond, kMillisecond * 10,
                    {session(0, {turn(10, 5), turn(3, 2, 100)}), session(140, {turn(4, 5)})},
                    stepping);
    run.run();
    // The second session has its first token at 144 and decodes 144..154. Then the first session's
    // second turn is admitted and loads 15 tokens, 154..169, while the other decodes 154..174. Its
    // 3 new tokens take 174..177, and both have their last token at 187.
    const RequestRecord& r = run.request(0, 1);
    EXPECT_EQ(r.arrived, at_ms(150));
    EXPECT_EQ(r.admitted, at_ms(154));
    EXPECT_EQ(r.first_token, at_ms(177));
    EXPECT_EQ(r.finished, at_ms(187));
    EXPECT_EQ(run.request(1, 0).finished, at_ms(187));
    EXPECT_EQ(r.found.reused, Tokens(15));
    EXPECT_EQ(r.exposed_load, for_ms(15));
    EXPECT_EQ(r.prefill_compute, for_ms(3));
    EXPECT_EQ(run.instance.total_gpu_time().exposed_load, SimDuration(0));
    EXPECT_EQ(run.instance.total_gpu_time().prefill, for_ms(10 + 4 + 3));
  }
}

TEST(LoadWait, OthersWaitForTheLoadOfABatch) {
  for (const DecodeStepping stepping : kSteppings) {
    ScriptedRun run(waiting(LoadWait::batch), kMillisecond, kMillisecond * 10,
                    {session(0, {turn(10, 5), turn(3, 2, 100)}), session(140, {turn(4, 5)})},
                    stepping);
    run.run();
    // The fifth layer computes its 3 / 5 ms after the load of 154..169. The other decodes again
    // 169.6..199.6, its last three tokens.
    const RequestRecord& r = run.request(0, 1);
    EXPECT_EQ(r.first_token, at_ms(169) + SimDuration(600000));
    EXPECT_EQ(r.exposed_load, SimDuration(12600000));
    EXPECT_EQ(run.request(1, 0).finished, at_ms(199) + SimDuration(600000));
    EXPECT_EQ(run.instance.total_gpu_time().exposed_load, SimDuration(12600000));
  }
}

TEST(LoadWait, SeveralRequestsLoadAtOnceAndRunInTheOrderInWhichTheirKvComes) {
  ScriptedRun run(
      waiting(LoadWait::request), kMillisecond, kMillisecond * 10,
      {session(0, {turn(10, 1), turn(3, 1, 200)}), session(20, {turn(5, 1), turn(2, 1, 185)})});
  run.run();
  // Both come back at 210 and share the link: 6 tokens of each have come at 222, the other 5 of the
  // first at 227. Prefills: 222..224 and 227..230.
  EXPECT_EQ(run.request(0, 1).admitted, at_ms(210));
  EXPECT_EQ(run.request(1, 1).admitted, at_ms(210));
  EXPECT_EQ(run.request(1, 1).first_token, at_ms(224));
  EXPECT_EQ(run.request(0, 1).first_token, at_ms(230));
  EXPECT_EQ(run.request(1, 1).exposed_load, for_ms(12));
  EXPECT_EQ(run.request(0, 1).exposed_load, for_ms(17));
}

TEST(LoadWait, RequestsThatWaitHoldSlots) {
  RunConfig config = waiting(LoadWait::request);
  config.serving.slots = 1;
  ScriptedRun run(config, kMillisecond, kMillisecond * 10,
                  {session(0, {turn(10, 5), turn(3, 1, 100)}), session(151, {turn(4, 1)})});
  run.run();
  // The load takes 150..165 and the prefill 165..168.
  EXPECT_EQ(run.request(0, 1).first_token, at_ms(168));
  EXPECT_EQ(run.request(1, 0).admitted, at_ms(168));
  EXPECT_EQ(run.instance.measured_waits()[WaitCause::batch_slots], for_ms(17));
}

/// An idle link between requests with a shared prompt of 20 tokens that is in host memory alone.
TEST(LoadWait, ARequestDoesNotWaitForAPromptThatAnotherLoads) {
  RunConfig config = waiting(LoadWait::request);
  HbmTierConfig hbm;
  static_cast<TierConfig&>(hbm) = tier();
  hbm.write = WriteMoment::on_evict;
  hbm.capacity = kv(30);
  config.system.tiers.hbm = hbm;
  config.system.sharing = Sharing::prompts;
  config.serving.slots = 4;
  ScriptedRun run(
      config, kMillisecond, kMillisecond * 10,
      {session_of_prompt(0, 1, 20, {turn(5, 1)}), session(100, {turn(29, 1)}),
       session_of_prompt(300, 1, 20, {turn(3, 1)}), session_of_prompt(301, 1, 20, {turn(4, 1)})});
  run.run();
  // The second session drives the prompt out of HBM. The third loads it 300..320 and prefills its 3
  // tokens when the fourth has computed the prompt and its 4 tokens, 301..325.
  EXPECT_EQ(run.request(2, 0).found.medium, Medium::dram);
  EXPECT_EQ(run.request(2, 0).found.reused, Tokens(20));
  EXPECT_EQ(run.request(2, 0).first_token, at_ms(328));
  EXPECT_EQ(run.request(3, 0).found.reused, Tokens(0));
  EXPECT_EQ(run.request(3, 0).first_token, at_ms(325));
}

TEST(LoadWait, RefusesAReadBufferForLoadsThatNoPrefillWaitsFor) {
  RunConfig config = waiting(LoadWait::request);
  config.system.load.buffers = 3;
  try {
    static_cast<void>(simulate(config, builtin_policies()));
    FAIL() << "expected an error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "/system/load/buffers: where requests wait for their own loads (/system/load/wait) "
              "expected 0: the read buffer is for loads that a prefill waits for");
  }
}

}  // namespace
}  // namespace kvtier::test
