#include "tests/sim/serving/support.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/core/assert.hpp"

namespace kvtier::test {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : stream_(seed, "tests/random_config") {}

  [[nodiscard]] bool chance(double share) { return stream_.uniform() < share; }
  [[nodiscard]] std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + stream_.index(high - low + 1);
  }
  /// Every order of magnitude is as likely.
  [[nodiscard]] double scale(double low, double high) {
    return low * std::pow(high / low, stream_.uniform());
  }
  template <class T>
  [[nodiscard]] T one_of(std::initializer_list<T> values) {
    return *(values.begin() + stream_.index(static_cast<std::int64_t>(values.size())));
  }

 private:
  RandomStream stream_;
};

DuplexLimits random_link(Dice& dice) {
  const double forward = dice.scale(3e4, 3e7);
  const double backward = forward * dice.scale(0.2, 5);
  const double most = std::max(forward, backward);
  return limits(forward, backward,
                dice.one_of({most, (most + forward + backward) / 2, forward + backward,
                             3 * (forward + backward)}));
}

TierConfig random_tier(Dice& dice, const RunConfig& config, Bytes capacity) {
  TierConfig tier;
  tier.eviction.name =
      dice.one_of({"lru", "fifo", "scheduler_aware", "window_score", "lfu", "mru", "slru", "arc",
                   "s3fifo", "sieve", "gdsf", "seconds_saved", "session_fifo"});
  if (tier.eviction.name == "scheduler_aware" && dice.chance(0.3)) {
    tier.eviction.parameters["window"] = static_cast<double>(dice.between(0, 10));
  }
  tier.inclusive = dice.chance(0.5);
  tier.write = dice.chance(0.5) ? WriteMoment::on_create : WriteMoment::on_evict;
  tier.block_size =
      Tokens(dice.between(1, std::min<std::int64_t>(32, config.model.context_window.value)));
  if (dice.chance(0.3)) {
    tier.free_buffer = Bytes(dice.between(0, capacity.value - 1));
  }
  if (dice.chance(0.3)) {
    tier.ttl = SimDuration(static_cast<std::int64_t>(dice.scale(1e7, 1e11)));
  }
  if (dice.chance(0.2)) {
    tier.admission.name = dice.one_of({"second_hit", "frequency_sketch"});
  }
  return tier;
}

class ToldEviction final : public EvictionPolicy {
 public:
  ToldEviction(std::unique_ptr<EvictionPolicy> policy, LifeLog& log)
      : policy_(std::move(policy)), log_(log) {}

  void on_start(const TierFacts& facts) override { policy_->on_start(facts); }
  void on_insert(const EntryView& entry, SimTime now) override {
    KVTIER_ASSERT(keys_.emplace(entry.id, entry.key.value).second, "an entry is inserted once");
    log_.push_back(fmt::format("insert {}", entry.key.value));
    policy_->on_insert(entry, now);
  }
  void on_hit(EntryId entry, SimTime now) override {
    log_.push_back(fmt::format("hit {}", keys_.at(entry)));
    policy_->on_hit(entry, now);
  }
  void on_release(const EntryView& entry, SimTime now) override {
    log_.push_back(fmt::format("release {} with {}", keys_.at(entry.id), entry.tokens.value));
    policy_->on_release(entry, now);
  }
  void on_resize(const EntryView& entry, SimTime now) override { policy_->on_resize(entry, now); }
  void on_remove(EntryId entry, SimTime now) override {
    log_.push_back(fmt::format("remove {}", keys_.at(entry)));
    keys_.erase(entry);
    policy_->on_remove(entry, now);
  }
  void choose(const RoomRequest& request, Victims& victims) override {
    policy_->choose(request, victims);
  }
  void check_invariants(const TierView& tier) const override { policy_->check_invariants(tier); }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  LifeLog& log_;
  std::map<EntryId, std::uint64_t> keys_;
};

}  // namespace

