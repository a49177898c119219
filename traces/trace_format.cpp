#include "traces/trace_format.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"
#include "traces/line_scanner.hpp"
#include "traces/request_table.hpp"

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
  if (!next_filled_line(lines_, line)) {
    throw ConfigError(fmt::format("{}: the file is empty", name));
  }
  const Json json = parse_json_strictly(line, name);
  // Checks the version first, because another version may have another header.
  const Json format = json.is_object() ? json.value("format", Json()) : Json();
  names_tokens_ = format == kTraceVersion2;
  if (format != kTraceVersion1 && !names_tokens_) {
    throw lines_.error(fmt::format("expected a header with \"format\": \"{}\" or \"{}\", got {}",
                                   kTraceVersion1, kTraceVersion2,
                                   quote_json(format.is_null() ? json : format)));
  }
  Problems problems;
  problems.set_origin("", fmt::format("{}:{}", name, lines_.line_number()));
  read_value(header_, json, "", problems);
  if (header_.turn_arrivals && (header_.think_times || !header_.arrivals)) {
    problems.add("/turn_arrivals", "needs \"arrivals\": true and \"think_times\": false");
  }
  if (!names_tokens_ && (header_.block || header_.partial)) {
    problems.add(header_.block ? "/block" : "/partial",
                 fmt::format("\"{}\" names no tokens", kTraceVersion1));
  }
  if (names_tokens_ && header_.partial && !header_.block) {
    problems.add("/partial", "needs \"block\"");
  }
  problems.throw_if_any();
}

TraceReader::NamedStream& TraceReader::stream_numbered(std::int64_t number) {
  if (number >= std::ssize(named_)) {
    throw lines_.error(fmt::format("stream {} has no line above", number));
  }
  return named_[static_cast<std::size_t>(number)];
}

void TraceReader::read_stream(std::string_view line) {
  static const std::vector<std::string> kKeys{"stream", "parent", "at", "tokens"};
  std::array<std::optional<std::int64_t>, 4> values{};
  LineScanner scanner(line, lines_);
  scanner.expect('{');
  do {
    const std::string_view key = scanner.key();
    const auto which =
        static_cast<std::size_t>(std::find(kKeys.begin(), kKeys.end(), key) - kKeys.begin());
    if (which == kKeys.size()) {
      throw lines_.error(fmt::format("unknown key {}{}", quote_text(key), suggestion(key, kKeys)));
    }
    if (values[which]) {
      throw lines_.error(fmt::format("duplicate key {}", quote_text(key)));
    }
    scanner.expect(':');
    values[which] = which < 2 ? scanner.integer("a stream's number", 0, UINT32_MAX - 1)
                              : scanner.integer("tokens", 1, kMessageTokensMax);
  } while (scanner.take(','));
  scanner.expect('}');
  scanner.expect_end();
  const auto& [number, parent, at, tokens] = values;
  if (*number > std::ssize(named_)) {
    throw lines_.error(fmt::format("expected stream {} next, got {}", named_.size(), *number));
  }
  if (*number < std::ssize(named_)) {
    NamedStream& known = stream_numbered(*number);
    if (parent || at || !tokens || Tokens(*tokens) <= known.end) {
      throw lines_.error(fmt::format(
          "stream {} has a line above; another can only lengthen it beyond its {} tokens", *number,
          known.end.value));
    }
    known.end = Tokens(*tokens);
    return;
  }
  if (parent.has_value() != at.has_value()) {
    throw lines_.error("expected \"parent\" and \"at\", or none of them");
  }
  if (at && tokens && *tokens < *at) {
    throw lines_.error(fmt::format("stream {} has {} tokens, but leaves its parent at token {}",
                                   *number, *tokens, *at));
  }
  NamedStream opened{.end = Tokens(std::max(tokens.value_or(0), at.value_or(0)))};
  if (!parent) {
    opened.id = streams_.open();
  } else {
    const NamedStream& from = stream_numbered(*parent);
    if (Tokens(*at) > from.end) {
      throw lines_.error(fmt::format("stream {} leaves stream {} at token {}, which ends at {}",
                                     *number, *parent, *at, from.end.value));
    }
    opened.id = streams_.open(streams_.stream_at(from.id, Tokens(*at)), Tokens(*at));
  }
  named_.push_back(opened);
}

Context TraceReader::read_context(LineScanner& scanner) {
  NamedStream& stream = stream_numbered(scanner.integer("a stream's number", 0, UINT32_MAX - 1));
  scanner.expect(',');
  const Tokens tokens(scanner.integer("prompt tokens", 1, kMessageTokensMax));
  stream.end = std::max(stream.end, tokens);
  return {stream.id, tokens};
}

