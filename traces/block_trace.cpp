#include "traces/block_trace.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"
#include "traces/archive_reader.hpp"
#include "traces/arrivals.hpp"
#include "traces/line_scanner.hpp"
#include "traces/timestamp.hpp"

namespace kvtier {
namespace {

constexpr std::size_t kMillisecondPlaces = 3;

}  // namespace

std::string wrong_block_count(std::size_t blocks, Tokens input, Tokens block) {
  const std::int64_t full = input.value / block.value;
  const std::int64_t all = full + (input.value % block.value == 0 ? 0 : 1);
  const auto count = static_cast<std::int64_t>(blocks);
  if (count == full || count == all) {
    return "";
  }
  return fmt::format("expected {} blocks of {} tokens for {} input tokens, got {}",
                     full == all ? fmt::to_string(full) : fmt::format("{} or {}", full, all),
                     block.value, input.value, count);
}

Context BlockNames::context(const std::vector<std::int64_t>& names, Tokens tokens,
                            const std::function<ConfigError(const std::string&)>& error) {
  if (names.empty()) {
    return {streams_.open(), tokens};
  }
  StreamId stream;
  std::int64_t parent = kRoot;
  bool known = true;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::int64_t name = names[i];
    Place& place = place_of(name);
    if (place.stream.valid()) {
      if (place.parent != parent || place.at != static_cast<std::int32_t>(i)) {
        const auto text = [&](std::int64_t block) {
          return block == kRoot ? std::nullopt : std::optional(text_of(block));
        };
        throw error(moved_block(text_of(name), text(parent), text(place.parent)));
      }
      stream = place.stream;
    } else {
      const auto at = static_cast<std::int64_t>(i);
      if (known && !(stream.valid() && lengths_[stream.value] == at)) {
        stream = streams_.open(stream, block_ * at);
        lengths_.resize(std::max(lengths_.size(), streams_.size()));
        lengths_[stream.value] = at;
      }
      known = false;
      lengths_[stream.value] = at + 1;
      place = {stream, static_cast<std::int32_t>(i), parent};
      ++known_;
    }
    parent = name;
  }
  return {stream, tokens};
}

std::string BlockNames::text_of(std::int64_t name) const {
  return hashes_ != nullptr ? hashes_->text_of(name) : fmt::to_string(name);
}

BlockNames::Place& BlockNames::place_of(std::int64_t name) {
  constexpr std::int64_t kFewest = 1 << 16;
  constexpr std::int64_t kSparsest = 4;
  const auto size = static_cast<std::int64_t>(places_.size());
  if (name < size) [[likely]] {
    return places_[static_cast<std::size_t>(name)];
  }
  if (const auto found = sparse_.find(name); found != sparse_.end()) {
    return found->second;
  }
  if (name < std::max(kFewest, kSparsest * known_)) {
    // Moves sparse numbers below the new size to the table.
    places_.resize(static_cast<std::size_t>(std::max(name + 1, 2 * size)));
    for (auto at = sparse_.begin(); at != sparse_.end();) {
      const auto next = std::next(at);
      if (at->first < static_cast<std::int64_t>(places_.size())) {
        places_[static_cast<std::size_t>(at->first)] = at->second;
        sparse_.erase(at);
      }
      at = next;
    }
    return places_[static_cast<std::size_t>(name)];
  }
  return sparse_[name];
}

BlockTraceStyle block_trace_style(TraceFormat format) {
  constexpr Tokens kMooncake{512};
  constexpr Tokens kQwenBailian{16};
  return format == TraceFormat::qwen_bailian
             ? BlockTraceStyle{format, kQwenBailian, 0}
             : BlockTraceStyle{format, kMooncake, kMillisecondPlaces};
}

BlockTraceReader::BlockTraceReader(const std::filesystem::path& path, const BlockTraceStyle& style,
                                   const ImportOptions& options)
    : TraceSource(Tokens(0)),
      lines_(path),
      style_(style),
      closed_(options.loop == Loop::closed),
      has_think_times_(closed_ && options.think_times),
      names_(streams_, style.block),
      table_(streams_) {
  if (has_think_times_ && style.format == TraceFormat::qwen_bailian) {
    throw without_think_times(path);
  }
  if (closed_) {
    read_sessions();
  }
}

