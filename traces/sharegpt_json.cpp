#include "traces/sharegpt_json.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/core/assert.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

enum class Side { user, assistant };

std::optional<Side> side_of(std::string_view role) {
  if (role == "human" || role == "user" || role == "system") {
    return Side::user;
  }
  if (role == "gpt" || role == "chatgpt" || role == "bing" || role == "bard" ||
      role == "assistant") {
    return Side::assistant;
  }
  return std::nullopt;
}

/// Converts the parser's events of one conversation to turns.
class ConversationHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  ConversationHandler(const Tokenizer& tokenizer, std::vector<Turn>& turns, ImportReport& report)
      : tokenizer_(tokenizer), turns_(turns), report_(report) {
    turns_.clear();
  }

  /// The error in the conversation, and its byte if the parser knows it.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] std::optional<std::size_t> problem_position() const { return problem_position_; }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }

  bool string(string_t& value) override {
    if (is_message_key("from")) {
      role_ = std::move(value);
      return true;
    }
    if (is_message_key("value")) {
      text_ = std::move(value);
      return true;
    }
    return scalar();
  }

  bool key(string_t& name) override {
    // Duplicates matter only for keys that are read.
    bool* seen = nullptr;
    if (depth_ == kConversation) {
      in_messages_ = name == "conversations";
      seen = in_messages_ ? &seen_conversations_ : nullptr;
    } else if (in_messages_ && depth_ == kMessage) {
      seen = name == "from" ? &seen_from_ : (name == "value" ? &seen_value_ : nullptr);
    }
    if (seen != nullptr && std::exchange(*seen, true)) {
      return stop(fmt::format("duplicate key {}", quote_text(name)));
    }
    key_ = std::move(name);
    return true;
  }

  bool start_object(std::size_t) override {
    if (in_messages_ && depth_ == kConversation) {
      return stop("expected \"conversations\" as a list");
    }
    if (!check_message_value()) {
      return false;
    }
    if (++depth_ == kMessage && in_messages_) {
      role_.reset();
      text_.reset();
      seen_from_ = false;
      seen_value_ = false;
    }
    key_.clear();
    return true;
  }

  bool end_object() override {
    if (in_messages_ && depth_ == kMessage && !finish_message()) {
      return false;
    }
    --depth_;
    if (depth_ == 0) {
      return finish_conversation();
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (in_messages_ && depth_ == kMessages) {
      return stop("expected each message as an object");
    }
    if (!check_message_value()) {
      return false;
    }
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem_ = "not valid JSON";
    problem_position_ = position;
    return false;
  }

 private:
  // Number of open containers inside a conversation, its list of messages, and a message.
  static constexpr int kConversation = 1;
  static constexpr int kMessages = 2;
  static constexpr int kMessage = 3;

  bool stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  [[nodiscard]] bool is_message_key(std::string_view name) const {
    return in_messages_ && depth_ == kMessage && key_ == name;
  }

  bool check_message_value() {
    if (is_message_key("from") || is_message_key("value")) {
      return stop(fmt::format("expected \"{}\" as a string", key_));
    }
    return true;
  }

  bool scalar() {
    if (in_messages_ && depth_ == kConversation) {
      return stop("expected \"conversations\" as a list");
    }
    if (in_messages_ && depth_ == kMessages) {
      return stop("expected each message as an object");
    }
    return check_message_value();
  }

  bool finish_message() {
    if (!role_ || !text_) {
      return stop(fmt::format("a message has no \"{}\"", role_ ? "value" : "from"));
    }
    const std::optional<Side> side = side_of(*role_);
    if (!side) {
      ++report_.unknown_role_messages;
      if (report_.unknown_roles.size() < ImportReport::kUnknownRolesMax ||
          report_.unknown_roles.contains(*role_)) {
        ++report_.unknown_roles[*role_];
      }
      return true;
    }
    report_.system_messages += *role_ == "system" ? 1 : 0;
    const Tokens tokens = tokenizer_.count(*text_);
    if (*side == Side::user) {
      if (last_ == Side::user) {
        ++report_.merged_messages;
        prompt_ += tokens;
        ++prompt_messages_;
      } else {
        prompt_ = tokens;
        prompt_messages_ = 1;
      }
      last_ = Side::user;
    } else if (!last_) {
      ++report_.leading_assistant_messages;
    } else if (last_ == Side::user) {
      turns_.push_back({.user = prompt_, .assistant = tokens, .think = {}});
      last_ = Side::assistant;
    } else {
      ++report_.merged_messages;
      turns_.back().assistant += tokens;
    }
    return true;
  }

  bool finish_conversation() {
    if (!seen_conversations_) {
      return stop("a conversation has no \"conversations\"");
    }
    if (last_ == Side::user) {
      report_.trailing_user_messages += prompt_messages_;
    }
    for (const Turn& turn : turns_) {
      if (std::max(turn.user, turn.assistant) > Tokens(kMessageTokensMax)) {
        return stop(fmt::format("a message has more than {} tokens", kMessageTokensMax));
      }
    }
    report_.sessions_without_turns += turns_.empty() ? 1 : 0;
    return true;
  }

  const Tokenizer& tokenizer_;
  std::vector<Turn>& turns_;
  ImportReport& report_;

  int depth_ = 0;
  bool in_messages_ = false;
  std::string key_;
  bool seen_conversations_ = false;
  bool seen_from_ = false;
  bool seen_value_ = false;
  std::optional<std::string> role_;
  std::optional<std::string> text_;

  std::optional<Side> last_;
  Tokens prompt_{};
  std::int64_t prompt_messages_ = 0;

  std::string problem_;
  std::optional<std::size_t> problem_position_;
};

