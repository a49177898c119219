#include "sim/backend/simulated_backend.hpp"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hw/timing/layer_pipeline.hpp"
#include "sim/backend/topology.hpp"
#include "tests/sim/serving/support.hpp"

namespace kvtier::test {
namespace {

/// Pieces at random knots; the slope may be zero.
std::vector<DecodePiece> random_pieces(RandomStream& random) {
  std::vector<DecodePiece> pieces{{Tokens(0), 1 + random.index(1 << 22), random.index(5000)}};
  const std::int64_t more = random.index(6);
  for (std::int64_t i = 0; i < more; ++i) {
    pieces.push_back({pieces.back().from + Tokens(1 + random.index(400)), 1 + random.index(1 << 22),
                      random.index(5000)});
  }
  return pieces;
}

/// The reference: each iteration's own piece, found from the front.
std::int64_t ticks_one_by_one(const std::vector<DecodePiece>& pieces, std::int64_t batch,
                              std::int64_t context, std::int64_t iterations) {
  std::int64_t ticks = 0;
  for (std::int64_t i = 0; i < iterations; ++i, context += batch) {
    const DecodePiece* holds = nullptr;
    for (const DecodePiece& piece : pieces) {
      if (piece.from.value <= context) {
        holds = &piece;
      }
    }
    ticks += holds->base + holds->slope * context;
  }
  return ticks;
}

TEST(DecodeSum, EqualsTheSumOverIterationsToTheTick) {
  RandomStream random(1, "tests/decode_sum");
  for (int trial = 0; trial < 2000; ++trial) {
    const auto pieces = random_pieces(random);
    const std::int64_t batch = 1 + random.index(30);
    const std::int64_t context = random.index(2500);
    const std::int64_t iterations = 1 + random.index(200);
    ASSERT_EQ(sum_decode_ticks(pieces, batch, Tokens(context), iterations),
              ticks_one_by_one(pieces, batch, context, iterations));
  }
}

// 2^63 ticks are 104 days.
TEST(DecodeSum, RefusesADecodeBeyond64BitsOfTicks) {
  const std::int64_t day = 86400 * std::int64_t{1000000000} * kTicksPerNs;
  const std::vector<DecodePiece> pieces{{Tokens(0), day, 0}};
  EXPECT_EQ(sum_decode_ticks(pieces, 1, Tokens(0), 104), 104 * day);
  EXPECT_THROW(static_cast<void>(sum_decode_ticks(pieces, 1, Tokens(0), 105)), ConfigError);
  const std::vector<DecodePiece> steep{{Tokens(0), 0, day}};
  EXPECT_THROW(static_cast<void>(sum_decode_ticks(steep, 1, Tokens(0), 20)), ConfigError);
  EXPECT_THROW(static_cast<void>(steep[0].at(Tokens(200))), ConfigError);
}

TEST(DecodeSum, TakesEachIterationsPieceAtItsKnots) {
  // Contexts 9, 12, 15: knots at 10 and 15. 100 + 9x1, 200 + 0, 7 + 15x2.
  const std::vector<DecodePiece> pieces{
      {Tokens(0), 100, 1}, {Tokens(10), 200, 0}, {Tokens(15), 7, 2}};
  EXPECT_EQ(sum_decode_ticks(pieces, 3, Tokens(9), 3), 109 + 200 + 37);
  EXPECT_EQ(sum_decode_ticks(pieces, 3, Tokens(9), 0), 0);
}

/// Decode with any pieces; a prefill has layers and something outside of them.
class PieceTiming final : public TimingModel {
 public:
  PieceTiming(std::vector<DecodePiece> pieces, SimDuration layer, SimDuration outside,
              const WarmUp& warm_up = {})
      : pieces_(std::move(pieces)), layer_(layer), outside_(outside), warm_up_(warm_up) {}
  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart>, std::int64_t,
                                      Tokens) const override {
    return {.total = layer_ * kLayers + outside_, .layer = layer_, .warm_up = warm_up_};
  }
  [[nodiscard]] WarmUp warm_up() const override { return warm_up_; }
  [[nodiscard]] SimDuration idle_gap() const override { return for_ms(20); }
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t) const override {
    return pieces_;
  }
  [[nodiscard]] SimDuration decode_layer(std::int64_t, Tokens) const override { return layer_; }

 private:
  std::vector<DecodePiece> pieces_;
  SimDuration layer_;
  SimDuration outside_;
  WarmUp warm_up_;
};

struct Stopped {
  SimTime at;
  std::int64_t iterations;
  friend bool operator==(const Stopped&, const Stopped&) = default;
};

/// A decode that is asked to stop at each of these times.
Stopped stopped(const TimingModel& timing, DecodeStepping stepping, const DecodeCommand& command,
                SimTime begin, const std::vector<SimTime>& stops,
                SimDuration command_overhead = SimDuration(0)) {
  HardwareConfig hardware = tiny_hardware();
  hardware.efficiency.command_overhead = command_overhead;
  SimulatedBackend backend(hardware, kLayers, timing, stepping);
  backend.set_timer(begin, 0);
  EXPECT_EQ(backend.wait().kind, CompletionKind::timer);
  backend.start_decode(command);
  for (const SimTime stop : stops) {
    backend.set_timer(stop, 0);
  }
  while (true) {
    const Completion completion = backend.wait();
    if (completion.kind == CompletionKind::decode) {
      const Stopped result{backend.now(), static_cast<std::int64_t>(completion.payload)};
      while (backend.pending()) {
        backend.wait();
      }
      return result;
    }
    backend.stop_decode();
  }
}

