#include "tests/sim/store/hash_trace.hpp"

#include <filesystem>
#include <sstream>
#include <stdexcept>

#include <zlib.h>

#include "traces/block_trace.hpp"

namespace kvtier {
namespace {

/// nullopt if there is no such file.
std::optional<std::string> read_gz(const std::string& name) {
  const std::filesystem::path path =
      std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/data" / name;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text;
  std::vector<char> buffer(1U << 20);
  int got = 0;
  while (file != nullptr &&
         (got = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (file == nullptr || got < 0) {
    throw std::runtime_error("cannot read " + path.string());
  }
  gzclose(file);
  return text;
}

}  // namespace

std::optional<HashTrace> read_hash_trace(const std::string& name, std::size_t most) {
  const std::filesystem::path path =
      std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/data" / (name + ".jsonl.gz");
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  BlockTraceReader reader(path, block_trace_style(TraceFormat::mooncake));
  HashTrace trace;
  SessionSpec session;
  while (trace.requests.size() < most && reader.next(session)) {
    const Context& prompt = session.contents[0].prompt;
    trace.requests.push_back({prompt.stream, prompt.tokens, session.turns[0].assistant,
                              (prompt.tokens.value + kTraceBlock.value - 1) / kTraceBlock.value});
  }
  trace.streams = *reader.streams();
  return trace;
}

std::optional<OracleTable> read_oracle(const std::string& name) {
  const auto text = read_gz("oracles/" + name + ".csv.gz");
  if (!text) {
    return std::nullopt;
  }
  OracleTable table;
  std::istringstream lines(*text);
  std::string line;
  std::getline(lines, line);
  std::istringstream head(line);
  for (std::string cell; std::getline(head, cell, ',');) {
    table.columns.push_back(cell);
  }
  while (std::getline(lines, line)) {
    std::vector<std::int64_t>& row = table.rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) {
      row.push_back(std::stoll(cell));
    }
  }
  return table;
}

std::int64_t tokens_of(const std::string& capacity) {
  if (capacity == "inf") {
    return std::int64_t{1} << 50;
  }
  const std::string unit = capacity.substr(capacity.size() - 2);
  return std::stoll(capacity) * (unit == "Mi" ? 1 << 20 : 1 << 10);
}

}  // namespace kvtier
