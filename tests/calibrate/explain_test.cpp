#include "calibrate/explain.hpp"

#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/hw/tiny_profile.hpp"

namespace kvtier::calibrate {
namespace {

using namespace literals;

/// A layer takes 1 s for each new token and 1/4 s for each past one.
class StraightTiming final : public TimingModel {
 public:
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t,
                                      Tokens) const override {
    SimDuration layer;
    for (const PrefillPart& part : parts) {
      layer += 1_s * part.added.value + 250_ms * part.past.value;
    }
    return {.total = layer * 2, .layer = layer};
  }
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t) const override {
    return pieces_;
  }
  [[nodiscard]] SimDuration decode_layer(std::int64_t, Tokens) const override { return 1_s; }

 private:
  std::vector<DecodePiece> pieces_;
};

KvSource source(double bytes_per_second, SimDuration latency = {}) {
  const BytesPerSecond rate(bytes_per_second);
  return {"dram", rate, [=](Bytes bytes) { return transfer_duration(bytes, rate) + latency; }};
}

// KV of the tiny model is 8 B a token and layer, 16 B a token.

TEST(HiddenPast, IsWhereLoadingTakesAsLongAsThePrefill) {
  // 16 B/s: P s to load, 2 x (4 + P/4) = 8 + P/2 to compute; equal at P = 16.
  const StraightTiming timing;
  EXPECT_EQ(hidden_past(test::tiny_model(), timing, source(16), 4_tokens, 1000_tokens), 16_tokens);
  // At 8 B/s 2 P = 8 + P/2 at P = 5.33.
  EXPECT_EQ(hidden_past(test::tiny_model(), timing, source(8), 4_tokens, 1000_tokens), 5_tokens);
  // A latency of 4 s: 4 + P = 8 + P/2 at P = 8.
  EXPECT_EQ(hidden_past(test::tiny_model(), timing, source(16, 4_s), 4_tokens, 1000_tokens),
            8_tokens);
}

TEST(HiddenPast, EndsAtTheContextWindow) {
  EXPECT_EQ(hidden_past(test::tiny_model(), StraightTiming(), source(16), 4_tokens, 10_tokens),
            10_tokens);
}

TEST(ReadBuffers, AreThoseOfTheLayerPipeline) {
  // 40 tokens at 16 B/s load in 40 s, 20 s a layer; 4 new ones take 2 x (4 + 10) = 28 s, 14 a
  // layer. S_buf = 16 B/s x (40 - 28) = 192 B. To never wait: max(20, 40 - 14) = 26 s, 416 B, 2
  // layers.
  const ReadBuffer buffer =
      read_buffer(test::tiny_model(), StraightTiming(), source(16), 40_tokens, 4_tokens);
  EXPECT_EQ(buffer.load, 40_s);
  EXPECT_EQ(buffer.prefill, 28_s);
  EXPECT_EQ(buffer.attentionstore, Bytes(192));
  EXPECT_EQ(buffer.hides_loading, Bytes(416));
  EXPECT_EQ(buffer.layers, 2);
}

TEST(Explanation, HasAColumnForEachSource) {
  HardwareConfig hardware;
  hardware.gpu.name = "abacus";
  const std::string text = explain(test::tiny_model(), hardware, StraightTiming(), {source(4)}, {});
  // 32 new tokens take 2 x 32 = 64 s. At 4 B/s 4 P = 64 + P / 2 at P = 18.3.
  EXPECT_NE(text.find("6.4e+04 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("18 (0.562)"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvtier::calibrate
