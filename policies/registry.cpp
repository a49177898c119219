#include "policies/registry.hpp"

#include "policies/admission/always.hpp"
#include "policies/admission/frequency_sketch.hpp"
#include "policies/admission/second_hit.hpp"
#include "policies/eviction/arc.hpp"
#include "policies/eviction/belady.hpp"
#include "policies/eviction/fifo.hpp"
#include "policies/eviction/gdsf.hpp"
#include "policies/eviction/lfu.hpp"
#include "policies/eviction/lru.hpp"
#include "policies/eviction/mru.hpp"
#include "policies/eviction/s3fifo.hpp"
#include "policies/eviction/scheduler_aware.hpp"
#include "policies/eviction/seconds_saved.hpp"
#include "policies/eviction/sieve.hpp"
#include "policies/eviction/slru.hpp"
#include "policies/eviction/tokens_times_idle.hpp"
#include "policies/eviction/window_score.hpp"
#include "policies/prefetch/deadline.hpp"
#include "policies/prefetch/look_ahead.hpp"
#include "policies/prefetch/none.hpp"
#include "policies/routing/dynamo_kv.hpp"
#include "policies/routing/least_requests.hpp"
#include "policies/routing/least_tokens.hpp"
#include "policies/routing/llm_d.hpp"
#include "policies/routing/longest_prefix.hpp"
#include "policies/routing/power_of_two.hpp"
#include "policies/routing/prefix_load.hpp"
#include "policies/routing/random.hpp"
#include "policies/routing/round_robin.hpp"
#include "policies/routing/session.hpp"
#include "policies/routing/sglang_cache_aware.hpp"
#include "policies/routing/vllm_kvaware.hpp"
#include "policies/routing/vllm_prefix_aware.hpp"
#include "policies/scheduling/fcfs.hpp"
#include "policies/scheduling/longest_prefix.hpp"
#include "policies/scheduling/priority.hpp"
#include "policies/scheduling/shuffled_window.hpp"

namespace kvtier {

PolicyRegistry builtin_policies() {
  return {
      .eviction = {fifo_eviction(), lru_eviction(), scheduler_aware_eviction(),
                   tokens_times_idle_eviction(), window_score_eviction(), lfu_eviction(),
                   mru_eviction(), slru_eviction(), arc_eviction(), s3fifo_eviction(),
                   sieve_eviction(), gdsf_eviction(), seconds_saved_eviction(),
                   session_fifo_eviction(), belady_eviction()},
      .admission = {always_admission(), second_hit_admission(), frequency_sketch_admission()},
      .prefetch = {no_prefetch(), look_ahead_prefetch(), deadline_prefetch()},
      .order = {fcfs_order(), longest_prefix_order(), priority_order(), shuffled_window_order()},
      .routing = {random_routing(), round_robin_routing(), session_routing(),
                  least_requests_routing(), least_tokens_routing(), power_of_two_routing(),
                  longest_prefix_routing(), prefix_load_routing(), dynamo_kv_routing(),
                  llm_d_routing(), sglang_cache_aware_routing(), vllm_kvaware_routing(),
                  vllm_prefix_aware_routing()},
  };
}

}  // namespace kvtier
