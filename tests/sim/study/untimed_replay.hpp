#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/study/support.hpp"

/// Untimed replays of one tier of equal entries, turn by turn.
namespace kvtier::test {

/// One turn: which session asks, and whether it has a history to be found.
struct Access {
  std::int64_t session = 0;
  std::int64_t turn = 0;
  SimTime time;
  bool resumed = false;
};

/// 40 turns of two messages of at most 500 tokens fit in this window.
constexpr std::int64_t kWindow = 40960;

enum class Placement { dram, ssd };

/// One tier, where every entry is charged a whole window.
[[nodiscard]] RunConfig one_tier(Placement place, const std::string& eviction, std::int64_t entries,
                                 std::int64_t seed = 1);
/// Charge of an entry.
[[nodiscard]] Bytes entry_size(const RunConfig& config);

struct Replay {
  std::vector<Access> accesses;
  std::vector<bool> hits;
  std::vector<Medium> media;
  Json result;

  [[nodiscard]] std::int64_t hit_count() const {
    return std::count(hits.begin(), hits.end(), true);
  }
};

[[nodiscard]] Replay replay(const RunConfig& config);

}  // namespace kvtier::test
