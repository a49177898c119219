#pragma once

#include <array>
#include <cstdint>
#include <numeric>

#include "sim/backend/backend.hpp"

namespace kvtier {

/// Prompts, and the tokens and blocks of them that were found.
struct BlockHits {
  std::int64_t turns = 0;
  std::int64_t turns_with_hits = 0;
  std::int64_t prompt_tokens = 0;
  /// Full ones, also where the tokens of several media fill one together.
  std::int64_t prompt_blocks = 0;
  /// By medium.
  std::array<std::int64_t, kMedia> hit_blocks{};
  std::array<std::int64_t, kMedia> hit_tokens{};
  [[nodiscard]] std::int64_t hit_tokens_in_all() const {
    return std::accumulate(hit_tokens.begin(), hit_tokens.end(), std::int64_t{0});
  }
  [[nodiscard]] std::int64_t hit_blocks_in_all() const {
    return std::accumulate(hit_blocks.begin(), hit_blocks.end(), std::int64_t{0});
  }
  /// Counts a prompt; the caller adds the found tokens to `hit_tokens`.
  void add_prompt(Tokens prompt, bool hit) {
    ++turns;
    turns_with_hits += hit ? 1 : 0;
    prompt_tokens += prompt.value;
  }
  /// Counts a prompt of which so many tokens were found, by medium. Without blocks, `block` is 0.
  /// `partial`: parts of blocks count as blocks.
  void add(Tokens prompt, const std::array<Tokens, kMedia>& found, Tokens block,
           bool partial = false) {
    const Tokens more = partial ? block - Tokens(1) : Tokens(0);
    if (block.value > 0) {
      prompt_blocks += (prompt + more) / block;
    }
    Tokens faster;
    std::int64_t blocks = 0;
    for (std::size_t i = 0; i < kMedia; ++i) {
      if (found[i].value == 0) {
        continue;
      }
      hit_tokens[i] += found[i].value;
      faster += found[i];
      if (block.value > 0) {
        const std::int64_t so_far = (faster + more) / block;
        hit_blocks[i] += so_far - blocks;
        blocks = so_far;
      }
    }
    add_prompt(prompt, faster.value > 0);
  }
};

}  // namespace kvtier
