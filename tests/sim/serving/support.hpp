#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hw/timing/timing_model.hpp"
#include "policies/registry.hpp"
#include "sim/backend/forwarding_backend.hpp"
#include "sim/backend/simulated_backend.hpp"
#include "sim/core/rng.hpp"
#include "sim/serving/config.hpp"
#include "sim/serving/instance.hpp"
#include "sim/store/sessions/truncation.hpp"
#include "traces/session.hpp"

/// A world with figures for mental arithmetic: KV of 1,000 bytes a token (200 in each of 5 layers),
/// links of 1,000,000 bytes/s, so that a token moves in 1 ms.
namespace kvtier::test {

inline constexpr std::int64_t kLayers = 5;
inline constexpr Bytes kTokenBytes{1000};
inline constexpr SimDuration kMillisecond{1000000};
inline constexpr double kMegabytePerSecond = 1e6;
/// The times of most tests: of a prompt's token without KV, and of a decode iteration.
inline constexpr SimDuration kPerToken = kMillisecond;
inline constexpr SimDuration kIteration = kMillisecond * 10;
inline constexpr std::array kSteppings = {DecodeStepping::closed_form,
                                          DecodeStepping::per_iteration};

[[nodiscard]] constexpr SimTime at_ms(std::int64_t ms) { return SimTime(ms * 1000000); }
[[nodiscard]] constexpr SimDuration for_ms(std::int64_t ms) { return SimDuration(ms * 1000000); }
[[nodiscard]] constexpr Bytes kv(std::int64_t tokens) { return kTokenBytes * tokens; }
[[nodiscard]] constexpr Truncation cut(std::int64_t dropped, std::int64_t kept = 0) {
  return {.kept = Tokens(kept), .dropped = Tokens(dropped)};
}

[[nodiscard]] inline ModelConfig tiny_model(Tokens window = Tokens(1000)) {
  ModelConfig model;
  model.name = "tiny";
  model.source = "made up for tests";
  model.layers = kLayers;
  model.hidden_size = 50;
  model.attention_heads = 1;
  model.kv_heads = 1;
  model.head_dim = 50;
  model.intermediate_size = 50;
  model.vocabulary_size = 50;
  model.context_window = window;
  return model;
}

[[nodiscard]] inline DuplexLimits limits(double forward, double backward, double both) {
  return {BytesPerSecond(forward), BytesPerSecond(backward), BytesPerSecond(both)};
}

/// Rates without latencies.
inline void set_rates(DuplexCurves& curves, const DuplexLimits& rates) {
  curves.forward = {};
  curves.backward = {};
  curves.forward.rate = rates.forward;
  curves.backward.rate = rates.backward;
  curves.both = rates.both;
}

inline void set_latency(DuplexCurves& curves, SimDuration latency) {
  curves.forward.latency = latency;
  curves.backward.latency = latency;
}

/// Throughput at queue depth 1 of the first `depth` bytes.
inline void set_alone(CurveStart& start, double rate, std::int64_t depth) {
  start.alone = BytesPerSecond(rate);
  start.depth = Bytes(depth);
}

[[nodiscard]] inline HardwareConfig tiny_hardware() {
  HardwareConfig hardware;
  hardware.name = "tiny";
  hardware.source = "made up for tests";
  hardware.gpus = 1;
  hardware.gpu = {.name = "tiny", .peak = FlopsPerSecond(1e8), .price = DollarsPerHour(1)};
  hardware.hbm = {.capacity = Bytes(1000000000), .bandwidth = BytesPerSecond(1e9)};
  hardware.dram = DramConfig{.capacity = Bytes(1000000),
                             .price = DollarsPerGibHour(1),
                             .bandwidth = std::nullopt,
                             .host_load = BytesPerSecond(0)};
  SsdConfig ssd;
  ssd.capacity = Bytes(10000000);
  ssd.price = DollarsPerGibHour(1);
  set_rates(ssd.bandwidth, limits(kMegabytePerSecond, kMegabytePerSecond, 2 * kMegabytePerSecond));
  hardware.ssd = ssd;
  set_rates(hardware.links.pcie,
            limits(kMegabytePerSecond, kMegabytePerSecond, 2 * kMegabytePerSecond));
  hardware.links.gpu = {.bandwidth = BytesPerSecond(1e9), .latency = SimDuration(0)};
  hardware.efficiency = {
      .compute = 1, .memory = 1, .gpu_link = 1, .iteration_overhead = kMillisecond};
  return hardware;
}

/// The lines of check_run_config.
[[nodiscard]] std::vector<std::string> problems_of(const RunConfig& config);

/// Without tiers; blocks of one token; a write buffer that never fills.
[[nodiscard]] inline RunConfig tiny_config(Tokens window = Tokens(1000)) {
  RunConfig config;
  config.model = tiny_model(window);
  config.hardware = tiny_hardware();
  config.system.save.write_buffer = Bytes(100000000);
  config.serving.slots = 1;
  config.workload.generator = Generator::sharegpt;
  config.workload.sessions = 10;
  config.workload.arrival_rate = PerSecond(1);
  return config;
}

[[nodiscard]] inline TierConfig tier(const std::string& eviction = "lru", bool inclusive = false) {
  TierConfig tier;
  tier.eviction.name = eviction;
  tier.inclusive = inclusive;
  tier.block_size = Tokens(1);
  return tier;
}

/// A prefill takes the same time for each added token, a decode iteration always the same, and one
/// that mixes both the sum.
class ConstantTiming final : public TimingModel {
 public:
  ConstantTiming(SimDuration per_token, SimDuration iteration)
      : per_token_(per_token), pieces_{{Tokens(0), iteration.ns * kTicksPerNs, 0}} {}