/// The code unit of the escape "\uXXXX" at `at`, or nullopt if none is there.
std::optional<unsigned> code_unit(std::string_view text, std::size_t at) {
  constexpr std::size_t kEscapeLength = 6;
  if (text.size() < at + kEscapeLength || text[at] != '\\' || text[at + 1] != 'u') {
    return std::nullopt;
  }
  unsigned unit = 0;
  const char* begin = text.data() + at + 2;
  const auto [end, error] = std::from_chars(begin, begin + 4, unit, 16);
  return error == std::errc() && end == begin + 4 ? std::optional(unit) : std::nullopt;
}

bool is_high_surrogate(std::optional<unsigned> unit) {
  return unit && *unit >= 0xd800 && *unit < 0xdc00;
}
bool is_low_surrogate(std::optional<unsigned> unit) {
  return unit && *unit >= 0xdc00 && *unit < 0xe000;
}

}  // namespace

ShareGptJsonReader::ShareGptJsonReader(const std::filesystem::path& path,
                                       std::unique_ptr<Tokenizer> tokenizer,
                                       Tokens message_overhead)
    : TraceSource(message_overhead),
      bytes_(path),
      tokenizer_(std::move(tokenizer)),
      buffer_(std::size_t{64} << 10) {
  KVTIER_ASSERT(tokenizer_ != nullptr, "texts need a tokenizer");
}

void ShareGptJsonReader::fail(std::int64_t offset, std::string_view message) const {
  throw ConfigError(fmt::format("{}: byte {}: {}", bytes_.path().string(), offset, message));
}

bool ShareGptJsonReader::fill() {
  if (at_ < end_) {
    return true;
  }
  buffer_offset_ += static_cast<std::int64_t>(end_);
  at_ = 0;
  end_ = bytes_.read(buffer_);
  if (end_ == 0 && !bytes_.damage().empty()) {
    fail(offset(), bytes_.damage());
  }
  return end_ > 0;
}

char ShareGptJsonReader::peek_token() {
  while (fill()) {
    const char c = buffer_[at_];
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
      return c;
    }
    ++at_;
  }
  return '\0';
}