TEST(SimulatedBackend, StopsADecodeAfterTheIterationInWork) {
  const ConstantTiming timing(kMillisecond, for_ms(10));
  const DecodeCommand command{.batch = 2, .context = Tokens(5), .iterations = 10};
  for (const DecodeStepping stepping :
       {DecodeStepping::closed_form, DecodeStepping::per_iteration}) {
    const auto stop = [&](std::int64_t at) {
      return stopped(timing, stepping, command, at_ms(100), {at_ms(at)});
    };
    EXPECT_EQ(stop(101), (Stopped{at_ms(110), 1}));
    EXPECT_EQ(stop(119), (Stopped{at_ms(120), 2}));
    // The next iteration has begun at the instant at which this one ends.
    EXPECT_EQ(stop(120), (Stopped{at_ms(130), 3}));
    EXPECT_EQ(stop(100), (Stopped{at_ms(110), 1}));
    EXPECT_EQ(stop(195), (Stopped{at_ms(200), 10}));
    EXPECT_EQ(stopped(timing, stepping, command, at_ms(100), {}), (Stopped{at_ms(200), 10}));
    EXPECT_EQ(stopped(timing, stepping, command, at_ms(100), {at_ms(115), at_ms(118)}),
              (Stopped{at_ms(120), 2}));
  }
}

TEST(SimulatedBackend, ADecodeBeginsAndIsReportedLaterThanItsCommandAndItsEnd) {
  const ConstantTiming timing(kMillisecond, for_ms(10));
  const DecodeCommand command{.batch = 2, .context = Tokens(5), .iterations = 10};
  for (const DecodeStepping stepping :
       {DecodeStepping::closed_form, DecodeStepping::per_iteration}) {
    const auto with = [&](const std::vector<SimTime>& stops) {
      return stopped(timing, stepping, command, at_ms(100), stops, for_ms(6));
    };
    // Iterations end at 113, 123, ... 203; the last one is known to have ended 3 ms later.
    EXPECT_EQ(with({}), (Stopped{at_ms(206), 10}));
    EXPECT_EQ(with({at_ms(100)}), (Stopped{at_ms(116), 1}));
    EXPECT_EQ(with({at_ms(112)}), (Stopped{at_ms(116), 1}));
    EXPECT_EQ(with({at_ms(113)}), (Stopped{at_ms(126), 2}));
    EXPECT_EQ(with({at_ms(115), at_ms(125)}), (Stopped{at_ms(126), 2}));
    EXPECT_EQ(with({at_ms(204)}), (Stopped{at_ms(206), 10}));
  }
}

TEST(SimulatedBackend, BothSteppingsStopAtTheSameNanosecond) {
  RandomStream random(2, "tests/stop_decode");
  for (int trial = 0; trial < 500; ++trial) {
    const auto pieces = random_pieces(random);
    const PieceTiming timing(pieces, kMillisecond, SimDuration(0));
    const DecodeCommand command{.batch = 1 + random.index(20),
                                .context = Tokens(random.index(1500)),
                                .iterations = 1 + random.index(60)};
    const SimTime asked(random.index(1000000));
    const SimDuration overhead(random.index(2) * random.index(1000000));
    const SimTime begin = asked + overhead / 2;
    const auto end_of = [&](std::int64_t iteration) {
      return begin +
             SimDuration(ticks_one_by_one(pieces, command.batch, command.context.value, iteration) /
                         kTicksPerNs);
    };
    std::vector<std::vector<SimTime>> all_stops{{}};
    for (int i = 0; i < 3; ++i) {
      all_stops.push_back(
          {begin + SimDuration(random.index((end_of(command.iterations) - begin).ns + 1))});
      // At an iteration's end, just before it and just after it.
      const SimTime boundary = end_of(1 + random.index(command.iterations));
      all_stops.push_back({boundary});
      all_stops.push_back({std::max(begin, boundary - SimDuration(1))});
      all_stops.push_back({std::min(end_of(command.iterations), boundary + SimDuration(1))});
    }
    for (const auto& stops : all_stops) {
      const auto with = [&](DecodeStepping stepping) {
        return stopped(timing, stepping, command, asked, stops, overhead);
      };
      const Stopped closed = with(DecodeStepping::closed_form);
      ASSERT_EQ(closed, with(DecodeStepping::per_iteration));
      ASSERT_EQ(closed.at, end_of(closed.iterations) + (overhead - overhead / 2));
      ASSERT_LE(closed.iterations, command.iterations);
    }
  }
}

// ---- Layer-wise loading (AttentionStore 3.2.1): n layers, load L and compute C for each ----

/// Time of a prefill whose load of `load` bytes begins at the same time.
SimDuration prefill_time(SimDuration layer, SimDuration outside, Bytes load, std::int64_t ready,
                         bool whole, const std::vector<Bytes>& sizes = {},
                         SimDuration command_overhead = SimDuration(0)) {
  const PieceTiming timing({{Tokens(0), 1, 0}}, layer, outside);
  HardwareConfig hardware = tiny_hardware();
  hardware.efficiency.command_overhead = command_overhead;
  SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
  backend.set_timer(at_ms(7), 0);
  backend.wait();
  PrefillCommand command{.part = {.added = Tokens(1), .past = Tokens(1)}, .key = {}};
  command.schedule = {.ready = ready, .sizes = sizes, .whole = whole};
  TransferId transfer;
  if (load.value > 0) {
    transfer = backend.start_transfer(
        {.from = Medium::dram, .to = Medium::hbm, .bytes = load, .key = {}, .cookie = 0});
    command.loads = {&transfer, 1};
  }
  backend.start_prefill(command);
  Completion completion;
  while ((completion = backend.wait()).kind != CompletionKind::prefill) {
  }
  EXPECT_EQ(SimDuration(static_cast<std::int64_t>(completion.payload)), layer * kLayers + outside);
  return backend.now() - at_ms(7);
}

