#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/streams.hpp"
#include "traces/compressed_stream.hpp"
#include "traces/trace_source.hpp"

/// Traces in which requests name their blocks by numbers: a number stands for the tokens of the
/// block and all before them.
namespace kvtier {

/// Makes streams of block numbers, each unary chain of their trie one. Holds 16 bytes a number, or
/// 40 of those that are far larger than their count.
class BlockNames {
 public:
  /// `streams` outlives this.
  BlockNames(Streams& streams, Tokens block) : streams_(streams), block_(block) {}

  /// The context of a request with these blocks, of `tokens` tokens. Throws ConfigError, with the
  /// error that `error(text)` makes, for a number that stood behind another one before.
  template <class Error>
  Context context(const std::vector<std::int64_t>& names, Tokens tokens, const Error& error);

 private:
  struct Place {
    /// None: the number is new.
    StreamId stream;
    /// Its place among the blocks of a context, from 0.
    std::int32_t at = 0;
    std::int64_t parent = 0;
  };
  [[nodiscard]] Place& place_of(std::int64_t name);
  static constexpr std::int64_t kRoot = -1;

  Streams& streams_;
  Tokens block_;
  /// By number, as far as the numbers are dense, and the others.
  std::vector<Place> places_;
  std::unordered_map<std::int64_t, Place> sparse_;
  std::int64_t known_ = 0;
  /// Blocks of each stream's longest context.
  std::vector<std::int64_t> lengths_;
};

/// How a format writes its requests, a JSON object a line.
struct BlockTraceStyle {
  TraceFormat format = TraceFormat::mooncake;
  Tokens block;
  /// Nanoseconds of one unit of a time stamp.
  double unit_ns = 1;
};
[[nodiscard]] BlockTraceStyle block_trace_style(TraceFormat format);

/// Reads requests with `timestamp`, `input_length`, `output_length` and `hash_ids`, each a session
/// of one turn; other keys are ignored. There is a number for each full block of the input, and one
/// more for the rest or none. Memory is that of the distinct numbers.
///
/// * mooncake: time stamps in milliseconds, blocks of 512 tokens (github.com/kvcache-ai/Mooncake).
/// * qwen_bailian: in seconds, blocks of 16 (github.com/alibaba-edu/qwen-bailian-usagetraces-anon).
///
/// Every error is a ConfigError that names file and line: a malformed line, a missing or repeated
/// key, too few or too many numbers, a number behind two others, a time before the one above, no
/// requests.
class BlockTraceReader final : public TraceSource {
 public:
  BlockTraceReader(const std::filesystem::path& path, const BlockTraceStyle& style);

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_turn_arrivals() const override { return true; }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = style_.block, .partial = true};
  }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  LineReader lines_;
  BlockTraceStyle style_;
  Streams streams_;
  BlockNames names_;
  std::vector<std::int64_t> numbers_;
  SimTime first_arrival_;
  SimTime last_arrival_;
};

/// Reads agent sessions as published with github.com/callanjfox/kv-cache-tester: a folder of JSON
/// files, or one of them. A request has `t` (seconds since its session or sub-agent began), `in`,
/// `out` and `hash_ids` of its full blocks, whose numbers are those of its file; an entry with
/// `requests` is a sub-agent that began at its own `t`. All files begin at time 0. Each request is
/// a session of one turn, in order of time, of equal times by the file's name and the place in it.
/// Holds 40 bytes a request.
///
/// Every error is a ConfigError that names the file and, with its JSON pointer, the request.
class AgentTraceReader final : public TraceSource {
 public:
  explicit AgentTraceReader(const std::filesystem::path& path);

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_turn_arrivals() const override { return true; }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = block_, .partial = false};
  }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  struct Request {
    SimTime arrival;
    Context prompt;
    Tokens output;
  };
  void read_file(const std::filesystem::path& path);
  void read_requests(const Json& requests, const std::string& pointer, double began,
                     BlockNames& names, const std::string& file);

  Tokens block_;
  Streams streams_;
  std::vector<Request> requests_;
  std::size_t next_ = 0;
};

}  // namespace kvtier
