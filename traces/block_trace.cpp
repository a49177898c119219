#include "traces/block_trace.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "traces/line_scanner.hpp"

namespace kvtier {
namespace {

constexpr double kMillisecond = 1e6;
constexpr double kSecond = 1e9;

/// A prompt has a number for each full block, and may have one for the rest.
std::string expected_count(std::int64_t tokens, Tokens block) {
  const std::int64_t full = tokens / block.value;
  return tokens % block.value == 0
             ? fmt::format("{} blocks of {} tokens", full, block.value)
             : fmt::format("{} or {} blocks of {} tokens", full, full + 1, block.value);
}

bool is_count_of(std::size_t blocks, std::int64_t tokens, Tokens block) {
  const auto count = static_cast<std::int64_t>(blocks);
  return count == tokens / block.value || count == (tokens + block.value - 1) / block.value;
}

}  // namespace

template <class Error>
Context BlockNames::context(const std::vector<std::int64_t>& names, Tokens tokens,
                            const Error& error) {
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
        const auto text = [](std::int64_t before) {
          return before == kRoot ? std::string("at the start") : fmt::format("behind {}", before);
        };
        throw error(
            fmt::format("block {} is {}, and was {}", name, text(parent), text(place.parent)));
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
    // Sparse numbers below the new size would be met in the table from now on.
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
  return format == TraceFormat::qwen_bailian ? BlockTraceStyle{format, kQwenBailian, kSecond}
                                             : BlockTraceStyle{format, kMooncake, kMillisecond};
}

BlockTraceReader::BlockTraceReader(const std::filesystem::path& path, const BlockTraceStyle& style)
    : TraceSource(Tokens(0)), lines_(path), style_(style), names_(streams_, style.block) {}

bool BlockTraceReader::read_session(SessionSpec& session) {
  std::string_view line;
  if (!lines_.next(line)) {
    if (report().sessions == 0) {
      throw ConfigError(fmt::format("{}: the trace has no requests", lines_.path().string()));
    }
    return false;
  }
  constexpr std::array<std::string_view, 4> kKeys{"timestamp", "input_length", "output_length",
                                                  "hash_ids"};
  std::array<bool, kKeys.size()> seen{};
  std::int64_t arrival = 0;
  std::int64_t input = 0;
  std::int64_t output = 0;
  LineScanner scanner(line, lines_);
  scanner.expect('{');
  do {
    const std::string_view key = scanner.key();
    scanner.expect(':');
    const auto which =
        static_cast<std::size_t>(std::find(kKeys.begin(), kKeys.end(), key) - kKeys.begin());
    if (which == kKeys.size()) {
      scanner.skip_value();
      continue;
    }
    if (std::exchange(seen[which], true)) {
      throw lines_.error(fmt::format("duplicate key \"{}\"", key));
    }
    if (which == 0) {
      arrival = scanner.time_ns("a time stamp", style_.unit_ns, kTraceTimeNsMax);
    } else if (which == 1) {
      input = scanner.integer("input tokens", 1, kMessageTokensMax);
    } else if (which == 2) {
      output = scanner.integer("output tokens", 0, kMessageTokensMax);
    } else {
      numbers_.clear();
      scanner.expect('[');
      if (!scanner.take(']')) {
        do {
          numbers_.push_back(scanner.integer("a block's number", 0, INT64_MAX));
        } while (scanner.take(','));
        scanner.expect(']');
      }
    }
  } while (scanner.take(','));
  scanner.expect('}');
  scanner.expect_end();
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    if (!seen[i]) {
      throw lines_.error(fmt::format("missing key \"{}\"", kKeys[i]));
    }
  }
  if (!is_count_of(numbers_.size(), input, style_.block)) {
    throw lines_.error(fmt::format("expected {} for {} input tokens, got {}",
                                   expected_count(input, style_.block), input, numbers_.size()));
  }
  if (report().sessions == 0) {
    first_arrival_ = SimTime(arrival);
  } else if (SimTime(arrival) < last_arrival_) {
    throw lines_.error(fmt::format("time stamp {} s after {} s: times must not decrease",
                                   SimTime(arrival).seconds(), last_arrival_.seconds()));
  }
  last_arrival_ = SimTime(arrival);
  session.arrival = SimTime() + (last_arrival_ - first_arrival_);
  session.turns = {{Tokens(input), Tokens(std::max<std::int64_t>(output, 1)), SimDuration()}};
  session.contents = {
      {.prompt = names_.context(numbers_, Tokens(input),
                                [&](const std::string& text) { return lines_.error(text); })}};
  return true;
}

AgentTraceReader::AgentTraceReader(const std::filesystem::path& path) : TraceSource(Tokens(0)) {
  std::vector<std::filesystem::path> files{path};
  if (std::filesystem::is_directory(path)) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".json") {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
  }
  for (const std::filesystem::path& file : files) {
    read_file(file);
  }
  if (requests_.empty()) {
    throw ConfigError(fmt::format("{}: the trace has no requests", path.string()));
  }
  std::stable_sort(requests_.begin(), requests_.end(),
                   [](const Request& a, const Request& b) { return a.arrival < b.arrival; });
}

void AgentTraceReader::read_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  const Json json = parse_json_strictly(read_text_file(path), file);
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
  read_requests(json["requests"], "/requests", 0, names, file);
}

void AgentTraceReader::read_requests(const Json& requests, const std::string& pointer, double began,
                                     BlockNames& names, const std::string& file) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Json& json = requests[i];
    const std::string here = fmt::format("{}/{}", pointer, i);
    const auto error = [&](const std::string& text) {
      return ConfigError(fmt::format("{}: {}: {}", file, here, text));
    };
    const auto number = [&](const char* key, double most) {
      if (!json.is_object() || !json.contains(key) || !json[key].is_number() ||
          !(json[key].get<double>() >= 0) || json[key].get<double>() > most) {
        throw error(fmt::format("expected a number in 0 .. {:.0f} at {}", most, key));
      }
      return json[key].get<double>();
    };
    const auto tokens = [&](const char* key, std::int64_t least) {
      if (!json.contains(key) || !json[key].is_number_integer() ||
          json[key].get<std::int64_t>() < least ||
          json[key].get<std::int64_t>() > kMessageTokensMax) {
        throw error(fmt::format("expected a whole number in {} .. {} at {}", least,
                                kMessageTokensMax, key));
      }
      return json[key].get<std::int64_t>();
    };
    const double time = began + number("t", static_cast<double>(kTraceTimeNsMax) / 2 / kSecond);
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
    requests_.push_back({.arrival = SimTime(std::llround(time * kSecond)),
                         .prompt = names.context(numbers, Tokens(input), error),
                         .output = Tokens(std::max<std::int64_t>(output, 1))});
  }
}

bool AgentTraceReader::read_session(SessionSpec& session) {
  if (next_ == requests_.size()) {
    return false;
  }
  const Request& request = requests_[next_++];
  session.arrival = request.arrival;
  session.turns = {{request.prompt.tokens, request.output, SimDuration()}};
  session.contents = {{.prompt = request.prompt}};
  return true;
}

}  // namespace kvtier
