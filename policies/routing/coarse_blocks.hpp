#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sim/policy/routing.hpp"

namespace kvtier {

/// A prompt in blocks larger than the group's. A hash also names all tokens before its block, so
/// the last small block of a large block names the large block.
class CoarseBlocks {
 public:
  CoarseBlocks() = default;
  /// Blocks have at least `wanted` tokens.
  CoarseBlocks(Tokens block_tokens, Tokens wanted)
      : stride_((wanted.value + block_tokens.value - 1) / block_tokens.value),
        tokens_(block_tokens * stride_) {}

  [[nodiscard]] Tokens tokens() const { return tokens_; }
  /// The full blocks of the prompt, at most `most`. Valid until the next call.
  [[nodiscard]] std::span<const BlockHash> of(
      const RoutedRequest& request, std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
    const std::int64_t count = std::min(std::ssize(request.blocks) / stride_, most);
    if (stride_ == 1) {
      return request.blocks.first(static_cast<std::size_t>(count));
    }
    blocks_.clear();
    for (std::int64_t i = 1; i <= count; ++i) {
      blocks_.push_back(request.blocks[static_cast<std::size_t>(i * stride_ - 1)]);
    }
    return blocks_;
  }

 private:
  std::int64_t stride_ = 1;
  Tokens tokens_{1};
  std::vector<BlockHash> blocks_;
};

}  // namespace kvtier
