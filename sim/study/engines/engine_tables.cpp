#include "sim/study/engines/engine_tables.hpp"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "sim/core/file.hpp"
#include "sim/study/engines/table_calls.hpp"

namespace kvtier {
namespace {

constexpr const char* kSchema = "kvtier.engine_tables/1";

/// A call's expected and actual results.
struct Row {
  std::int64_t call = 0;
  Json expected;
  Json got;
};

std::unique_ptr<TableCalls> make_calls(const Json& system, const std::string& kind,
                                       const StoreKind& store, const ConfigDirectory& presets) {
  if (kind == "tree") {
    return make_tree_calls(system, store);
  }
  return (kind == "gpu" ? make_gpu_calls : make_cpu_calls)(
      system, vllm_rules(presets, kind != "gpu"), store);
}

std::vector<Row> run_calls(const EngineTable& table, TableCalls& calls) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.calls.size(); ++i) {
    const Json& call = table.calls[i];
    try {
      const Json results = calls.make(call);
      if (!call.contains("expect")) {
        continue;
      }
      Row row{.call = static_cast<std::int64_t>(i)};
      for (const auto& [name, value] : call["expect"].items()) {
        row.expected[name] = calls.expected(name, value);
        row.got[name] = results.value(name, Json("not known"));
      }
      rows.push_back(std::move(row));
    } catch (const Json::exception& error) {
      throw ConfigError(fmt::format("{}: call {}: {}", table.name, i, error.what()));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: call {}: {}", table.name, i, error.what()));
    }
  }
  return rows;
}

}  // namespace

EngineTables read_engine_tables(const std::filesystem::path& path) {
  const Json file = parse_json_strictly(read_text_file(path), path.string());
  try {
    if (file.at("schema") != kSchema) {
      throw ConfigError(fmt::format("{}: /schema: expected \"{}\", got {}", path.string(), kSchema,
                                    quote_json(file.at("schema"))));
    }
    EngineTables tables{.engine = file.at("engine").get<std::string>(), .tables = {}};
    for (const Json& table : file.at("tables")) {
      tables.tables.push_back({.name = table.at("name").get<std::string>(),
                               .system = table.at("system"),
                               .calls = table.at("calls"),
                               .not_executed = table.value("not_executed", "")});
    }
    return tables;
  } catch (const Json::exception& error) {
    throw ConfigError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

std::variant<EngineComparison, NotRun> compare_with_calls(const EngineTable& table,
                                                          const ConfigDirectory& presets) {
  try {
    const auto kind = table.system.at("kind").get<std::string>();
    if (!table.not_executed.empty()) {
      return NotRun{table.not_executed};
    }
    if (kind != "gpu" && kind != "cpu" && kind != "tiers" && kind != "tree") {
      return NotRun{fmt::format("kind {}", kind)};
    }
    std::vector<std::vector<Row>> runs;
    for (const StoreKind& store : store_kinds()) {
      runs.push_back(run_calls(table, *make_calls(table.system, kind, store, presets)));
    }
    EngineComparison comparison{.name = table.name, .capacity = {}};
    for (std::size_t i = 0; i < runs.front().size(); ++i) {
      ++comparison.rows;
      for (const std::vector<Row>& run : runs) {
        if (run[i].got != run[i].expected) {
          comparison.add_difference({run[i].call, run[i].expected, run[i].got});
          break;
        }
      }
    }
    return comparison;
  } catch (const Unsupported& unsupported) {
    return NotRun{unsupported.reason};
  } catch (const Json::exception& error) {
    throw ConfigError(fmt::format("{}: {}", table.name, error.what()));
  }
}

}  // namespace kvtier
