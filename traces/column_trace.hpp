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

/// A table of requests whose columns `options.columns` names: a log of requests (RequestLogReader),
/// or with hashes a trace of blocks (ColumnTraceReader). Throws ConfigError if there are none.
[[nodiscard]] std::unique_ptr<TraceSource> open_columns(const std::filesystem::path& path,
                                                        const ImportOptions& options);

/// Reads a table of requests that name the blocks of their prompts (see ColumnRows). There is a
/// hash for each full block of the input, and one more for the rest or none. A hash stands for the
/// tokens of its block and of all before it.
///
/// In an open loop each request is a session of one turn, and memory is that of the distinct
/// hashes. In a closed loop the requests of a `session` are its turns, which come at their times;
/// it also holds 56 bytes a request and the sessions' names.
///
/// Every error is a ConfigError that names file and line: those of ColumnRows, too few or too many
/// hashes, a hash behind two others, a time before the one above, no requests.
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
  // Used in a closed loop only.
  RequestTable table_;
  std::unordered_map<std::string, std::uint32_t> sessions_;
};

}  // namespace kvtier
