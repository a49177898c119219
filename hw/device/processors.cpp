#include "hw/device/processors.hpp"

#include <algorithm>
#include <iterator>
#include <thread>

#include <sched.h>

namespace kvtier {

void stay_on(const Processors& processors) {
  if (processors.empty()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) {
    CPU_SET(static_cast<std::size_t>(processor), &set);
  }
  static_cast<void>(::sched_setaffinity(0, sizeof set, &set));
}

Processors processors_of_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  Processors processors;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(static_cast<std::size_t>(i), &set)) {
        processors.push_back(i);
      }
    }
  }
  return processors;
}

int available_processors() {
  const std::size_t known = processors_of_thread().size();
  return static_cast<int>(known > 0 ? known : std::max(1U, std::thread::hardware_concurrency()));
}

ProcessorShares share_processors(const Device& device, const Processors& all) {
  const std::int64_t computing = device.info().processors;
  if (device.info().kind != "cpu" || std::ssize(all) <= computing) {
    return {};
  }
  return {.compute = Processors(all.begin(), all.begin() + computing),
          .rest = Processors(all.begin() + computing, all.end())};
}

}  // namespace kvtier
