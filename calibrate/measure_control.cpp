#include <algorithm>
#include <unordered_map>

#include "calibrate/measure.hpp"

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

/// What an entry of a cache is found by.
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

/// A list of free blocks from which blocks are taken and to which others come back.
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

}  // namespace

std::vector<PlannedTable> plan_control(const Target& target) {
  std::vector<PlannedTable> tables;
  for (const auto& [variant, make] :
       {std::pair{"lookup", &lookups}, std::pair{"allocation", &allocations}}) {
    PlannedTable planned{.rules = rules_of(target)};
    planned.table = {.operation = OperationId::X1,
                     .variant = variant,
                     .method = make == &lookups ? "hash map" : "list of free blocks",
                     .cache = CacheState::hot,
                     .shape = {},
                     .axes = {"items"}};
    constexpr std::int64_t kBytesPerItem = 96;
    for (const std::int64_t items : geometric(1024, 1 << 20, target.full ? 4 : 32)) {
      planned.cells.push_back(
          {.at = {items},
           .memory = Bytes(items * kBytesPerItem),
           .prepare = [make = make, items, seed = target.seed] { return make(items, seed); }});
    }
    tables.push_back(std::move(planned));
  }
  return tables;
}

}  // namespace kvtier::calibrate