bool BlockTraceReader::read_line(Line& line) {
  std::string_view text;
  if (!next_filled_line(lines_, text)) {
    return false;
  }
  static constexpr std::array<std::string_view, 8> kKeys{
      "input_length", "output_length", "hash_ids",       "timestamp",
      "delay",        "chat_id",       "parent_chat_id", "session_id"};
  constexpr std::size_t kRequired = 3;
  line = Line{};
  std::array<bool, kKeys.size()> seen{};
  std::array<bool, kKeys.size()> needed{true, true, true, true};
  const bool chats = closed_ && style_.format == TraceFormat::qwen_bailian;
  needed[5] = needed[6] = chats;
  needed[7] = closed_ && !chats;
  LineScanner scanner(text, lines_);
  scanner.expect('{');
  do {
    const std::string_view key = scanner.key();
    scanner.expect(':');
    const auto which =
        static_cast<std::size_t>(std::find(kKeys.begin(), kKeys.end(), key) - kKeys.begin());
    if (which == kKeys.size() || (which > kRequired && !closed_)) {
      scanner.skip_value();
      continue;
    }
    if (std::exchange(seen[which], true)) {
      throw lines_.error(fmt::format("duplicate key {}", quote_text(key)));
    }
    switch (which) {
      case 0:
        line.input = Tokens(scanner.integer("input tokens", 1, kMessageTokensMax));
        break;
      case 1: {
        const std::int64_t output = scanner.integer("output tokens", 0, kMessageTokensMax);
        counts().clamped_messages += output == 0 ? 1 : 0;
        line.output = Tokens(std::max<std::int64_t>(output, 1));
        break;
      }
      case 2:
        numbers_.clear();
        scanner.expect('[');
        if (!scanner.take(']')) {
          do {
            numbers_.push_back(scanner.integer("a block's number", 0, INT64_MAX));
          } while (scanner.take(','));
          scanner.expect(']');
        }
        break;
      case 3:
        line.arrival = SimTime(scanner.time_ns("a time stamp", style_.time_places));
        break;
      case 4:
        line.delay = SimDuration(scanner.time_ns("a delay", style_.time_places));
        break;
      case 5:
        line.chat = scanner.integer("a chat's number", 0, INT64_MAX);
        break;
      case 6:
        line.parent = scanner.integer("a chat's number", -1, INT64_MAX);
        break;
      default:
        line.session = scanner.text_or_number("a session's name");
    }
  } while (scanner.take(','));
  scanner.expect('}');
  scanner.expect_end();
  needed[3] = !(has_think_times_ && line.delay);
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    if (needed[i] && !seen[i]) {
      throw lines_.error(fmt::format("missing key \"{}\"", kKeys[i]));
    }
  }
  if (const std::string wrong = wrong_block_count(numbers_.size(), line.input, style_.block);
      !wrong.empty()) {
    throw lines_.error(wrong);
  }
  if (line.arrival) {
    if (first_arrival_ && *line.arrival < last_arrival_) {
      throw lines_.error(fmt::format("time stamp {} s after {} s: times must not decrease",
                                     line.arrival->seconds(), last_arrival_.seconds()));
    }
    first_arrival_ = first_arrival_.value_or(*line.arrival);
    last_arrival_ = *line.arrival;
  }
  return true;
}

Context BlockTraceReader::prompt_of(const Line& line) {
  return names_.context(numbers_, line.input,
                        [&](const std::string& text) { return lines_.error(text); });
}

std::uint32_t BlockTraceReader::session_of(const Line& line) {
  if (style_.format == TraceFormat::mooncake) {
    const auto [found, is_new] = by_name_.emplace(line.session, sessions_);
    sessions_ += is_new ? 1 : 0;
    return found->second;
  }
  std::optional<std::uint32_t> session;
  if (line.parent >= 0) {
    const auto parent = by_chat_.find(line.parent);
    if (parent == by_chat_.end()) {
      throw lines_.error(
          fmt::format("the parent {} of chat {} does not stand above", line.parent, line.chat));
    }
    if (!std::exchange(parent->second.goes_on, true)) {
      session = parent->second.session;
    }
  }
  if (!by_chat_.emplace(line.chat, Chat{session.value_or(sessions_)}).second) {
    throw lines_.error(fmt::format("chat {} is there already", line.chat));
  }
  return session ? *session : sessions_++;
}

void BlockTraceReader::read_sessions() {
  Line line;
  while (read_line(line)) {
    const std::uint32_t before = sessions_;
    const std::uint32_t session = session_of(line);
    if (session == before && !line.arrival) {
      throw lines_.error("missing key \"timestamp\", which the first request of a session needs");
    }
    table_.add({.arrival = SimTime() + (line.arrival.value_or(last_arrival_) - *first_arrival_),
                .think = line.delay.value_or(SimDuration()),
                .prompt = prompt_of(line),
                .output = line.output,
                .session = session});
  }
  table_.order_sessions(
      has_think_times_ ? RequestTable::Gaps::think_times : RequestTable::Gaps::arrivals,
      style_.block);
  by_name_ = {};
  by_chat_ = {};
}

