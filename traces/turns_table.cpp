#include "traces/turns_table.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "sim/core/text.hpp"

namespace kvtier {
namespace {

enum Column : std::size_t { conv, turn, user_tokens, assistant_tokens };
constexpr std::array<std::string_view, 4> kNames{"conv", "turn", "user_tokens", "assistant_tokens"};

}  // namespace

TurnsTableReader::TurnsTableReader(const std::filesystem::path& path, Tokens message_overhead,
                                   const InputTokensSetting& input_tokens)
    : TraceSource(message_overhead), rows_(path), total_(input_tokens.value == InputTokens::total) {
  expect_column_names(rows_);
  position_ = rows_.columns(kNames);
  if (input_tokens.value != InputTokens::new_tokens) {
    check_growth(path, input_tokens);
  }
  if (total_) {
    counts().cut_histories = 0;
  }
}

void TurnsTableReader::check_growth(const std::filesystem::path& path,
                                    const InputTokensSetting& input_tokens) {
  // Enough for either meaning, and few enough that a long table is not read twice.
  constexpr std::int64_t kLaterTurns = 10'000;
  TurnsTableReader table(path, Tokens(0), {.value = InputTokens::new_tokens});
  PromptGrowth growth;
  SessionSpec session;
  while (growth.later_turns() < kLaterTurns && table.read_session(session)) {
    for (std::size_t i = 1; i < session.turns.size(); ++i) {
      const Turn& before = session.turns[i - 1];
      growth.add(before.user + before.assistant, session.turns[i].user);
    }
  }
  growth.check(input_tokens, path.string());
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
        fmt::format("turn {} of conversation {} where turn {} should be: the rows of a "
                    "conversation must follow each other "
                    "with turns 0, 1, 2, ...",
                    turn_, quote_text(conversation_), wanted));
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
  // Input and output tokens of the turn before, if the table counts them again.
  Tokens before;
  bool is_cut = false;
  do {
    session.turns.push_back(
        {.user = tokens_.user - before, .assistant = tokens_.assistant, .think = SimDuration()});
    if (total_) {
      before = tokens_.user + tokens_.assistant;
    }
    has_row_ = read_row();
    is_cut = has_row_ && turn_ > 0 && tokens_.user < before;
  } while (has_row_ && turn_ > 0 && !is_cut);
  if (is_cut) {
    ++*counts().cut_histories;
  }
  return true;
}

}  // namespace kvtier
