#include "sim/study/validate/passes.hpp"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

/// A prefill takes 10 ms for each new token, a layer a tenth of that, and 2 ms less in a run, 1 as
/// its second pass; decode 4 ms and 1 us for each token of context, and 3 ms more there.
class SimpleTiming final : public TimingModel {
 public:
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t) const override {
    return pieces_;
  }
  [[nodiscard]] SimDuration decode_layer(std::int64_t, Tokens) const override {
    return SimDuration(1000000);
  }
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens) const override {
    const std::int64_t tokens = parts[0].added.value + batch;
    return {.total = SimDuration(10000000 * tokens),
            .layer = SimDuration(1000000 * tokens),
            .warm_up = {.cold = SimDuration(500000),
                        .second = SimDuration(-500000),
                        .warm = SimDuration(-1500000)}};
  }
  [[nodiscard]] WarmUp warm_up() const override { return {.second = SimDuration(3000000)}; }

 private:
  std::vector<DecodePiece> pieces_{
      {.from = Tokens(0), .base = 4000000 * kTicksPerNs, .slope = 1000 * kTicksPerNs}};
};

// Prefills of 3 and 2 (1 new, 1 decoding) tokens, and of 1 as second and as third of a run: 67 ms,
// 80.4 were measured. Decode of two iterations of a batch of 2, with 1,000 and 1,002 tokens of
// context: 5 and 5.002 ms, and once 3 ms more; half of that.
TEST(PassesOf, HavePaceOfMeasuredTimeOverPredictedTime) {
  const std::vector<ComputedWork> work{
      {.parts = {{.added = Tokens(3), .past = Tokens(0)}},
       .seconds = 0.035,
       .submit_seconds = 0.003},
      {.parts = {{.added = Tokens(1), .past = Tokens(9)}}, .batch = 1, .seconds = 0.025},
      {.parts = {{.added = Tokens(1), .past = Tokens(9)}}, .seconds = 0.0108, .passes_before = 1},
      {.parts = {{.added = Tokens(1), .past = Tokens(9)}}, .seconds = 0.0096, .passes_before = 2},
      {.batch = 2,
       .context = Tokens(1000),
       .iterations = 2,
       .seconds = 0.005001,
       .device_seconds = 0.004,
       .passes_before = 5},
      {.batch = 2,
       .context = Tokens(1000),
       .iterations = 2,
       .seconds = 0.006501,
       .device_seconds = 0.005,
       .passes_before = 1}};
  const Passes passes = passes_of(work, SimpleTiming());
  EXPECT_DOUBLE_EQ(passes.prefill.pace(), 1.2);
  EXPECT_DOUBLE_EQ(passes.decode.pace(), 0.5);
  EXPECT_EQ(passes.prefill.passes, 4);
  EXPECT_EQ(passes.decode.passes, 4);
  EXPECT_DOUBLE_EQ(passes.prefill.submission, 0.003);
  EXPECT_DOUBLE_EQ(passes.decode.device, 0.009);
}

TEST(PassesOf, HavePaceOfOneWithoutWork) {
  const Passes passes = passes_of({}, SimpleTiming());
  EXPECT_EQ(passes.prefill.pace(), 1);
  EXPECT_EQ(passes.decode.pace(), 1);
}

}  // namespace
}  // namespace kvtier