TEST(SimulatedBackend, APrefillThatComputesLongerWaitsForTheFirstLayerOnly) {
  // L = 2 ms (2,000 bytes), C = 3 ms: L + nC = 17 ms > nL + C = 13 ms.
  EXPECT_EQ(prefill_time(for_ms(3), for_ms(0), Bytes(10000), 0, false), for_ms(17));
}

TEST(SimulatedBackend, APrefillThatLoadsLongerEndsOneLayerAfterTheLoad) {
  // L = 4 ms, C = 1 ms: nL + C = 21 ms > L + nC = 9 ms.
  EXPECT_EQ(prefill_time(for_ms(1), for_ms(0), Bytes(20000), 0, false), for_ms(21));
}

TEST(SimulatedBackend, WorkOutsideTheLayersComesAfterThem) {
  EXPECT_EQ(prefill_time(for_ms(3), for_ms(2), Bytes(10000), 0, false), for_ms(19));
  EXPECT_EQ(prefill_time(for_ms(1), for_ms(2), Bytes(20000), 0, false), for_ms(23));
}

TEST(SimulatedBackend, PassesAfterIdleTimeTakeTheirWarmUp) {
  // Five layers of 2 ms and 1 ms, of which 1 ms is the overhead of a cold pass. A second pass has
  // no overhead, and a warm one saves 2 ms.
  const PieceTiming timing({{Tokens(0), 1000000 * kTicksPerNs, 0}}, for_ms(2), for_ms(1),
                           {.cold = for_ms(1), .second = for_ms(0), .warm = for_ms(-2)});
  SimulatedBackend backend(tiny_hardware(), kLayers, timing, DecodeStepping::closed_form);
  const PrefillCommand command{.part = {.added = Tokens(1), .past = Tokens(0)}, .key = {}};
  const auto wait_until = [&](SimTime time) {
    backend.set_timer(time, 0);
    backend.wait();
  };
  const auto prefill = [&] {
    const SimTime begin = backend.now();
    backend.start_prefill(command);
    const Completion done = backend.wait();
    EXPECT_EQ(static_cast<std::int64_t>(done.payload), (backend.now() - begin).ns);
    return backend.now() - begin;
  };
  const auto decode = [&] {
    const SimTime begin = backend.now();
    backend.start_decode({.batch = 1, .context = Tokens(5), .iterations = 3});
    backend.wait();
    return backend.now() - begin;
  };
  EXPECT_EQ(prefill(), for_ms(11));
  EXPECT_EQ(prefill(), for_ms(10));
  wait_until(backend.now() + timing.idle_gap() - SimDuration(1));
  EXPECT_EQ(prefill(), for_ms(8));
  EXPECT_EQ(decode(), for_ms(3));
  wait_until(backend.now() + timing.idle_gap());
  EXPECT_EQ(prefill(), for_ms(11));
  // The second pass takes 2 ms longer than a warm one.
  EXPECT_EQ(decode(), for_ms(5));
  // The first of three iterations as a cold pass takes 3 ms longer.
  wait_until(backend.now() + timing.idle_gap());
  EXPECT_EQ(decode(), for_ms(6));
  EXPECT_EQ(prefill(), for_ms(8));
  // With a load that ends after 7 ms, the last layer computes then. The time outside of layers is
  // not negative.
  PrefillCommand loads = command;
  const TransferId transfer = backend.start_transfer(
      {.from = Medium::dram, .to = Medium::hbm, .bytes = Bytes(7000), .key = {}, .cookie = 0});
  loads.loads = {&transfer, 1};
  const SimTime begin = backend.now();
  backend.start_prefill(loads);
  while (backend.wait().kind != CompletionKind::prefill) {
  }
  EXPECT_EQ(backend.now() - begin, std::max(SimDuration(7'000'000 / 5) + for_ms(8), for_ms(9)));
}

TEST(SimulatedBackend, LayersLoadedBeforehandHideTheRest) {
  // b = 2 of 5 layers are there: max(nC, (n - b)L + C). L = 4: max(5, 12 + 1) = 13;
  // L = 2, C = 3: max(15, 6 + 3) = 15, nothing is exposed.
  EXPECT_EQ(prefill_time(for_ms(1), for_ms(0), Bytes(12000), 2, false), for_ms(13));
  EXPECT_EQ(prefill_time(for_ms(3), for_ms(0), Bytes(6000), 2, false), for_ms(15));
}

/// A transfer of so many bytes and a prefill that waits for it, on links with latencies.
SimDuration prefill_time_with_latency(Medium from, SimDuration layer, Bytes load,
                                      const CurveStart& drive = {}) {
  HardwareConfig hardware = tiny_hardware();
  static_cast<CurveStart&>(hardware.ssd->bandwidth.forward) = drive;
  set_latency(hardware.links.pcie, for_ms(5));
  set_latency(hardware.ssd->bandwidth, for_ms(20));
  const PieceTiming timing({{Tokens(0), 1, 0}}, layer, for_ms(0));
  SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
  PrefillCommand command{.part = {.added = Tokens(1), .past = Tokens(1)}, .key = {}};
  const TransferId transfer = backend.start_transfer(
      {.from = from, .to = Medium::hbm, .bytes = load, .key = {}, .cookie = 0});
  command.loads = {&transfer, 1};
  backend.start_prefill(command);
  while (backend.wait().kind != CompletionKind::prefill) {
  }
  backend.check_drained();
  return backend.now() - SimTime(0);
}

TEST(SimulatedBackend, ALoadsLatencyComesBeforeItsFirstLayer) {
  // 10,000 bytes take 10 ms, a layer 2. C = 3: 5 + 2 + 15; C = 1: 5 + 10 + 1.
  EXPECT_EQ(prefill_time_with_latency(Medium::dram, for_ms(3), Bytes(10000)), for_ms(22));
  EXPECT_EQ(prefill_time_with_latency(Medium::dram, for_ms(1), Bytes(10000)), for_ms(16));
}