void TraceReader::read_turns(LineScanner& scanner, SessionSpec& session) {
  session.turns.clear();
  session.contents.clear();
  scanner.expect('[');
  if (scanner.take(']')) {
    throw lines_.error("a session needs at least one turn");
  }
  do {
    Turn turn;
    TurnContent content;
    scanner.expect('[');
    content.prompt = read_context(scanner);
    scanner.expect(',');
    turn.user = Tokens(scanner.integer("new tokens", 1, content.prompt.tokens.value));
    scanner.expect(',');
    turn.assistant = Tokens(scanner.integer("response tokens", 1, kMessageTokensMax));
    if (header_.think_times || header_.turn_arrivals) {
      scanner.expect(',');
      turn.think = SimDuration(
          scanner.integer("a think time", 0, session.turns.empty() ? 0 : kTraceTimeNsMax));
    }
    if (scanner.take(',')) {
      NamedStream& stream =
          stream_numbered(scanner.integer("a stream's number", 0, UINT32_MAX - 1));
      const Tokens tokens = content.prompt.tokens + turn.assistant - Tokens(1);
      if (common_tokens(streams_, content.prompt, {stream.id, tokens}) < content.prompt.tokens) {
        throw lines_.error("the response's stream does not begin with the prompt");
      }
      stream.end = std::max(stream.end, tokens);
      content.whole = {stream.id, tokens};
    }
    scanner.expect(']');
    if (!session.contents.empty()) {
      const Tokens known = known_tokens(streams_, session.contents.back(), content);
      if (turn.user < content.prompt.tokens - known) {
        throw lines_.error(fmt::format(
            "turn {} has {} new tokens, but only {} of its {} are those of the turn before",
            session.turns.size(), turn.user.value, known.value, content.prompt.tokens.value));
      }
    }
    session.turns.push_back(turn);
    session.contents.push_back(content);
  } while (scanner.take(','));
  scanner.expect(']');
}

