#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>

namespace kvtier {

/// Ends a run that nobody waits for any more.
struct Stopped {};

/// Calls `work(i, stop)` for every i below `count`, `jobs` at a time, each on some thread, and
/// `progress(done)` a few times a second on the caller's, which may throw to end it all. What
/// `work` throws ends it, too: of several, that of the least i is thrown again. `work` throws
/// Stopped soon after a stop is requested.
void run_on_threads(std::size_t count, std::int64_t jobs,
                    const std::function<void(std::size_t, const std::stop_token&)>& work,
                    const std::function<void(std::int64_t)>& progress);

}  // namespace kvtier