TEST(SimulatedBackend, ATransferOverTwoLinksWaitsForBoth) {
  const HardwareConfig hardware = tiny_hardware();
  const double read =
      std::min(hardware.ssd->bandwidth.forward.rate, hardware.links.pcie.forward.rate).value;
  const SimDuration load = duration_from_seconds(10000 / read);
  // The last layer computes when all is there.
  const SimDuration layer(1);
  EXPECT_NEAR(prefill_time_with_latency(Medium::ssd, layer, Bytes(10000)).seconds(),
              (for_ms(25) + load + layer).seconds(), 1e-8);
}

TEST(SimulatedBackend, TheStartOfADrivesCurveIsSpreadOverTheLayersOfALoad) {
  // 10,000 bytes take 10 ms and the first 4,000 of them 4 ms more. C = 3: 25 + 14 / 5 + 15; C = 1:
  // 25 + 14 + 1.
  const CurveStart one{.alone = BytesPerSecond(0.5e6), .depth = Bytes(4000)};
  EXPECT_EQ(prefill_time_with_latency(Medium::ssd, for_ms(3), Bytes(10000), one),
            SimDuration(42800000));
  EXPECT_EQ(prefill_time_with_latency(Medium::ssd, for_ms(1), Bytes(10000), one), for_ms(40));
}

/// When 20,000 bytes from host memory have been moved, at 1 MB/s and half of it beside compute.
SimTime copied_beside(DecodeStepping stepping,
                      const std::function<void(SimulatedBackend&, TransferId)>& start) {
  HardwareConfig hardware = tiny_hardware();
  hardware.contention = {
      {.on = ContendedWay::pcie_to_device, .while_work = ContendingWork::compute, .left = 0.5}};
  const PieceTiming timing({{Tokens(0), 2000000 * kTicksPerNs, 0}}, for_ms(2), for_ms(0));
  SimulatedBackend backend(hardware, kLayers, timing, stepping);
  start(backend, backend.start_transfer({.from = Medium::dram,
                                         .to = Medium::hbm,
                                         .bytes = Bytes(20000),
                                         .key = {},
                                         .cookie = 0}));
  SimTime copied = kNever;
  while (backend.pending()) {
    if (backend.wait().kind == CompletionKind::transfer) {
      copied = backend.now();
    }
  }
  backend.check_drained();
  return copied;
}

TEST(SimulatedBackend, CopiesAreSlowerWhileTheGpuComputes) {
  for (const auto stepping : {DecodeStepping::closed_form, DecodeStepping::per_iteration}) {
    EXPECT_EQ(copied_beside(stepping, [](SimulatedBackend&, TransferId) {}), at_ms(20));
    // 10 ms of a prefill move 5,000 bytes, the other 15,000 take 15 ms.
    EXPECT_EQ(copied_beside(stepping,
                            [](SimulatedBackend& backend, TransferId) {
                              backend.start_prefill(
                                  {.part = {.added = Tokens(1), .past = Tokens(0)}, .key = {}});
                            }),
              at_ms(25));
    // Three iterations of 2 ms move 3,000.
    EXPECT_EQ(
        copied_beside(stepping,
                      [](SimulatedBackend& backend, TransferId) {
                        backend.start_decode({.batch = 1, .context = Tokens(5), .iterations = 3});
                      }),
        at_ms(23));
    // A prefill that computes layer by layer beside its load, and one that waits for all of it.
    for (const bool waits : {false, true}) {
      EXPECT_EQ(copied_beside(stepping,
                              [waits](SimulatedBackend& backend, TransferId load) {
                                PrefillCommand command{
                                    .part = {.added = Tokens(1), .past = Tokens(1)}, .key = {}};
                                command.loads = {&load, 1};
                                command.schedule.whole = waits;
                                backend.start_prefill(command);
                              }),
                waits ? at_ms(20) : at_ms(40));
    }
  }
}

TEST(SimulatedBackend, ADriveIsSlowerBesideCopiesAndOnItsOwnWayToTheGpu) {
  HardwareConfig hardware = tiny_hardware();
  hardware.contention = {
      {.on = ContendedWay::ssd_read, .while_work = ContendingWork::pcie, .left = 0.5}};
  const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
  for (const auto& [to, expected] : {std::pair{Medium::dram, 10}, std::pair{Medium::hbm, 20}}) {
    SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
    backend.start_transfer(
        {.from = Medium::ssd, .to = to, .bytes = Bytes(10000), .key = {}, .cookie = 0});
    backend.wait();
    EXPECT_EQ(backend.now(), at_ms(expected));
  }
  EXPECT_EQ(server_topology(hardware).edge(Medium::ssd, Medium::dram).idle_rate.value, 1e6);
  EXPECT_EQ(server_topology(hardware).edge(Medium::ssd, Medium::hbm).idle_rate.value, 5e5);
}

