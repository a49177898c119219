#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>

namespace kvtier {

/// Thrown by a run to end early after a stop request.
struct Stopped {};

/// Calls `work(i, stop)` for every i below `count` on `jobs` threads. Calls `progress(done)` a few
/// times a second on the caller's thread. An exception of either one stops all work and is thrown
/// again; of several exceptions of `work`, that of the least i. `work` must throw Stopped soon
/// after a stop request.
void run_on_threads(std::size_t count, std::int64_t jobs,
                    const std::function<void(std::size_t, const std::stop_token&)>& work,
                    const std::function<void(std::int64_t)>& progress);

}  // namespace kvtier
