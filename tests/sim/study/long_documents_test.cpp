/// AttentionStore's experiment with long documents (figures 25 and 26): Mistral-7B on one A100, one
/// request at a time, the second and later of six tasks on a document. Nothing is fitted to these
/// figures.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/serving/simulate.hpp"
#include "tests/sim/study/support.hpp"

namespace kvtier::test {
namespace {

Json run(const std::string& system, std::vector<std::string> more = {}) {
  more.insert(more.begin(), "/system=" + system);
  Json result =
      simulate(resolved("papers/attentionstore/mistral-7b.json", more), builtin_policies());
  expect_result_invariants(result);
  return result;
}

Json resumed(const std::string& system, const std::vector<std::string>& more = {}) {
  return run(system, more)["metrics"]["resumed"];
}

constexpr const char* kTtft = "/ttft_seconds_without_queueing/mean";
constexpr const char* kPrefillThroughput = "/prompt_tokens_served_per_prefill_second";
constexpr const char* kOutputThroughput = "/output_throughput_tokens_per_busy_second";

double share(const Json& costs, const char* part) {
  return number_at(costs, std::string("/gpu_seconds_per_turn/") + part) /
         number_at(costs, "/gpu_seconds_per_turn/total");
}

/// Figure 25 at 28K tokens, within 25 %: TTFT 2.5 s and 0.12 s, and 22 times the throughput.
TEST(LongDocuments, AreNearThePaper) {
  const Json recompute = resumed("recompute");
  const Json stored = resumed("attentionstore");
  EXPECT_NEAR(number_at(recompute, kTtft), 2.5, 0.25 * 2.5);
  EXPECT_NEAR(number_at(stored, kTtft), 0.12, 0.25 * 0.12);
  EXPECT_NEAR(number_at(stored, kPrefillThroughput) / number_at(recompute, kPrefillThroughput), 22,
              0.25 * 22);
}

/// Figure 26 reports 41 and 1.2 % of GPU time in prefill, and 67 % more output. Here a decode
/// iteration takes 14.5 ms, and 41 % would need one of 70 ms; the paper's 1.2 % agrees with such a
/// slow decode and the compute of a prefill alone, 40 ms, without its 90 ms of waiting for KV.
TEST(LongDocuments, DecodeFasterThanThePapersShareOfPrefillWouldNeed) {
  const Json recompute = resumed("recompute");
  const Json stored = resumed("attentionstore");
  EXPECT_NEAR(100 * share(recompute, "prefill"), 77.1, 0.5);
  EXPECT_NEAR(100 * share(stored, "prefill"), 3.8, 0.2);
  EXPECT_NEAR(100 * share(stored, "exposed_load"), 8.8, 0.7);
  EXPECT_NEAR(number_at(stored, kOutputThroughput) / number_at(recompute, kOutputThroughput), 3.82,
              0.05);
  const double prefill = number_at(recompute, "/gpu_seconds_per_turn/prefill");
  const double decode = prefill * (1 - 0.41) / 0.41;
  EXPECT_NEAR(decode / 63, 0.070, 0.001) << "64 tokens take 63 iterations";
  const double compute = number_at(stored, "/gpu_seconds_per_turn/prefill");
  EXPECT_NEAR(100 * compute / (compute + decode), 0.9, 0.1);
}

/// The first turn of a session has no history: 5 of 6 turns are counted, and all are hits.
TEST(LongDocuments, CountTheSecondAndLaterTurns) {
  const Json result = run("attentionstore");
  EXPECT_EQ(result["metrics"]["turns"], 1200);
  EXPECT_EQ(result["metrics"]["resumed_turns"], 1000);
  EXPECT_EQ(number_at(result, "/metrics/hit_rate/resumed_turns/total"), 1);
  // The mean over all turns has the documents in it.
  EXPECT_GT(number_at(result, "/metrics/ttft_seconds_without_queueing/mean"),
            4 * number_at(result, std::string("/metrics/resumed") + kTtft));
}

TEST(LongDocuments, GainMoreFromStoredKvTheLongerTheyAre) {
  double before = 1;
  for (const char* tokens : {"4096tokens", "8192tokens", "16384tokens", "28672tokens"}) {
    const std::vector<std::string> length{
        std::string("/workload/long_documents/document_tokens_min=") + tokens,
        std::string("/workload/long_documents/document_tokens_max=") + tokens};
    const double gain = number_at(resumed("recompute", length), kTtft) /
                        number_at(resumed("attentionstore", length), kTtft);
    EXPECT_GT(gain, before) << tokens;
    before = gain;
  }
}

/// With requests in the queue, the read buffer holds the layers that the next one needs, and most
/// requests take only their 40 ms of compute. Without a queue the buffer is empty, and requests
/// wait for the whole load. The figure's 0.12 s lies between.
TEST(LongDocuments, WaitLessForKvIfTheNextRequestIsKnown) {
  const double idle =
      number_at(resumed("attentionstore", {"/workload/arrival_rate=0.001/s"}), kTtft);
  const double busy = number_at(resumed("attentionstore", {"/workload/arrival_rate=1/s"}), kTtft);
  EXPECT_NEAR(idle, 0.155, 0.003);
  EXPECT_NEAR(busy, 0.046, 0.003);
}

}  // namespace
}  // namespace kvtier::test