  [[nodiscard]] PrefillTime iteration(std::span<const PrefillPart> parts, std::int64_t batch,
                                      Tokens context) const override {
    SimDuration total;
    for (const PrefillPart& part : parts) {
      total += per_token_ * part.added.value;
    }
    PrefillTime time{.total = total, .layer = total / kLayers};
    if (batch > 0) {
      time.total += decode_duration(batch, context);
      time.layer += decode_layer(batch, context);
    }
    return time;
  }
  [[nodiscard]] const std::vector<DecodePiece>& decode(std::int64_t) const override {
    return pieces_;
  }
  [[nodiscard]] SimDuration decode_layer(std::int64_t, Tokens) const override {
    return SimDuration(pieces_[0].base / kTicksPerNs / kLayers);
  }

 private:
  SimDuration per_token_;
  std::vector<DecodePiece> pieces_;
};

/// Gives the sessions it was made with; ids count from 0.
class ScriptedSource final : public SessionSource {
 public:
  /// The streams of contents fork from none.
  explicit ScriptedSource(std::vector<SessionSpec> sessions) : sessions_(std::move(sessions)) {
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      sessions_[i].id = static_cast<std::int64_t>(i);
      for (const TurnContent& content : sessions_[i].contents) {
        while (!streams_.is_open(content.prompt.stream)) {
          streams_.open();
        }
      }
    }
  }
  [[nodiscard]] Streams* streams() override { return streams_.size() == 0 ? nullptr : &streams_; }
  bool next(SessionSpec& session) override {
    if (given_ == sessions_.size()) {
      return false;
    }
    session = sessions_[given_++];
    return true;
  }

 private:
  std::vector<SessionSpec> sessions_;
  Streams streams_;
  std::size_t given_ = 0;
};

[[nodiscard]] inline Turn turn(std::int64_t user, std::int64_t assistant,
                               std::int64_t think_ms = 0) {
  return {Tokens(user), Tokens(assistant), for_ms(think_ms)};
}
[[nodiscard]] inline SessionSpec session(std::int64_t arrival_ms, std::vector<Turn> turns) {
  return {.id = 0, .arrival = at_ms(arrival_ms), .turns = std::move(turns)};
}
/// A session that begins with a shared prompt of so many tokens.
[[nodiscard]] inline SessionSpec session_of_prompt(std::int64_t arrival_ms, std::int64_t prompt,
                                                   std::int64_t tokens, std::vector<Turn> turns) {
  SessionSpec made = session(arrival_ms, std::move(turns));
  made.shared_prompt = {.id = prompt, .tokens = Tokens(tokens)};
  return made;
}