bool BlockTraceReader::read_session(SessionSpec& session) {
  Line line;
  const bool found = closed_ ? table_.next(session) : read_line(line);
  if (!found && report().sessions == 0) {
    throw ConfigError(fmt::format("{}: the trace has no requests", lines_.path().string()));
  }
  if (found && !closed_) {
    session.arrival = SimTime() + (*line.arrival - *first_arrival_);
    session.turns = {{line.input, line.output, SimDuration()}};
    session.contents = {{.prompt = prompt_of(line)}};
  }
  return found;
}

namespace {

/// Whether a path in a folder or an archive is a file of a session. `shown` is its name in errors.
bool is_session_file(const std::filesystem::path& inside, const std::string& shown) {
  const bool hidden = std::any_of(inside.begin(), inside.end(), [](const auto& part) {
    return part.string().starts_with('.') && part != "." && part != "..";
  });
  const std::string name = inside.filename().string();
  if (!hidden && (name.ends_with(".json.gz") || name.ends_with(".json.zst"))) {
    throw ConfigError(fmt::format(
        "{}: expected plain .json files of sessions; an archive may be compressed as a whole",
        shown));
  }
  return !hidden && name.ends_with(".json");
}

/// The sessions of an archive, by their names in it.
std::map<std::string, std::pair<std::string, std::string>> session_members(
    const std::filesystem::path& path) {
  ArchiveReader archive(path);
  std::map<std::string, std::pair<std::string, std::string>> members;
  while (auto member = archive.next()) {
    const std::string shown = member->bytes.path().string();
    if (is_session_file(member->name, shown) &&
        !members.emplace(member->name, std::pair(shown, read_all(member->bytes))).second) {
      throw ConfigError(fmt::format("{}: the archive has this file twice", shown));
    }
  }
  return members;
}

/// The sessions of a folder, by their names in it.
std::map<std::string, std::filesystem::path> session_files(const std::filesystem::path& folder) {
  std::map<std::string, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_symlink() && entry.is_directory()) {
      throw ConfigError(fmt::format("{}: expected a file or a folder, got a link to a folder",
                                    entry.path().string()));
    }
    const std::filesystem::path inside = entry.path().lexically_relative(folder);
    if (!entry.is_directory() && is_session_file(inside, entry.path().string())) {
      files.emplace(inside.string(), entry.path());
    }
  }
  return files;
}

/// Visits name and text of each file of a folder or an archive, in the byte order of the paths
/// inside, or of a single file.
template <class Visit>
void for_each_session_file(const std::filesystem::path& path, const Visit& visit) {
  if (is_folder(path)) {
    for (const auto& [inside, file] : session_files(path)) {
      visit(file.string(), read_text_file(file));
    }
  } else if (is_archive(path)) {
    for (auto members = session_members(path); !members.empty(); members.erase(members.begin())) {
      const auto& [shown, text] = members.begin()->second;
      visit(shown, text);
    }
  } else {
    ByteReader file(path);
    visit(path.string(), read_all(file));
  }
}

/// Throws the error for a request or session beyond the time limit.
[[noreturn]] void throw_beyond(const std::string& where) {
  throw ConfigError(fmt::format("{} lies beyond the {} years that can be simulated", where,
                                kTraceTimeNsMax / kThinkTimeMax.ns));
}

}  // namespace

AgentTraceReader::AgentTraceReader(const std::filesystem::path& path, const ImportOptions& options)
    : TraceSource(Tokens(0)),
      has_think_times_(options.loop == Loop::closed && options.think_times),
      table_(streams_) {
  std::optional<Arrivals> starts;
  if (options.session_start.rate) {
    starts.emplace(ArrivalModel::poisson, *options.session_start.rate, 1, options.seed,
                   DiurnalRate{}, "/workload/session_start/rate");
  }
  const SimDuration every = options.session_start.every.value_or(SimDuration());
  std::optional<SimTime> began;
  for_each_session_file(path, [&](const std::string& file, const std::string& text) {
    if (began && every.ns > kTraceTimeNsMax - began->ns) {
      throw_beyond(fmt::format("/workload/session_start/every: the start of {}", file));
    }
    began = starts ? starts->next() : began ? *began + every : SimTime();
    read_file(file, text, *began);
  });
  if (table_.empty()) {
    throw ConfigError(fmt::format("{}: the trace has no requests", path.string()));
  }
  if (options.loop == Loop::open) {
    table_.order_alone();
  } else {
    table_.order_sessions(
        has_think_times_ ? RequestTable::Gaps::think_times : RequestTable::Gaps::arrivals, block_);
  }
}

