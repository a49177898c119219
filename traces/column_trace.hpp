#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "sim/core/streams.hpp"
#include "traces/block_trace.hpp"
#include "traces/columns.hpp"
#include "traces/hash_names.hpp"
#include "traces/request_table.hpp"
#include "traces/trace_source.hpp"

namespace kvtier {

/// Opens a table of requests with the columns of `options.columns`: a log of requests
/// (RequestLogReader), or with hashes a trace of blocks (ColumnTraceReader). Throws ConfigError
/// without columns.
[[nodiscard]] std::unique_ptr<TraceSource> open_columns(const std::filesystem::path& path,
                                                        const ImportOptions& options);

/// Reads a table of requests that name the blocks of their prompts (see ColumnRows). Each full
/// block of the input has a hash; a partial last block may have one, too. A hash stands for the
/// tokens of its block and all tokens before it.
///
/// In an open loop each request is a session of one turn, and the requests of a `session` are a
/// group. Memory grows with the distinct hashes and the sessions' names. In a closed loop the
/// requests of a `session` are its turns, which come at their times. A closed loop also holds 56
/// bytes per request.
///
/// Every error is a ConfigError that names file and line: the errors of ColumnRows, a wrong count
/// of hashes, a hash that follows two different hashes, a decreasing time, no requests.
class ColumnTraceReader final : public TraceSource {
 public:
  ColumnTraceReader(const std::filesystem::path& path, const TraceColumns& columns,
                    const ImportOptions& options);

  [[nodiscard]] bool has_arrivals() const override { return true; }
  [[nodiscard]] bool has_turn_arrivals() const override { return true; }
  [[nodiscard]] Streams* streams() override { return &streams_; }
  [[nodiscard]] std::optional<NamedBlocks> named_blocks() const override {
    return NamedBlocks{.block = block_, .partial = true};
  }

 protected:
  bool read_session(SessionSpec& session) override;

 private:
  [[nodiscard]] bool read_row();
  [[nodiscard]] RequestTable::Request request();
  /// The number of the current row's session.
  [[nodiscard]] std::uint32_t session_number();
  void read_sessions();

  Tokens block_;
  bool closed_;
  Streams streams_;
  HashNames hashes_;
  BlockNames names_;
  ColumnRows rows_;
  ColumnRows::Row row_;
  std::optional<std::int64_t> first_ns_;
  std::int64_t last_ns_ = 0;
  /// Used in a closed loop only.
  RequestTable table_;
  std::unordered_map<std::string, std::uint32_t> sessions_;
};

}  // namespace kvtier