TEST(IdleBandwidth, IsTheBandwidthOfASingleMove) {
  HardwareConfig slow_cxl = tiny_hardware();
  slow_cxl.links.pcie.forward.rate = BytesPerSecond(0.9e6);
  slow_cxl.ssd->bandwidth.forward.rate = BytesPerSecond(0.8e6);
  slow_cxl.cxl = CxlConfig{.price = DollarsPerGibHour(1), .bandwidth = slow_cxl.ssd->bandwidth};
  slow_cxl.cxl->bandwidth.forward.rate = BytesPerSecond(0.7e6);
  slow_cxl.cxl->bandwidth.backward.rate = BytesPerSecond(0.6e6);
  HardwareConfig slow_memory = slow_cxl;
  slow_memory.dram->bandwidth = BytesPerSecond(1.1e6);
  slow_memory.dram->host_load = BytesPerSecond(0.5e6);
  HardwareConfig slow_drive = slow_cxl;
  slow_drive.contention = {
      {.on = ContendedWay::ssd_read, .while_work = ContendingWork::pcie, .left = 0.25}};
  const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
  using enum Medium;
  for (const HardwareConfig& hardware : {slow_cxl, slow_memory, slow_drive}) {
    for (const auto& [from, to] : {std::pair{dram, hbm},
                                   {cxl, hbm},
                                   {ssd, hbm},
                                   {cxl, dram},
                                   {ssd, dram},
                                   {dram, cxl},
                                   {ssd, cxl},
                                   {hbm, dram},
                                   {hbm, cxl},
                                   {hbm, ssd}}) {
      SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
      backend.start_transfer(
          {.from = from, .to = to, .bytes = Bytes(1000000), .key = {}, .cookie = 0});
      backend.wait();
      EXPECT_NEAR(1e6 / (backend.now() - SimTime()).seconds(),
                  server_topology(hardware).edge(from, to).idle_rate.value, 0.1)
          << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST(SimulatedBackend, ATransferToOrFromADriveBeginsAtTheRateOfQueueDepthOne) {
  HardwareConfig hardware = tiny_hardware();  // 1 byte takes 1 us on every link
  hardware.cxl = CxlConfig{.price = DollarsPerGibHour(1), .bandwidth = hardware.ssd->bandwidth};
  set_latency(hardware.ssd->bandwidth, for_ms(3));
  set_alone(hardware.ssd->bandwidth.forward, 0.5e6, 4000);
  set_alone(hardware.ssd->bandwidth.backward, 0.25e6, 4000);
  const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
  struct Case {
    Medium from;
    Medium to;
    std::int64_t bytes;
    std::int64_t expected;
  };
  using enum Medium;
  for (const Case& c :
       {Case{ssd, dram, 1000, 5}, Case{ssd, hbm, 4000, 11}, Case{ssd, dram, 10000, 17},
        Case{dram, ssd, 1000, 7}, Case{hbm, ssd, 10000, 25}, Case{dram, hbm, 1000, 1},
        Case{ssd, cxl, 1000, 5}, Case{cxl, ssd, 1000, 7}, Case{cxl, hbm, 1000, 1}}) {
    SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
    backend.start_transfer(
        {.from = c.from, .to = c.to, .bytes = Bytes(c.bytes), .key = {}, .cookie = 0});
    backend.wait();
    EXPECT_EQ(backend.now(), at_ms(c.expected)) << to_string(c.from) << " to " << to_string(c.to);
  }
  // An extension belongs to the same transfer: 2,000 bytes and 4,000 more in 6 ms, 4 for the first
  // request, and 3.
  SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
  const TransferId transfer = backend.start_transfer(
      {.from = ssd, .to = dram, .bytes = Bytes(2000), .key = {}, .cookie = 0, .open = true});
  EXPECT_TRUE(backend.extend_transfer(transfer, Bytes(4000), Tokens(0), Tokens(1)));
  backend.wait();
  EXPECT_EQ(backend.now(), at_ms(13));
  // Two at a time share the rate, and each has its first request.
  SimulatedBackend two(hardware, kLayers, timing, DecodeStepping::closed_form);
  for (int i = 0; i < 2; ++i) {
    two.start_transfer({.from = ssd, .to = dram, .bytes = Bytes(1000), .key = {}, .cookie = 0});
  }
  two.wait();
  EXPECT_EQ(two.now(), at_ms(2 + 1 + 3));
}

TEST(SimulatedBackend, TheRateOfQueueDepthOneIsAtMostThatOfTheEdge) {
  const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
  const auto arrives = [&](const HardwareConfig& hardware, Medium to) {
    SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
    backend.start_transfer(
        {.from = Medium::ssd, .to = to, .bytes = Bytes(1000), .key = {}, .cookie = 0});
    backend.wait();
    return backend.now();
  };
  HardwareConfig hardware = tiny_hardware();
  set_alone(hardware.ssd->bandwidth.forward, 0.5e6, 4000);
  set_alone(hardware.ssd->bandwidth.backward, 0.5e6, 4000);
  EXPECT_EQ(arrives(hardware, Medium::hbm), at_ms(2));
  // Over a slower link, or beside its own copy, it takes as long as any other byte.
  HardwareConfig narrow = hardware;
  narrow.links.pcie.forward.rate = BytesPerSecond(0.25e6);
  EXPECT_EQ(arrives(narrow, Medium::hbm), at_ms(4));
  EXPECT_EQ(arrives(narrow, Medium::dram), at_ms(2));
  HardwareConfig beside = hardware;
  beside.contention = {
      {.on = ContendedWay::ssd_read, .while_work = ContendingWork::pcie, .left = 0.5}};
  EXPECT_EQ(arrives(beside, Medium::hbm), at_ms(2));
  // It is never faster than all of the drives.
  hardware.ssd->bandwidth.forward.alone = BytesPerSecond(9e6);
  EXPECT_EQ(arrives(hardware, Medium::dram), at_ms(1));
}

TEST(SimulatedBackend, ALoadFromADriveHasItsOwnStart) {
  const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
  HardwareConfig hardware = tiny_hardware();
  set_latency(hardware.ssd->bandwidth, for_ms(20));
  set_alone(hardware.ssd->bandwidth.forward, 0.5e6, 4000);
  set_alone(hardware.ssd->bandwidth.backward, 0.5e6, 4000);
  hardware.ssd->bandwidth.load =
      CurveStart{.latency = for_ms(7), .alone = BytesPerSecond(0.25e6), .depth = Bytes(2000)};
  const auto arrives = [&](Medium to, std::int64_t bytes) {
    SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
    backend.start_transfer(
        {.from = Medium::ssd, .to = to, .bytes = Bytes(bytes), .key = {}, .cookie = 0});
    backend.wait();
    return backend.now();
  };
  // A byte takes 1 us, and 4 us by itself: 7 + 4; of 3,000 the first 2,000.
  EXPECT_EQ(arrives(Medium::hbm, 1000), at_ms(7 + 4));
  EXPECT_EQ(arrives(Medium::hbm, 3000), at_ms(7 + 8 + 1));
  // Other reads are no loads.
  EXPECT_EQ(arrives(Medium::dram, 1000), at_ms(20 + 2));
  // A load is never faster than its path.
  hardware.ssd->bandwidth.load->alone = BytesPerSecond(9e6);
  EXPECT_EQ(arrives(Medium::hbm, 1000), at_ms(7 + 1));
}

TEST(SimulatedBackend, TransfersEndInTheOrderOfTheirLatencies) {
  HardwareConfig hardware = tiny_hardware();
  set_latency(hardware.links.pcie, for_ms(50));
  const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
  SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
  const auto start = [&backend](Medium from, Medium to, std::uint64_t cookie) {
    backend.start_transfer(
        {.from = from, .to = to, .bytes = Bytes(10), .key = {}, .cookie = cookie});
  };
  start(Medium::hbm, Medium::dram, 1);
  start(Medium::dram, Medium::ssd, 2);
  EXPECT_EQ(backend.wait().payload, 2U);
  EXPECT_LT(backend.now(), at_ms(50));
  EXPECT_TRUE(backend.pending());
  EXPECT_EQ(backend.wait().payload, 1U);
  EXPECT_GT(backend.now(), at_ms(50));
  EXPECT_FALSE(backend.pending());
}

TEST(SimulatedBackend, LayersFollowTheScheduleOfThePipeline) {
  RandomStream random(3, "tests/simulated_backend");
  for (int trial = 0; trial < 500; ++trial) {
    // A byte takes 1,000 ns; what is left to load is at least one layer.
    const std::int64_t ready = random.index(kLayers);
    const LayerPipeline pipeline{.layers = kLayers,
                                 .load = SimDuration(1000 * (1 + random.index(5000))),
                                 .compute = SimDuration(1 + random.index(5000000)),
                                 .loaded_ahead = SimDuration(0)};
    const SimDuration outside(random.index(1000000));
    LayerPipeline ahead = pipeline;
    ahead.loaded_ahead = pipeline.load * ready;
    const Bytes rest(pipeline.load.ns / 1000 * (kLayers - ready));
    ASSERT_EQ(prefill_time(pipeline.compute, outside, rest, ready, false),
              pipelined_finish(ahead) + outside)
        << ready << " layers ready, load " << pipeline.load.ns << ", compute "
        << pipeline.compute.ns;
  }
}

// Layers of 200, 160, 120, 80 and 40 bytes a token, of 15 tokens: 9 ms of load. They are there
// after 3, 5.4, 7.2, 8.4 and 9 ms.
const std::vector<Bytes> kShrinkingLayers{Bytes(200), Bytes(360), Bytes(480), Bytes(560),
                                          Bytes(600)};

TEST(SimulatedBackend, UnequalLayersEachArriveAfterTheirOwnSize) {
  const auto time = [&](SimDuration layer, SimDuration outside) {
    return prefill_time(layer, outside, Bytes(9000), 0, false, kShrinkingLayers);
  };
  // Layer i ends the request (5 - i + 1) C after it is loaded. C = 3: 18, 17.4, 16.2, 14.4 and 12
  // ms: the first. (Equal layers: 1.8 + 15.)
  EXPECT_EQ(time(for_ms(3), for_ms(0)), for_ms(18));
  // C = 1.5: 10.5, 11.4, 11.7, 11.4 and 10.5 ms: the third.
  EXPECT_EQ(time(SimDuration(1500000), for_ms(0)), SimDuration(11700000));
  // C = 0.5: 5.5, 7.4, 8.7, 9.4 and 9.5 ms: the last, and 2 ms outside of the layers.
  EXPECT_EQ(time(SimDuration(500000), for_ms(2)), SimDuration(11500000));
}

TEST(SimulatedBackend, ResidentUnequalLayersLeaveTheRestToLoad) {
  // Two layers are there; the others' 240 x 15 bytes take 3.6 ms and arrive after 1.8, 3 and 3.6.
  const auto time = [&](SimDuration layer) {
    return prefill_time(layer, for_ms(0), Bytes(3600), 2, false, kShrinkingLayers);
  };
  // C = 0.6: 1.8 + 3 x 0.6, 3 + 2 x 0.6, 3.6 + 0.6.
  EXPECT_EQ(time(SimDuration(600000)), SimDuration(4200000));
  // C = 2: nothing waits.
  EXPECT_EQ(time(for_ms(2)), for_ms(10));
  // All of it comes first.
  EXPECT_EQ(prefill_time(for_ms(2), for_ms(0), Bytes(3600), 2, true, kShrinkingLayers),
            SimDuration(13600000));
}

TEST(SimulatedBackend, LayersOfOneSizeAreEqualLayers) {
  RandomStream random(4, "tests/simulated_backend");
  const std::vector<Bytes> same{Bytes(7), Bytes(14), Bytes(21), Bytes(28), Bytes(35)};
  for (int trial = 0; trial < 200; ++trial) {
    const SimDuration layer(1 + random.index(5000000));
    const Bytes load(1 + random.index(30000));
    ASSERT_EQ(prefill_time(layer, kMillisecond, load, 0, false, same),
              prefill_time(layer, kMillisecond, load, 0, false));
  }
}

TEST(SimulatedBackend, ABlockingLoadComesBeforeAllCompute) {
  EXPECT_EQ(prefill_time(for_ms(3), for_ms(2), Bytes(10000), 0, true), for_ms(10 + 15 + 2));
}

TEST(SimulatedBackend, APrefillWithoutALoadOnlyComputes) {
  EXPECT_EQ(prefill_time(for_ms(3), for_ms(2), Bytes(0), 5, true), for_ms(17));
}

// Half of a command's overhead comes before the first layer computes, and hides loading; half after
// the last one.
TEST(SimulatedBackend, APrefillWaitsForItsCommandAndItsReport) {
  const auto time = [](SimDuration layer, Bytes load, std::int64_t ready, bool whole,
                       const std::vector<Bytes>& sizes = {}) {
    return prefill_time(layer, for_ms(0), load, ready, whole, sizes, for_ms(6));
  };
  EXPECT_EQ(time(for_ms(3), Bytes(0), 5, false), for_ms(3 + 15 + 3));
  // A layer loads in 2 ms, less than the command takes; in 4 ms, more; or computes in 1 ms after
  // the last one was loaded.
  EXPECT_EQ(time(for_ms(3), Bytes(10000), 0, false), for_ms(3 + 15 + 3));
  EXPECT_EQ(time(for_ms(5), Bytes(20000), 0, false), for_ms(4 + 25 + 3));
  EXPECT_EQ(time(for_ms(1), Bytes(20000), 0, false), for_ms(20 + 1 + 3));
  // Two layers are there.
  EXPECT_EQ(time(for_ms(3), Bytes(6000), 2, false), for_ms(3 + 15 + 3));
  // All is waited for, and there before the command or after it.
  EXPECT_EQ(time(for_ms(3), Bytes(2000), 0, true), for_ms(3 + 15 + 3));
  EXPECT_EQ(time(for_ms(3), Bytes(10000), 0, true), for_ms(10 + 15 + 3));
  // Unequal layers: there after 3, 5.4, 7.2, 8.4 and 9 ms; or after a tenth of that.
  EXPECT_EQ(time(for_ms(3), Bytes(9000), 0, false, kShrinkingLayers), for_ms(18 + 3));
  // C = 1: they leave 5 to 1 ms of computing, so the fourth ends it at 10.4.
  EXPECT_EQ(time(for_ms(1), Bytes(9000), 0, false, kShrinkingLayers), SimDuration(13400000));
  EXPECT_EQ(time(for_ms(3), Bytes(900), 0, false, kShrinkingLayers), for_ms(3 + 15 + 3));
}

// ---- Links, order, misuse ----

TEST(SimulatedBackend, LoadsFromSsdToHbmCrossBothLinks) {
  const ConstantTiming timing(kMillisecond, kMillisecond);
  HardwareConfig hardware = tiny_hardware();
  set_rates(hardware.ssd->bandwidth, limits(5e5, 2.5e5, 1e6));
  SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
  backend.start_transfer(
      {.from = Medium::ssd, .to = Medium::hbm, .bytes = Bytes(1000), .key = {}, .cookie = 7});
  EXPECT_EQ(backend.wait().payload, 7U);
  EXPECT_EQ(backend.now(), at_ms(2));
  backend.start_transfer(
      {.from = Medium::hbm, .to = Medium::ssd, .bytes = Bytes(1000), .key = {}, .cookie = 8});
  EXPECT_EQ(backend.wait().payload, 8U);
  EXPECT_EQ(backend.now(), at_ms(6));
  EXPECT_EQ(backend.link_counters("pcie").forward, Bytes(1000));
  EXPECT_EQ(backend.link_counters("ssd").forward, Bytes(1000));
  EXPECT_EQ(backend.link_counters("pcie").backward, Bytes(1000));
  EXPECT_EQ(backend.link_counters("ssd").backward, Bytes(1000));
}

/// When 10,000 bytes from one medium to another arrive, beside 10,000 on their way between two
/// others.
SimTime arrival_beside(const HardwareConfig& hardware, Medium from, Medium to, Medium other_from,
                       Medium other_to) {
  const ConstantTiming timing(kMillisecond, kMillisecond);
  SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
  backend.start_transfer({.from = from, .to = to, .bytes = Bytes(10000), .key = {}, .cookie = 1});
  backend.start_transfer(
      {.from = other_from, .to = other_to, .bytes = Bytes(10000), .key = {}, .cookie = 2});
  while (backend.wait().payload != 1) {
  }
  return backend.now();
}

TEST(SimulatedBackend, CxlMemoryIsReachedBesideTheHost) {
  HardwareConfig hardware = tiny_hardware();
  hardware.cxl =
      CxlConfig{.capacity = Bytes(1000000), .price = DollarsPerGibHour(1), .bandwidth = {}};
  set_rates(hardware.cxl->bandwidth, limits(2e6, 1e6, 3e6));
  hardware.dram->bandwidth = BytesPerSecond(1e6);
  hardware.dram->host_load = BytesPerSecond(0.8e6);
  using enum Medium;
  // 10,000 B at 2 MB/s, independent of the host's link and memory.
  EXPECT_EQ(arrival_beside(hardware, cxl, hbm, dram, hbm), at_ms(5));
  // The same from DRAM takes 10,000 B / (1 - 0.8) MB/s, and twice that beside a read by the drive.
  EXPECT_EQ(arrival_beside(hardware, dram, hbm, cxl, hbm), at_ms(50));
  EXPECT_EQ(arrival_beside(hardware, dram, hbm, dram, ssd), at_ms(100));
  // Reads and writes of CXL memory have limits of their own.
  EXPECT_EQ(arrival_beside(hardware, hbm, cxl, cxl, hbm), at_ms(10));
  EXPECT_EQ(arrival_beside(hardware, cxl, hbm, cxl, ssd), at_ms(10));
}

TEST(SimulatedBackend, HostMemoryIsNoLimitUnlessItsBandwidthIsGiven) {
  using enum Medium;
  HardwareConfig hardware = tiny_hardware();
  // PCIe and the drive do 1 MB/s each, so that both transfers together need 2 MB/s of memory.
  EXPECT_EQ(arrival_beside(hardware, dram, hbm, dram, ssd), at_ms(10));
  hardware.dram->bandwidth = BytesPerSecond(2e6);
  EXPECT_EQ(arrival_beside(hardware, dram, hbm, dram, ssd), at_ms(10));
  hardware.dram->bandwidth = BytesPerSecond(1e6);
  EXPECT_EQ(arrival_beside(hardware, dram, hbm, dram, ssd), at_ms(20));
}

// 10,000 B over a link of 1 MB/s take 10 ms, over four of them 2.5, within 2 MB/s of memory 5.
TEST(SimulatedBackend, KvMovesOverTheHostLinksOfAllGpusWithinTheHostsMemory) {
  using enum Medium;
  HardwareConfig hardware = tiny_hardware();
  const auto moved = [&](Medium from, Medium to) {
    const PieceTiming timing({{Tokens(0), 1, 0}}, for_ms(1), for_ms(0));
    SimulatedBackend backend(hardware, kLayers, timing, DecodeStepping::closed_form);
    backend.start_transfer({.from = from, .to = to, .bytes = Bytes(10000), .key = {}, .cookie = 0});
    backend.wait();
    EXPECT_NEAR(1e4 / (backend.now() - SimTime()).seconds(),
                server_topology(hardware).edge(from, to).idle_rate.value, 1);
    return backend.now();
  };
  EXPECT_EQ(moved(dram, hbm), at_ms(10));
  hardware.gpus = 4;
  EXPECT_EQ(moved(dram, hbm).ns, at_ms(10).ns / 4);
  EXPECT_EQ(moved(hbm, dram).ns, at_ms(10).ns / 4);
  EXPECT_EQ(moved(ssd, hbm), at_ms(10)) << "the drives stay the server's";
  hardware.dram->bandwidth = BytesPerSecond(2e6);
  EXPECT_EQ(moved(dram, hbm), at_ms(5));
  EXPECT_EQ(moved(hbm, dram), at_ms(5));
  hardware.links.pcie.of = HostLinkOf::server;
  EXPECT_EQ(moved(dram, hbm), at_ms(10));
}

TEST(SimulatedBackend, AnOpenTransferIsReportedOnlyAfterItIsExtended) {
  const ConstantTiming timing(kMillisecond, kMillisecond);
  SimulatedBackend backend(tiny_hardware(), kLayers, timing, DecodeStepping::closed_form);
  const auto start = [&](std::uint64_t cookie) {
    return backend.start_transfer({.from = Medium::dram,
                                   .to = Medium::hbm,
                                   .bytes = Bytes(10000),  // 10 ms
                                   .key = {},
                                   .cookie = cookie,
                                   .open = true});
  };
  const TransferId ended = start(1);
  backend.set_timer(at_ms(20), 2);
  EXPECT_EQ(backend.wait().kind, CompletionKind::timer);
  EXPECT_FALSE(backend.pending());
  EXPECT_FALSE(backend.extend_transfer(ended, Bytes(10000), Tokens(0), Tokens(1)));
  EXPECT_FALSE(backend.pending());
  const TransferId moving = start(3);
  EXPECT_TRUE(backend.extend_transfer(moving, Bytes(5000), Tokens(0), Tokens(1)));
  EXPECT_EQ(backend.wait().payload, 3U);
  EXPECT_EQ(backend.now(), at_ms(35));
  backend.check_drained();
}

TEST(SimulatedBackend, ReportsCompletionsOfOneInstantByKindThenAsAskedFor) {
  for (const bool decodes : {false, true}) {
    const ConstantTiming timing(kMillisecond, for_ms(10));
    SimulatedBackend backend(tiny_hardware(), kLayers, timing, DecodeStepping::closed_form);
    backend.set_timer(at_ms(10), 1);
    backend.set_timer(at_ms(10), 2);
    backend.start_transfer(
        {.from = Medium::ssd, .to = Medium::dram, .bytes = Bytes(10000), .key = {}, .cookie = 3});
    backend.start_transfer(
        {.from = Medium::dram, .to = Medium::hbm, .bytes = Bytes(10000), .key = {}, .cookie = 4});
    if (decodes) {
      backend.start_decode({.batch = 1, .context = Tokens(1), .iterations = 1});
    } else {
      PrefillCommand command{.part = {.added = Tokens(10), .past = Tokens(0)}};
      backend.start_prefill(command);
    }
    EXPECT_EQ(backend.wait().kind, decodes ? CompletionKind::decode : CompletionKind::prefill);
    for (const std::uint64_t payload : {3, 4, 1, 2}) {
      const Completion completion = backend.wait();
      EXPECT_EQ(completion.kind, payload >= 3 ? CompletionKind::transfer : CompletionKind::timer);
      EXPECT_EQ(completion.payload, payload);
      EXPECT_EQ(backend.now(), at_ms(10));
    }
    EXPECT_FALSE(backend.pending());
    backend.check_drained();
  }
}

TEST(SimulatedBackend, RefusesMisuse) {
  const ConstantTiming timing(kMillisecond, for_ms(10));
  SimulatedBackend backend(tiny_hardware(), kLayers, timing, DecodeStepping::closed_form);
  EXPECT_THROW(backend.wait(), InvariantError);
  EXPECT_THROW(backend.stop_decode(), InvariantError);
  backend.start_decode({.batch = 1, .context = Tokens(1), .iterations = 1});
  EXPECT_THROW(backend.start_decode({.batch = 1, .context = Tokens(1), .iterations = 1}),
               InvariantError);
  EXPECT_THROW(backend.check_drained(), InvariantError);
  backend.wait();
  EXPECT_THROW(backend.set_timer(at_ms(9), 0), InvariantError);
}

}  // namespace
}  // namespace kvtier::test
