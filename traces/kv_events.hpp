#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/core/compressed_stream.hpp"
#include "sim/core/streams.hpp"
#include "traces/hash_names.hpp"
#include "traces/line_scanner.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Reads the KV cache events of a server (vLLM's and SGLang's KV events) as JSON lines, plain, gzip
/// or zstd. A line is a batch of events, in one of two forms:
///
///     {"ts": 12.5, "events": [{"type": "BlockStored", "block_hashes": [7, 8],
///         "parent_block_hash": 6, "token_ids": [...], "block_size": 16, "medium": "GPU"}]}
///     [12.5, [["BlockStored", [7, 8], 6, [...], 16, null, "GPU"]], 0]
///
/// `ts` is in seconds and does not decrease. Hashes are whole numbers or strings. `token_ids` may
/// be null, empty or missing. An event without medium is of the GPU. Other keys are ignored. The
/// ranks of batches are ignored, too: all ranks of a server are one cache.
///
/// A BlockStored event means that the server did not find these blocks on its GPU, and computed or
/// loaded them. Each event becomes a request: a session of one turn at the batch's time, with a
/// response of one token. The prompt is the chain of the parent and the blocks. Only the tokens of
/// the blocks are new and count as asked for, because the server had the chain before them. So
/// these are the requests to a cache behind that GPU, or the misses that a larger GPU cache would
/// have saved.
///
/// * The events do not tell prefill from decode. Blocks filled by decode are requests, too, and no
///   cache has them before.
/// * A chunked prefill is one request per chunk.
/// * BlockRemoved and AllBlocksCleared are only counted, because a block that is stored again has
///   the same tokens.
/// * Events of media other than the GPU are only counted. So are events of groups of layers other
///   than the first (`group_idx` over 0), which store the same tokens again.
/// * A chain whose parent was not stored before begins a stream of its own, at position 0; the
///   report counts these chains. If the parent is stored later, the chain's blocks move behind it
///   when they are stored again, and count as new.
///
/// Holds 40 to 80 bytes per distinct block, more if hashes are strings, and the events of one line.
///
/// Every error is a ConfigError that names file and line: a malformed line, a missing key, a
/// decreasing time, a block that follows two different blocks, blocks of two sizes, a wrong count
/// of token ids, no block stored on the GPU.
class KvEventReader final : public TraceSource {
 public:
  explicit KvEventReader(const std::filesystem::path& path, const ImportOptions& options = {});

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_turn_arrivals() const override { return true; }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = block_, .partial = false};
  }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  using Hash = LineScanner::Hash;
  /// An event as written in its line.
  struct Event {
    std::optional<std::string_view> type;
    /// Range of the event's blocks in `hashes_`.
    std::size_t begin = 0;
    std::size_t end = 0;
    std::optional<Hash> parent;
    std::optional<std::int64_t> block_size;
    std::int64_t token_ids = 0;
    std::string_view medium = "GPU";
    std::int64_t group = 0;
    bool has_hashes = false;
    bool has_parent = false;
  };
  struct Place {
    /// No stream: the block was not stored yet.
    StreamId stream;
    /// Position among the blocks of a context, from 0.
    std::int32_t at = 0;
    std::int64_t parent = 0;
  };

  /// Advances to the next event that becomes a request, and counts the others.
  [[nodiscard]] bool advance();
  [[nodiscard]] bool read_line();
  void read_events(LineScanner& scanner);
  void read_event(LineScanner& scanner);
  void read_event_value(LineScanner& scanner, std::string_view key, Event& event);
  [[nodiscard]] bool is_request(const Event& event);
  void check_event(const Event& event);
  [[nodiscard]] Place& place_of(std::int64_t block);
  [[nodiscard]] Context chain_of(const Event& event);

  LineReader lines_;
  Tokens block_;
  Streams streams_;
  HashNames names_;
  std::vector<Place> places_;
  /// Blocks of each stream's longest context.
  std::vector<std::int64_t> lengths_;
  std::optional<SimTime> first_arrival_;
  std::optional<SimTime> last_time_;
  /// Events of the current line. Their texts point into it.
  std::vector<Event> events_;
  std::vector<Hash> hashes_;
  std::size_t next_ = 0;
  bool has_next_ = false;
};

}  // namespace kvtier