bool TraceReader::read_session(SessionSpec& session) {
  std::string_view line;
  bool found = next_filled_line(lines_, line);
  while (found && names_tokens_ && line.starts_with("{\"stream\"")) {
    read_stream(line);
    found = next_filled_line(lines_, line);
  }
  if (!found) {
    if (last_id_ < 0) {
      throw ConfigError(fmt::format("{}: the trace has no sessions", lines_.path().string()));
    }
    return false;
  }
  static const std::vector<std::string> kKeys{"id", "arrival_ns", "turns", "shared_prompt",
                                              "group"};
  constexpr std::size_t kArrival = 1;
  constexpr std::size_t kTurns = 2;
  constexpr std::size_t kSharedPrompt = 3;
  constexpr std::size_t kGroup = 4;
  session.arrival = SimTime();
  std::array<bool, 5> seen{};
  LineScanner scanner(line, lines_);
  scanner.expect('{');
  do {
    const std::string_view key = scanner.key();
    std::size_t which = 0;
    while (which < kKeys.size() && kKeys[which] != key) {
      ++which;
    }
    if (which == kKeys.size()) {
      throw lines_.error(fmt::format("unknown key {}{}", quote_text(key), suggestion(key, kKeys)));
    }
    if (which == kArrival && !header_.arrivals) {
      throw lines_.error("\"arrival_ns\" in a trace whose header says \"arrivals\": false");
    }
    if (std::exchange(seen[which], true)) {
      throw lines_.error(fmt::format("duplicate key {}", quote_text(key)));
    }
    scanner.expect(':');
    if (which == 0) {
      session.id = scanner.integer("an id", 0, INT64_MAX);
    } else if (which == kArrival) {
      session.arrival = SimTime(scanner.integer("an arrival", 0, kTraceTimeNsMax));
    } else if (which == kGroup) {
      session.group = scanner.integer("a group", 0, INT64_MAX);
    } else if (which == kSharedPrompt && names_tokens_) {
      throw lines_.error("\"shared_prompt\" in a trace of streams, which share by forks");
    } else if (which == kSharedPrompt) {
      session.shared_prompt = scan_shared_prompt(scanner);
    } else if (names_tokens_) {
      read_turns(scanner, session);
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
  if (last_id_ >= 0 && seen[kGroup] != has_groups_) {
    throw lines_.error("expected \"group\" in all sessions or in none");
  }
  has_groups_ = seen[kGroup];
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

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceHeader header,
                         const Streams* streams)
    : file_(path), header_(std::move(header)), streams_(streams) {
  header_.format = streams == nullptr ? kTraceVersion1 : kTraceVersion2;
  Json json = write_value(header_);
  // Earlier readers do not know these keys.
  if (!header_.turn_arrivals) {
    json.erase("turn_arrivals");
  }
  if (!header_.block) {
    json.erase("block");
    json.erase("partial");
  }
  file_.write(json_text(json) + "\n");
}

void TraceWriter::write_stream(StreamId stream) {
  const auto known = [&](StreamId id) -> Written& {
    if (id.value >= written_.size()) {
      written_.resize(std::max<std::size_t>(id.value + 1, streams_->size()));
    }
    return written_[id.value];
  };
  // Starts with the highest ancestor without a line.
  std::vector<StreamId> missing;
  for (StreamId at = stream; at.valid() && known(at).number < 0; at = streams_->parent(at)) {
    missing.push_back(at);
  }
  for (; !missing.empty(); missing.pop_back()) {
    const StreamId id = missing.back();
    const StreamId parent = streams_->parent(id);
    Written& opened = known(id);
    opened.number = streams_written_++;
    opened.end = Tokens(streams_->first_of(id));
    std::string text = fmt::format("{{\"stream\":{}", opened.number);
    if (parent.valid()) {
      Written& from = known(parent);
      if (opened.end > from.end) {
        from.end = opened.end;
        file_.write(fmt::format("{{\"stream\":{},\"tokens\":{}}}\n", from.number, from.end.value));
      }
      text += fmt::format(",\"parent\":{},\"at\":{}", from.number, opened.end.value);
    }
    if (missing.size() > 1) {  // the next stream forks here
      opened.end = Tokens(streams_->first_of(missing[missing.size() - 2]));
      text += fmt::format(",\"tokens\":{}", opened.end.value);
    }
    file_.write(text + "}\n");
  }
}

void TraceWriter::write(const SessionSpec& session) {
  KVTIER_ASSERT(session.id > last_id_, "ids increase");
  KVTIER_ASSERT(!session.turns.empty(), "a session has turns");
  KVTIER_ASSERT((streams_ != nullptr) == !session.contents.empty(), "all sessions name tokens");
  for (const TurnContent& content : session.contents) {
    write_stream(content.prompt.stream);
    write_stream(content.whole.stream);
  }
  line_.clear();
  auto out = std::back_inserter(line_);
  fmt::format_to(out, "{{\"id\":{}", session.id);
  if (session.group != SessionSpec::kNoGroup) {
    fmt::format_to(out, ",\"group\":{}", session.group);
  }
  if (header_.arrivals) {
    KVTIER_ASSERT(session.arrival >= last_arrival_, "arrivals do not decrease");
    KVTIER_ASSERT(session.arrival.ns <= kTraceTimeNsMax, "arrivals can be read back");
    fmt::format_to(out, ",\"arrival_ns\":{}", session.arrival.ns);
    last_arrival_ = session.arrival;
  }
  if (session.shared_prompt.tokens.value > 0) {
    fmt::format_to(out, ",\"shared_prompt\":[{},{}]", session.shared_prompt.id,
                   session.shared_prompt.tokens.value);
  }
  line_ += ",\"turns\":[";
  for (std::size_t turn = 0; turn < session.turns.size(); ++turn) {
    line_ += turn == 0 ? "[" : ",[";
    add_turn(session, turn);
    line_ += ']';
  }
  line_ += "]}\n";
  file_.write(line_);
  last_id_ = session.id;
}

void TraceWriter::add_turn(const SessionSpec& session, std::size_t i) {
  const Turn& turn = session.turns[i];
  auto out = std::back_inserter(line_);
  if (streams_ != nullptr) {
    const Context& prompt = session.contents[i].prompt;
    Written& stream = written_[prompt.stream.value];
    stream.end = std::max(stream.end, prompt.tokens);
    fmt::format_to(out, "{},{},", stream.number, prompt.tokens.value);
  }
  fmt::format_to(out, "{},{}", turn.user.value, turn.assistant.value);
  if (header_.think_times || header_.turn_arrivals) {
    KVTIER_ASSERT(turn.think.ns <= kTraceTimeNsMax, "think times can be read back");
    fmt::format_to(out, ",{}", turn.think.ns);
  }
  if (streams_ != nullptr && session.contents[i].whole.stream.valid()) {
    const Context& whole = session.contents[i].whole;
    Written& stream = written_[whole.stream.value];
    stream.end = std::max(stream.end, whole.tokens);
    fmt::format_to(out, ",{}", stream.number);
  }
}

void TraceWriter::commit() { file_.commit(); }

}  // namespace kvtier
