#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "sim/core/streams.hpp"

namespace kvtier {

/// Tokens of a block of Mooncake's traces.
inline constexpr Tokens kTraceBlock{512};

struct HashRequest {
  /// The stream of the request's last block.
  StreamId stream;
  Tokens prompt;
  Tokens output;
  std::int64_t blocks = 0;

  [[nodiscard]] Context context() const { return {stream, prompt}; }
  /// The context with its last block counted as full.
  [[nodiscard]] Context whole_blocks() const { return {stream, kTraceBlock * blocks}; }
};

/// Requests that name their blocks by hashes, in memory.
struct HashTrace {
  /// Requests that continue the deepest known block at a stream's end lengthen the stream.
  Streams streams;
  std::vector<HashRequest> requests;
};

/// The first `most` requests of a trace in Mooncake's format, plain, gzip or zstd. Throws
/// ConfigError.
[[nodiscard]] HashTrace read_hash_trace(const std::filesystem::path& path,
                                        std::size_t most = SIZE_MAX);

}  // namespace kvtier