void AgentTraceReader::read_file(const std::string& file, const std::string& text, SimTime began) {
  const Json json = parse_json_strictly(text, file);
  const auto refuse = [&](const char* pointer, const char* expected) {
    throw ConfigError(fmt::format("{}: {}: expected {}", file, pointer, expected));
  };
  if (!json.is_object() || !json.contains("requests") || !json["requests"].is_array()) {
    refuse("/requests", "a list of requests");
  }
  if (!json.contains("block_size") || !json["block_size"].is_number_integer() ||
      json["block_size"].get<std::int64_t>() < 1 ||
      json["block_size"].get<std::int64_t>() > kMessageTokensMax) {
    refuse("/block_size", "a whole number of tokens > 0");
  }
  const Tokens block(json["block_size"].get<std::int64_t>());
  if (block_.value != 0 && block != block_) {
    throw ConfigError(fmt::format("{}: /block_size: expected {} as in the files before, got {}",
                                  file, block_.value, block.value));
  }
  block_ = block;
  BlockNames names(streams_, block);
  read_requests(json["requests"], "/requests", began, names, file);
  ++files_;
}

void AgentTraceReader::read_requests(const Json& requests, const std::string& pointer,
                                     SimTime began, BlockNames& names, const std::string& file) {
  const std::uint32_t session = sessions_++;
  // End of the previous response.
  SimTime ended = began;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Json& json = requests[i];
    const std::string here = fmt::format("{}/{}", pointer, i);
    const auto error = [&](const std::string& text) {
      return ConfigError(fmt::format("{}: {}: {}", file, here, text));
    };
    // Half of the time limit, so that a request's end does not overflow.
    const auto duration = [&](const char* key, std::size_t places) {
      constexpr std::int64_t kMost = kTraceTimeNsMax / 2;
      const bool is_number = json.is_object() && json.contains(key) && json[key].is_number();
      const auto ns = is_number ? parse_decimal_ns(json[key].dump(), places) : std::nullopt;
      if (!ns || *ns > kMost) {
        throw error(fmt::format(
            "expected a number in 0 .. {:.0f} at {}",
            static_cast<double>(kMost) / std::pow(10.0, 9 - static_cast<int>(places)), key));
      }
      return SimDuration(*ns);
    };
    const auto has = [&](const char* key) { return json.contains(key) && !json[key].is_null(); };
    const auto tokens = [&](const char* key, std::int64_t least) {
      if (!json.contains(key) || !json[key].is_number_integer() ||
          json[key].get<std::int64_t>() < least ||
          json[key].get<std::int64_t>() > kMessageTokensMax) {
        throw error(fmt::format("expected a whole number in {} .. {} at {}", least,
                                kMessageTokensMax, key));
      }
      return json[key].get<std::int64_t>();
    };
    const SimDuration since = duration("t", 0);
    if (since.ns > kTraceTimeNsMax - began.ns) {
      throw_beyond(fmt::format("{}: {}: t", file, here));
    }
    const SimTime time = began + since;
    if (json.contains("requests")) {
      if (!json["requests"].is_array()) {
        throw error("expected a list at requests");
      }
      read_requests(json["requests"], here + "/requests", time, names, file);
      continue;
    }
    const std::int64_t input = tokens("in", 1);
    const std::int64_t output = tokens("out", 0);
    std::vector<std::int64_t> numbers;
    if (!json.contains("hash_ids") || !json["hash_ids"].is_array()) {
      throw error("expected a list of blocks at hash_ids");
    }
    for (const Json& number_of_block : json["hash_ids"]) {
      if (!number_of_block.is_number_integer() || number_of_block.get<std::int64_t>() < 0) {
        throw error("expected whole numbers >= 0 at hash_ids, got " + quote_json(number_of_block));
      }
      numbers.push_back(number_of_block.get<std::int64_t>());
    }
    if (static_cast<std::int64_t>(numbers.size()) != input / block_.value) {
      throw error(fmt::format("expected {} blocks of {} tokens for {} input tokens, got {}",
                              input / block_.value, block_.value, input, numbers.size()));
    }
    const SimDuration think =
        has("think_time") ? duration("think_time", 0) : std::max(SimDuration(), time - ended);
    ended = time;
    if (has("api_time")) {
      ended = ended + duration("api_time", 0);
    }
    counts().clamped_messages += output == 0 ? 1 : 0;
    table_.add({.arrival = time,
                .think = think,
                .prompt = names.context(numbers, Tokens(input), error),
                .output = Tokens(std::max<std::int64_t>(output, 1)),
                .session = session,
                .group = files_});
  }
}

}  // namespace kvtier
