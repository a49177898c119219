#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "sim/core/config.hpp"
#include "traces/compressed_stream.hpp"
#include "traces/session.hpp"
#include "traces/trace_source.hpp"

/// kvtier's own trace format, `kvtier.trace/1`: JSON lines, plain, gzip or zstd.
///
///     {"format":"kvtier.trace/1","arrivals":true,"think_times":true,"source":"sharegpt generator"}
///     {"id":0,"arrival_ns":1500000000,"turns":[[42,310,0],[17,205,61000000000]]}
///
/// The first line says what the trace has. Then each line is one session: its id (ids increase),
/// when its first turn arrives (present if `arrivals`; it never decreases), and its turns as [user
/// tokens, response tokens, think time in nanoseconds since the last token of the turn before] (the
/// third present if `think_times`; 0 for the first turn). With `"turn_arrivals":true` in place of
/// `think_times` (and with `arrivals`) the third is the time since the arrival of the turn before,
/// as in logs of requests. A session that begins with a shared
/// prompt has `"shared_prompt":[id,tokens]` beside these; the same id always has the same tokens,
/// which are in no turn. Times are whole nanoseconds, so that
/// writing and reading give back the same sessions exactly. Keys may come in any order, each once,
/// and no other.
namespace kvtier {

struct TraceHeader {
  std::string format = "kvtier.trace/1";
  bool arrivals = false;
  bool think_times = false;
  bool turn_arrivals = false;
  std::string source{};
};

template <class V>
void describe(V& v, TraceHeader& c) {
  v.field("format", c.format, "Name and version of the format.", required());
  v.field("arrivals", c.arrivals, "Sessions have arrival times.");
  v.field("think_times", c.think_times, "Turns have think times.");
  v.field("turn_arrivals", c.turn_arrivals,
          "Turns have the time since the arrival of the turn before.");
  v.field("source", c.source, "Where the sessions come from, for people.");
}

/// Reads `kvtier.trace/1`. Every error is a ConfigError that names file and line: another version,
/// a malformed line, a count below 1, no turns, a repeated or unknown key, an arrival before the
/// one above, a shared prompt of another length than before, no sessions, damaged compression. A
/// plain file that was cut between two lines cannot be told from a shorter trace.
class TraceReader final : public TraceSource {
 public:
  explicit TraceReader(const std::filesystem::path& path, Tokens message_overhead = {});

  [[nodiscard]] bool has_arrivals() const override { return header_.arrivals; }
  [[nodiscard]] bool has_think_times() const override { return header_.think_times; }
  [[nodiscard]] bool has_turn_arrivals() const override { return header_.turn_arrivals; }
  [[nodiscard]] const TraceHeader& header() const { return header_; }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  LineReader lines_;
  TraceHeader header_;
  std::int64_t last_id_ = -1;
  SimTime last_arrival_{};
  /// By id.
  std::map<std::int64_t, Tokens> shared_prompts_;
};

/// Writes `kvtier.trace/1`, compressed as the name's suffix says (.gz, .zst). Throws DeviceError.
class TraceWriter {
 public:
  TraceWriter(const std::filesystem::path& path, TraceHeader header);

  /// Sessions come with increasing ids and, if the header has arrivals, in order of arrival.
  void write(const SessionSpec& session);
  /// Puts the file in place; without it nothing is left behind.
  void commit();

 private:
  CompressedWriter file_;
  TraceHeader header_;
  std::string line_;
  std::int64_t last_id_ = -1;
  SimTime last_arrival_{};
};

}  // namespace kvtier
