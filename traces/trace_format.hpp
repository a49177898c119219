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
/// The first line says what the trace has. Then each line is one session: its id (ids increase),
/// when its first turn arrives (present if `arrivals`; it never decreases), and its turns as [user
/// tokens, response tokens, think time in nanoseconds since the last token of the turn before] (the
/// third present if `think_times`; 0 for the first turn). With `"turn_arrivals":true` in place of
/// `think_times` (and with `arrivals`) the third is the time since the arrival of the turn before,
/// as in logs of requests. A session that begins with a shared prompt has
/// `"shared_prompt":[id,tokens]` beside these; the same id always has the same tokens, which are in
/// no turn. Times are whole nanoseconds, so that writing and reading give back the same sessions
/// exactly. Keys may come in any order, each once, and no other.
///
/// `kvtier.trace/2`: sessions, whose turns name their tokens as the beginnings of streams.
///
///     {"format":"kvtier.trace/2","arrivals":true,"think_times":true,"block":512,"partial":true}
///     {"stream":0,"tokens":1024}
///     {"stream":1,"parent":0,"at":1024}
///     {"id":0,"arrival_ns":0,"turns":[[1,1500,1500,310,0],[1,1900,90,205,61000000000,1]]}
///
/// The header is that of version 1; `block` and `partial` say that the trace was made of blocks of
/// so many tokens and that the last one of a prompt has a name even if it is not full. A stream has
/// a line before the first turn that names it, which begins with its number (they count from 0) and
/// has, if its first `at` tokens are those of a stream above, that one's number. A fork lies within
/// its parent: at most as far as `tokens` says, which a stream may have, or as the turns above
/// reach in it. A further line with the number and more `tokens` alone lengthens a stream. A turn
/// is [stream, tokens of the prompt, those of them that are new in the session (1 at least; in a
/// first turn all of them, unless the server that was recorded had the tokens before), response
/// tokens, time as in version 1 (if the header says that there are times), stream of the response
/// (only if the response's tokens are named: they are those behind the prompt in that stream)].
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
  /// Only in version 2.
  std::optional<std::int64_t> block{};
  bool partial = false;
};

template <class V>
void describe(V& v, TraceHeader& c) {
  v.field("format", c.format, "Name and version of the format.", required());
  v.field("arrivals", c.arrivals, "Sessions have arrival times.");
  v.field("think_times", c.think_times, "Turns have think times.");
  v.field("turn_arrivals", c.turn_arrivals,
          "Turns have the time since the arrival of the turn before.");
  v.field("source", c.source, "Where the sessions come from, for people.");
  v.field("block", c.block, "Tokens of a block of the trace that this one was made of.",
          between(1, INT32_MAX));
  v.field("partial", c.partial, "A prompt's last block has a name even if it is not full.");
}

/// Reads both versions. Every error is a ConfigError that names file and line: another version,
/// a malformed line, a count below 1, no turns, a repeated or unknown key, an arrival before the
/// one above, a shared prompt of another length than before, a stream that is not there or there
/// twice, a fork beyond its parent's end, no sessions, damaged compression. A plain file that was
/// cut between two lines cannot be told from a shorter trace. Version 2 takes 40 bytes a stream.
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
    /// The length that is known so far.
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
  SimTime last_arrival_{};
  /// By id.
  std::map<std::int64_t, Tokens> shared_prompts_;
  Streams streams_;
  /// By number.
  std::vector<NamedStream> named_;
};

/// Writes version 2 if it is given streams, else version 1, compressed as the name's suffix says
/// (.gz, .zst). Throws DeviceError.
class TraceWriter {
 public:
  /// `streams` are those of the sessions' contents, and outlive this.
  TraceWriter(const std::filesystem::path& path, TraceHeader header,
              const Streams* streams = nullptr);

  /// Sessions come with increasing ids and, if the header has arrivals, in order of arrival.
  void write(const SessionSpec& session);
  /// Puts the file in place; without it nothing is left behind.
  void commit();

 private:
  /// Writes the lines of a stream and of those that it forks from, once.
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
    /// The length by turns or by its line.
    Tokens end;
  };
  std::vector<Written> written_;
  std::int64_t streams_written_ = 0;
};

}  // namespace kvtier
