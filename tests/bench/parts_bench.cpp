/// The parts that a run is made of.

#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "sim/backend/shared_links.hpp"
#include "tests/bench/support.hpp"

namespace kvtier::bench {
namespace {

// ---- Event queues ----

void BM_BinaryHeap(benchmark::State& state) {
  const auto later = [](const TimedEvent& a, const TimedEvent& b) { return earlier(b, a); };
  std::priority_queue<TimedEvent, std::vector<TimedEvent>, decltype(later)> heap(later);
  Waits waits;
  std::uint64_t sequence = 0;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    heap.push({.time = SimTime(waits.next()), .order = sequence++});
  }
  for (auto _ : state) {
    const TimedEvent event = heap.top();
    heap.pop();
    heap.push({.time = SimTime(event.time.ns + waits.next()), .order = sequence++});
  }
}
BENCHMARK(BM_BinaryHeap)->Arg(1024)->Iterations(10000000);
BENCHMARK(BM_BinaryHeap)->Arg(1 << 20)->Iterations(2000000);

void BM_EventQueue(benchmark::State& state) {
  EventQueue queue;
  Waits waits;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    queue.push(SimTime(waits.next()), 0, 0);
  }
  for (auto _ : state) {
    const TimedEvent event = queue.pop();
    queue.push(SimTime(event.time.ns + waits.next()), 0, 0);
  }
}
BENCHMARK(BM_EventQueue)->Arg(1024)->Iterations(10000000);
BENCHMARK(BM_EventQueue)->Arg(1 << 20)->Iterations(2000000);

// ---- Policies ----

EntryView entry_view(std::uint32_t id, std::int64_t now) {
  EntryView view{};
  view.id = EntryId{id};
  view.key = EntryKey{id};
  view.tokens = Tokens(1000);
  view.bytes = Bytes(819200000);
  view.first_inserted = SimTime(now);
  view.last_used = SimTime(now);
  return view;
}

/// A turn of the tier's life: one entry is used, one is chosen, leaves, and comes back. Half of the
/// entries wait in the queue.
void BM_Eviction(benchmark::State& state, const std::string& name) {
  const PolicyRegistry registry = builtin_policies();
  const auto& kind = known_policy(registry.eviction, name);
  const std::unique_ptr<EvictionPolicy> policy = kind.make({});
  const bool sees_queue = kind.knowledge != Knowledge::online;
  const auto entries = static_cast<std::uint32_t>(state.range(0));
  std::int64_t now = 0;
  std::uint64_t position = 0;
  VictimSet offers;
  for (std::uint32_t i = 0; i < entries; ++i) {
    EntryView view = entry_view(i, now++);
    if (sees_queue && i % 2 == 0) {
      view.queue_position = QueuePosition{position++};
    }
    policy->on_insert(view, SimTime(now));
    offers.offer(view.id, Bytes(1));
  }
  Waits waits;
  for (auto _ : state) {
    ++now;
    const auto hit = static_cast<std::uint32_t>(waits.next()) % entries;
    policy->on_hit(EntryId{hit}, SimTime(now));
    policy->on_release(entry_view(hit, now), SimTime(now));
    if (sees_queue) {
      const QueuePosition at{position++};
      policy->on_queue_change(EntryId{hit}, {.position = at, .waits = true, .first = at});
    }
    static_cast<void>(offers.choose(*policy, {.now = SimTime(now)}, Bytes(1)));
    const EntryId victim = offers.victims().front().entry;
    policy->on_remove(victim, SimTime(now));
    policy->on_insert(entry_view(victim.value, now), SimTime(now));
  }
}
BENCHMARK_CAPTURE(BM_Eviction, lru, "lru")->Arg(64)->Arg(8192);
BENCHMARK_CAPTURE(BM_Eviction, fifo, "fifo")->Arg(64)->Arg(8192);
BENCHMARK_CAPTURE(BM_Eviction, scheduler_aware, "scheduler_aware")->Arg(64)->Arg(8192);

/// A queue that moves on by one request a decision; every second entry has to be fetched.
class MovingQueue final : public QueueView {
 public:
  MovingQueue() { end_ = QueuePosition{4096}; }
  [[nodiscard]] EntryId entry_at(QueuePosition position) const override {
    return EntryId{static_cast<std::uint32_t>(position.value % 8192)};
  }
  [[nodiscard]] bool waiting_at(QueuePosition position) const override {
    return position >= first() && position < end();
  }
  [[nodiscard]] Placement placement_at(QueuePosition) const override { return Placement::none; }
  [[nodiscard]] QueuePosition window_end() const override { return end(); }
  void advance() {
    ++first_.value;
    ++end_.value;
  }
};

void BM_LookAheadPrefetch(benchmark::State& state) {
  const PolicyRegistry registry = builtin_policies();
  const auto policy = known_policy(registry.prefetch, "look_ahead").make({});
  MovingQueue queue;
  std::vector<char> fetched(8192, 0);
  const std::function<bool(EntryId)> needs_fetch = [&](EntryId id) {
    return id.value % 2 == 0 && fetched[id.value] == 0;
  };
  const PrefetchContext context{.queue = &queue,
                                .memory = Bytes(40000),
                                .mean_entry = Bytes(1000),
                                .needs_fetch = &needs_fetch};
  for (auto _ : state) {
    if (const auto entry = policy->next_fetch(context)) {
      fetched[entry->entry.value] = 1;
    }
    fetched[queue.first().value % 8192] = 0;
    queue.advance();
  }
}
BENCHMARK(BM_LookAheadPrefetch);

// ---- Links ----

/// Loads, saves, fetches and demotions at the same time on a PCIe link and a drive: the next one to
/// complete ends and another begins.
void BM_SharedLinks(benchmark::State& state) {
  const DuplexLimits pcie{BytesPerSecond(26e9), BytesPerSecond(26e9), BytesPerSecond(42e9)};
  const DuplexLimits drive{BytesPerSecond(5e9), BytesPerSecond(5e9), BytesPerSecond(5e9)};
  Topology topology({"hbm", "dram", "cxl", "ssd"});
  topology.links = {{.name = "pcie", .limits = pcie}, {.name = "ssd", .limits = drive}};
  using enum Medium;
  topology.connect(dram, hbm, {{0, true}});
  topology.connect(hbm, dram, {{0, false}});
  topology.connect(ssd, dram, {{1, true}});
  topology.connect(dram, ssd, {{1, false}});
  SharedLinks links(std::move(topology));
  Waits waits;
  SimTime now;
  const auto start = [&] {
    const auto path = static_cast<std::size_t>(waits.next() % 4);
    (void)links.start(path, Bytes(1 + waits.next() % 2000000000), 0, now);
  };
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    start();
  }
  for (auto _ : state) {
    now = links.next_completion();
    benchmark::DoNotOptimize(links.finish_next());
    start();
  }
}
BENCHMARK(BM_SharedLinks)->Arg(1)->Arg(4)->Arg(16)->Arg(256);

}  // namespace
}  // namespace kvtier::bench