bool ShareGptJsonReader::read_element() {
  char c = peek_token();
  if (!opened_) {
    if (c != '[') {
      fail(offset(), "expected a list of conversations, which begins with '['");
    }
    opened_ = true;
    ++at_;
    c = peek_token();
  } else if (c == ',') {
    ++at_;
    c = peek_token();
    if (c == ']') {
      fail(offset(), "expected a conversation after ','");
    }
  } else if (c != ']') {
    fail(offset(), c == '\0' ? "the list of conversations does not end"
                             : "expected ',' or ']' after a conversation");
  }
  if (c == ']') {
    ++at_;
    if (peek_token() != '\0') {
      fail(offset(), "expected nothing after the list of conversations");
    }
    return false;
  }
  if (c != '{') {
    fail(offset(), c == '\0' ? "the list of conversations does not end"
                             : "expected a conversation, which begins with '{'");
  }
  text_.clear();
  text_offset_ = offset();
  int depth = 0;
  bool in_string = false;
  bool escaped = false;
  while (fill()) {
    const std::size_t begin = at_;
    bool complete = false;
    while (at_ < end_ && !complete) {
      const char at = buffer_[at_++];
      if (in_string) {
        if (escaped) {
          escaped = false;
        } else if (at == '\\') {
          escaped = true;
        } else if (at == '"') {
          in_string = false;
        }
      } else if (at == '"') {
        in_string = true;
      } else if (at == '{' || at == '[') {
        ++depth;
      } else if (at == '}' || at == ']') {
        complete = --depth == 0;
      }
    }
    text_.append(buffer_.data() + begin, at_ - begin);
    if (complete) {
      any_element_ = true;
      return true;
    }
    if (text_.size() > kConversationBytesMax) {
      fail(text_offset_,
           fmt::format("a conversation is longer than {} MiB", kConversationBytesMax >> 20));
    }
  }
  fail(offset(), fmt::format("the conversation that begins at byte {} does not end", text_offset_));
}

void ShareGptJsonReader::replace_lone_surrogates() {
  constexpr std::size_t kEscapeLength = 6;
  std::size_t at = 0;
  while ((at = text_.find('\\', at)) != std::string::npos) {
    const std::optional<unsigned> unit = code_unit(text_, at);
    if (!unit) {
      at += 2;  // another escape, such as "\\"
    } else if (is_high_surrogate(unit) && is_low_surrogate(code_unit(text_, at + kEscapeLength))) {
      at += 2 * kEscapeLength;
    } else {
      if (is_high_surrogate(unit) || is_low_surrogate(unit)) {
        text_.replace(at, kEscapeLength, "\\ufffd");
        ++counts().replaced_surrogates;
      }
      at += kEscapeLength;
    }
  }
}

bool ShareGptJsonReader::read_session(SessionSpec& session) {
  session.arrival = SimTime();
  do {
    if (closed_ || !read_element()) {
      closed_ = true;
      if (counts().sessions == 0) {
        throw ConfigError(fmt::format(
            "{}: {}", bytes_.path().string(),
            any_element_ ? "no conversation has a turn" : "the list has no conversations"));
      }
      return false;
    }
    replace_lone_surrogates();
    ConversationHandler handler(*tokenizer_, session.turns, counts());
    if (!nlohmann::json::sax_parse(text_, &handler)) {
      // The parser counts bytes from 1.
      const std::size_t position =
          std::max<std::size_t>(handler.problem_position().value_or(1), 1) - 1;
      if (const std::size_t end = end_of_utf8(text_); end < text_.size()) {
        fail(text_offset_ + static_cast<std::int64_t>(end), "expected UTF-8");
      }
      fail(text_offset_ + static_cast<std::int64_t>(position), handler.problem());
    }
  } while (session.turns.empty());
  return true;
}

}  // namespace kvtier
