#include "sim/study/validate/pace.hpp"

namespace kvtier {

Pace pace_of(std::span<const ComputedWork> work, const TimingModel& timing) {
  double measured_prefill = 0;
  double measured_decode = 0;
  double predicted_prefill = 0;
  double predicted_decode = 0;
  for (const ComputedWork& w : work) {
    if (!w.parts.empty()) {
      measured_prefill += w.seconds;
      predicted_prefill +=
          timing.iteration(w.parts, w.batch, w.context).after(w.passes_before).seconds();
      continue;
    }
    measured_decode += w.seconds;
    predicted_decode += timing.decode_warm_up(w.passes_before).seconds();
    for (std::int64_t i = 0; i < w.iterations; ++i) {
      predicted_decode +=
          timing.decode_duration(w.batch, w.context + Tokens(w.batch * i)).seconds();
    }
  }
  return {.prefill = predicted_prefill > 0 ? measured_prefill / predicted_prefill : 1,
          .decode = predicted_decode > 0 ? measured_decode / predicted_decode : 1};
}

}  // namespace kvtier
