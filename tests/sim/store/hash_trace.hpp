#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/streams.hpp"

/// A trace of block hashes, as Mooncake's, for tests.
namespace kvtier {

inline constexpr Tokens kTraceBlock{512};

struct HashRequest {
  /// The stream of the request's last block.
  StreamId stream;
  Tokens prompt;
  Tokens output;
  std::int64_t blocks = 0;

  [[nodiscard]] Context context() const { return {stream, prompt}; }
  /// With a last block that is full.
  [[nodiscard]] Context whole_blocks() const { return {stream, kTraceBlock * blocks}; }
};

struct HashTrace {
  /// Requests that continue the deepest known block at a stream's end lengthen the stream.
  Streams streams;
  std::vector<HashRequest> requests;
};

/// The first `most` requests of ../shared/data/NAME.jsonl.gz; nullopt if there is no such file.
[[nodiscard]] std::optional<HashTrace> read_hash_trace(const std::string& name,
                                                       std::size_t most = SIZE_MAX);

/// A table of ../shared/data/oracles: names of columns, and rows of numbers.
struct OracleTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::int64_t>> rows;
};
[[nodiscard]] std::optional<OracleTable> read_oracle(const std::string& name);

/// The capacity of an oracle's column: "256Ki", "5Mi" or "inf".
[[nodiscard]] std::int64_t tokens_of(const std::string& capacity);

}  // namespace kvtier
