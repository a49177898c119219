#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

/// Products of warpgroups in flight. Each warp computes its own 16 rows.
namespace kvtier::emulation {

/// Sums of a warp that products in flight own. The lanes' registers hold NaN meanwhile.
struct SumsInFlight {
  std::array<float*, 32> registers{};
  std::array<std::array<float, 128>, 16> values{};
  int products = 0;
};

/// Shared memory that a product reads, in chunks of 16 bytes.
using ChunksRead = std::vector<const std::byte*>;

struct ProductInFlight {
  /// The key of its sums.
  float* sums = nullptr;
  ChunksRead reads;
};

struct WarpProducts {
  /// Whether wgmma.fence came after the last wait.
  bool fenced = false;
  /// By the registers of the first lane.
  std::map<float*, SumsInFlight> sums;
  std::vector<ProductInFlight> uncommitted;
  std::deque<std::vector<ProductInFlight>> in_flight;
  /// A hash of all products so far. It is the same in the four warps.
  std::uint64_t issued = 0;

  [[nodiscard]] bool none_in_flight() const { return sums.empty(); }
};

}  // namespace kvtier::emulation