void expect_times(const RequestRecord& request, std::int64_t arrived, std::int64_t admitted,
                  std::int64_t first_token, std::int64_t finished) {
  EXPECT_EQ(request.arrived, at_ms(arrived));
  expect_times(request, admitted, first_token, finished);
}
void expect_times(const RequestRecord& request, std::int64_t admitted, std::int64_t first_token,
                  std::int64_t finished) {
  EXPECT_EQ(request.admitted, at_ms(admitted));
  EXPECT_EQ(request.first_token, at_ms(first_token));
  EXPECT_EQ(request.finished, at_ms(finished));
}

std::vector<std::string> problems_of(const RunConfig& config) {
  Problems problems;
  check_run_config(config, builtin_policies(), problems);
  return problems.lines();
}

PolicyRegistry policies_and_told(LifeLog& log, const std::string& as) {
  PolicyRegistry registry = builtin_policies();
  PolicyKind<EvictionPolicy> told = *find_policy(registry.eviction, as);
  told.name = "told";
  told.make = [&log, make = told.make](const PolicyParameters& parameters) {
    return std::make_unique<ToldEviction>(make(parameters), log);
  };
  registry.eviction.push_back(told);
  return registry;
}

RunConfig with_windows(RunConfig config, std::uint64_t seed) {
  RandomStream random(seed, "windows");
  const Bytes weights = weight_bytes(config.model);
  ModelConfig& model = config.model;
  model.layers = 6;
  model.window = Tokens(1 + random.index(400));
  model.attention = {AttentionKind::window, AttentionKind::full};
  if (random.index(2) == 0) {
    model.attention.push_back(AttentionKind::window);
  }
  if (random.index(3) == 0) {
    model.resume_every = Tokens(1 + random.index(100));
    model.attention.push_back(AttentionKind::state);
    model.state = StateConfig{.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 4};
  }
  if (random.index(3) == 0) {
    model.sparse =
        SparseConfig{.top_k = Tokens(1 + random.index(300)), .index_heads = 1, .index_dim = 4};
  }
  if (random.index(2) == 0) {
    model.experts = ExpertsConfig{.routed = 8, .active = 2, .intermediate_size = 10};
  }
  // As many tokens of KV as before, in bytes of another size.
  const Bytes requests = kv_bytes_per_request(model) * config.serving.slots;
  const double larger =
      static_cast<double>(kv_bytes_per_token(model).value) / static_cast<double>(kTokenBytes.value);
  const auto scaled = [larger](Bytes bytes) {
    return Bytes(static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes.value) * larger)));
  };
  config.hardware.hbm.capacity =
      scaled(config.hardware.hbm.capacity - weights) + weight_bytes(model) + requests;
  if (config.serving.kv_memory) {
    config.serving.kv_memory = scaled(*config.serving.kv_memory) + requests;
  }
  if (config.hardware.dram) {
    config.hardware.dram->capacity = scaled(config.hardware.dram->capacity);
  }
  if (config.hardware.ssd) {
    config.hardware.ssd->capacity = scaled(config.hardware.ssd->capacity);
  }
  return config;
}

