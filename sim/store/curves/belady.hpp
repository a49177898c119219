#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/streams.hpp"

namespace kvtier {

/// The most blocks that measured requests hit in a cache of any policy: what is needed last leaves
/// first, of equals what is deepest, and what comes in may leave at once (Belady, IBM Systems
/// Journal 5(2), 1966). A request leaves its blocks whether it hit them or not. So a block is
/// needed only if the next request that has it is measured and looks it up. No block leaves before
/// those behind it. Holds 8 bytes for each block of each request.
class Belady {
 public:
  Belady(const Streams& streams, Tokens block) : streams_(streams), block_(block.value) {}

  /// The next request looks up the prompt's whole blocks, and leaves those of `stored`, which
  /// begins with the prompt. Its hits count if it is measured.
  void add(const Context& prompt, const Context& stored, bool measured = true);
  /// Blocks that the measured requests hit in a cache of so many blocks.
  [[nodiscard]] std::int64_t hits(std::int64_t capacity);

 private:
  static constexpr std::uint32_t kNever = UINT32_MAX;
  struct Request {
    /// In `blocks_`.
    std::size_t begin = 0;
    /// 0 if it is not measured.
    std::uint32_t looked_up = 0;
    std::uint32_t stored = 0;
  };
  void find_next_uses();

  const Streams& streams_;
  std::int64_t block_;
  std::vector<Request> requests_;
  /// Stored blocks of all requests, by number, and the next request that needs each.
  std::vector<std::uint32_t> blocks_;
  std::vector<std::uint32_t> next_;
  /// By stream, numbers of its blocks from its first on.
  std::vector<std::vector<std::uint32_t>> numbers_;
  std::vector<std::uint32_t> depth_;
  std::vector<Stretch> path_;
};

}  // namespace kvtier
