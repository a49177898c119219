#include "sim/cli/profile_modes.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "calibrate/calibrate.hpp"
#include "calibrate/check.hpp"
#include "calibrate/explain.hpp"
#include "calibrate/from_table.hpp"
#include "hw/profile/described_gpu.hpp"
#include "hw/profile/profile_timing.hpp"
#include "sim/backend/topology.hpp"
#include "sim/cli/output.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/core/errors.hpp"
#include "sim/core/file.hpp"
#include "sim/core/text.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/config/resolve.hpp"

namespace kvtier::cli {
namespace {

/// Reads a map of columns by its path or its name in configs/columns.
calibrate::ColumnMap find_columns(const std::string& name, const ConfigDirectory& presets) {
  if (name == "standard") {
    return calibrate::standard_columns();
  }
  if (name.find('/') != std::string::npos || name.ends_with(".json")) {
    return calibrate::read_columns(name);
  }
  const std::filesystem::path path = presets.file("columns", name);
  if (!is_file(path)) {
    std::vector<std::string> known = presets.names("columns");
    known.insert(known.begin(), "standard");
    throw ConfigError(
        fmt::format("--columns: expected one of {}, or the path of a file, got "
                    "{}{}",
                    fmt::join(known, ", "), quote_text(name), suggestion(name, known)));
  }
  return calibrate::read_columns(path);
}

std::vector<calibrate::KvSource> kv_sources(const HardwareConfig& hardware) {
  const Topology topology = server_topology(hardware);
  std::vector<calibrate::KvSource> sources;
  for (const Edge& edge : topology.edges) {
    if (edge.to == Medium::hbm) {
      sources.push_back({to_string(edge.from), edge.idle_rate,
                         [edge](Bytes bytes) { return edge.idle_time(bytes); }});
    }
  }
  return sources;
}

}  // namespace

int import_tables_command(const Program& program, const TableImportOptions& options) {
  if (options.out.empty()) {
    throw ConfigError("--from-table: needs --out");
  }
  if (options.columns.size() > 1 && options.columns.size() != options.tables.size()) {
    throw ConfigError(
        fmt::format("--columns: expected one for all tables or one for each, got {} "
                    "for {}",
                    options.columns.size(), options.tables.size()));
  }
  check_outputs({{"--out", options.out}},
                joined({options.tables, options.columns, {options.model, options.hardware}}));
  const ConfigDirectory presets = program.presets();
  std::vector<calibrate::TableFile> files;
  bool needs_model = false;
  for (std::size_t i = 0; i < options.tables.size(); ++i) {
    const std::string columns = options.columns.empty()       ? "standard"
                                : options.columns.size() == 1 ? options.columns.front()
                                                              : options.columns[i];
    files.push_back({options.tables[i], find_columns(columns, presets)});
    needs_model =
        needs_model || std::ranges::any_of(files.back().columns.rules,
                                           [](const auto& rule) { return rule.sizes.empty(); });
  }
  if (needs_model && options.model.empty()) {
    throw ConfigError("--from-table: needs --model, whose shapes were timed");
  }
  std::optional<ModelConfig> model;
  if (!options.model.empty()) {
    model = resolve_model(options.model, presets, "--model");
  }
  HardwareConfig hardware =
      resolve_hardware(options.hardware, model.value_or(ModelConfig{}), presets);
  hardware.efficiency.compute = options.compute.value_or(hardware.efficiency.compute);
  hardware.efficiency.memory = options.memory.value_or(hardware.efficiency.memory);
  TextOutput out(options.out);
  const std::string name = !options.name.empty() ? options.name
                           : model ? fmt::format("{} on {}", model->name, hardware.gpu.name)
                                   : hardware.gpu.name;
  const calibrate::ImportOptions import{
      .name = name,
      .thinning = options.compact ? calibrate::Thinning::compact : calibrate::Thinning::none,
      .gpus = options.gpus};
  calibrate::Imported imported =
      calibrate::import_tables(files, model ? &*model : nullptr, hardware, import);
  if (!options.engine.empty()) {
    imported.profile.provenance.libraries["engine"] = options.engine;
  }
  imported.profile.provenance.notes.insert(imported.profile.provenance.notes.end(),
                                           options.notes.begin(), options.notes.end());
  imported.profile.provenance.date = calibrate::utc_now();
  imported.profile.provenance.command = options.command;
  // The imported profile must be readable before it is written.
  Problems problems;
  check_profile(imported.profile, problems);
  problems.throw_if_any();
  const std::vector<calibrate::FitRow> rows =
      calibrate::judge_fit(imported.profile, model ? &*model : nullptr, hardware, options.seed);
  out.write(
      profile_text(imported.profile, options.compact ? CellLayout::grids : CellLayout::lines));
  print("{}", calibrate::to_text(imported, rows, hardware));
  return 0;
}

int cross_validate_command(const Program& program, const std::string& profile, std::uint64_t seed) {
  const ConfigDirectory presets = program.presets();
  const calibrate::CheckReport report =
      calibrate::cross_validate(*resolve_profile(profile, presets), seed);
  print("{}", calibrate::to_text(report));
  return report.in_band() ? 0 : 1;
}

int compare_profiles_command(const Program& program, const std::string& profile,
                             const std::string& other) {
  const ConfigDirectory presets = program.presets();
  const calibrate::CheckReport report =
      calibrate::compare_with(*resolve_profile(profile, presets), *resolve_profile(other, presets));
  print("{}", calibrate::to_text(report));
  return 0;
}

int convert_profile_command(const std::string& profile, const std::string& out) {
  if (out.empty()) {
    throw ConfigError("--convert: needs --out");
  }
  check_outputs({{"--out", out}}, {profile});
  const Json old = parse_json_strictly(read_text_file(profile), profile);
  const bool has_grids = old.is_object() && old.contains("tables") && old["tables"].is_array() &&
                         std::ranges::any_of(old["tables"], [](const Json& table) {
                           return table.is_object() && table.contains("grid");
                         });
  const Profile converted = profile_from_json(convert_profile(old, profile), profile);
  TextOutput(out).write(profile_text(converted, has_grids ? CellLayout::grids : CellLayout::lines));
  print("{}: {}\n", out, kProfileFormat);
  return 0;
}

int explain_command(const Program& program, const ExplainCommandOptions& options) {
  if (options.model.empty()) {
    throw ConfigError("--explain: needs --model");
  }
  const ConfigDirectory presets = program.presets();
  const ModelConfig model = resolve_model(options.model, presets, "--model");
  Json named{{"profile", options.profile}};
  if (!options.hardware.empty()) {
    named["preset"] = options.hardware;
    named["gpus"] = options.gpus;
  }
  if (options.roofline) {
    named["unmeasured"] = "roofline";
  }
  const HardwareConfig hardware = resolve_hardware(named, model, presets);
  Problems problems;
  check_measured_gpu(model, hardware, problems);
  check_profile_timing(model, hardware, problems);
  problems.throw_if_any();
  const auto timing = make_timing(model, hardware, KeyPositions::decoupled, 1);
  print("{}",
        calibrate::explain(model, hardware, *timing, kv_sources(hardware),
                           {.history = Tokens(options.history), .prompt = Tokens(options.prompt)}));
  return 0;
}

}  // namespace kvtier::cli
