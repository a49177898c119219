#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/streams.hpp"

namespace kvtier {

/// The most blocks that a cache of any policy hits: what is looked up last leaves first, of equals
/// what is deepest, and what comes in may leave at once (Belady, IBM Systems Journal 5(2), 1966).
/// A block is looked up whenever one behind it is, so no block leaves before those behind it.
/// Holds 8 bytes for each block of each request.
class Belady {
 public:
  Belady(const Streams& streams, Tokens block) : streams_(streams), block_(block.value) {}

  /// The next request looks up the prompt's whole blocks, and leaves those of `stored`, which
  /// begins with the prompt.
  void add(const Context& prompt, const Context& stored);
  /// Blocks that requests hit in a cache of so many blocks: all of them, or those behind the first
  /// `skipped`.
  [[nodiscard]] std::int64_t hits(std::int64_t capacity, std::size_t skipped = 0);

 private:
  static constexpr std::uint32_t kNever = UINT32_MAX;
  struct Request {
    /// In `blocks_`.
    std::size_t begin = 0;
    std::uint32_t looked_up = 0;
    std::uint32_t stored = 0;
  };
  void find_next_uses();

  const Streams& streams_;
  std::int64_t block_;
  std::vector<Request> requests_;
  /// Stored blocks of all requests, by number, and the next request that looks each up.
  std::vector<std::uint32_t> blocks_;
  std::vector<std::uint32_t> next_;
  /// By stream, numbers of its blocks from its first on.
  std::vector<std::vector<std::uint32_t>> numbers_;
  std::vector<std::uint32_t> depth_;
  std::vector<Stretch> path_;
};

}  // namespace kvtier
