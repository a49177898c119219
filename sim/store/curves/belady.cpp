#include "sim/store/curves/belady.hpp"

#include <algorithm>
#include <tuple>

#include "sim/core/assert.hpp"

namespace kvtier {

void Belady::add(const Context& prompt, const Context& stored, bool measured) {
  KVTIER_ASSERT(next_.empty(), "all requests are known before hits are counted");
  Request request{.begin = blocks_.size()};
  if (measured) {
    request.looked_up = static_cast<std::uint32_t>(prompt.tokens.value / block_);
  }
  streams_.path(stored.stream, stored.tokens.value / block_, block_, path_);
  for (const Stretch& stretch : path_) {
    if (stretch.stream.value >= numbers_.size()) {
      numbers_.resize(static_cast<std::size_t>(stretch.stream.value) + 1);
    }
    std::vector<std::uint32_t>& numbers = numbers_[stretch.stream.value];
    const std::int64_t first = streams_.first_of(stretch.stream) / block_;
    for (std::int64_t at = stretch.begin; at < stretch.end; ++at) {
      const auto index = static_cast<std::size_t>(at - first);
      if (index >= numbers.size()) {
        numbers.resize(index + 1, kNever);
      }
      if (numbers[index] == kNever) {
        numbers[index] = static_cast<std::uint32_t>(depth_.size());
        depth_.push_back(static_cast<std::uint32_t>(at));
      }
      blocks_.push_back(numbers[index]);
    }
  }
  request.stored = static_cast<std::uint32_t>(blocks_.size() - request.begin);
  KVTIER_ASSERT(request.looked_up <= request.stored, "what is stored begins with the prompt");
  requests_.push_back(request);
}

void Belady::find_next_uses() {
  next_.resize(blocks_.size());
  std::vector<std::uint32_t> use(depth_.size(), kNever);
  for (std::size_t i = requests_.size(); i-- > 0;) {
    const Request& request = requests_[i];
    for (std::size_t at = 0; at < request.stored; ++at) {
      std::uint32_t& next = use[blocks_[request.begin + at]];
      next_[request.begin + at] = next;
      next = at < request.looked_up ? static_cast<std::uint32_t>(i) : kNever;
    }
  }
}

std::int64_t Belady::hits(std::int64_t capacity) {
  if (next_.empty()) {
    find_next_uses();
  }
  struct Resident {
    std::uint32_t next = 0;
    std::uint32_t block = 0;
  };
  const auto leaves_later = [&](const Resident& a, const Resident& b) {
    return std::tuple(a.next, depth_[a.block], a.block) <
           std::tuple(b.next, depth_[b.block], b.block);
  };
  constexpr std::size_t kFewest = 1U << 16;
  std::vector<bool> present(depth_.size());
  std::vector<std::uint32_t> next(depth_.size());
  std::vector<Resident> heap;  // of all that are present, and of uses that have passed
  std::int64_t size = 0;
  std::int64_t hits = 0;
  std::size_t limit = kFewest;
  for (const Request& request : requests_) {
    bool runs = true;
    for (std::size_t at = 0; at < request.stored; ++at) {
      const std::uint32_t block = blocks_[request.begin + at];
      runs = runs && present[block] && at < request.looked_up;
      hits += runs ? 1 : 0;
      size += present[block] ? 0 : 1;
      present[block] = true;
      next[block] = next_[request.begin + at];
      heap.push_back({next[block], block});
      std::push_heap(heap.begin(), heap.end(), leaves_later);
    }
    while (size > capacity) {
      const Resident last = heap.front();
      std::pop_heap(heap.begin(), heap.end(), leaves_later);
      heap.pop_back();
      if (present[last.block] && next[last.block] == last.next) {
        present[last.block] = false;
        --size;
      }
    }
    if (heap.size() > limit) {
      std::erase_if(
          heap, [&](const Resident& r) { return !present[r.block] || next[r.block] != r.next; });
      std::make_heap(heap.begin(), heap.end(), leaves_later);
      limit = std::max(kFewest, 2 * heap.size());
    }
  }
  return hits;
}

}  // namespace kvtier