/// Keeps every finished turn and every span of GPU work.
class Recorder final : public RunObserver {
 public:
  struct Span {
    GpuActivity activity;
    SimTime begin;
    SimTime end;
    std::int64_t session;
    std::int64_t batch;
  };
  void on_request(const RequestRecord& record) override { requests.push_back(record); }
  void on_gpu(GpuActivity activity, SimTime begin, SimTime end, std::int64_t session,
              std::int64_t batch) override {
    spans.push_back({activity, begin, end, session, batch});
  }
  [[nodiscard]] const RequestRecord& request(std::int64_t session, std::int64_t turn) const {
    for (const RequestRecord& record : requests) {
      if (record.session == session && record.turn == turn) {
        return record;
      }
    }
    throw std::out_of_range("no such request");
  }

  std::vector<RequestRecord> requests;
  std::vector<Span> spans;
};

/// One run of scripted sessions on the simulated backend.
struct ScriptedRun {
  RunConfig config;
  PolicyRegistry registry = builtin_policies();
  ConstantTiming timing;
  SimulatedBackend backend;
  ScriptedSource source;
  Recorder recorder;
  Instance instance;

  ScriptedRun(RunConfig run_config, SimDuration prefill_per_token, SimDuration iteration,
              std::vector<SessionSpec> sessions,
              DecodeStepping stepping = DecodeStepping::closed_form)
      : config(std::move(run_config)),
        timing(prefill_per_token, iteration),
        backend(config.hardware, config.model.layers, timing, stepping),
        source(std::move(sessions)),
        instance({.config = &config,
                  .registry = &registry,
                  .backend = &backend,
                  .sessions = &source,
                  .observer = &recorder,
                  .decisions = nullptr,
                  .progress = {}}) {}
  void run() {
    instance.run();
    backend.check_drained();
  }
  [[nodiscard]] const RequestRecord& request(std::int64_t session, std::int64_t turn) const {
    return recorder.request(session, turn);
  }
};

/// Expects a request to have these times, in milliseconds.
void expect_times(const RequestRecord& request, std::int64_t arrived, std::int64_t admitted,
                  std::int64_t first_token, std::int64_t finished);
void expect_times(const RequestRecord& request, std::int64_t admitted, std::int64_t first_token,
                  std::int64_t finished);

/// Adds up the bytes that another backend moves between the media.
class CountingBackend final : public ForwardingBackend {
 public:
  explicit CountingBackend(Backend& backend) : ForwardingBackend(backend) {}

  TransferId start_transfer(const TransferCommand& command) override {
    const TransferId id = backend_.start_transfer(command);
    paths_[id.value] = {command.from, command.to};
    moved(command.from, command.to) += command.bytes;
    return id;
  }
  [[nodiscard]] bool extend_transfer(TransferId transfer, Bytes bytes, Tokens first,
                                     Tokens end) override {
    if (!backend_.extend_transfer(transfer, bytes, first, end)) {
      return false;
    }
    moved(paths_[transfer.value].first, paths_[transfer.value].second) += bytes;
    return true;
  }
  [[nodiscard]] Bytes& moved(Medium from, Medium to) {
    return moved_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }

 private:
  std::map<std::uint32_t, std::pair<Medium, Medium>> paths_;
  std::array<std::array<Bytes, kMedia>, kMedia> moved_{};
};

/// A small run of random parts: tiers too small for their KV, links from idle to overloaded. Every
/// valid combination of switches can come up.
[[nodiscard]] RunConfig random_config(std::uint64_t seed);

/// The same config with a random model that has windows, and perhaps states, an indexer and
/// experts.
[[nodiscard]] RunConfig with_windows(RunConfig config, std::uint64_t seed);

/// The calls that a policy gets about entries, such as "insert 3", "hit 3", "release 3 with 12"
/// (tokens) and "remove 3", by key.
using LifeLog = std::vector<std::string>;

/// The policies of kvtier, and "told", which is another one that also writes into `log`.
[[nodiscard]] PolicyRegistry policies_and_told(LifeLog& log, const std::string& as = "lru");

}  // namespace kvtier::test
