#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "sim/store/store.hpp"

namespace kvtier {

/// All copies that have begun are complete, and so are those that begin with their ends. Returns
/// whether there were any.
inline bool finish_copies(Store& store) {
  bool any = false;
  for (std::vector<Copy> begun = store.take_copies(); !begun.empty(); begun = store.take_copies()) {
    any = true;
    for (const Copy& copy : begun) {
      store.copied(copy.id);
    }
  }
  return any;
}

/// Runs a request without a clock, in steps. A copy of an offload that begins with a step is
/// complete when the next one has ended, as in vLLM. A copy of another store is complete when its
/// own step has ended.
class UntimedSteps {
 public:
  explicit UntimedSteps(Store& store) : store_(store) {}

  /// Loads the found KV of a request before its first step.
  void begin(RequestId request) {
    store_.loaded(request);
    store_.publish_loaded(request);
  }
  /// A step computes KV of the context's first tokens.
  void compute(RequestId request, Tokens tokens) {
    if (store_.offloads()) {
      static_cast<void>(store_.offer(request, tokens));
      complete(std::exchange(begun_, store_.take_copies()));
    }
    store_.computed(request, tokens);
    finish_copies_of_step();
  }
  /// It has been released. `tokens`: those of its context with KV.
  void end(RequestId request, Tokens tokens) {
    if (store_.offloads()) {
      static_cast<void>(store_.offer(request, tokens));
      store_.end(request);
      complete(std::exchange(begun_, {}));
      complete(store_.take_copies());
    }
    finish_copies_of_step();
  }

 private:
  void finish_copies_of_step() {
    if (!store_.offloads()) {
      finish_copies(store_);
    }
  }
  void complete(const std::vector<Copy>& copies) {
    for (const Copy& copy : copies) {
      store_.copied(copy.id);
    }
  }

  Store& store_;
  std::vector<Copy> begun_;
};

}  // namespace kvtier
