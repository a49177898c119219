/// Transfers beside computing, in the examples of AttentionStore's figures 6 (pre-loading) and 8
/// (asynchronous saving).

#include "sim/backend/observed_backend.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/sim/serving/support.hpp"

// A prefill takes 1 ms for each token without KV, a decode iteration 10 ms; a stored token moves in
// 1 ms, either way at the same time.
namespace kvtier::test {
namespace {

/// Spans of GPU work and of transfers as text, "session: what begin-end" in ms.
class SpanRecorder final : public RunObserver {
 public:
  void on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
              std::int64_t) override {
    gpu.push_back(text(session, to_string(activity), begin, end));
  }
  void on_transfer(const TransferRecord& t) override {
    (t.to == Medium::hbm ? loads : saves)
        .push_back(text(static_cast<std::int64_t>(t.key.value),
                        fmt::format("{} tokens", t.bytes / kTokenBytes), t.begin, t.end));
  }

  std::vector<std::string> gpu;
  std::vector<std::string> loads;
  std::vector<std::string> saves;

 private:
  static std::string text(std::int64_t session, const std::string& what, SimTime begin,
                          SimTime end) {
    const auto ms = [](SimTime time) { return static_cast<double>(time.ns) * 1e-6; };
    return fmt::format("{}: {} {:.6g}-{:.6g}", session, what, ms(begin), ms(end));
  }
};

using Spans = std::vector<std::string>;

/// Session 0 has 15 tokens stored and comes back `think` ms after its first turn, which ends at 50;
/// session 1 runs from 50 to 200. One slot, the read buffer holds 2 of 5 layers. Without
/// `transfers` the backend is not watched.
SpanRecorder observe(std::int64_t think, SimDuration latency = {}, bool transfers = true) {
  RunConfig config = tiny_config();
  set_latency(config.hardware.links.pcie, latency);
  config.system.tiers.dram = tier();
  config.system.load.buffers = 2;
  const PolicyRegistry registry = builtin_policies();
  const ConstantTiming timing(kMillisecond, for_ms(10));
  SimulatedBackend simulated(config.hardware, config.model.layers, timing,
                             DecodeStepping::closed_form);
  ScriptedSource sessions(
      {session(0, {turn(10, 5), turn(3, 2, think)}), session(5, {turn(50, 11)})});
  SpanRecorder recorder;
  ObservedBackend watched(simulated, recorder);
  Backend& backend = transfers ? static_cast<Backend&>(watched) : simulated;
  Instance instance({.config = &config,
                     .registry = &registry,
                     .backend = &backend,
                     .sessions = &sessions,
                     .observer = &recorder,
                     .decisions = nullptr,
                     .progress = {}});
  instance.run();
  simulated.check_drained();
  return recorder;
}

// 2 layers (6 tokens) of the second turn are loaded as soon as it waits, and the other 9 tokens
// from 200 on. Layers compute for 0.6 ms and load in 3: the last one is there at 209.
const Spans kGpu{"0: prefill 0-10",    "-1: decode 10-50",     "1: prefill 50-100",
                 "-1: decode 100-200", "0: prefill 200-209.6", "-1: decode 209.6-219.6"};

TEST(PreLoading, LoadsOverlapTheDecodeOfTheRequestBefore) {
  const SpanRecorder recorder = observe(60);
  EXPECT_EQ(recorder.gpu, kGpu);
  EXPECT_EQ(recorder.loads, (Spans{"0: 6 tokens 110-116", "0: 9 tokens 200-209"}));
}

TEST(PreLoading, LoadsOverlapThePrefillOfTheRequestBefore) {
  const SpanRecorder recorder = observe(20);
  EXPECT_EQ(recorder.gpu, kGpu);
  EXPECT_EQ(recorder.loads, (Spans{"0: 6 tokens 70-76", "0: 9 tokens 200-209"}));
}

TEST(AsynchronousSaving, OverlapsDecodeAndTheNextRequest) {
  const SpanRecorder recorder = observe(60);
  // The prompt's KV is saved while its own decode runs. The KV of session 0's decode is saved
  // during session 1's prefill, and that of session 1's decode during the next prefill. From 209.6
  // on, its last 1.4 tokens share the link with the next prompt's KV, which keeps the link busy
  // until 231.
  EXPECT_EQ(recorder.saves,
            (Spans{"0: 10 tokens 10-20", "0: 5 tokens 50-55", "1: 50 tokens 100-150",
                   "1: 11 tokens 200-212.4", "0: 20 tokens 209.6-231"}));
}

// An open transfer may have moved all its bytes and not be complete yet when it is extended.
TEST(ObservedBackend, ChangesNothingWithLatencies) {
  for (std::int64_t think = 1; think < 200; ++think) {
    for (const std::int64_t latency : {1, 4, 13}) {
      SCOPED_TRACE(fmt::format("think {} ms, latency {} ms", think, latency));
      const SpanRecorder recorder = observe(think, for_ms(latency));
      EXPECT_EQ(recorder.gpu, observe(think, for_ms(latency), false).gpu);
      EXPECT_FALSE(recorder.saves.empty());
    }
  }
}

}  // namespace
}  // namespace kvtier::test
