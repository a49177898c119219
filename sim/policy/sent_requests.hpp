#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/routing.hpp"

namespace kvtier {

/// A router's own record of its requests in flight. O(1).
template <class State>
class SentRequests {
 public:
  explicit SentRequests(std::int64_t instances) : counts_(static_cast<std::size_t>(instances)) {}

  [[nodiscard]] std::int64_t count(InstanceId instance) const { return counts_[instance.value]; }

  void add(std::uint64_t request, InstanceId instance, State state) {
    ++counts_[instance.value];
    const bool is_new = requests_.emplace(request, std::move(state)).second;
    KVTIER_ASSERT(is_new, "a request is dispatched once");
  }
  [[nodiscard]] State& at(std::uint64_t request) {
    const auto found = requests_.find(request);
    KVTIER_ASSERT(found != requests_.end(), "the request was dispatched");
    return found->second;
  }
  State remove(std::uint64_t request, InstanceId instance) {
    --counts_[instance.value];
    const auto found = requests_.find(request);
    KVTIER_ASSERT(found != requests_.end(), "the request was dispatched");
    State state = std::move(found->second);
    requests_.erase(found);
    return state;
  }
  void check(std::int64_t requests_in_flight) const {
    std::int64_t sum = 0;
    for (const std::int64_t count : counts_) {
      sum += count;
    }
    KVTIER_ASSERT(sum == requests_in_flight, "the router counts the requests in flight");
    KVTIER_ASSERT(static_cast<std::int64_t>(requests_.size()) == requests_in_flight,
                  "the router knows the requests in flight");
  }

 private:
  std::vector<std::int64_t> counts_;
  std::unordered_map<std::uint64_t, State> requests_;  // never iterated: its order means nothing
};

}  // namespace kvtier