RunConfig random_config(std::uint64_t seed) {
  Dice dice(seed);
  const Tokens window(dice.between(40, 300));
  RunConfig config = tiny_config(window);
  config.seed = static_cast<std::int64_t>(seed);
  const auto size = [&](std::int64_t low, std::int64_t high) {
    return Bytes(dice.between(low * window.value * kTokenBytes.value / 4,
                              high * window.value * kTokenBytes.value / 4));
  };

  ServingConfig& serving = config.serving;
  serving.slots = dice.between(1, 8);
  serving.kv_reservation = dice.one_of({Reservation::exact, Reservation::context_window});
  serving.overflow_trigger = dice.one_of({OverflowTrigger::turn, OverflowTrigger::prompt});
  serving.truncation_ratio = dice.one_of({0.01, 0.3, 0.5, 1.0});
  serving.keep_first_tokens = dice.chance(0.5) ? Tokens(0) : Tokens(dice.between(1, 30));

  HardwareConfig& hardware = config.hardware;
  hardware.gpu.peak = FlopsPerSecond(dice.scale(1e8, 1e10));
  hardware.hbm.bandwidth = BytesPerSecond(dice.scale(1e8, 1e10));
  hardware.efficiency.iteration_overhead =
      SimDuration(static_cast<std::int64_t>(dice.scale(1e4, 1e7)));
  const bool exact = serving.kv_reservation == Reservation::exact;
  hardware.dram->capacity = size(exact ? 1 : 4, dice.one_of({8, 40}));
  hardware.ssd->capacity = size(exact ? 1 : 4, dice.one_of({8, 40, 400}));
  set_rates(hardware.links.pcie, random_link(dice));
  set_rates(hardware.ssd->bandwidth, random_link(dice));

  SystemConfig& system = config.system;
  system.positions =
      dice.one_of({KeyPositions::decoupled, KeyPositions::decoupled, KeyPositions::embedded});
  const std::int64_t tiers = dice.between(0, 9);
  if (tiers > 0) {
    if (tiers != 1) {
      system.tiers.dram = random_tier(dice, config, hardware.dram->capacity);
    }
    if (tiers != 2) {
      system.tiers.ssd = random_tier(dice, config, hardware.ssd->capacity);
    }
  }
  if (system.tiers.dram && system.tiers.ssd && dice.chance(0.6)) {
    system.prefetch.name = "look_ahead";
    if (dice.chance(0.3)) {
      system.prefetch.parameters["window"] = static_cast<double>(dice.between(0, 10));
    }
  }
  system.load.discipline =
      dice.chance(0.7) ? LoadDiscipline::layer_overlapped : LoadDiscipline::blocking;
  system.load.buffers =
      dice.one_of<std::optional<std::int64_t>>({0, 1, 3, 5, std::nullopt, std::nullopt});
  system.save.mode = dice.chance(0.7) ? SaveMode::async : SaveMode::blocking;
  system.save.write_buffer = dice.one_of({Bytes(0), Bytes(30000), Bytes(1000000)});
  // Room for at least one request beside the weights (under 1 MB) and the buffers.
  hardware.hbm.capacity = Bytes(2000000) + kv(window.value) * dice.between(2, 8);

  WorkloadConfig& workload = config.workload;
  // A stationary state is looked for from 100 sessions on.
  const std::int64_t sessions = dice.between(10, 40);
  workload.sessions = sessions < 38 ? sessions : 4 * sessions;
  workload.arrival_rate = PerSecond(dice.scale(0.3, 100));
  workload.warmup_turns = dice.one_of<std::int64_t>({0, 0, 5});
  workload.think_time.model = dice.one_of({ThinkTimeModel::exponential, ThinkTimeModel::constant});
  workload.think_time.mean = SimDuration(dice.one_of<std::int64_t>({0, 100000, 1000000000}));
  workload.sharegpt.turns_max = 15;
  workload.sharegpt.user_tokens_median = 10;
  workload.sharegpt.assistant_tokens_median = 15;
  workload.sharegpt.message_cap = Tokens(dice.between(20, 200));
  serving.keep_important_share = dice.one_of({0.0, 0.0, 0.3, 0.99});

  if (dice.chance(0.4)) {
    HbmTierConfig tier;
    tier.capacity = size(exact ? 1 : 4, dice.one_of({8, 40}));
    static_cast<TierConfig&>(tier) = random_tier(dice, config, *tier.capacity);
    tier.inclusive = false;
    tier.write = WriteMoment::on_evict;
    system.tiers.hbm = tier;
    hardware.hbm.capacity += *tier.capacity;
    if (system.tiers.count() > 1 && dice.chance(0.5)) {
      system.prefetch.name = "look_ahead";
    }
  }
  if (dice.chance(0.4)) {
    system.order = {.name = "shuffled_window",
                    .parameters = {{"requests", static_cast<double>(dice.between(1, 12))}}};
  }
  if (dice.chance(0.3)) {
    CxlConfig cxl;
    cxl.capacity = size(exact ? 1 : 4, dice.one_of({8, 40}));
    cxl.price = DollarsPerGibHour(1);
    set_rates(cxl.bandwidth, random_link(dice));
    hardware.cxl = cxl;
    system.tiers.cxl = random_tier(dice, config, cxl.capacity);
    if (dice.chance(0.3)) {
      system.tiers.dram.reset();
    }
    if (system.tiers.count() < 2) {
      system.prefetch.name = "none";
      system.prefetch.parameters.clear();
    }
  }
  if (system.prefetch.name != "none" && dice.chance(0.5)) {
    system.prefetch = {.name = "deadline", .parameters = {}};
    system.length_prediction.kind =
        dice.one_of({LengthPrediction::exact, LengthPrediction::noise, LengthPrediction::constant});
  }
  if (dice.chance(0.2)) {
    hardware.dram->bandwidth = BytesPerSecond(dice.scale(3e4, 3e7));
    hardware.dram->host_load =
        BytesPerSecond(hardware.dram->bandwidth->value * dice.one_of({0.0, 0.5, 0.9}));
  }
  if (dice.chance(0.4)) {
    system.load.wait = LoadWait::request;
    system.load.buffers = 0;
  }
  if (system.tiers.count() > 0 && dice.chance(0.3)) {
    system.compression = CompressionConfig{.strength = dice.one_of({0.0, 0.5, 1.0}),
                                           .sparsity = {dice.one_of({0.0, 0.6}), 0.95}};
  }
  if (dice.chance(0.4)) {
    workload.generator = Generator::shared_prompts;
    workload.shared_prompts = {.prompts = dice.between(1, 5),
                               .tokens_min = Tokens(1),
                               .tokens_max = Tokens(dice.between(1, window.value - 2)),
                               .popularity_exponent = 1};
    if (system.tiers.hbm && dice.chance(0.8)) {
      system.sharing = Sharing::prompts;
      system.load.buffers = 0;
      serving.kv_reservation = Reservation::exact;
    }
  }
  const auto slow_down = [&](ContendedWay on, ContendingWork work) {
    hardware.contention.push_back(
        {.on = on, .while_work = work, .left = dice.one_of({1.0, 0.9, 0.3})});
  };
  if (dice.chance(0.3)) {
    slow_down(ContendedWay::ssd_read, ContendingWork::pcie);
    slow_down(ContendedWay::ssd_write, ContendingWork::pcie);
  }
  if (dice.chance(0.3)) {
    const auto rate = [&dice](BytesPerSecond all) { return all * dice.one_of({2.0, 0.5, 0.01}); };
    const Bytes depth(static_cast<std::int64_t>(dice.scale(1, 1e9)));
    for (ServiceCurve* way :
         {&hardware.ssd->bandwidth.forward, &hardware.ssd->bandwidth.backward}) {
      way->depth = depth;
      way->alone = rate(way->rate);
    }
  }
  if (dice.chance(0.3)) {
    hardware.ssd->bandwidth.load =
        CurveStart{.latency = SimDuration(static_cast<std::int64_t>(dice.scale(1, 1e7))),
                   .alone = hardware.ssd->bandwidth.forward.rate * dice.one_of({2.0, 0.5, 0.01}),
                   .depth = Bytes(static_cast<std::int64_t>(dice.scale(1, 1e9)))};
  }
  if (dice.chance(0.3)) {
    slow_down(ContendedWay::pcie_to_device, ContendingWork::compute);
    slow_down(ContendedWay::pcie_to_host, ContendingWork::compute);
  }
  if (dice.chance(0.3)) {
    hardware.efficiency.command_overhead =
        SimDuration(static_cast<std::int64_t>(dice.scale(1, 1e7)));
  }
  return config;
}

}  // namespace kvtier::test
