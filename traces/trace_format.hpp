#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/compressed_stream.hpp"
#include "sim/core/config.hpp"
#include "sim/core/streams.hpp"
#include "traces/session.hpp"
#include "traces/trace_source.hpp"

/// kvtier's own trace formats: JSON lines, plain, gzip or zstd.
///
/// `kvtier.trace/1`: sessions, whose turns are numbers of tokens.
///
///     {"format":"kvtier.trace/1","arrivals":true,"think_times":true,"source":"sharegpt generator"}
///     {"id":0,"arrival_ns":1500000000,"turns":[[42,310,0],[17,205,61000000000]]}
///
/// The first line is the header. Each further line is one session:
///
/// * `id`: ids increase.
/// * `group`: number of the recorded session of which this is a part, in all lines or in none.
///   Requests of an agent and its sub-agents have the same.
/// * `arrival_ns`: arrival of the first turn, if `arrivals`; arrivals do not decrease.
/// * `turns`: [user tokens, response tokens, time] each. The time is the think time in nanoseconds
///   since the previous turn's last token if `think_times`, and 0 for the first turn. It is the
///   time since the previous turn's arrival if `turn_arrivals` (with `arrivals`, without
///   `think_times`), as in logs of requests. Otherwise there is no time.
/// * `shared_prompt`: [id, tokens], if the session begins with a shared prompt. The same id always
///   has the same tokens, which count in no turn.
///
/// Times are whole nanoseconds, so that written sessions are read back exactly. Keys may come in
/// any order, each once; other keys are errors.
///
/// `kvtier.trace/2`: sessions, whose turns name their tokens as prefixes of streams.
///
///     {"format":"kvtier.trace/2","arrivals":true,"think_times":true,"block":512,"partial":true}
///     {"stream":0,"tokens":1024}
///     {"stream":1,"parent":0,"at":1024}
///     {"id":0,"arrival_ns":0,"turns":[[1,1500,1500,310,0],[1,1900,90,205,61000000000,1]]}
///
/// The header is that of version 1 with `block`, the tokens of a block of the original trace, and
/// `partial`: a prompt's last block has a name even if it is not full.
///
/// A stream has a line before the first turn that names it. The line begins with the stream's
/// number; numbers count from 0. `parent` and `at`: the stream forks from a stream above, whose
/// first `at` tokens it shares. A fork lies within its parent, whose length is its `tokens` or the
/// longest context in turns above. A further line with the number and more `tokens` lengthens a
/// stream.
///
/// A turn is a list of:
///
/// * the number of the prompt's stream
/// * the tokens of the prompt
/// * the new tokens of the prompt, at least 1; in a first turn all of them, unless the recorded
///   server had the tokens before
/// * the response tokens
/// * the time, as in version 1, if the header has times
/// * the number of the response's stream, if its tokens are named: they follow the prompt there
namespace kvtier {

class LineScanner;

inline constexpr const char* kTraceVersion1 = "kvtier.trace/1";
inline constexpr const char* kTraceVersion2 = "kvtier.trace/2";

struct TraceHeader {
  std::string format = kTraceVersion1;
  bool arrivals = false;
  bool think_times = false;
  bool turn_arrivals = false;
  std::string source{};
  /// Tokens of a block, and whether partial blocks have names; version 2 only.
  std::optional<std::int64_t> block{};
  bool partial = false;
};

template <class V>
void describe(V& v, TraceHeader& c) {
  v.field("format", c.format, "Name and version of the format.", required());
  v.field("arrivals", c.arrivals, "Sessions have arrival times.");
  v.field("think_times", c.think_times, "Turns have think times.");
  v.field("turn_arrivals", c.turn_arrivals,
          "Turns have the time since the previous turn's arrival.");
  v.field("source", c.source, "Origin of the sessions, as text.");
  v.field("block", c.block, "Tokens of a block of the original trace.", between(1, INT32_MAX));
  v.field("partial", c.partial, "A prompt's last block has a name even if it is not full.");
}

/// Reads both versions. Every error is a ConfigError that names file and line: another version, a
/// malformed line, a count below 1, no turns, a repeated or unknown key, a decreasing arrival, a
/// shared prompt of a different length, a missing or repeated stream, a fork beyond its parent's
/// end, no sessions, damaged compression. A plain file that was cut between two lines looks like a
/// shorter trace. Version 2 takes 40 bytes per stream.
class TraceReader final : public TraceSource {
 public:
  explicit TraceReader(const std::filesystem::path& path, Tokens message_overhead = {});

  [[nodiscard]] bool has_arrivals() const override { return header_.arrivals; }
  [[nodiscard]] bool has_think_times() const override { return header_.think_times; }
  [[nodiscard]] bool has_turn_arrivals() const override { return header_.turn_arrivals; }
  [[nodiscard]] const TraceHeader& header() const { return header_; }
  [[nodiscard]] Streams* streams() override { return names_tokens_ ? &streams_ : nullptr; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return header_.block ? std::optional(NamedBlocks{Tokens(*header_.block), header_.partial})
                         : std::nullopt;
  }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  struct NamedStream {
    StreamId id;
    /// The length known so far.
    Tokens end;
  };
  void read_stream(std::string_view line);
  void read_turns(LineScanner& scanner, SessionSpec& session);
  [[nodiscard]] Context read_context(LineScanner& scanner);
  [[nodiscard]] NamedStream& stream_numbered(std::int64_t number);

  LineReader lines_;
  TraceHeader header_;
  bool names_tokens_ = false;
  std::int64_t last_id_ = -1;
  /// Whether the sessions above have groups.
  bool has_groups_ = false;
  SimTime last_arrival_{};
  /// By id.
  std::map<std::int64_t, Tokens> shared_prompts_;
  Streams streams_;
  /// By number.
  std::vector<NamedStream> named_;
};

/// Writes version 2 with streams, else version 1, compressed by the name's suffix (.gz, .zst).
/// Throws DeviceError.
class TraceWriter {
 public:
  /// Keeps a pointer to `streams`, those of the sessions' contents.
  TraceWriter(const std::filesystem::path& path, TraceHeader header,
              const Streams* streams = nullptr);

  /// Ids of sessions must increase. If the header has arrivals, arrivals must not decrease.
  void write(const SessionSpec& session);
  /// Puts the file in place. Without this call, no file is left.
  void commit();

 private:
  /// Writes the lines of a stream and of its ancestors, if they have none yet.
  void write_stream(StreamId stream);
  void add_turn(const SessionSpec& session, std::size_t turn);

  CompressedWriter file_;
  TraceHeader header_;
  const Streams* streams_;
  std::string line_;
  std::int64_t last_id_ = -1;
  SimTime last_arrival_{};
  struct Written {
    std::int64_t number = -1;
    /// The length by turns above or by its line.
    Tokens end;
  };
  std::vector<Written> written_;
  std::int64_t streams_written_ = 0;
};

}  // namespace kvtier
