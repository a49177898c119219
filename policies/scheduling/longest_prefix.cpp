// Longest prefix match: for each batch, the waiting requests are sorted by the stored tokens of
// their prompts, the most first. Among requests with little stored and a common prefix, the first
// keeps its place. The others come last, and find its KV in a later batch. A long queue is not
// sorted. The order of one batch is the initial order of the next. SGLang 0.5.23, schedule policy
// lpm. O(n^2) per batch in the length of a queue that is sorted.
#include "policies/scheduling/longest_prefix.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "sim/core/assert.hpp"
#include "sim/policy/parameters.hpp"

namespace kvtier {
namespace {

constexpr const char* kQueue = "queue";
constexpr const char* kStored = "stored";
constexpr const char* kShared = "shared";
constexpr double kDefaultQueue = 128;
constexpr double kDefaultStored = 32;
constexpr double kDefaultShared = 32;

class LongestPrefixOrder final : public OrderPolicy {
 public:
  LongestPrefixOrder(std::int64_t queue, Tokens stored, Tokens shared)
      : queue_(queue), stored_(stored), shared_(shared) {}

  void begin_batch(const QueueView& queue) override {
    in_batches_ = true;
    update(queue);
    for (; !passed_.empty(); passed_.pop_back()) {
      if (queue.waiting_at(passed_.back())) {
        order_.push_front(passed_.back());
      }
    }
    if (std::ssize(order_) > queue_) {
      return;
    }
    std::vector<std::pair<std::int64_t, QueuePosition>> ranked;
    std::vector<QueuePosition> first_ones;
    for (const QueuePosition at : order_) {
      const FoundTokens found = queue.find(at);
      std::int64_t rank = -found.total.value;
      if (found.nearest <= stored_) {
        const bool repeats = std::any_of(
            first_ones.begin(), first_ones.end(),
            [&](QueuePosition other) { return queue.common_prefix(other, at) >= shared_; });
        if (repeats) {
          rank = std::numeric_limits<std::int64_t>::max();
        } else {
          first_ones.push_back(at);
        }
      }
      ranked.emplace_back(rank, at);
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::transform(ranked.begin(), ranked.end(), order_.begin(),
                   [](const auto& one) { return one.second; });
  }

  QueuePosition next(const QueueView& queue) override {
    KVTIER_ASSERT(queue.first() < queue.end(), "the first position of a queue is never empty");
    update(queue);
    return order_.front();
  }

 private:
  /// Drops requests at the front that no longer wait, and appends new ones.
  void update(const QueueView& queue) {
    while (!order_.empty() && !queue.waiting_at(order_.front())) {
      if (in_batches_) {
        passed_.push_back(order_.front());
      }
      order_.pop_front();
    }
    for (seen_ = std::max(seen_, queue.first()); seen_ < queue.end(); ++seen_.value) {
      if (queue.waiting_at(seen_)) {
        order_.push_back(seen_);
      }
    }
  }

  std::int64_t queue_;
  Tokens stored_;
  Tokens shared_;
  std::deque<QueuePosition> order_;
  /// Requests that did not wait when the batch reached them. They have left, or were skipped and
  /// wait again for the next batch.
  std::vector<QueuePosition> passed_;
  bool in_batches_ = false;
  /// Positions before this one are in the order or have left.
  QueuePosition seen_{0};
};

}  // namespace

PolicyKind<OrderPolicy> longest_prefix_order() {
  const auto parameter = [](const char* name, const char* documentation, const char* unit,
                            double default_value) {
    return PolicyParameter{.name = name,
                           .documentation = documentation,
                           .unit = unit,
                           .minimum = 0,
                           .maximum = 1e9,
                           .default_value = default_value};
  };
  return {
      .name = "longest_prefix",
      .summary =
          "the request with the most tokens of its prompt stored goes first; of those "
          "that begin alike and have little stored, one",
      .source = "SGLang 0.5.23 (lpm)",
      .knowledge = Knowledge::look_ahead,
      .parameters = {parameter(kQueue, "longest queue that is sorted", "requests", kDefaultQueue),
                     parameter(kStored,
                               "tokens in the fastest tier up to which a prompt is compared "
                               "with the waiting ones before it",
                               "tokens", kDefaultStored),
                     parameter(kShared,
                               "common prefix, in tokens, from which on the later of two "
                               "prompts comes last",
                               "tokens", kDefaultShared)},
      .make = [](const PolicyParameters& given) -> std::unique_ptr<OrderPolicy> {
        const auto whole = [&](const char* name, double otherwise) {
          return static_cast<std::int64_t>(parameter_or(given, name, otherwise));
        };
        return std::make_unique<LongestPrefixOrder>(whole(kQueue, kDefaultQueue),
                                                    Tokens(whole(kStored, kDefaultStored)),
                                                    Tokens(whole(kShared, kDefaultShared)));
      }};
}

}  // namespace kvtier
