#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/core/config.hpp"
#include "sim/core/units.hpp"

namespace kvtier {

/// A size of stored KV in bytes, tokens or blocks. Bytes need a model, which gives the bytes of a
/// token. Written "64GiB", "5Mitokens", "1000blocks".
struct KvSize {
  enum class Unit : std::uint8_t { bytes, tokens, blocks };
  Unit unit = Unit::bytes;
  std::int64_t count = 0;

  friend bool operator==(const KvSize&, const KvSize&) = default;
};

/// The size that `text` writes. nullopt for other texts and for sizes that are not whole.
[[nodiscard]] std::optional<KvSize> parse_kv_size(std::string_view text);
/// Text that parse_kv_size turns back into `size`.
[[nodiscard]] std::string format_kv_size(const KvSize& size);
/// Number of whole blocks of `block` tokens that fit in `size`. If `bytes_per_token` is 0
/// (unknown), `size` must not be in bytes.
[[nodiscard]] std::int64_t blocks_of(const KvSize& size, Tokens block, Bytes bytes_per_token);

// Config value; more than 0.
void read_config(KvSize& size, const Json& json, const std::string& pointer, Problems& problems);
[[nodiscard]] Json write_config(const KvSize& size);
[[nodiscard]] Json config_schema(const KvSize& size);

}  // namespace kvtier
