#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/backend/forwarding_backend.hpp"
#include "sim/serving/store_rules.hpp"
#include "sim/store/sessions/session_store.hpp"
#include "tests/sim/serving/support.hpp"

/// The session store over the simulated backend, without a batcher. Every token is 1,000 bytes,
/// every link carries 1,000,000 bytes/s each way: a token moves in 1 ms.
namespace kvtier::test {

/// The waiting queue that a test writes down.
class Queue final : public QueueView {
 public:
  [[nodiscard]] EntryId entry_at(QueuePosition position) const override {
    return waiting_at(position) ? tiers->needed_entry(slots_[position.value]) : kNoEntry;
  }
  [[nodiscard]] bool waiting_at(QueuePosition position) const override {
    return position >= first_ && position < end_;
  }
  [[nodiscard]] Placement placement_at(QueuePosition position) const override {
    return tiers->placement(slots_[position.value]);
  }
  [[nodiscard]] QueuePosition window_end() const override { return end_; }
  QueuePosition push(SessionSlot slot) {
    slots_.push_back(slot);
    return QueuePosition{end_.value++};
  }
  SessionSlot pop() { return slots_[first_.value++]; }

  const SessionStore* tiers = nullptr;

 private:
  std::vector<SessionSlot> slots_;
};

/// Writes decisions as "evict ssd 9".
class DecisionLog final : public DecisionObserver {
 public:
  void on_decision(const Decision& d) override {
    lines.push_back(fmt::format("{} {} {}", to_string(d.kind), to_string(d.tier), d.key.value));
  }
  void on_use(EntryKey, SimTime) override {}
  std::vector<std::string> lines;
};

/// One running request, which a test writes down.
class RunningOne final : public RunningView {
 public:
  [[nodiscard]] std::optional<SimDuration> tpot() const override { return time_per_token; }
  void for_each_running(const std::function<void(SimTime, Tokens)>& visit) const override {
    visit(first_token, predicted);
  }
  std::optional<SimDuration> time_per_token;
  SimTime first_token;
  Tokens predicted;
};

/// The simulated backend, and the contents of each medium according to the manager.
class HeldBackend final : public ForwardingBackend {
 public:
  HeldBackend(const HardwareConfig& hardware, const TimingModel& timing)
      : ForwardingBackend(simulated_, true, false),
        simulated_(hardware, kLayers, timing, DecodeStepping::closed_form) {}

  void cut(EntryKey key, Tokens kept, Tokens dropped) override {
    for (Tokens& held : held_[key]) {
      held = Truncation{.kept = kept, .dropped = dropped}.left_of(held);
    }
  }

  /// The entry's tokens before this one are in the medium, unless a faster one has them.
  [[nodiscard]] Tokens held(EntryKey key, Medium medium) {
    return held_[key][static_cast<std::size_t>(medium)];
  }

 protected:
  void on_resident_prefix(Medium medium, EntryKey key, Tokens tokens) override {
    held_[key][static_cast<std::size_t>(medium)] = tokens;
  }

 private:
  SimulatedBackend simulated_;
  std::map<EntryKey, std::array<Tokens, kMedia>> held_;
};

/// The manager over the simulated backend; a session's key is its slot unless a test says
/// otherwise.
struct Store {
  static constexpr std::uint64_t kManagersTimer = 1;

  RunConfig config;
  /// Calls of the policy "told".
  LifeLog lives;
  PolicyRegistry registry = policies_and_told(lives);
  ConstantTiming timing{kMillisecond, kMillisecond};
  HeldBackend backend;
  Queue queue;
  RunningOne running;
  DecisionLog log;
  SessionStore tiers;
  std::vector<std::pair<SessionSlot, Medium>> ready;
  std::vector<SimTime> ready_at;

