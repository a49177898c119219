#include "sim/device/free_slots.hpp"

#include <algorithm>
#include <iterator>

#include "sim/core/assert.hpp"

namespace kvtier {

std::vector<std::int32_t> FreeSlots::take(std::int64_t count, std::int32_t behind) {
  KVTIER_ASSERT(count <= count_, "only free slots are taken");
  std::vector<std::int32_t> slots;
  slots.reserve(static_cast<std::size_t>(count));
  while (count > 0) {
    auto run = behind == kNone ? runs_.end() : runs_.find(behind + 1);
    std::int64_t begin = behind + 1;
    if (run == runs_.end()) {
      const auto [size, first] = *by_size_.rbegin();
      run = runs_.find(first);
      begin = first + std::max<std::int64_t>(0, size - count) / 2;
    }
    const auto [first, end] = *run;
    const std::int64_t taken_end = std::min(end, begin + count);
    remove(run);
    add(first, begin);
    add(taken_end, end);
    count -= taken_end - begin;
    for (; begin < taken_end; ++begin) {
      slots.push_back(static_cast<std::int32_t>(begin));
    }
    behind = slots.back();
  }
  return slots;
}

void FreeSlots::give_back(std::int64_t first, std::int64_t end) {
  if (const auto behind = runs_.find(end); behind != runs_.end()) {
    end = behind->second;
    remove(behind);
  }
  if (const auto behind = runs_.lower_bound(first); behind != runs_.begin()) {
    if (const auto before = std::prev(behind); before->second == first) {
      first = before->first;
      remove(before);
    }
  }
  add(first, end);
}

void FreeSlots::add(std::int64_t first, std::int64_t end) {
  if (first < end) {
    runs_.emplace(first, end);
    by_size_.emplace(end - first, first);
    count_ += end - first;
  }
}

void FreeSlots::remove(Runs::iterator run) {
  const auto [first, end] = *run;
  by_size_.erase({end - first, first});
  count_ -= end - first;
  runs_.erase(run);
}

}  // namespace kvtier
