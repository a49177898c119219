#include "traces/turns_table.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "sim/core/errors.hpp"

namespace kvtier {
namespace {

enum Column : std::size_t { conv, turn, user_tokens, assistant_tokens };
constexpr std::array<std::string_view, 4> kNames{"conv", "turn", "user_tokens", "assistant_tokens"};

}  // namespace

TurnsTableReader::TurnsTableReader(const std::filesystem::path& path, Tokens message_overhead)
    : TraceSource(message_overhead), rows_(path) {
  expect_column_names(rows_);
  position_ = rows_.columns(kNames);
}

bool TurnsTableReader::read_row() {
  if (!rows_.next()) {
    return false;
  }
  std::swap(previous_conversation_, conversation_);
  conversation_ = rows_.text(position_[conv]);
  const std::int64_t previous_turn = turn_;
  turn_ = rows_.whole_number(position_[turn], INT32_MAX);
  tokens_.user = Tokens(rows_.whole_number(position_[user_tokens], kMessageTokensMax));
  tokens_.assistant = Tokens(rows_.whole_number(position_[assistant_tokens], kMessageTokensMax));
  const bool continues = started_ && conversation_ == previous_conversation_;
  const std::int64_t wanted = continues ? previous_turn + 1 : 0;
  if (turn_ != wanted) {
    throw rows_.error(
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
      throw ConfigError(fmt::format("{}: no rows after the header", rows_.path().string()));
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
