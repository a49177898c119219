#include <algorithm>

#include <fmt/format.h>

#include "hw/model/hardware.hpp"
#include "hw/model/model.hpp"
#include "hw/model/prices.hpp"
#include "sim/cli/commands.hpp"
#include "sim/cli/program.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/cli/validators.hpp"
#include "sim/core/file.hpp"
#include "sim/study/config/presets.hpp"
#include "sim/study/config/reference.hpp"
#include "sim/study/config/resolve.hpp"
#include "sim/study/plan/plan.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace kvtier::cli {
namespace {

template <class Interface>
void list_kind(const char* title, const std::vector<PolicyKind<Interface>>& kinds) {
  print("{}\n", title);
  for (const auto& kind : kinds) {
    print("  {:<20}{}\n  {:<20}knowledge {}; {}\n", kind.name, kind.summary, "",
          to_string(kind.knowledge), kind.source);
    for (const PolicyParameter& parameter : kind.parameters) {
      print("  {:<20}{} ({}, {} to {}, default {}): {}\n", "", parameter.name, parameter.unit,
            parameter.minimum, parameter.maximum,
            parameter.default_value ? fmt::format("{}", *parameter.default_value) : "auto",
            parameter.documentation);
    }
  }
}

void list_policies(const Program& program) {
  const PolicyRegistry registry = program.policies();
  list_kind("eviction (/system/tiers/TIER/eviction)", registry.eviction);
  list_kind("admission (/system/tiers/TIER/admission)", registry.admission);
  list_kind("prefetch (/system/prefetch)", registry.prefetch);
  list_kind("order (/system/order)", registry.order);
  list_kind("routing (/cluster/router)", registry.routing);
}

/// Reads the presets of a folder and prints a line for each. `key` is the presets' config key.
template <class Config, class Describe>
void list_presets(const ConfigDirectory& presets, const std::string& kind, const std::string& key,
                  const Describe& line) {
  for (const std::string& name : presets.names(kind)) {
    Config config;
    Problems problems;
    problems.set_origin("", presets.file(kind, name).string());
    read_value(config, preset_json(key, name, presets), "", problems);
    problems.throw_if_any();
    print("{:<24}{}\n", name, line(config));
  }
}

void list_prices(const ConfigDirectory& presets) {
  for (const std::string& name : presets.names("prices")) {
    print("{}\n", name);
    PriceList list;
    Problems problems;
    const std::filesystem::path file = presets.file("prices", name);
    problems.set_origin("", file.string());
    read_value(list, read_json_file(file), "", problems);
    if (problems.empty()) {
      check_prices(list, problems);
    }
    problems.throw_if_any();
    for (const PriceEntry& entry : list.prices) {
      const bool is_gpu = entry.part == PricedPart::gpu;
      print("  {:<5}{:<20}{:>9.3g} {:<8} {:<11}{}\n       {}\n",
            write_value(entry.part).get<std::string>(), entry.price, dollars_per_hour(entry),
            is_gpu ? "$/h" : "$/h/GiB", entry.date, entry.item, entry.source);
    }
  }
}

int list_command(const Program& program, const std::string& what) {
  if (what == "policies") {
    list_policies(program);
    return 0;
  }
  const ConfigDirectory presets = ConfigDirectory::find(program.config_dir);
  if (what == "systems") {
    list_presets<SystemConfig>(presets, "systems", "system",
                               [](const SystemConfig& system) { return system.summary; });
  } else if (what == "models") {
    list_presets<ModelConfig>(presets, "models", "model", [](const ModelConfig& model) {
      return fmt::format("{:>5.1f} billion parameters, {:>9} bytes of KV per token, window {}",
                         static_cast<double>(parameters(model)) * 1e-9,
                         kv_bytes_per_token(model).value, model.context_window.value);
    });
  } else if (what == "prices") {
    list_prices(presets);
  } else {
    list_presets<HardwareConfig>(
        presets, "hardware", "hardware", [](const HardwareConfig& hardware) {
          return fmt::format("{} x {}, {} DRAM, {} CXL, {} SSD", hardware.gpus, hardware.gpu.name,
                             hardware.dram ? format_quantity(hardware.dram->capacity) : "no",
                             hardware.cxl ? format_quantity(hardware.cxl->capacity) : "no",
                             hardware.ssd ? format_quantity(hardware.ssd->capacity) : "no");
        });
  }
  return 0;
}

Json json_schema(const std::string& which) {
  if (which == "sweep") {
    Sweep sweep;
    return file_schema(which, value_schema(sweep));
  }
  if (which == "plan") {
    Plan plan;
    return file_schema(which, value_schema(plan));
  }
  return config_json_schema(which);
}

}  // namespace

void add_list(Program& program) {
  auto what = std::make_shared<std::string>();
  CLI::App* command =
      program.app.add_subcommand("list", "List systems, policies, models, hardware or prices");
  command->add_option("WHAT", *what, "systems, policies, models, hardware or prices")
      ->required()
      ->check(one_of({"systems", "policies", "models", "hardware", "prices"}));
  command->callback([&program, what] {
    program.run = [&program, what] { return list_command(program, *what); };
  });
}

void add_schema(Program& program) {
  auto which = std::make_shared<std::string>("run");
  auto markdown = std::make_shared<bool>(false);
  CLI::App* command =
      program.app.add_subcommand("schema", "Print the JSON Schema of configs, for editors");
  command->add_option("WHICH", *which, "run, model, hardware, system, profile, sweep or plan")
      ->check(one_of({"run", "model", "hardware", "system", "profile", "sweep", "plan"}));
  command->add_flag("--markdown", *markdown,
                    "Print a reference of all keys instead: values, defaults, meaning");
  command->callback([&program, which, markdown] {
    program.run = [&program, which, markdown] {
      if (*markdown) {
        print("{}", config_reference(*which, program.policies()));
        return 0;
      }
      print("{}\n", json_text(json_schema(*which), 2));
      return 0;
    };
  });
}

}  // namespace kvtier::cli
