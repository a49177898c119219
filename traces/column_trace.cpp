#include "traces/column_trace.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "sim/core/errors.hpp"
#include "traces/request_log.hpp"

namespace kvtier {

std::unique_ptr<TraceSource> open_columns(const std::filesystem::path& path,
                                          const ImportOptions& options) {
  if (!options.columns) {
    throw ConfigError(fmt::format(
        "{}: the format columns needs the names of the columns (time=COLUMN,input=COLUMN,...)",
        path.string()));
  }
  const TraceColumns& columns = *options.columns;
  if (columns.has(TraceColumns::hashes)) {
    return std::make_unique<ColumnTraceReader>(path, columns, options);
  }
  if (options.loop == Loop::closed) {
    throw ConfigError(
        fmt::format("{}: {}: a closed loop needs hashes=COLUMN", path.string(), columns.option));
  }
  return std::make_unique<RequestLogReader>(path, columns, options.message_overhead);
}

ColumnTraceReader::ColumnTraceReader(const std::filesystem::path& path, const TraceColumns& columns,
                                     const ImportOptions& options)
    : TraceSource(Tokens(0)),
      block_(*columns.block),
      closed_(options.loop == Loop::closed),
      names_(streams_, block_, &hashes_),
      rows_(path, columns, &hashes_),
      table_(streams_) {
  if (!closed_) {
    return;
  }
  if (!columns.has(TraceColumns::session)) {
    throw ConfigError(
        fmt::format("{}: {}: a closed loop needs session=COLUMN", path.string(), columns.option));
  }
  if (options.think_times) {
    throw without_think_times(path);
  }
  read_sessions();
}

bool ColumnTraceReader::read_row() {
  if (!rows_.next(row_)) {
    return false;
  }
  if (const std::string wrong = wrong_block_count(row_.hashes.size(), row_.input, block_);
      !wrong.empty()) {
    throw rows_.error(wrong);
  }
  if (first_ns_ && row_.time.ns < last_ns_) {
    throw rows_.error(fmt::format("time {} s after {} s: times must not decrease",
                                  SimTime(row_.time.ns).seconds(), SimTime(last_ns_).seconds()));
  }
  last_ns_ = row_.time.ns;
  first_ns_ = first_ns_.value_or(last_ns_);
  return true;
}

RequestTable::Request ColumnTraceReader::request() {
  counts().clamped_messages += row_.output < Tokens(1) ? 1 : 0;
  return {.arrival = SimTime(row_.time.ns - *first_ns_),
          .think = SimDuration(),
          .prompt = names_.context(row_.hashes, row_.input,
                                   [this](const std::string& text) { return rows_.error(text); }),
          .output = std::max(row_.output, Tokens(1))};
}

std::uint32_t ColumnTraceReader::session_number() {
  return sessions_.emplace(row_.session, static_cast<std::uint32_t>(sessions_.size()))
      .first->second;
}

void ColumnTraceReader::read_sessions() {
  while (read_row()) {
    RequestTable::Request next = request();
    next.session = session_number();
    table_.add(next);
  }
  table_.order_sessions(RequestTable::Gaps::arrivals, block_);
  sessions_ = {};
}

bool ColumnTraceReader::read_session(SessionSpec& session) {
  const bool found = closed_ ? table_.next(session) : read_row();
  if (!found && report().sessions == 0) {
    throw ConfigError(fmt::format("{}: the trace has no requests", rows_.path().string()));
  }
  if (found && !closed_) {
    const RequestTable::Request next = request();
    session.arrival = next.arrival;
    session.turns = {{next.prompt.tokens, next.output, SimDuration()}};
    session.contents = {{.prompt = next.prompt}};
    if (!row_.session.empty()) {
      session.group = session_number();
    }
  }
  return found;
}

}  // namespace kvtier
