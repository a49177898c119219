#include "sim/study/validate/passes.hpp"

namespace kvtier {

Passes passes_of(std::span<const ComputedWork> work, const TimingModel& timing) {
  Passes passes;
  for (const ComputedWork& w : work) {
    const bool prefills = !w.parts.empty();
    PassTimes& times = prefills ? passes.prefill : passes.decode;
    times.passes += w.iterations;
    times.measured += w.seconds;
    times.submission += w.submit_seconds;
    times.device += w.device_seconds;
    if (prefills) {
      times.predicted +=
          timing.iteration(w.parts, w.batch, w.context).after(w.passes_before).seconds();
      continue;
    }
    times.predicted += timing.decode_warm_up(w.passes_before).seconds();
    for (std::int64_t i = 0; i < w.iterations; ++i) {
      times.predicted += timing.decode_duration(w.batch, w.context + Tokens(w.batch * i)).seconds();
    }
  }
  return passes;
}

}  // namespace kvtier
