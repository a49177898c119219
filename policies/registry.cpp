#include "policies/registry.hpp"

#include "policies/eviction/fifo.hpp"
#include "policies/eviction/lru.hpp"
#include "policies/eviction/scheduler_aware.hpp"
#include "policies/eviction/tokens_times_idle.hpp"
#include "policies/eviction/window_score.hpp"
#include "policies/prefetch/deadline.hpp"
#include "policies/prefetch/look_ahead.hpp"
#include "policies/prefetch/none.hpp"
#include "policies/scheduling/fcfs.hpp"
#include "policies/scheduling/shuffled_window.hpp"

namespace kvtier {

PolicyRegistry builtin_policies() {
  return {
      .eviction = {fifo_eviction(), lru_eviction(), scheduler_aware_eviction(),
                   tokens_times_idle_eviction(), window_score_eviction()},
      .prefetch = {no_prefetch(), look_ahead_prefetch(), deadline_prefetch()},
      .order = {fcfs_order(), shuffled_window_order()},
  };
}

}  // namespace kvtier
