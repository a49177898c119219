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

/// Traces in which requests name their blocks by numbers: a number stands for the tokens of the
/// block and all before them.
namespace kvtier {

/// Makes streams of block numbers: each unary chain of their trie is a stream. Holds 16 bytes a
/// number, or 40 for numbers far larger than their count.
class BlockNames {
 public:
  /// `streams` and `hashes` must outlive this. Errors take the names of numbers from `hashes`.
  BlockNames(Streams& streams, Tokens block, const HashNames* hashes = nullptr)
      : streams_(streams), block_(block), hashes_(hashes) {}

  /// The context of a request with these blocks, of `tokens` tokens. Throws ConfigError, with the
  /// error that `error(text)` makes, for a number that stood behind another one before.
  Context context(const std::vector<std::int64_t>& names, Tokens tokens,
                  const std::function<ConfigError(const std::string&)>& error);

 private:
  struct Place {
    /// None: the number is new.
    StreamId stream;
    /// Its place among the blocks of a context, from 0.
    std::int32_t at = 0;
    std::int64_t parent = 0;
  };
  [[nodiscard]] Place& place_of(std::int64_t name);
  [[nodiscard]] std::string text_of(std::int64_t name) const;
  static constexpr std::int64_t kRoot = -1;

  Streams& streams_;
  Tokens block_;
  const HashNames* hashes_;
  /// By number, as far as the numbers are dense, and the others.
  std::vector<Place> places_;
  std::unordered_map<std::int64_t, Place> sparse_;
  std::int64_t known_ = 0;
  /// Blocks of each stream's longest context.
  std::vector<std::int64_t> lengths_;
};

/// Checks that a prompt has a number for each full block, and at most one for the rest. Returns the
/// problem, or nothing.
[[nodiscard]] std::string wrong_block_count(std::size_t blocks, Tokens input, Tokens block);

/// How a format writes its requests, a JSON object a line.
struct BlockTraceStyle {
  TraceFormat format = TraceFormat::mooncake;
  Tokens block;
  /// Decimal places of the unit of a time stamp below a second.
  std::size_t time_places = 0;
};
[[nodiscard]] BlockTraceStyle block_trace_style(TraceFormat format);

/// Reads requests with `timestamp`, `input_length`, `output_length` and `hash_ids`; other keys but
/// those of a closed loop are ignored. There is a number for each full block of the input, and one
/// more for the rest or none. In an open loop each request is a session of one turn, and memory is
/// that of the distinct numbers; a closed loop also holds 56 bytes a request and its sessions'
/// names.
///
/// * mooncake: time stamps in milliseconds, blocks of 512 tokens (github.com/kvcache-ai/Mooncake).
/// In
///   a closed loop `session_id`, a text or number, says which requests are a session's, and `delay`
///   how many milliseconds each comes after the response before it; a request with a delay needs no
///   time stamp (github.com/ai-dynamo/aiperf).
/// * qwen_bailian: in seconds, blocks of 16 (github.com/alibaba-edu/qwen-bailian-usagetraces-anon).
///   In a closed loop a request belongs to the session of its `parent_chat_id`; where that has one
///   that goes on already, a session of its own begins.
///
/// Every error is a ConfigError that names file and line: a malformed line, a missing or repeated
/// key, too few or too many numbers, a number behind two others, a time before the one above, a
/// parent that does not stand above, no requests.
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
/// without those below a name that begins with a dot. *.json.gz and *.json.zst in them are errors.
/// Sessions begin as `session_start` says, in the byte order of the files' paths in the folder or
/// archive. An archive is held as text until all of it is read.
///
/// A request has `t` (seconds since its session or sub-agent began), `in`, `out` and `hash_ids` of
/// its full blocks. Block numbers are those of the file. An entry with `requests` is a sub-agent,
/// which begins at its `t`.
///
/// In an open loop each request is a session of one turn, in order of time. Requests of equal times
/// are ordered by file and by place in it. In a closed loop the requests of a file are one session,
/// and those of each sub-agent are another one, which begins at its recorded time. `think_time` is
/// the time since the response before; without it, the time between the two requests less
/// `api_time`. Holds 56 bytes a request.
///
/// Limit of the closed loop: a caller does not wait for its simulated sub-agents. Its think time
/// contains the recorded time that they took.
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
  /// `file`: its name, for errors.
  void read_file(const std::string& file, const std::string& text, SimTime began);
  /// Those of one session or sub-agent.
  void read_requests(const Json& requests, const std::string& pointer, SimTime began,
                     BlockNames& names, const std::string& file);

  bool has_think_times_;
  Tokens block_;
  Streams streams_;
  RequestTable table_;
  std::uint32_t sessions_ = 0;
};

}  // namespace kvtier
