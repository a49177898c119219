#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/compressed_stream.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/streams.hpp"
#include "traces/hash_names.hpp"
#include "traces/request_table.hpp"
#include "traces/trace_source.hpp"

/// Traces whose requests name their blocks by numbers. A number stands for the tokens of its block
/// and all tokens before it.
namespace kvtier {

/// Turns block numbers into streams: each unary chain of their trie is a stream. Holds 16 bytes per
/// number, or 40 for numbers far larger than their count.
class BlockNames {
 public:
  /// `streams` and `hashes` must outlive this. Errors take the names of numbers from `hashes`.
  BlockNames(Streams& streams, Tokens block, const HashNames* hashes = nullptr)
      : streams_(streams), block_(block), hashes_(hashes) {}

  /// The context of a request with these blocks, of `tokens` tokens. Throws the ConfigError that
  /// `error(text)` makes if a number followed a different number before.
  Context context(const std::vector<std::int64_t>& names, Tokens tokens,
                  const std::function<ConfigError(const std::string&)>& error);

 private:
  struct Place {
    /// No stream: the number is new.
    StreamId stream;
    /// Position among the blocks of a context, from 0.
    std::int32_t at = 0;
    std::int64_t parent = 0;
  };
  [[nodiscard]] Place& place_of(std::int64_t name);
  [[nodiscard]] std::string text_of(std::int64_t name) const;
  static constexpr std::int64_t kRoot = -1;

  Streams& streams_;
  Tokens block_;
  const HashNames* hashes_;
  /// Places by number: dense numbers in a table, the others in a map.
  std::vector<Place> places_;
  std::unordered_map<std::int64_t, Place> sparse_;
  std::int64_t known_ = 0;
  /// Blocks of each stream's longest context.
  std::vector<std::int64_t> lengths_;
};

/// Checks that a prompt has a number for each full block, and at most one for the rest. Returns the
/// problem, or nothing.
[[nodiscard]] std::string wrong_block_count(std::size_t blocks, Tokens input, Tokens block);

/// Conventions of a format of JSON lines, one request per line.
struct BlockTraceStyle {
  TraceFormat format = TraceFormat::mooncake;
  Tokens block;
  /// Unit of time stamps: 10^-time_places seconds.
  std::size_t time_places = 0;
};
[[nodiscard]] BlockTraceStyle block_trace_style(TraceFormat format);

/// Reads requests with `timestamp`, `input_length`, `output_length` and `hash_ids`. Other keys are
/// ignored, except those of a closed loop. Each full block of the input has a number; a partial
/// last block may have one, too. In an open loop each request is a session of one turn, and memory
/// grows with the distinct numbers. A closed loop also holds 56 bytes per request and the names of
/// its sessions.
///
/// * mooncake: time stamps in milliseconds, blocks of 512 tokens
///   (github.com/kvcache-ai/Mooncake). In a closed loop `session_id`, a text or number, names the
///   session of a request. `delay` is the time from the previous response in milliseconds; a
///   request with a delay needs no time stamp (github.com/ai-dynamo/aiperf).
/// * qwen_bailian: time stamps in seconds, blocks of 16 tokens
///   (github.com/alibaba-edu/qwen-bailian-usagetraces-anon). In a closed loop a request belongs to
///   the session of its `parent_chat_id`. If that chat has a later request already, a new session
///   begins.
///
/// Every error is a ConfigError that names file and line: a malformed line, a missing or repeated
/// key, a wrong count of numbers, a number that follows two different numbers, a decreasing time, a
/// parent without an earlier line, no requests.
class BlockTraceReader final : public TraceSource {
 public:
  BlockTraceReader(const std::filesystem::path& path, const BlockTraceStyle& style,
                   const ImportOptions& options = {});

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_think_times() const override { return has_think_times_; }
  [[nodiscard]] bool has_turn_arrivals() const override { return !has_think_times_; }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = style_.block, .partial = true};
  }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  /// A line of the trace.
  struct Line {
    std::optional<SimTime> arrival;
    Tokens input;
    Tokens output;
    std::optional<SimDuration> delay;
    std::int64_t chat = 0;
    std::int64_t parent = 0;
    std::string session;
  };
  [[nodiscard]] bool read_line(Line& line);
  [[nodiscard]] Context prompt_of(const Line& line);
  void read_sessions();
  [[nodiscard]] std::uint32_t session_of(const Line& line);

  LineReader lines_;
  BlockTraceStyle style_;
  bool closed_;
  bool has_think_times_;
  Streams streams_;
  BlockNames names_;
  std::vector<std::int64_t> numbers_;
  std::optional<SimTime> first_arrival_;
  SimTime last_arrival_;
  // Used in a closed loop only.
  RequestTable table_;
  std::uint32_t sessions_ = 0;
  std::unordered_map<std::string, std::uint32_t> by_name_;
  struct Chat {
    std::uint32_t session = 0;
    bool goes_on = false;
  };
  std::unordered_map<std::int64_t, Chat> by_chat_;
};

/// Reads agent sessions as published with github.com/callanjfox/kv-cache-tester: a folder of JSON
/// files, an archive of them (tar, plain, gzip or zstd, or zip), or one file, which may be gzip or
/// zstd. A folder and an archive of it give the same sessions: the plain files *.json at any depth,
/// without paths that have a part beginning with a dot. *.json.gz and *.json.zst in them are
/// errors. Sessions begin by `session_start`, in the byte order of the files' paths in the folder
/// or archive. The text of an archive is held in memory until all of it is read.
///
/// A request has `t` (seconds since the start of its session or sub-agent), `in`, `out` and the
/// `hash_ids` of its full blocks. Block numbers are valid within their file. An entry with
/// `requests` is a sub-agent, which begins at its `t`.
///
/// In an open loop each request is a session of one turn, in order of time. Requests of equal times
/// are ordered by file and by place in it. In a closed loop the requests of a file are one session.
/// Those of each sub-agent are another session, which begins at its recorded time. The sessions of
/// a file are one group. `think_time` is the time since the previous response; without it, the time
/// between the two requests minus `api_time`. Holds 56 bytes per request.
///
/// Limit of the closed loop: a caller does not wait for its simulated sub-agents. Its think time
/// contains their recorded time.
///
/// Every error is a ConfigError that names the file and, with its JSON pointer, the request.
class AgentTraceReader final : public TraceSource {
 public:
  explicit AgentTraceReader(const std::filesystem::path& path, const ImportOptions& options = {});

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_think_times() const override { return has_think_times_; }
  [[nodiscard]] bool has_turn_arrivals() const override { return !has_think_times_; }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = block_, .partial = false};
  }

 protected:
  bool read_session(SessionSpec& session) override { return table_.next(session); }

 private:
  /// `file` is its name in errors.
  void read_file(const std::string& file, const std::string& text, SimTime began);
  /// Reads the requests of one session or sub-agent.
  void read_requests(const Json& requests, const std::string& pointer, SimTime began,
                     BlockNames& names, const std::string& file);

  bool has_think_times_;
  Tokens block_;
  Streams streams_;
  RequestTable table_;
  std::uint32_t sessions_ = 0;
  std::int32_t files_ = 0;
};

}  // namespace kvtier
