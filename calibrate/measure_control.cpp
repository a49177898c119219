#include <algorithm>
#include <unordered_map>

#include "calibrate/measure.hpp"
#include "hw/device/decoder.hpp"

namespace kvtier::calibrate {
namespace {

/// Seconds for each of `count` steps.
template <class Step>
double time_steps(std::int64_t count, const Step& step) {
  const std::int64_t begin = steady_clock().now_ns();
  for (std::int64_t i = 0; i < count; ++i) {
    step(i);
  }
  return static_cast<double>(steady_clock().now_ns() - begin) * 1e-9 / static_cast<double>(count);
}

constexpr std::int64_t kSteps = 20000;

/// Look-ups of cache entries in a hash table.
Sample lookups(std::int64_t items, std::uint64_t seed) {
  auto table = std::make_shared<std::unordered_map<std::uint64_t, std::int64_t>>();
  auto keys = std::make_shared<std::vector<std::uint64_t>>();
  RandomStream random(seed, "calibrate/lookup");
  for (std::int64_t i = 0; i < items; ++i) {
    const auto key = static_cast<std::uint64_t>(random.index(INT64_MAX));
    keys->push_back(key);
    table->emplace(key, i);
  }
  auto order = std::make_shared<std::vector<std::int32_t>>(shuffled(items, random));
  return [=, sum = std::int64_t{0}]() mutable {
    return time_steps(kSteps, [&](std::int64_t i) {
      const auto place = static_cast<std::size_t>((*order)[static_cast<std::size_t>(i % items)]);
      sum += table->find((*keys)[place])->second;
    });
  };
}

/// Takes blocks from a list of free blocks, and returns others.
Sample allocations(std::int64_t items, std::uint64_t seed) {
  RandomStream random(seed, "calibrate/allocation");
  auto free = std::make_shared<std::vector<std::int32_t>>(shuffled(items, random));
  auto held = std::make_shared<std::vector<std::int32_t>>();
  const std::size_t half = free->size() / 2;
  held->assign(free->begin() + static_cast<std::ptrdiff_t>(half), free->end());
  free->resize(half);
  auto order = std::make_shared<std::vector<std::int32_t>>(
      shuffled(static_cast<std::int64_t>(held->size()), random));
  return [=] {
    return time_steps(kSteps, [&](std::int64_t i) {
      const std::int32_t taken = free->back();
      free->pop_back();
      std::int32_t& old =
          (*held)[static_cast<std::size_t>((*order)[static_cast<std::size_t>(i) % order->size()])];
      free->push_back(old);
      old = taken;
    });
  };
}

/// Host work of an iteration: each request gets a slot for its next token, and the batch is written
/// for the device.
Sample scheduler_steps(std::int64_t requests, std::uint64_t seed) {
  constexpr std::int64_t kContext = 1000;
  constexpr std::int64_t kVocabulary = 32000;
  RandomStream random(seed, "calibrate/scheduler");
  auto free = std::make_shared<std::vector<std::int32_t>>(shuffled(requests * kContext, random));
  auto contexts =
      std::make_shared<std::vector<std::vector<std::int32_t>>>(static_cast<std::size_t>(requests));
  for (std::vector<std::int32_t>& context : *contexts) {
    context.assign(free->end() - (kContext - 1), free->end());
    free->resize(free->size() - (kContext - 1));
  }
  constexpr std::int64_t kIterations = 100;
  return [=] {
    return time_steps(kIterations, [&](std::int64_t i) {
      DecoderBatch batch;
      for (std::vector<std::int32_t>& context : *contexts) {
        context.push_back(free->back());
        free->pop_back();
        const auto token = static_cast<std::int32_t>(i % kVocabulary);
        batch.add({&token, 1}, context);
      }
      for (std::vector<std::int32_t>& context : *contexts) {
        free->push_back(context.back());
        context.pop_back();
      }
    });
  };
}

}  // namespace

std::vector<PlannedTable> plan_control(const Target& target) {
  std::vector<PlannedTable> tables;
  struct Kind {
    const char* variant;
    const char* method;
    Sample (*make)(std::int64_t items, std::uint64_t seed);
    std::int64_t bytes_per_item;
    std::vector<std::int64_t> items;
  };
  const std::vector<std::int64_t> entries = geometric(1024, 1 << 20, target.full ? 4 : 32);
  for (const Kind& kind : {Kind{"lookup", "hash map", &lookups, 96, entries},
                           Kind{"allocation", "list of free blocks", &allocations, 96, entries},
                           Kind{"scheduler_step", "slots and batch of contexts of 1000 tokens",
                                &scheduler_steps, 16000, geometric(1, 64, target.full ? 2 : 8)}}) {
    PlannedTable planned{.rules = rules_of(target)};
    planned.table = {.operation = OperationId::control_step,
                     .variant = kind.variant,
                     .method = kind.method,
                     .cache = CacheState::hot,
                     .shape = {},
                     .axes = {"items"}};
    for (const std::int64_t items : kind.items) {
      planned.cells.push_back(
          {.at = {items},
           .memory = Bytes(items * kind.bytes_per_item),
           .prepare = [make = kind.make, items, seed = target.seed] { return make(items, seed); }});
    }
    tables.push_back(std::move(planned));
  }
  return tables;
}

}  // namespace kvtier::calibrate
