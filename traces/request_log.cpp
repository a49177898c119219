#include "traces/request_log.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "sim/core/csv_reader.hpp"
#include "sim/core/errors.hpp"
#include "traces/timestamp.hpp"

namespace kvtier {
namespace {

enum Column : std::size_t { arrival, input, output };
using Names = std::array<std::string_view, 3>;
constexpr Names kGeneric{"arrival", "input_tokens", "output_tokens"};
constexpr Names kAzure{"TIMESTAMP", "ContextTokens", "GeneratedTokens"};

Timestamp read_time(const CsvReader& rows, std::size_t column) {
  const auto time = parse_timestamp(rows.text(column));
  if (!time) {
    throw rows.unexpected(column,
                          "seconds >= 0 such as \"12.5\" or a time such as "
                          "\"2023-11-16 18:15:46.68\"");
  }
  return *time;
}

}  // namespace

RequestLogReader::RequestLogReader(const std::filesystem::path& path, RequestLogColumns columns,
                                   Tokens message_overhead, const InputTokensSetting& input_tokens)
    : TraceSource(message_overhead), input_tokens_(input_tokens) {
  read_into_memory(path, columns);
}

RequestLogReader::RequestLogReader(const std::filesystem::path& path, const TraceColumns& columns,
                                   Tokens message_overhead)
    : TraceSource(message_overhead),
      input_tokens_{columns.input_tokens, fmt::format("{} (input={}:MEANING)", columns.option,
                                                      columns.names[TraceColumns::input])} {
  read_into_memory(path, columns);
}

template <class Columns>
void RequestLogReader::read_into_memory(const std::filesystem::path& path, const Columns& columns) {
  try {
    read(path, columns);
    sessions_ = {};
  } catch (const std::bad_alloc&) {
    const std::size_t rows = rows_.size();
    rows_ = {};
    throw DeviceError(fmt::format(
        "{}: out of memory after {} rows: a log of requests is sorted by time and held in memory, "
        "{} bytes a row and the names of its sessions",
        path.string(), rows, sizeof(Row)));
  }
}

void RequestLogReader::read(const std::filesystem::path& path, RequestLogColumns columns) {
  const bool generic = columns == RequestLogColumns::generic;
  CsvReader rows(path);
  expect_column_names(rows);
  const std::vector<std::size_t> places = rows.columns(generic ? kGeneric : kAzure);
  std::optional<std::size_t> session;
  std::optional<std::size_t> turn;
  if (generic) {
    session = rows.column("session");
    turn = rows.column("turn");
  }
  if (turn && !session) {
    throw rows.error("column turn needs a column session");
  }
  std::optional<TimestampForm> form;
  while (rows.next()) {
    const Timestamp time = read_time(rows, places[arrival]);
    if (form && time.form != *form) {
      throw rows.unexpected(places[arrival], *form == TimestampForm::seconds
                                                 ? "seconds as in the rows before"
                                                 : "a date and time as in the rows before");
    }
    form = time.form;
    Row row{.arrival_ns = time.ns, .line = rows.line_number()};
    if (session && rows.text(*session).empty()) {
      throw rows.unexpected(*session, "the session's name");
    }
    row.session = session_of(session ? rows.text(*session) : std::string_view());
    row.turn = turn ? static_cast<std::uint32_t>(rows.whole_number(*turn, INT32_MAX)) : 0;
    row.input = static_cast<std::uint32_t>(rows.whole_number(places[input], kMessageTokensMax));
    row.output = static_cast<std::uint32_t>(rows.whole_number(places[output], kMessageTokensMax));
    add(row);
  }
  if (rows_.empty()) {
    throw ConfigError(fmt::format("{}: no rows after the header", path.string()));
  }
  sort(path);
  for (std::size_t i = 1; turn && i < rows_.size(); ++i) {
    const Row& before = rows_[i - 1];
    const Row& row = rows_[i];
    if (row.session == before.session && row.turn <= before.turn) {
      throw ConfigError(fmt::format(
          "{}:{}: turn {} comes after turn {} of the same session, which line {} has: turns must "
          "increase with time",
          path.string(), row.line, row.turn, before.turn, before.line));
    }
  }
}

void RequestLogReader::read(const std::filesystem::path& path, const TraceColumns& columns) {
  ColumnRows rows(path, columns, nullptr);
  ColumnRows::Row row;
  while (rows.next(row)) {
    add({.arrival_ns = row.time.ns,
         .session = session_of(row.session),
         .input = static_cast<std::uint32_t>(row.input.value),
         .output = static_cast<std::uint32_t>(row.output.value),
         .line = rows.line_number()});
  }
  if (rows_.empty()) {
    throw ConfigError(fmt::format("{}: the trace has no requests", path.string()));
  }
  sort(path);
}

void RequestLogReader::add(const Row& row) {
  if (!rows_.empty() && row.arrival_ns < rows_.back().arrival_ns) {
    ++counts().reordered_rows;
  }
  rows_.push_back(row);
}

std::uint32_t RequestLogReader::session_of(std::string_view name) {
  return name.empty()
             ? static_cast<std::uint32_t>(rows_.size())
             : sessions_.emplace(name, static_cast<std::uint32_t>(sessions_.size())).first->second;
}

void RequestLogReader::sort(const std::filesystem::path& path) {
  if (counts().reordered_rows > 0) {
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.arrival_ns < b.arrival_ns; });
  }
  number_sessions(path);
  std::stable_sort(rows_.begin(), rows_.end(),
                   [](const Row& a, const Row& b) { return a.session < b.session; });
}

void RequestLogReader::number_sessions(const std::filesystem::path& path) {
  struct State {
    std::optional<std::uint32_t> number;
    /// Input and output tokens of its last row.
    Tokens before;
  };
  std::vector<State> sessions(rows_.size());
  const bool total = input_tokens_.value == InputTokens::total;
  PromptGrowth growth;
  std::uint32_t known = 0;
  std::int64_t cut = 0;
  const std::int64_t begin = rows_.front().arrival_ns;
  for (Row& row : rows_) {
    State& state = sessions[row.session];
    const Tokens input(row.input);
    if (state.number) {
      growth.add(state.before, input);
    }
    const bool is_cut = total && state.number && input < state.before;
    cut += is_cut ? 1 : 0;
    if (!state.number || is_cut) {
      state.number = known++;
    } else if (total) {
      row.input = static_cast<std::uint32_t>((input - state.before).value);
    }
    state.before = input + Tokens(row.output);
    row.session = *state.number;
    row.arrival_ns -= begin;
  }
  growth.check(input_tokens_, path.string());
  if (total) {
    counts().cut_histories = cut;
  }
}

bool RequestLogReader::read_session(SessionSpec& session) {
  if (next_ == rows_.size()) {
    return false;
  }
  const Row& first = rows_[next_];
  session.arrival = SimTime(first.arrival_ns);
  session.turns.clear();
  std::int64_t before = first.arrival_ns;
  for (; next_ < rows_.size() && rows_[next_].session == first.session; ++next_) {
    const Row& row = rows_[next_];
    session.turns.push_back({.user = Tokens(row.input),
                             .assistant = Tokens(row.output),
                             .think = SimDuration(row.arrival_ns - before)});
    before = row.arrival_ns;
  }
  return true;
}

}  // namespace kvtier
