#include "tests/sim/store/hash_trace.hpp"

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <unordered_map>

#include <nlohmann/json.hpp>
#include <zlib.h>

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
  const auto text = read_gz(name + ".jsonl.gz");
  if (!text) {
    return std::nullopt;
  }
  struct Node {
    StreamId stream;
    std::int64_t blocks = 0;
    std::unordered_map<std::int64_t, std::size_t> children;
  };
  HashTrace trace;
  std::vector<Node> nodes(1);
  /// Blocks of each stream's longest request.
  std::vector<std::int64_t> lengths;
  std::istringstream lines(*text);
  for (std::string line; trace.requests.size() < most && std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    std::size_t at = 0;
    bool known = true;
    StreamId stream;
    for (const auto& id : row.at("hash_ids")) {
      const auto found = nodes[at].children.find(id.get<std::int64_t>());
      if (found != nodes[at].children.end()) {
        at = found->second;
        stream = nodes[at].stream;
        continue;
      }
      const std::int64_t blocks = nodes[at].blocks;
      if (known && !(stream.valid() && lengths[stream.value] == blocks)) {
        stream = trace.streams.open(stream, kTraceBlock * blocks);
        lengths.resize(trace.streams.size());
      }
      known = false;
      lengths[stream.value] = blocks + 1;
      nodes.push_back({stream, blocks + 1, {}});
      nodes[at].children[id.get<std::int64_t>()] = nodes.size() - 1;
      at = nodes.size() - 1;
    }
    trace.requests.push_back({stream, Tokens(row.at("input_length").get<std::int64_t>()),
                              Tokens(row.at("output_length").get<std::int64_t>()),
                              nodes[at].blocks});
  }
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
