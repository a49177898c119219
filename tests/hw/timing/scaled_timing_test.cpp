#include "hw/timing/scaled_timing.hpp"

#include <array>

#include <gtest/gtest.h>

#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kMs = 1'000'000;

/// A prefill takes 10 ms for each new token and running request, and 1 ms more for each context
/// beyond the window of 100 tokens; a layer a tenth of that. Decode takes 4 ms and 1 us for each
/// token of context, and half a microsecond for each token within the window.
class WindowTiming final : public TimingModel {
 public:
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t) const override {
    return pieces_;
  }
  [[nodiscard]] WarmUp warm_up() const override { return {.second = SimDuration(3 * kMs)}; }
  [[nodiscard]] SimDuration idle_gap() const override { return SimDuration(30 * kMs); }
  [[nodiscard]] SimDuration decode_layer(std::int64_t, Tokens) const override {
    return SimDuration(kMs);
  }
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens) const override {
    const std::int64_t tokens = parts[0].added.value + batch;
    return {.total = SimDuration(10 * kMs * tokens),
            .layer = SimDuration(kMs * tokens),
            .warm_up = {.cold = SimDuration(kMs / 2),
                        .second = SimDuration(-kMs / 2),
                        .warm = SimDuration(-3 * kMs / 2)},
            .extrapolated = true};
  }
  [[nodiscard]] PrefillTime iteration_of(std::span<const PrefillPart> parts,
                                         std::span<const Tokens> contexts) const override {
    PrefillTime time = iteration(parts, static_cast<std::int64_t>(contexts.size()), Tokens(0));
    for (const Tokens context : contexts) {
      time.total += SimDuration(context > windows_[0] ? kMs : 0);
    }
    return time;
  }
  [[nodiscard]] std::span<const Tokens> windows() const override { return windows_; }
  [[nodiscard]] std::span<const std::int64_t> window_slopes(std::int64_t) const override {
    return slopes_;
  }

 private:
  std::vector<DecodePiece> pieces_{
      {.from = Tokens(0), .base = 4 * kMs * kTicksPerNs, .slope = 1000 * kTicksPerNs}};
  std::array<Tokens, 1> windows_{Tokens(100)};
  std::array<std::int64_t, 1> slopes_{500 * kTicksPerNs};
};

TEST(ScaledTiming, MultipliesPrefillsAndTheirOverheads) {
  const WindowTiming usual;
  const ScaledTiming scaled(usual, 1.5, 0.5);
  const PrefillPart part{.added = Tokens(2), .past = Tokens(0)};
  const PrefillTime time = scaled.prefill({&part, 1});
  EXPECT_EQ(time.total, SimDuration(30 * kMs));
  EXPECT_EQ(time.layer, SimDuration(3 * kMs));
  EXPECT_EQ(time.after(0) - time.after(1), SimDuration(3 * kMs / 2));
  EXPECT_EQ(time.after(0) - time.after(2), SimDuration(3 * kMs));
  EXPECT_TRUE(time.extrapolated);
  EXPECT_EQ(scaled.idle_gap(), usual.idle_gap());
}

TEST(ScaledTiming, MultipliesDecodes) {
  const WindowTiming usual;
  const ScaledTiming scaled(usual, 1.5, 0.5);
  // The window holds 100 of 1,000 tokens.
  EXPECT_EQ(usual.decode_duration(1, Tokens(1000)), SimDuration(5 * kMs + kMs / 20));
  EXPECT_EQ(scaled.decode_duration(1, Tokens(1000)), SimDuration(5 * kMs / 2 + kMs / 40));
  EXPECT_EQ(scaled.decode_layer(1, Tokens(0)), SimDuration(kMs / 2));
  EXPECT_EQ(scaled.decode_warm_up(1), SimDuration(3 * kMs / 2));
  EXPECT_EQ(scaled.decode_warm_up(2), SimDuration(0));
}

// Two contexts of 90 and 190 tokens: one is beyond the window. Their mean is, too.
TEST(ScaledTiming, KnowsTheContextOfEachRequest) {
  const WindowTiming usual;
  const ScaledTiming scaled(usual, 2, 1);
  const PrefillPart part{.added = Tokens(1), .past = Tokens(0)};
  const std::array contexts{Tokens(90), Tokens(190)};
  EXPECT_EQ(scaled.iteration_of({&part, 1}, contexts).total, SimDuration(62 * kMs));
}

TEST(ScaledTiming, RefusesTimesBeyond64Bits) {
  const WindowTiming usual;
  const ScaledTiming scaled(usual, 1e13, 1e13);
  const PrefillPart part{.added = Tokens(1), .past = Tokens(0)};
  EXPECT_THROW((void)scaled.prefill({&part, 1}), ConfigError);
  EXPECT_THROW((void)scaled.decode(1), ConfigError);
}

}  // namespace
}  // namespace kvtier
