#include "traces/trace_format.hpp"

#include <array>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "traces/line_scanner.hpp"

namespace kvtier {
namespace {

void scan_turns(LineScanner& scanner, bool has_times, const LineReader& reader,
                std::vector<Turn>& turns) {
  turns.clear();
  scanner.expect('[');
  if (scanner.take(']')) {
    throw reader.error("a session needs at least one turn");
  }
  do {
    Turn turn;
    scanner.expect('[');
    turn.user = Tokens(scanner.integer("user tokens", 1, kMessageTokensMax));
    scanner.expect(',');
    turn.assistant = Tokens(scanner.integer("response tokens", 1, kMessageTokensMax));
    if (has_times) {
      scanner.expect(',');
      turn.think =
          SimDuration(scanner.integer("a think time", 0, turns.empty() ? 0 : kTraceTimeNsMax));
    }
    scanner.expect(']');
    turns.push_back(turn);
  } while (scanner.take(','));
  scanner.expect(']');
}

SharedPrompt scan_shared_prompt(LineScanner& scanner) {
  SharedPrompt prompt;
  scanner.expect('[');
  prompt.id = scanner.integer("a shared prompt's id", 0, INT64_MAX);
  scanner.expect(',');
  prompt.tokens = Tokens(scanner.integer("a shared prompt's tokens", 1, kMessageTokensMax));
  scanner.expect(']');
  return prompt;
}

}  // namespace

TraceReader::TraceReader(const std::filesystem::path& path, Tokens message_overhead)
    : TraceSource(message_overhead), lines_(path) {
  const std::string name = path.string();
  std::string_view line;
  if (!lines_.next(line)) {
    throw ConfigError(fmt::format("{}: the file is empty", name));
  }
  const Json json = parse_json_strictly(line, name);
  // Another version may have another header, so the version comes first.
  const TraceHeader known;
  if (!json.is_object() || !json.contains("format") || json["format"] != known.format) {
    throw lines_.error(
        fmt::format("expected a header with \"format\": \"{}\", got {}", known.format,
                    json.is_object() && json.contains("format") ? quote_json(json["format"])
                                                                : quote_json(json)));
  }
  Problems problems;
  problems.set_origin("", name + ":1");
  read_value(header_, json, "", problems);
  if (header_.turn_arrivals && (header_.think_times || !header_.arrivals)) {
    problems.add("/turn_arrivals", "needs \"arrivals\": true and \"think_times\": false");
  }
  problems.throw_if_any();
}

bool TraceReader::read_session(SessionSpec& session) {
  std::string_view line;
  if (!lines_.next(line)) {
    if (last_id_ < 0) {
      throw ConfigError(fmt::format("{}: the trace has no sessions", lines_.path().string()));
    }
    return false;
  }
  static const std::vector<std::string> kKeys{"id", "arrival_ns", "turns", "shared_prompt"};
  constexpr std::size_t kArrival = 1;
  constexpr std::size_t kTurns = 2;
  constexpr std::size_t kSharedPrompt = 3;
  session.arrival = SimTime();
  std::array<bool, 4> seen{};
  LineScanner scanner(line, lines_);
  scanner.expect('{');
  do {
    const std::string_view key = scanner.key();
    std::size_t which = 0;
    while (which < kKeys.size() && kKeys[which] != key) {
      ++which;
    }
    if (which == kKeys.size()) {
      throw lines_.error(fmt::format("unknown key \"{}\"{}", key, suggestion(key, kKeys)));
    }
    if (which == kArrival && !header_.arrivals) {
      throw lines_.error("\"arrival_ns\" in a trace whose header says \"arrivals\": false");
    }
    if (std::exchange(seen[which], true)) {
      throw lines_.error(fmt::format("duplicate key \"{}\"", key));
    }
    scanner.expect(':');
    if (which == 0) {
      session.id = scanner.integer("an id", 0, INT64_MAX);
    } else if (which == kArrival) {
      session.arrival = SimTime(scanner.integer("an arrival", 0, kTraceTimeNsMax));
    } else if (which == kSharedPrompt) {
      session.shared_prompt = scan_shared_prompt(scanner);
    } else {
      scan_turns(scanner, header_.think_times || header_.turn_arrivals, lines_, session.turns);
    }
  } while (scanner.take(','));
  scanner.expect('}');
  scanner.expect_end();
  for (std::size_t i = 0; i <= kTurns; ++i) {
    if (!seen[i] && (i != kArrival || header_.arrivals)) {
      throw lines_.error(fmt::format("missing key \"{}\"", kKeys[i]));
    }
  }
  if (session.id <= last_id_) {
    throw lines_.error(fmt::format("id {} after id {}: ids must increase", session.id, last_id_));
  }
  if (session.arrival < last_arrival_) {
    throw lines_.error(
        fmt::format("arrival at {} ns after one at {} ns: arrivals must not decrease",
                    session.arrival.ns, last_arrival_.ns));
  }
  if (seen[kSharedPrompt]) {
    const SharedPrompt& prompt = session.shared_prompt;
    const Tokens known = shared_prompts_.try_emplace(prompt.id, prompt.tokens).first->second;
    if (prompt.tokens != known) {
      throw lines_.error(fmt::format("shared prompt {} has {} tokens, {} in an earlier session",
                                     prompt.id, prompt.tokens.value, known.value));
    }
  }
  last_id_ = session.id;
  last_arrival_ = session.arrival;
  return true;
}

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceHeader header)
    : file_(path), header_(std::move(header)) {
  Json json = write_value(header_);
  if (!header_.turn_arrivals) {
    json.erase("turn_arrivals");  // unknown to earlier readers
  }
  file_.write(json_text(json) + "\n");
}

void TraceWriter::write(const SessionSpec& session) {
  KVTIER_ASSERT(session.id > last_id_, "ids increase");
  KVTIER_ASSERT(!session.turns.empty(), "a session has turns");
  line_.clear();
  auto out = std::back_inserter(line_);
  fmt::format_to(out, "{{\"id\":{}", session.id);
  if (header_.arrivals) {
    KVTIER_ASSERT(session.arrival >= last_arrival_, "arrivals do not decrease");
    fmt::format_to(out, ",\"arrival_ns\":{}", session.arrival.ns);
    last_arrival_ = session.arrival;
  }
  if (session.shared_prompt.tokens.value > 0) {
    fmt::format_to(out, ",\"shared_prompt\":[{},{}]", session.shared_prompt.id,
                   session.shared_prompt.tokens.value);
  }
  line_ += ",\"turns\":";
  char separator = '[';
  for (const Turn& turn : session.turns) {
    if (header_.think_times || header_.turn_arrivals) {
      fmt::format_to(out, "{}[{},{},{}]", separator, turn.user.value, turn.assistant.value,
                     turn.think.ns);
    } else {
      fmt::format_to(out, "{}[{},{}]", separator, turn.user.value, turn.assistant.value);
    }
    separator = ',';
  }
  line_ += "]}\n";
  file_.write(line_);
  last_id_ = session.id;
}

void TraceWriter::commit() { file_.commit(); }

}  // namespace kvtier
