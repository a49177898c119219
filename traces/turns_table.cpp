#include "traces/turns_table.hpp"

#include <charconv>

#include <fmt/format.h>

#include "sim/core/config.hpp"
#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

enum Column : std::size_t { conv, turn, user_tokens, assistant_tokens };
constexpr std::array<const char*, 4> kNames{"conv", "turn", "user_tokens", "assistant_tokens"};

}  // namespace

TurnsTableReader::TurnsTableReader(const std::filesystem::path& path, Tokens message_overhead)
    : TraceSource(message_overhead), lines_(path) {
  std::string_view line;
  if (!lines_.next(line)) {
    throw ConfigError(fmt::format("{}: the file is empty", path.string()));
  }
  split(line);
  header_fields_ = field_count_;
  const std::vector<std::string> found(fields_.begin(),
                                       fields_.begin() + static_cast<std::ptrdiff_t>(field_count_));
  std::vector<std::string> missing;
  for (std::size_t column = 0; column < kColumns; ++column) {
    std::size_t matches = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] == kNames[column]) {
        position_[column] = i;
        ++matches;
      }
    }
    if (matches == 0) {
      missing.emplace_back(kNames[column]);
    } else if (matches > 1) {
      throw lines_.error(fmt::format("column {} comes {} times", kNames[column], matches));
    }
  }
  if (!missing.empty()) {
    throw lines_.error(fmt::format("missing column{} {} (found {})", missing.size() > 1 ? "s" : "",
                                   detail::join(missing, ", "), detail::join(found, ", ")));
  }
}

void TurnsTableReader::split(std::string_view line) {
  field_count_ = 0;
  std::size_t at = 0;
  while (true) {
    if (field_count_ == fields_.size()) {
      fields_.emplace_back();
    }
    std::string& field = fields_[field_count_++];
    field.clear();
    if (at < line.size() && line[at] == '"') {
      ++at;
      while (true) {
        const std::size_t quote = line.find('"', at);
        if (quote == line.npos) {
          throw lines_.error("a quoted field does not end on its line");
        }
        field += line.substr(at, quote - at);
        at = quote + 1;
        if (at >= line.size() || line[at] != '"') {
          break;
        }
        field += '"';
        ++at;
      }
      if (at < line.size() && line[at] != ',') {
        throw lines_.error("expected ',' after a quoted field");
      }
    } else {
      const std::size_t comma = std::min(line.find(',', at), line.size());
      field += line.substr(at, comma - at);
      at = comma;
    }
    if (at >= line.size()) {
      return;
    }
    ++at;  // the comma
  }
}

std::int64_t TurnsTableReader::whole_number(std::size_t column, std::int64_t maximum) const {
  const std::string& text = fields_[position_[column]];
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > maximum) {
    throw lines_.error(fmt::format("{}: expected a whole number in 0 .. {}, got \"{}\"",
                                   kNames[column], maximum, text));
  }
  return value;
}

bool TurnsTableReader::read_row() {
  std::string_view line;
  do {
    if (!lines_.next(line)) {
      return false;
    }
  } while (line.empty());
  split(line);
  if (field_count_ != header_fields_) {
    throw lines_.error(
        fmt::format("expected {} fields as in line 1, got {}", header_fields_, field_count_));
  }
  std::swap(previous_conversation_, conversation_);
  conversation_ = fields_[position_[conv]];
  const std::int64_t previous_turn = turn_;
  turn_ = whole_number(turn, INT32_MAX);
  tokens_.user = Tokens(whole_number(user_tokens, kMessageTokensMax));
  tokens_.assistant = Tokens(whole_number(assistant_tokens, kMessageTokensMax));
  const bool continues = started_ && conversation_ == previous_conversation_;
  const std::int64_t wanted = continues ? previous_turn + 1 : 0;
  if (turn_ != wanted) {
    throw lines_.error(
        fmt::format("turn {} of conversation \"{}\" where turn {} should be: the rows of a "
                    "conversation must follow each other "
                    "with turns 0, 1, 2, ...",
                    turn_, conversation_, wanted));
  }
  started_ = true;
  return true;
}

bool TurnsTableReader::read_session(SessionSpec& session) {
  if (!started_) {
    has_row_ = read_row();
    if (!has_row_) {
      throw ConfigError(fmt::format("{}: no rows after the header", lines_.path().string()));
    }
  }
  if (!has_row_) {
    return false;
  }
  session.arrival = SimTime();
  session.turns.clear();
  do {
    session.turns.push_back(tokens_);
    has_row_ = read_row();
  } while (has_row_ && turn_ > 0);
  return true;
}

}  // namespace kvtier