  explicit Store(RunConfig run_config)
      : config(std::move(run_config)),
        backend(config.hardware, timing),
        tiers({.facts = store_facts(config),
               .registry = &registry,
               .backend = &backend,
               .queue = &queue,
               .running = &running,
               .decisions = &log,
               .timer = kManagersTimer}) {
    queue.tiers = &tiers;
    tiers.on_load_ready = [this](SessionSlot slot, Medium medium) {
      ready.emplace_back(slot, medium);
      ready_at.push_back(backend.now());
    };
  }

  void until(SimTime time) {
    backend.set_timer(time, 0);
    while (true) {
      const Completion completion = backend.wait();
      if (completion.kind == CompletionKind::timer && completion.payload != kManagersTimer) {
        return;
      }
      tell(completion);
    }
  }
  void drain() {
    while (backend.pending()) {
      tell(backend.wait());
    }
    tiers.check_invariants();
  }
  void tell(const Completion& completion) {
    completion.kind == CompletionKind::timer
        ? tiers.on_timer()
        : tiers.on_transfer(MoveId{static_cast<std::uint32_t>(completion.payload)});
  }

  Lookup admit(SessionSlot slot, std::int64_t history) {
    return tiers.admit(slot, EntryKey{slot}, Tokens(history));
  }
  void save(SessionSlot slot, std::int64_t tokens) {
    tiers.save(slot, EntryKey{slot}, Tokens(tokens));
  }
  /// A turn of zero duration that finds at most `history` tokens and ends with `tokens`.
  Lookup turn(SessionSlot slot, std::int64_t history, std::int64_t tokens) {
    const Lookup found = admit(slot, history);
    if (found.reused.value > 0 && found.medium != Medium::hbm) {
      tiers.end_load(slot);
    }
    save(slot, tokens);
    return found;
  }
  /// The first turn of a session, saved to the end.
  void store(SessionSlot slot, std::int64_t tokens) {
    turn(slot, 0, tokens);
    drain();
  }
  void enqueue(SessionSlot slot) {
    const QueuePosition position = queue.push(slot);
    tiers.on_enqueued(slot, position);
  }
  void dequeue() { tiers.on_dequeued(queue.pop()); }

  /// The tier's account now, in tokens; takes 1 ms.
  [[nodiscard]] double used(std::size_t tier) {
    const Int128 before = tiers.counters(tier).occupancy_byte_ns;
    until(backend.now() + kMillisecond);
    return static_cast<double>(tiers.counters(tier).occupancy_byte_ns - before) /
           static_cast<double>(kMillisecond.ns * kTokenBytes.value);
  }
  [[nodiscard]] double written(std::size_t tier) {
    return static_cast<double>(tiers.counters(tier).written.value) /
           static_cast<double>(kTokenBytes.value);
  }
  [[nodiscard]] double read(std::size_t tier) {
    return static_cast<double>(tiers.counters(tier).read.value) /
           static_cast<double>(kTokenBytes.value);
  }
};

[[nodiscard]] inline RunConfig dram_only(std::int64_t dram_tokens, TierConfig dram = tier()) {
  RunConfig config = tiny_config();
  config.hardware.dram->capacity = kv(dram_tokens);
  config.system.tiers.dram = std::move(dram);
  return config;
}

[[nodiscard]] inline RunConfig two_tiers(std::int64_t dram_tokens, std::int64_t ssd_tokens,
                                         TierConfig dram = tier(),
                                         TierConfig ssd = tier("lru", true)) {
  RunConfig config = dram_only(dram_tokens, std::move(dram));
  config.hardware.ssd->capacity = kv(ssd_tokens);
  config.system.tiers.ssd = std::move(ssd);
  return config;
}

inline void expect_found(const Lookup& found, std::int64_t tokens, Medium medium) {
  EXPECT_EQ(found.reused.value, tokens);
  EXPECT_STREQ(to_string(found.medium), to_string(medium));
  EXPECT_FALSE(found.late);
}

inline void expect_lost(const Lookup& found, LossCause cause) {
  EXPECT_EQ(found.reused.value, 0);
  EXPECT_STREQ(to_string(found.cause), to_string(cause));
}

}  // namespace kvtier::test
