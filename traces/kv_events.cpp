#include "traces/kv_events.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

constexpr std::int64_t kRoot = -1;
constexpr std::string_view kStored = "BlockStored";
constexpr std::string_view kRemoved = "BlockRemoved";
constexpr std::string_view kCleared = "AllBlocksCleared";

/// The values of an event in list form, after its type.
constexpr std::array<std::string_view, 9> kStoredValues{
    "block_hashes", "parent_block_hash", "token_ids",  "block_size", "lora_id",
    "medium",       "lora_name",         "extra_keys", "group_idx"};
constexpr std::array<std::string_view, 3> kRemovedValues{"block_hashes", "medium", "group_idx"};

}  // namespace

KvEventReader::KvEventReader(const std::filesystem::path& path, const ImportOptions& options)
    : TraceSource(Tokens(0)), lines_(path) {
  if (options.loop == Loop::closed) {
    throw ConfigError(fmt::format(
        "{}: events of a KV cache name no sessions, which a closed loop needs", path.string()));
  }
  counts().kv_events.emplace();
  has_next_ = advance();
  if (!has_next_) {
    throw ConfigError(fmt::format("{}: no event stores blocks on the GPU", path.string()));
  }
  block_ = Tokens(*events_[next_].block_size);
}

bool KvEventReader::advance() {
  do {
    for (; next_ < events_.size(); ++next_) {
      if (is_request(events_[next_])) {
        return true;
      }
    }
  } while (read_line());
  return false;
}

bool KvEventReader::is_request(const Event& event) {
  KvEventCounts& events = *counts().kv_events;
  if (event.type == kRemoved) {
    ++events.removed;
  } else if (event.type == kCleared) {
    ++events.all_cleared;
  } else if (event.type != kStored) {
    ++events.unknown;
  } else if (event.medium != "GPU" && event.medium != "gpu") {
    ++events.stored_in_other_media;
  } else if (event.group > 0) {
    ++events.stored_for_other_groups;
  } else {
    check_event(event);
    ++events.stored;
    return true;
  }
  return false;
}

void KvEventReader::check_event(const Event& event) {
  const auto missing = [&](bool is_there, const char* key) {
    if (!is_there) {
      throw lines_.error(fmt::format("missing key \"{}\" of a BlockStored event", key));
    }
  };
  missing(event.has_hashes, "block_hashes");
  missing(event.has_parent, "parent_block_hash");
  missing(event.block_size.has_value(), "block_size");
  if (block_.value > 0 && Tokens(*event.block_size) != block_) {
    throw lines_.error(fmt::format("expected blocks of {} tokens as in the events before, got {}",
                                   block_.value, *event.block_size));
  }
  const auto blocks = static_cast<std::int64_t>(event.end - event.begin);
  if (*event.block_size == 0) {
    throw lines_.error("expected a block_size of at least 1 of a BlockStored event, got 0");
  }
  if (blocks == 0) {
    throw lines_.error("a BlockStored event without blocks");
  }
  if (event.token_ids > 0 && event.token_ids != blocks * *event.block_size) {
    throw lines_.error(fmt::format("expected {} token ids for {} blocks of {} tokens, got {}",
                                   blocks * *event.block_size, blocks, *event.block_size,
                                   event.token_ids));
  }
}

bool KvEventReader::read_line() {
  std::string_view text;
  if (!next_filled_line(lines_, text)) {
    return false;
  }
  events_.clear();
  hashes_.clear();
  next_ = 0;
  std::optional<SimTime> time;
  const auto read_time = [&](LineScanner& scanner) {
    time = SimTime(scanner.time_ns("a batch's time", 0));
  };
  LineScanner scanner(text, lines_);
  if (scanner.take('[')) {
    read_time(scanner);
    scanner.expect(',');
    read_events(scanner);
    while (scanner.take(',')) {
      scanner.skip_value();
    }
    scanner.expect(']');
  } else {
    scanner.expect('{');
    bool has_events = false;
    do {
      const std::string_view key = scanner.key();
      scanner.expect(':');
      if ((key == "ts" && time) || (key == "events" && has_events)) {
        throw lines_.error(fmt::format("duplicate key {}", quote_text(key)));
      }
      if (key == "ts") {
        read_time(scanner);
      } else if (key == "events") {
        read_events(scanner);
        has_events = true;
      } else {
        scanner.skip_value();
      }
    } while (scanner.take(','));
    scanner.expect('}');
    if (!time || !has_events) {
      throw lines_.error(fmt::format("missing key \"{}\"", time ? "events" : "ts"));
    }
  }
  scanner.expect_end();
  if (last_time_ && *time < *last_time_) {
    throw lines_.error(fmt::format("ts {} s after {} s: times must not decrease", time->seconds(),
                                   last_time_->seconds()));
  }
  last_time_ = time;
  return true;
}

void KvEventReader::read_events(LineScanner& scanner) {
  scanner.expect('[');
  if (scanner.take(']')) {
    return;
  }
  do {
    read_event(scanner);
  } while (scanner.take(','));
  scanner.expect(']');
}

