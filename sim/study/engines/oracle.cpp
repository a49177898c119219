#include "sim/study/engines/oracle.hpp"

#include <regex>

#include <fmt/format.h>

#include "sim/core/csv_reader.hpp"

namespace kvtier {
namespace {

/// Block size of the scheduler's tables.
constexpr Tokens kSchedulerBlock{512};

const std::string kTrace = "[a-z0-9]+";
const std::string kSize = "(\\d{1,6}[KM]i)";
const std::string kCount = "(\\d{1,6})";

}  // namespace

OracleTable read_oracle(const std::filesystem::path& path) {
  CsvReader rows(path);
  OracleTable table{.columns = {rows.names().begin(), rows.names().end()}, .rows = {}};
  if (table.columns.size() < 3 || table.columns[0] != "req" ||
      table.columns[1] != "prompt_tokens") {
    throw ConfigError(
        fmt::format("{}: expected the columns req, prompt_tokens and others", path.string()));
  }
  while (rows.next()) {
    std::vector<std::int64_t>& row = table.rows.emplace_back();
    for (std::size_t column = 0; column < table.columns.size(); ++column) {
      row.push_back(rows.whole_number(column, INT64_MAX));
    }
    if (row[0] != static_cast<std::int64_t>(table.rows.size()) - 1) {
      throw rows.unexpected(0, fmt::format("{}, the number of the row", table.rows.size() - 1));
    }
  }
  if (table.rows.empty()) {
    throw ConfigError(fmt::format("{}: the table has no rows", path.string()));
  }
  return table;
}

std::optional<std::int64_t> capacity_tokens(const std::string& text) {
  if (text == "inf") {
    return std::int64_t{1} << 50;
  }
  static const std::regex form("(\\d{1,6})([KM])i");
  std::smatch match;
  if (!std::regex_match(text, match, form)) {
    return std::nullopt;
  }
  return std::stoll(match[1]) * (match[2] == "M" ? 1 << 20 : 1 << 10);
}

std::optional<OracleKind> oracle_kind(const std::string& name) {
  static const std::regex manager("vllm_mgr_(prompt|output|output_pertoken|fifo" + kCount + ")_" +
                                  kTrace + "_b" + kCount);
  static const std::regex scheduler("vllm_sched_" + kTrace + "_g" + kSize + "_c" + kSize +
                                    "_(none|lru|arc)_seqs" + kCount + "_(prompt|output)");
  static const std::regex sglang("sgl_(radix|unified)_(lru|lfu)_(prompt|output)_chunk" + kCount +
                                 "_" + kTrace + "_p" + kCount);
  static const std::regex sglang_0510(
      "sgl_(radix0510|hiradix_write_through(?:_selective)?)_"
      "(lru|lfu)_" +
      kTrace + "_p" + kCount + "_g" + kSize + "_c" + kSize);
  static const std::regex lmcache("lmcache_(lru|lfu|fifo)_" + kTrace + "_c" + kCount);
  OracleKind kind;
  std::smatch match;
  if (std::regex_match(name, match, manager)) {
    kind.with_output = match.str(1).starts_with("output");
    kind.held = match[2].matched ? std::stoll(match[2]) : 1;
    kind.block = Tokens(std::stoll(match[3]));
  } else if (std::regex_match(name, match, scheduler)) {
    kind.engine = OracleEngine::vllm_scheduler;
    kind.gpu = *capacity_tokens(match[1]);
    kind.cpu = *capacity_tokens(match[2]);
    kind.eviction = match[3];
    kind.held = std::stoll(match[4]);
    kind.with_output = match[5] == "output";
    kind.block = kSchedulerBlock;
  } else if (std::regex_match(name, match, sglang)) {
    kind.engine = OracleEngine::sglang;
    kind.eviction = match[2];
    kind.with_output = match[3] == "output";
    kind.chunk = Tokens(std::stoll(match[4]));
    kind.block = Tokens(std::stoll(match[5]));
  } else if (std::regex_match(name, match, sglang_0510)) {
    kind.engine = OracleEngine::sglang_0510;
    kind.writes_from = match.str(1).ends_with("selective") ? 2 : 1;
    kind.eviction = match[2];
    kind.block = Tokens(std::stoll(match[3]));
    kind.gpu = *capacity_tokens(match[4]);
    kind.cpu = *capacity_tokens(match[5]);
    if (kind.gpu < kind.block.value || (kind.cpu > 0) != match.str(1).starts_with("hiradix")) {
      return std::nullopt;
    }
  } else if (std::regex_match(name, match, lmcache)) {
    kind.engine = OracleEngine::lmcache;
    kind.eviction = match[1];
    kind.block = Tokens(std::stoll(match[2]));
  } else {
    return std::nullopt;
  }
  const bool whole = kind.block.value > 0 && kind.held > 0 && kind.held <= 4096 &&
                     (kind.engine != OracleEngine::vllm_scheduler ||
                      (kind.gpu > 0 && (kind.cpu > 0) == (kind.eviction != "none")));
  return whole ? std::optional(kind) : std::nullopt;
}

}  // namespace kvtier