void KvEventReader::read_event(LineScanner& scanner) {
  Event event{.begin = hashes_.size(), .end = hashes_.size()};
  if (scanner.take('[')) {
    event.type = scanner.string();
    if (!event.type) {
      scanner.fail("an event's type, such as \"BlockStored\"");
    }
    for (std::size_t i = 0; scanner.take(','); ++i) {
      if (event.type == kStored && i < kStoredValues.size()) {
        read_event_value(scanner, kStoredValues[i], event);
      } else if (event.type == kRemoved && i < kRemovedValues.size()) {
        read_event_value(scanner, kRemovedValues[i], event);
      } else {
        scanner.skip_value();
      }
    }
    scanner.expect(']');
  } else {
    scanner.expect('{');
    do {
      const std::string_view key = scanner.key();
      scanner.expect(':');
      read_event_value(scanner, key, event);
    } while (scanner.take(','));
    scanner.expect('}');
    if (!event.type) {
      throw lines_.error("missing key \"type\" of an event");
    }
  }
  events_.push_back(event);
}

void KvEventReader::read_event_value(LineScanner& scanner, std::string_view key, Event& event) {
  const auto once = [&](bool seen) {
    if (seen) {
      throw lines_.error(fmt::format("duplicate key {}", quote_text(key)));
    }
  };
  if (key == "type") {
    once(event.type.has_value());
    event.type = scanner.string();
    if (!event.type) {
      scanner.fail("an event's type, such as \"BlockStored\"");
    }
    return;
  }
  if (event.type && event.type != kStored && event.type != kRemoved) {
    scanner.skip_value();
    return;
  }
  if (key == "block_hashes") {
    once(std::exchange(event.has_hashes, true));
    scanner.expect('[');
    if (!scanner.take(']')) {
      do {
        hashes_.push_back(scanner.hash("a block's hash"));
      } while (scanner.take(','));
      scanner.expect(']');
    }
    event.end = hashes_.size();
  } else if (key == "parent_block_hash") {
    once(std::exchange(event.has_parent, true));
    if (!scanner.null()) {
      event.parent = scanner.hash("a parent's hash or null");
    }
  } else if (key == "block_size") {
    once(event.block_size.has_value());
    event.block_size = scanner.integer("a block's tokens", 0, kMessageTokensMax);
  } else if (key == "token_ids") {
    event.token_ids = scanner.skip_list();
  } else if (key == "medium" && !scanner.null()) {
    const auto medium = scanner.string();
    if (!medium) {
      scanner.fail("a medium, such as \"GPU\", or null");
    }
    event.medium = *medium;
  } else if (key == "group_idx" && !scanner.null()) {
    event.group = scanner.integer("a group's number", 0, INT32_MAX);
  } else if (key != "medium" && key != "group_idx") {
    scanner.skip_value();
  }
}

KvEventReader::Place& KvEventReader::place_of(std::int64_t block) {
  const auto index = static_cast<std::size_t>(block);
  if (index >= places_.size()) {
    places_.resize(std::max(index + 1, 2 * places_.size()));
  }
  return places_[index];
}

Context KvEventReader::chain_of(const Event& event) {
  KvEventCounts& events = *counts().kv_events;
  // The previous block, and its place.
  std::int64_t parent = kRoot;
  Place before{.stream = kNoStream, .at = -1};
  if (event.parent) {
    parent = names_.number_of(event.parent->text, event.parent->is_string);
    if (const Place& place = place_of(parent); place.stream.valid()) {
      before = place;
    } else {
      ++events.without_parent;
    }
  }
  const std::int64_t blocks = before.at + 1 + static_cast<std::int64_t>(event.end - event.begin);
  if (blocks > kMessageTokensMax / block_.value) {
    throw lines_.error(
        fmt::format("a chain of {} blocks has more than {} tokens", blocks, kMessageTokensMax));
  }
  const auto lies_behind = [&](const Place& place) {
    const std::int64_t at = before.at + 1;
    return place.at == at && (place.stream == before.stream ||
                              (streams_.parent(place.stream) == before.stream &&
                               streams_.first_of(place.stream) == (block_ * at).value));
  };
  for (std::size_t i = event.begin; i < event.end; ++i) {
    const std::int64_t block = names_.number_of(hashes_[i].text, hashes_[i].is_string);
    Place& place = place_of(block);
    if (place.stream.valid() && place.parent != parent) {
      const auto text = [&](std::int64_t number) {
        return number == kRoot ? std::nullopt : std::optional(names_.text_of(number));
      };
      throw lines_.error(moved_block(names_.text_of(block), text(parent), text(place.parent)));
    }
    if (!place.stream.valid() || !lies_behind(place)) {
      events.moved_blocks += place.stream.valid() ? 1 : 0;
      const std::int64_t at = before.at + 1;
      StreamId stream = before.stream;
      if (!stream.valid() || lengths_[stream.value] != at) {
        stream = streams_.open(stream, block_ * at);
        lengths_.resize(std::max(lengths_.size(), streams_.size()));
      }
      lengths_[stream.value] = at + 1;
      place = {stream, static_cast<std::int32_t>(at), parent};
    }
    before = place;
    parent = block;
  }
  return {before.stream, block_ * (before.at + 1)};
}

bool KvEventReader::read_session(SessionSpec& session) {
  if (!has_next_ && !advance()) {
    return false;
  }
  has_next_ = false;
  const Event& event = events_[next_++];
  first_arrival_ = first_arrival_.value_or(*last_time_);
  session.arrival = SimTime() + (*last_time_ - *first_arrival_);
  session.turns = {
      {block_ * static_cast<std::int64_t>(event.end - event.begin), Tokens(1), SimDuration()}};
  session.contents = {{.prompt = chain_of(event)}};
  return true;
}

}  // namespace kvtier
